//! `CID/name/name`, as people write it.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use cid::Cid;

use super::ReadError;

/// A root and names under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentPath {
    /// The root.
    pub root: Cid,
    /// Names to follow from it.
    pub names: Vec<String>,
}

impl From<Cid> for ContentPath {
    fn from(root: Cid) -> Self {
        Self {
            root,
            names: Vec::new(),
        }
    }
}

impl ContentPath {
    /// The path as a gateway takes it, names percent-encoded.
    #[must_use]
    pub fn to_url(&self) -> String {
        let mut url = format!("/ipfs/{}", self.root);
        for name in &self.names {
            url.push('/');
            url.push_str(&escape_url(name));
        }
        url
    }

    /// The path of `name` under this one.
    #[must_use]
    pub fn join(mut self, name: &str) -> Self {
        self.names.push(name.to_owned());
        self
    }
}

impl FromStr for ContentPath {
    type Err = ReadError;

    fn from_str(text: &str) -> Result<Self, ReadError> {
        let bad = || ReadError::Path {
            path: text.to_owned(),
        };
        let bare = text
            .strip_prefix("ipfs://")
            .or_else(|| text.strip_prefix("/ipfs/"))
            .unwrap_or(text);
        let mut parts = bare.trim_end_matches('/').split('/');
        let root = parts.next().and_then(|cid| cid.parse().ok()).ok_or_else(bad)?;
        let names: Vec<String> = parts.map(str::to_owned).collect();
        if names.iter().all(|name| is_safe_name(name)) {
            Ok(Self { root, names })
        } else {
            Err(bad())
        }
    }
}

impl fmt::Display for ContentPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.root)?;
        self.names.iter().try_for_each(|name| write!(out, "/{name}"))
    }
}

/// Percent-encodes all but letters, digits and `-._~`; a name with a colon in front would be read as a scheme.
pub(crate) fn escape_url(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Whether a name can be written to disk as it is on every system: none that Windows takes for a device, a drive, a stream
/// of another file, or the same name without its last character.
pub(super) fn is_portable_name(name: &str) -> bool {
    const DEVICES: [&str; 4] = ["CON", "PRN", "AUX", "NUL"];
    let stem = name.split('.').next().unwrap_or(name).trim_end();
    let is_device = DEVICES.iter().any(|device| stem.eq_ignore_ascii_case(device));
    let is_port = stem.char_indices().nth(3).is_some_and(|(at, digit)| {
        ["COM", "LPT"]
            .iter()
            .any(|port| stem[..at].eq_ignore_ascii_case(port))
            && matches!(digit, '0'..='9' | '¹' | '²' | '³')
            && stem[at..].chars().count() == 1
    });
    is_safe_name(name) && !is_device && !is_port && !name.contains(':') && !name.ends_with(['.', ' '])
}

/// Whether a name stays inside the directory that it is written to, on every system.
pub(crate) fn is_safe_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && name != "."
        && name != ".."
        && !name.contains(['/', '\\', '\0'])
        && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_systems_are_known() {
        for name in [
            "CON",
            "con.txt",
            "nul",
            "Aux.tar.gz",
            "COM1",
            "lpt9.log",
            "COM¹",
            "a.",
            "a ",
            "C:",
            "C:x",
            "a:b",
            "con .x",
        ] {
            assert!(!is_portable_name(name) && is_safe_name(name), "{name:?}");
        }
        for name in [
            "console",
            "COM",
            "COM10",
            "LPTX",
            "nulls.txt",
            "a.b",
            ".hidden",
            "ünder",
            "com1x",
        ] {
            assert!(is_portable_name(name), "{name:?}");
        }
    }
}
