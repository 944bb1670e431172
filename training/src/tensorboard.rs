//! TensorBoard's event files: scalars by name and step.
//!
//! A file is a row of records: length (u64), its masked CRC-32C, the event, the event's masked CRC-32C, all little
//! endian (TensorFlow's `tfrecord`). An event is a protobuf (`tensorboard/compat/proto/event.proto`): wall time 1 (double),
//! step 2 (int64), file version 3, summary 5, session log 7. Few fields of few messages: they are written here by hand.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Why an event file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("event file {path}: {source}; check the path and the free space")]
pub struct EventsError {
    /// The file.
    pub path: PathBuf,
    /// The system's reason.
    pub source: std::io::Error,
}

/// Appends events to a file of its own. Each is one `write`, so that a kill tears at most the last one, which readers
/// leave out.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// A new file in `dir`, which is made. What earlier files say from step `from` on is void: a resumed run takes
    /// those steps again.
    ///
    /// # Errors
    /// When the file cannot be made or written.
    pub fn create(dir: &Path, from: u64) -> Result<Self, EventsError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // TensorBoard reads a directory's files in the order of their names.
        let name = format!(
            "events.out.tfevents.{}.{:09}.{}.gym",
            now.as_secs(),
            now.subsec_nanos(),
            std::process::id()
        );
        let path = dir.join(name);
        let open = || {
            std::fs::create_dir_all(dir)?;
            OpenOptions::new().append(true).create_new(true).open(&path)
        };
        let file = open().map_err(|source| EventsError {
            path: path.clone(),
            source,
        })?;
        let mut writer = Self { path, file };
        writer.write(&Message::event(0).text(3, "brain.Event:2"))?;
        let started = Message::default().varint(1, 1);
        writer.write(&Message::event(from).message(7, &started))?;
        Ok(writer)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one event with all of `scalars`, as f32; those that are not finite are left out.
    ///
    /// # Errors
    /// A full disk.
    pub fn scalars<'a>(
        &mut self,
        step: u64,
        scalars: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> Result<(), EventsError> {
        let mut summary = Message::default();
        for (name, value) in scalars.into_iter().filter(|(_, value)| value.is_finite()) {
            let value = Message::default().text(1, name).float(2, value as f32);
            summary = summary.message(1, &value);
        }
        self.write(&Message::event(step).message(5, &summary))
    }

    fn write(&mut self, event: &Message) -> Result<(), EventsError> {
        self.file
            .write_all(&record(&event.0))
            .map_err(|source| EventsError {
                path: self.path.clone(),
                source,
            })
    }
}

fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut bytes = Vec::with_capacity(event.len() + 16);
    bytes.extend(length);
    bytes.extend(masked(crc32c(&length)).to_le_bytes());
    bytes.extend(event);
    bytes.extend(masked(crc32c(event)).to_le_bytes());
    bytes
}

/// A CRC of data that holds CRCs is weak; so it is turned and shifted.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: a few hundred bytes a step.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

/// A protobuf message under way.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    /// An event of this moment.
    fn event(step: u64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::default().double(1, now.as_secs_f64()).varint(2, step)
    }

    fn varint(mut self, field: u8, value: u64) -> Self {
        self.0.push(field << 3);
        self.push_varint(value);
        self
    }

    fn double(mut self, field: u8, value: f64) -> Self {
        self.0.push(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn float(mut self, field: u8, value: f32) -> Self {
        self.0.push(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn text(self, field: u8, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u8, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    fn bytes(mut self, field: u8, bytes: &[u8]) -> Self {
        self.0.push(field << 3 | 2);
        self.push_varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn push_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, B.4, and TensorFlow's own mask of it.
    #[test]
    fn checksums_are_castagnolis() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked(0), 0xa282_ead8);
        assert_eq!(masked(0xe306_9283), 0xc78a_b0e5);
    }

    /// A reader of the little that is written: (wire type, field, bytes or number).
    fn fields(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>, u64)> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let mut value = 0;
            for shift in (0..).step_by(7) {
                let byte = bytes[0];
                *bytes = &bytes[1..];
                value |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    return value;
                }
            }
            value
        }
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let (number, length) = match key & 7 {
                0 => (varint(&mut bytes), 0),
                1 => (0, 8),
                2 => (0, varint(&mut bytes) as usize),
                5 => (0, 4),
                other => panic!("wire type {other}"),
            };
            all.push(((key >> 3) as u8, bytes[..length].to_vec(), number));
            bytes = &bytes[length..];
        }
        all
    }

    fn events(mut file: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while !file.is_empty() {
            let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
            let event = &file[12..12 + length];
            assert_eq!(file[..16 + length], record(event));
            all.push(event.to_vec());
            file = &file[16 + length..];
        }
        all
    }

    #[test]
    fn scalars_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(&dir.path().join("runs"), 7).unwrap();
        let scalars = [("reward", 0.25), ("loss", f64::NAN), ("kl", -1.5)];
        writer.scalars(300, scalars).unwrap();
        let events = events(&std::fs::read(writer.path()).unwrap());
        assert_eq!(events.len(), 3);
        assert_eq!(fields(&events[0])[2].1, b"brain.Event:2");
        assert_eq!((fields(&events[1])[1].2, fields(&events[1])[2].0), (7, 7));
        let event = fields(&events[2]);
        assert_eq!((event[1].0, event[1].2), (2, 300));
        let values = fields(&event[2].1);
        let value = |at: usize| {
            let parts = fields(&values[at].1);
            (
                parts[0].1.clone(),
                f32::from_le_bytes(parts[1].1.clone().try_into().unwrap()),
            )
        };
        assert_eq!(
            (values.len(), value(0), value(1)),
            (2, (b"reward".to_vec(), 0.25), (b"kl".to_vec(), -1.5))
        );
    }
}
