//! Where tensors live: from `--device` to a device, with the reason for the choice.

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::str::FromStr;

/// `auto`, `cpu` or `cuda:N` (`cuda` is `cuda:0`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// The first CUDA device when the program was built for CUDA and there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device of this number.
    Cuda(u32),
}

/// A device, and how it came to be chosen.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The device.
    pub device: Device,
    /// Which one it is: never `Auto`.
    pub place: DeviceChoice,
    /// The reason, for people.
    pub why: String,
}

/// Why a device cannot be had.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The program has no CUDA in it.
    #[error(
        "--device {0}: this program was built without CUDA; build it with `cargo install --locked --path node --features cuda`, or use --device cpu"
    )]
    NotBuilt(DeviceChoice),
    /// There is no such GPU.
    #[error(
        "--device {device}: {found} CUDA devices answer; check the driver with nvidia-smi, or use --device cpu"
    )]
    NotThere {
        /// What was asked for.
        device: DeviceChoice,
        /// CUDA devices that answered.
        found: usize,
    },
}

/// The device that `choice` names. `auto` takes the first GPU that answers and otherwise the CPU, and says why.
///
/// # Errors
/// When a CUDA device is asked for that is not there.
pub fn resolve(choice: DeviceChoice) -> Result<Chosen, DeviceError> {
    let found = cuda_devices();
    match choice {
        DeviceChoice::Cpu => Ok(cpu("as asked")),
        DeviceChoice::Auto if found > 0 => Ok(cuda(0, "the first GPU that answers")),
        DeviceChoice::Auto => Ok(cpu(no_gpu())),
        DeviceChoice::Cuda(n) if (n as usize) < found => Ok(cuda(n, "as asked")),
        DeviceChoice::Cuda(_) if cfg!(feature = "cuda") => Err(DeviceError::NotThere {
            device: choice,
            found,
        }),
        DeviceChoice::Cuda(_) => Err(DeviceError::NotBuilt(choice)),
    }
}

fn cpu(why: &str) -> Chosen {
    Chosen {
        device: Device::flex(),
        place: DeviceChoice::Cpu,
        why: format!("cpu: {why}"),
    }
}

fn cuda(index: u32, why: &str) -> Chosen {
    let place = DeviceChoice::Cuda(index);
    Chosen {
        device: cuda_device(index as usize),
        place,
        why: format!("{place}: {why}"),
    }
}

/// Bytes that are free where `place` says: of the machine, or of the GPU as `nvidia-smi` tells it; `None` where nothing
/// tells.
#[must_use]
pub fn free_memory(place: DeviceChoice) -> Option<u64> {
    match place {
        DeviceChoice::Auto | DeviceChoice::Cpu => crate::memory::available(),
        DeviceChoice::Cuda(n) => {
            let args = [
                "--query-gpu=memory.free",
                "--format=csv,noheader,nounits",
                "-i",
                &n.to_string(),
            ];
            let output = std::process::Command::new("nvidia-smi")
                .args(args)
                .output()
                .ok()?;
            let mebibytes: u64 = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
            mebibytes.checked_mul(1 << 20)
        }
    }
}

/// Why `auto` found no GPU.
fn no_gpu() -> &'static str {
    if cfg!(not(feature = "cuda")) {
        "built without CUDA"
    } else if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        "no CUDA device answers, although an NVIDIA driver is loaded; nvidia-smi says more"
    } else {
        "no CUDA device answers: no NVIDIA driver is loaded"
    }
}

// A device that does not answer panics at its first operation, so it is asked for beforehand.
#[cfg(feature = "cuda")]
fn cuda_devices() -> usize {
    Device::enumerate(burn::tensor::DeviceType::Cuda).len()
}

#[cfg(not(feature = "cuda"))]
fn cuda_devices() -> usize {
    0
}

#[cfg(feature = "cuda")]
fn cuda_device(index: usize) -> Device {
    Device::cuda(index)
}

#[cfg(not(feature = "cuda"))]
fn cuda_device(_: usize) -> Device {
    Device::flex()
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            other => other
                .strip_prefix("cuda:")
                .and_then(|n| n.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| {
                    format!("{other:?} is no device: give auto, cpu, cuda, or cuda:N with N from 0")
                }),
        }
    }
}

impl TryFrom<String> for DeviceChoice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<DeviceChoice> for String {
    fn from(device: DeviceChoice) -> Self {
        device.to_string()
    }
}

impl Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda:3", DeviceChoice::Cuda(3)),
        ] {
            assert_eq!((text.parse(), choice.to_string()), (Ok(choice), text.to_owned()));
        }
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        assert!("gpu".parse::<DeviceChoice>().unwrap_err().contains("cuda:N"));
    }

    #[test]
    fn the_cpu_is_always_there_and_auto_says_why() {
        assert_eq!(resolve(DeviceChoice::Cpu).unwrap().why, "cpu: as asked");
        let auto = resolve(DeviceChoice::Auto).unwrap();
        assert!(auto.why.starts_with(&auto.place.to_string()), "{}", auto.why);
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_gpu_that_cannot_be_had_says_what_to_do() {
        assert_eq!(
            resolve(DeviceChoice::Auto).unwrap().why,
            "cpu: built without CUDA"
        );
        let message = resolve(DeviceChoice::Cuda(1)).unwrap_err().to_string();
        assert!(
            message.contains("cuda:1") && message.contains("--features cuda"),
            "{message}"
        );
    }
}
