//! What the machine has and what this process has used.

use std::fs;
use std::path::Path;

/// Bytes that can still be had: what the system calls available, or what is left of a container's limit; `None` where
/// neither can be read.
#[must_use]
pub fn available() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| kibibytes(&text, "MemAvailable:"));
    let container = container(Path::new("/sys/fs/cgroup"));
    system.into_iter().chain(container).min()
}

/// The most memory this process has held at once, in bytes; `None` where it cannot be read.
#[must_use]
pub fn peak() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// What is left under the limit of the control group (version 2) at `dir`.
fn container(dir: &Path) -> Option<u64> {
    let number = |name: &str| {
        fs::read_to_string(dir.join(name))
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    // `max` is no number: no limit.
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    let number: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read() {
        let text = "MemTotal:  100 kB\nMemAvailable:      42 kB\n";
        assert_eq!(kibibytes(text, "MemAvailable:"), Some(42 * 1024));
        assert_eq!(kibibytes(text, "SwapFree:"), None);
    }

    #[test]
    fn a_containers_limit_counts_and_no_limit_does_not() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(container(dir.path()), None);
        fs::write(dir.path().join("memory.current"), "300\n").unwrap();
        fs::write(dir.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(container(dir.path()), None);
        fs::write(dir.path().join("memory.max"), "1000\n").unwrap();
        assert_eq!(container(dir.path()), Some(700));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_holds_something() {
        assert!(peak().unwrap() > 1 << 20 && available().unwrap() > 0);
    }
}
