//! Reading sets: tensors of which each must be asked for, and JSON.

use super::ReferenceError;
use super::report::Tally;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A safetensors file that remembers what was read of it.
pub(super) struct Tensors {
    path: PathBuf,
    bytes: Vec<u8>,
    /// Type and shape by name.
    entries: BTreeMap<String, (Dtype, Vec<usize>)>,
    read: RefCell<BTreeSet<String>>,
}

impl Tensors {
    pub(super) fn open(path: &Path) -> Result<Self, ReferenceError> {
        let read = |reason: String| ReferenceError::Read {
            path: path.to_owned(),
            reason,
        };
        let bytes = std::fs::read(path).map_err(|e| read(e.to_string()))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| read(e.to_string()))?;
        let entries = file
            .iter()
            .map(|(name, view)| (name.to_owned(), (view.dtype(), view.shape().to_vec())))
            .collect();
        Ok(Self {
            path: path.to_owned(),
            bytes,
            entries,
            read: RefCell::default(),
        })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    pub(super) fn shape(&self, name: &str) -> Result<&[usize], ReferenceError> {
        let entry = self
            .entries
            .get(name)
            .ok_or_else(|| self.wrong(name, "is missing"))?;
        Ok(&entry.1)
    }

    /// The last dimension.
    pub(super) fn width(&self, name: &str) -> Result<usize, ReferenceError> {
        let last = self.shape(name)?.last().copied();
        last.filter(|w| *w > 0)
            .ok_or_else(|| self.wrong(name, "has no width"))
    }

