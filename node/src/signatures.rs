//! The one check of a sender's signatures, wherever its keys come from.

use gym_crypto::identity::ed25519_from_peer;
use gym_crypto::mldsa::PublicKey;
use gym_crypto::signing::{verify_ed25519, verify_mldsa};
use gym_protocol::ids::PeerBytes;
use gym_protocol::message::VerifyError;

/// What somebody is said to have signed with Ed25519.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signed<'a> {
    pub(crate) genesis: &'a [u8; 32],
    pub(crate) sender: &'a PeerBytes,
    pub(crate) domain: &'static str,
    pub(crate) body: &'a [u8],
    pub(crate) ed25519: &'a [u8],
}

impl Signed<'_> {
    /// Checks the Ed25519 signature, whose key is in the sender's peer id.
    pub(crate) fn check(&self) -> Result<(), VerifyError> {
        let bad = || VerifyError::BadSignature("Ed25519");
        let signature: [u8; 64] = self.ed25519.try_into().map_err(|_| bad())?;
        let key = ed25519_from_peer(self.sender.as_bytes()).map_err(|_| bad())?;
        verify_ed25519(&key, self.domain, self.genesis, self.body, &signature).map_err(|_| bad())
    }

    /// Checks both signatures; `None` is the key of a sender whose record is not known.
    pub(crate) fn check_both(&self, mldsa: &[u8], key: Option<&PublicKey>) -> Result<(), VerifyError> {
        self.check()?;
        let key = key.ok_or(VerifyError::UnknownSender)?;
        verify_mldsa(key, self.domain, self.genesis, self.body, mldsa)
            .map_err(|_| VerifyError::BadSignature("ML-DSA-87"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gym_crypto::identity::Identity;

    #[test]
    fn each_signature_is_told_apart() {
        let identity = Identity::generate().unwrap();
        let sender = PeerBytes::new(identity.peer_bytes().to_vec()).unwrap();
        let both = identity.sign_both("gym/x/v1", &[1; 32], b"body");
        let signed = Signed {
            genesis: &[1; 32],
            sender: &sender,
            domain: "gym/x/v1",
            body: b"body",
            ed25519: &both.ed25519,
        };
        let key = &identity.public().mldsa;
        assert!(signed.check().is_ok() && signed.check_both(&both.mldsa, Some(key)).is_ok());
        let other = Signed {
            genesis: &[2; 32],
            ..signed
        };
        assert!(matches!(other.check(), Err(VerifyError::BadSignature("Ed25519"))));
        let cut = Signed {
            ed25519: &both.ed25519[1..],
            ..signed
        };
        assert!(matches!(cut.check(), Err(VerifyError::BadSignature("Ed25519"))));
        assert!(matches!(
            signed.check_both(&both.mldsa, None),
            Err(VerifyError::UnknownSender)
        ));
        let refused = signed.check_both(&both.mldsa[1..], Some(key));
        assert!(matches!(refused, Err(VerifyError::BadSignature("ML-DSA-87"))));
    }
}
