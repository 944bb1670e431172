//! The hashes that the Hub lists files by.

use super::HubError;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What a file must hash to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// SHA-256 of the bytes, in hexadecimal: large files.
    Sha256(String),
    /// SHA-1 of `blob SIZE\0` and the bytes, in hexadecimal: small files, as git names them.
    Git(String),
}

impl Expected {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Sha256(text) | Self::Git(text) => text,
        }
    }

    /// The same hash of a file on disk.
    pub(super) fn of(&self, path: &Path) -> Result<String, HubError> {
        let read = HubError::io("read", path);
        let hash = || {
            let mut file = File::open(path)?;
            match self {
                Self::Sha256(_) => digest(Sha256::new(), &mut file),
                Self::Git(_) => {
                    let size = file.metadata()?.len();
                    digest(Sha1::new().chain_update(format!("blob {size}\0")), &mut file)
                }
            }
        };
        hash().map_err(read)
    }
}

/// SHA-256 of a file, in hexadecimal.
pub(super) fn sha256(path: &Path) -> Result<String, HubError> {
    Expected::Sha256(String::new()).of(path)
}

fn digest<D: Digest>(mut digest: D, file: &mut File) -> std::io::Result<String> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex::encode(digest.finalize())),
            count => digest.update(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_gits_and_the_standards() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "hello\n").unwrap();
        // `git hash-object` and `sha256sum` of the same file.
        let git = Expected::Git(String::new()).of(&path).unwrap();
        assert_eq!(git, "ce013625030ba8dba906f756967f9e9ca394464a");
        let sha256 = sha256(&path).unwrap();
        assert_eq!(
            sha256,
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
        );
    }
}