    /// F32 or F64 values.
    pub(super) fn numbers(&self, name: &str) -> Result<Vec<f64>, ReferenceError> {
        let (dtype, data) = self.data(name)?;
        if dtype == Dtype::F32 {
            let all = data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
            Ok(all.map(f64::from).collect())
        } else if dtype == Dtype::F64 {
            let all = data.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b));
            Ok(all.collect())
        } else {
            Err(self.wrong(name, &format!("is {dtype:?}, not F32 or F64")))
        }
    }

    pub(super) fn f32(&self, name: &str) -> Result<Vec<f32>, ReferenceError> {
        Ok(self.numbers(name)?.iter().map(|v| *v as f32).collect())
    }

    /// I32 or I64 values of 0 or more.
    pub(super) fn ids(&self, name: &str) -> Result<Vec<u32>, ReferenceError> {
        let (dtype, data) = self.data(name)?;
        let negative = |_| self.wrong(name, "has a number that is no token id");
        if dtype == Dtype::I32 {
            let all = data.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b));
            all.map(u32::try_from).collect::<Result<_, _>>().map_err(negative)
        } else if dtype == Dtype::I64 {
            let all = data.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b));
            all.map(u32::try_from).collect::<Result<_, _>>().map_err(negative)
        } else {
            Err(self.wrong(name, &format!("is {dtype:?}, not I32 or I64")))
        }
    }

    pub(super) fn bytes(&self, name: &str) -> Result<Vec<u8>, ReferenceError> {
        let (dtype, data) = self.data(name)?;
        if dtype == Dtype::U8 {
            Ok(data)
        } else {
            Err(self.wrong(name, &format!("is {dtype:?}, not U8")))
        }
    }

    /// A mask as booleans.
    pub(super) fn mask(&self, name: &str) -> Result<Vec<bool>, ReferenceError> {
        Ok(self.ids(name)?.iter().map(|m| *m == 1).collect())
    }

    /// Each row's values where the mask is set; both [rows, width].
    pub(super) fn unmasked<T: Copy>(&self, values: &[T], mask: &str) -> Result<Vec<Vec<T>>, ReferenceError> {
        let width = self.width(mask)?;
        let mask_values = self.mask(mask)?;
        if mask_values.len() != values.len() {
            return Err(self.wrong(mask, "has another number of places than what it masks"));
        }
        let row = |(values, mask): (&[T], &[bool])| {
            let kept = values.iter().zip(mask).filter(|(_, m)| **m);
            kept.map(|(v, _)| *v).collect()
        };
        Ok(values
            .chunks(width)
            .zip(mask_values.chunks(width))
            .map(row)
            .collect())
    }

    /// Type and bytes of a tensor, if it is there.
    pub(super) fn view(&self, name: &str) -> Option<(Dtype, &[u8])> {
        let file = SafeTensors::deserialize(&self.bytes).ok()?;
        let view = file.tensor(name).ok()?;
        self.read.borrow_mut().insert(name.to_owned());
        Some((view.dtype(), view.data()))
    }

    /// Tells `tally` of every tensor that nothing has asked for.
    pub(super) fn finish(&self, tally: &mut Tally) {
        let read = self.read.borrow();
        let left: Vec<&str> = self.names().filter(|name| !read.contains(*name)).collect();
        if !left.is_empty() {
            tally.problem(format!(
                "{}: {} tensors that nothing here knows, the first: {}",
                self.path.display(),
                left.len(),
                left[0]
            ));
        }
    }

    fn data(&self, name: &str) -> Result<(Dtype, Vec<u8>), ReferenceError> {
        let file = SafeTensors::deserialize(&self.bytes).map_err(|e| self.wrong(name, &e.to_string()))?;
        let view = file.tensor(name).map_err(|_| self.wrong(name, "is missing"))?;
        self.read.borrow_mut().insert(name.to_owned());
        Ok((view.dtype(), view.data().to_vec()))
    }

    fn wrong(&self, name: &str, reason: &str) -> ReferenceError {
        ReferenceError::Tensor {
            path: self.path.clone(),
            name: name.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

/// A JSON file.
pub(super) fn json(path: &Path) -> Result<Value, ReferenceError> {
    let read = |reason: String| ReferenceError::Read {
        path: path.to_owned(),
        reason,
    };
    let bytes = std::fs::read(path).map_err(|e| read(e.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|e| read(e.to_string()))
}

/// A JSON object with a name for errors.
#[derive(Clone, Copy)]
pub(super) struct Object<'a> {
    pub(super) what: &'a str,
    pub(super) value: &'a Value,
}

impl<'a> Object<'a> {
    pub(super) fn number(&self, key: &str) -> Result<f64, ReferenceError> {
        self.get(key)
            .and_then(Value::as_f64)
            .ok_or_else(|| self.no(key, "number"))
    }

    pub(super) fn count(&self, key: &str) -> Result<usize, ReferenceError> {
        let count = self.get(key).and_then(Value::as_u64);
        count.map(|n| n as usize).ok_or_else(|| self.no(key, "count"))
    }

    /// A count, or `default` where the key is absent.
    pub(super) fn count_or(&self, key: &str, default: usize) -> Result<usize, ReferenceError> {
        if self.get(key).is_some() {
            self.count(key)
        } else {
            Ok(default)
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<&'a str, ReferenceError> {
        self.get(key)
            .and_then(Value::as_str)
            .ok_or_else(|| self.no(key, "text"))
    }

    pub(super) fn list(&self, key: &str) -> Result<&'a [Value], ReferenceError> {
        let list = self.get(key).and_then(Value::as_array);
        list.map(Vec::as_slice).ok_or_else(|| self.no(key, "list"))
    }

    /// A list that holds something: nothing would be compared with an empty one.
    pub(super) fn items(&self, key: &str) -> Result<&'a [Value], ReferenceError> {
        let list = self.get(key).and_then(Value::as_array);
        let list = list.filter(|l| !l.is_empty());
        list.map(Vec::as_slice)
            .ok_or_else(|| self.no(key, "list that is not empty"))
    }

    pub(super) fn numbers(&self, key: &str) -> Result<Vec<f64>, ReferenceError> {
        numbers(self.list(key)?).ok_or_else(|| self.no(key, "list of numbers"))
    }

    /// What stands at a key, unless it is absent or null.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.value.get(key).filter(|v| !v.is_null())
    }

    pub(super) fn no(&self, key: &str, must: &'static str) -> ReferenceError {
        ReferenceError::Key {
            what: self.what.to_owned(),
            key: key.to_owned(),
            must,
        }
    }
}

/// All of a list as numbers.
pub(super) fn numbers(list: &[Value]) -> Option<Vec<f64>> {
    list.iter().map(Value::as_f64).collect()
}
