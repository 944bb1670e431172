//! The token that whoever commands the node must show, and the file that holds it.

use crate::files::{self, Access, FileError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use zeroize::Zeroizing;

/// 32 random bytes in hexadecimal. Never shown by `Debug`.
#[derive(Clone)]
pub struct Token(Zeroizing<String>);

impl Token {
    /// A fresh one, from the operating system's randomness.
    ///
    /// # Errors
    /// When there is none.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = Zeroizing::new([0u8; 32]);
        getrandom::fill(bytes.as_mut())?;
        Ok(Self(Zeroizing::new(hex::encode(bytes.as_ref()))))
    }

    /// The value of the `Authorization` header.
    pub(super) fn header(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("Bearer {}", *self.0))
    }

    /// Whether `header` shows this token; takes as long for a near miss as for a far one.
    pub(super) fn admits(&self, header: &[u8]) -> bool {
        let wanted = self.header();
        let wanted = wanted.as_bytes();
        let differences = wanted.iter().zip(header).fold(0, |all, (a, b)| all | (a ^ b));
        differences == 0 && wanted.len() == header.len()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[derive(Serialize, Deserialize)]
struct ApiFile {
    address: SocketAddr,
    token: String,
    pid: u32,
}

/// Where a running node's API is.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) address: SocketAddr,
    pub(super) token: Token,
    pub(super) pid: u32,
}

impl Place {
    /// Writes the file, its owner's alone.
    pub(super) fn write(&self, path: &Path) -> Result<(), FileError> {
        let file = ApiFile {
            address: self.address,
            token: self.token.0.to_string(),
            pid: self.pid,
        };
        let text = serde_json::to_vec_pretty(&file)
            .map_err(|e| FileError::new("write", path, std::io::Error::other(e)))?;
        files::write_atomic(path, &Zeroizing::new(text), Access::Owner)
    }

    pub(super) fn read(path: &Path) -> Result<Self, FileError> {
        let text = Zeroizing::new(files::read(path, 4096)?);
        let file: ApiFile = serde_json::from_slice(&text).map_err(|e| {
            FileError::new(
                "read",
                path,
                std::io::Error::new(std::io::ErrorKind::InvalidData, e),
            )
        })?;
        Ok(Self {
            address: file.address,
            token: Token(Zeroizing::new(file.token)),
            pid: file.pid,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_is_admitted() {
        let token = Token::generate().unwrap();
        let header = token.header();
        assert!(token.admits(header.as_bytes()));
        assert!(!token.admits(&header.as_bytes()[..header.len() - 1]));
        assert!(!token.admits(b"Bearer "));
        assert!(!token.admits(Token::generate().unwrap().header().as_bytes()));
        assert_eq!(format!("{token:?}"), "Token(…)");
    }

    #[test]
    fn the_file_round_trips() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.json");
        let token = Token::generate().unwrap();
        let place = Place {
            address: "127.0.0.1:7".parse().unwrap(),
            token: token.clone(),
            pid: 3,
        };
        place.write(&path).unwrap();
        let read = Place::read(&path).unwrap();
        assert!(token.admits(read.token.header().as_bytes()));
        assert_eq!((read.address, read.pid), (place.address, 3));
    }
}
