//! The protobuf wire format, read field by field without allocation, so that bounds hold before memory is spent.

/// Why bytes are not the protobuf message they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end inside a field.
    #[error("truncated at offset {0}")]
    Truncated(usize),
    /// A variable-length integer has more than ten bytes.
    #[error("integer too long at offset {0}")]
    LongVarint(usize),
    /// A wire type that protobuf does not use any more, or field number zero.
    #[error("unknown field type at offset {0}")]
    UnknownType(usize),
}

/// One field's value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    /// An integer, boolean or enumeration.
    Varint(u64),
    /// Bytes, a string, or a nested message.
    Bytes(&'a [u8]),
    /// A fixed-width number, which none of our messages has.
    Fixed,
}

/// Reads fields in order.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// The next field's number and value, or nothing at the end.
    pub(crate) fn next_field(&mut self) -> Result<Option<(u64, Value<'a>)>, WireError> {
        if self.position == self.bytes.len() {
            return Ok(None);
        }
        let start = self.position;
        let key = self.varint()?;
        let number = key >> 3;
        if number == 0 {
            return Err(WireError::UnknownType(start));
        }
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(WireError::UnknownType(start)),
        };
        Ok(Some((number, value)))
    }

    /// The next bare integer, or nothing at the end (for packed lists).
    pub(crate) fn next_varint(&mut self) -> Result<Option<u64>, WireError> {
        if self.position == self.bytes.len() {
            Ok(None)
        } else {
            self.varint().map(Some)
        }
    }

    fn varint(&mut self) -> Result<u64, WireError> {
        let rest = &self.bytes[self.position..];
        match read_varint(rest) {
            Varint::Value(value, used) => {
                self.position += used;
                Ok(value)
            }
            Varint::Incomplete => Err(WireError::Truncated(self.bytes.len())),
            Varint::TooLong => Err(WireError::LongVarint(self.position)),
        }
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], WireError> {
        let rest = &self.bytes[self.position..];
        let length = usize::try_from(length).map_err(|_| WireError::Truncated(self.bytes.len()))?;
        let taken = rest.get(..length).ok_or(WireError::Truncated(self.bytes.len()))?;
        self.position += length;
        Ok(taken)
    }
}

/// What a prefix of bytes holds as a variable-length integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Varint {
    /// The value and how many bytes it took.
    Value(u64, usize),
    /// More bytes are needed.
    Incomplete,
    /// No integer of 64 bits.
    TooLong,
}

pub(crate) fn read_varint(bytes: &[u8]) -> Varint {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().enumerate() {
        let shift = 7 * index;
        if shift > 63 || (shift == 63 && *byte > 1) {
            return Varint::TooLong;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Varint::Value(value, index + 1);
        }
    }
    Varint::Incomplete
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends an integer field.
pub(crate) fn put_number(out: &mut Vec<u8>, field: u64, value: u64) {
    put_varint(out, field << 3);
    put_varint(out, value);
}

/// Appends a bytes, string or message field.
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_round_trip() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(read_varint(&bytes), Varint::Value(value, bytes.len()));
            assert_eq!(read_varint(&bytes[..bytes.len() - 1]), Varint::Incomplete);
        }
        assert_eq!(read_varint(&[0xff; 11]), Varint::TooLong);
    }

    #[test]
    fn a_length_beyond_the_end_is_truncation() {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, 1 << 3 | 2);
        put_varint(&mut bytes, u64::MAX);
        assert!(matches!(
            Reader::new(&bytes).next_field(),
            Err(WireError::Truncated(_))
        ));
    }
}
