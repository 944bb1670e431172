//! From `--device` to the device that the trainer thread owns.

use crate::config::DeviceChoice;
use gym_training::Device;

/// Why a device cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The program has no CUDA in it.
    #[error(
        "--device {0}: this hanzod was built without CUDA; build it with `cargo build --release --features cuda`, or use --device cpu"
    )]
    NotBuilt(String),
    /// There is no such GPU.
    #[error(
        "--device {device}: {found} CUDA devices answer; check the driver with nvidia-smi, or use --device cpu"
    )]
    NotThere {
        /// What was asked for.
        device: String,
        /// CUDA devices that answered.
        found: usize,
    },
}

/// The device, and a word on how it was chosen.
///
/// # Errors
/// When a CUDA device is asked for that is not there.
pub fn resolve(choice: DeviceChoice) -> Result<(Device, String), DeviceError> {
    let found = cuda_devices();
    match choice {
        DeviceChoice::Cpu => Ok((Device::flex(), "cpu, as asked".into())),
        DeviceChoice::Auto if found > 0 => Ok((cuda(0), "cuda:0, the first GPU that answers".into())),
        DeviceChoice::Auto if cfg!(feature = "cuda") => {
            Ok((Device::flex(), "cpu: no CUDA device answers".into()))
        }
        DeviceChoice::Auto => Ok((Device::flex(), "cpu: built without CUDA".into())),
        DeviceChoice::Cuda(n) if (n as usize) < found => {
            Ok((cuda(n as usize), format!("cuda:{n}, as asked")))
        }
        DeviceChoice::Cuda(_) if cfg!(feature = "cuda") => Err(DeviceError::NotThere {
            device: choice.into(),
            found,
        }),
        DeviceChoice::Cuda(_) => Err(DeviceError::NotBuilt(choice.into())),
    }
}

#[cfg(feature = "cuda")]
fn cuda_devices() -> usize {
    Device::enumerate(gym_training::DeviceType::Cuda).len()
}

#[cfg(not(feature = "cuda"))]
fn cuda_devices() -> usize {
    0
}

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Device {
    Device::cuda(index)
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: usize) -> Device {
    Device::flex()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_gpu_that_cannot_be_had_says_what_to_do() {
        assert!(resolve(DeviceChoice::Auto).is_ok());
        let message = resolve(DeviceChoice::Cuda(1)).unwrap_err().to_string();
        assert!(
            message.contains("cuda:1") && message.contains("--features cuda"),
            "{message}"
        );
    }
}
