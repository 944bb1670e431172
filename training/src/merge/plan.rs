//! What goes where.

use super::files::Sources;
use super::tensor::{Change, Merged};
use super::{MergeError, MergeOptions, MergeReport, MergedDtype};
use crate::lora::Lora;
use crate::model::{ModelConfig, SaveError, StoredAt, stored_at, write_json};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, View};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The merged model's files: names of tensors, and how each tensor comes about.
pub(super) struct Plan<'a> {
    shards: Vec<BTreeMap<String, Merged<'a>>>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        config: &ModelConfig,
        lora: &Lora,
        sources: &'a Sources,
        options: &MergeOptions,
    ) -> Result<Self, MergeError> {
        let tensors = sources.tensors()?;
        let mut changes = changes(config, lora, &tensors)?;
        let mut shards = vec![BTreeMap::new()];
        let mut filled = 0;
        for (name, source) in tensors {
            let changes = changes.remove(&name).unwrap_or_default();
            let dtype = kind(options.dtype, source.dtype());
            let merged = Merged::new(dtype, source, changes);
            let bytes = (&merged).data_len() as u64;
            if filled > 0 && filled + bytes > options.shard_bytes {
                shards.push(BTreeMap::new());
                filled = 0;
            }
            filled += bytes;
            if let Some(shard) = shards.last_mut() {
                shard.insert(name, merged);
            }
        }
        Ok(Self { shards })
    }

    /// Writes every file under a temporary name, renames it, and writes the index last.
    pub(super) fn write(&self, out: &Path) -> Result<(), SaveError> {
        let mut map = Map::new();
        for (index, shard) in self.shards.iter().enumerate() {
            let file = self.file_name(index);
            map.extend(shard.keys().map(|name| (name.clone(), json!(file))));
            write_shard(&out.join(&file), shard)?;
        }
        let index = json!({
            "metadata": { "total_size": self.bytes() },
            "weight_map": Value::Object(map),
        });
        write_json(&out.join("model.safetensors.index.json"), &index)
    }

    pub(super) fn report(&self, layers: usize) -> MergeReport {
        MergeReport {
            tensors: self.shards.iter().map(BTreeMap::len).sum(),
            layers,
            shards: self.shards.len(),
            bytes: self.bytes(),
        }
    }

    fn bytes(&self) -> u64 {
        let all = self.shards.iter().flat_map(BTreeMap::values);
        all.map(|t| t.data_len() as u64).sum()
    }

    fn file_name(&self, index: usize) -> String {
        match self.shards.len() {
            1 => "model.safetensors".into(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        }
    }
}

/// Every change by the name of the tensor it falls in, experts apart or within one tensor.
fn changes(
    config: &ModelConfig,
    lora: &Lora,
    tensors: &BTreeMap<String, TensorView<'_>>,
) -> Result<BTreeMap<String, Vec<Change>>, MergeError> {
    let mut changes: BTreeMap<String, Vec<Change>> = BTreeMap::new();
    for (module, adapter) in lora.pairs() {
        let name = format!("{module}.weight");
        let shape = [adapter.b.dims()[0], adapter.a.dims()[1]];
        let places = stored_at(config, &name, shape);
        let found = places
            .into_iter()
            .find_map(|place| tensors.get(&place.name).map(|tensor| (place, tensor)));
        let (place, tensor) = found.ok_or(MergeError::Missing { name })?;
        check(&place, tensor)?;
        changes.entry(place.name).or_default().push(Change {
            start: place.start,
            adapter: adapter.clone(),
        });
    }
    Ok(changes)
}

fn check(place: &StoredAt, tensor: &TensorView<'_>) -> Result<(), MergeError> {
    if ![Dtype::F32, Dtype::F16, Dtype::BF16].contains(&tensor.dtype()) {
        return Err(MergeError::Kind {
            name: place.name.clone(),
            dtype: tensor.dtype(),
        });
    }
    if tensor.shape() != place.shape {
        return Err(MergeError::Shape {
            name: place.name.clone(),
            got: tensor.shape().to_vec(),
            want: place.shape.clone(),
        });
    }
    Ok(())
}

/// The kind that a tensor is written as. What is no float of these stays.
fn kind(wanted: MergedDtype, dtype: Dtype) -> Dtype {
    if ![Dtype::F32, Dtype::F16, Dtype::BF16].contains(&dtype) {
        return dtype;
    }
    match wanted {
        MergedDtype::Kept => dtype,
        MergedDtype::F32 => Dtype::F32,
        MergedDtype::Bf16 => Dtype::BF16,
        MergedDtype::F16 => Dtype::F16,
    }
}

fn write_shard(path: &Path, shard: &BTreeMap<String, Merged<'_>>) -> Result<(), SaveError> {
    let partial = path.with_extension("safetensors.partial");
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(shard.iter(), Some(metadata), &partial).map_err(|e| {
        SaveError::Encode {
            path: partial.clone(),
            reason: e.to_string(),
        }
    })?;
    let flushed = std::fs::File::open(&partial).and_then(|file| {
        // The library makes it the owner's alone; the directory's other files are for whoever the directory admits.
        file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.sync_all()
    });
    flushed
        .and_then(|()| std::fs::rename(&partial, path))
        .map_err(|source| SaveError::Write {
            path: path.to_owned(),
            source,
        })
}
