//! SHA3-256, the hash of states, bodies and transcripts (section 0).

use sha3::{Digest, Sha3_256};

/// SHA3-256 of the parts, one after another.
#[must_use]
pub fn sha3_256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Sha3_256::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_fips_202() {
        let expected = "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532";
        assert_eq!(hex::encode(sha3_256(&[b"a", b"bc"])), expected);
    }
}
