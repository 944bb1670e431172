//! Parquet, row by row, as the JSON objects that its rows are.

use super::rows::question;
use super::{DataError, LineError, MAX_LINE_BYTES, Question};
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::{Field, Row};
use gym_protocol::job::spec::ColumnsSpec;
use serde_json::{Map, Number, Value};
use std::fs::File;
use std::io::{Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// A file that says it unpacks to more than this is refused.
const MAX_UNPACKED: i64 = 16 << 30;

/// Whether the file starts as Parquet files do. The reading place stays at the start.
pub(super) fn is_parquet(file: &mut File) -> std::io::Result<bool> {
    let mut start = Vec::new();
    file.take(4).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(start == b"PAR1")
}

/// Every row's question.
pub(super) fn read(file: File, path: &Path, columns: &ColumnsSpec) -> Result<Vec<Question>, DataError> {
    // The reader checks less than it should: a broken file may be a panic inside it.
    catch_unwind(AssertUnwindSafe(|| read_rows(file, path, columns)))
        .unwrap_or_else(|_| Err(refused(path, "the reader gave up on it")))
}

fn read_rows(file: File, path: &Path, columns: &ColumnsSpec) -> Result<Vec<Question>, DataError> {
    let broken = |e: ::parquet::errors::ParquetError| refused(path, &e.to_string());
    let reader = SerializedFileReader::new(file).map_err(broken)?;
    let sizes = reader.metadata().row_groups().iter().map(|g| g.total_byte_size());
    if sizes.fold(0i64, i64::saturating_add) > MAX_UNPACKED {
        return Err(refused(path, "it unpacks to more than 16 GiB"));
    }
    let mut questions = Vec::new();
    for row in reader.get_row_iter(None).map_err(broken)? {
        let place = questions.len() as u64;
        let line = |reason| DataError::Line {
            path: path.to_owned(),
            line: place + 1,
            reason,
        };
        let raw = object(&row.map_err(broken)?);
        if raw.to_string().len() as u64 > MAX_LINE_BYTES {
            return Err(line(LineError::TooLong));
        }
        questions.push(question(raw, place, columns).map_err(line)?);
    }
    Ok(questions)
}

fn refused(path: &Path, reason: &str) -> DataError {
    DataError::Parquet {
        path: path.to_owned(),
        reason: reason.to_owned(),
    }
}

fn object(row: &Row) -> Value {
    let pairs = row
        .get_column_iter()
        .map(|(name, field)| (name.clone(), value(field)));
    Value::Object(pairs.collect::<Map<_, _>>())
}

/// JSON has no dates, bytes or NaN: those are text, lower-case hexadecimal and null.
fn value(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(v) => Value::Bool(*v),
        Field::Byte(v) => Value::from(*v),
        Field::Short(v) => Value::from(*v),
        Field::Int(v) => Value::from(*v),
        Field::Long(v) => Value::from(*v),
        Field::UByte(v) => Value::from(*v),
        Field::UShort(v) => Value::from(*v),
        Field::UInt(v) => Value::from(*v),
        Field::ULong(v) => Value::from(*v),
        Field::Float16(v) => real(f64::from(f32::from(*v))),
        Field::Float(v) => real(f64::from(*v)),
        Field::Double(v) => real(*v),
        Field::Str(v) => Value::from(v.as_str()),
        Field::Bytes(v) => Value::from(hex::encode(v.data())),
        Field::Group(row) => object(row),
        Field::ListInternal(list) => list.elements().iter().map(value).collect(),
        Field::MapInternal(map) => {
            let pairs = map.entries().iter().map(|(k, v)| (key(k), value(v)));
            Value::Object(pairs.collect::<Map<_, _>>())
        }
        Field::Decimal(_)
        | Field::Date(_)
        | Field::TimeMillis(_)
        | Field::TimeMicros(_)
        | Field::TimestampMillis(_)
        | Field::TimestampMicros(_) => Value::from(field.to_string()),
    }
}

fn real(v: f64) -> Value {
    Number::from_f64(v).map_or(Value::Null, Value::Number)
}

fn key(field: &Field) -> String {
    let value = value(field);
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
