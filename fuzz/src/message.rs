//! Everything that is said in CBOR: envelopes and the body of every kind, link headers.

use gym_protocol::cbor::{from_wire, to_wire};
use gym_protocol::ids::PeerBytes;
use gym_protocol::message::{LinkHeader, Verified, Verifier, VerifyError};

/// Accepts every signature: what is tested is the form.
struct Trusting;

impl Verifier for Trusting {
    fn verify(
        &self,
        _: &PeerBytes,
        _: &'static str,
        _: &[u8],
        _: &[u8],
        _: Option<&[u8]>,
    ) -> Result<(), VerifyError> {
        Ok(())
    }
}

/// Opens the bytes as each kind of thing; what is accepted has one encoding, these bytes.
pub fn run(data: &[u8]) {
    let Some((what, bytes)) = data.split_first() else {
        return;
    };
    match what % 2 {
        0 => {
            if let Ok(message) = Verified::open(bytes, &Trusting) {
                assert_eq!(message.envelope, bytes);
                let body = message.body.encode().expect("what was decoded encodes");
                assert!(
                    bytes.windows(body.len()).any(|part| part == body),
                    "the body has another encoding"
                );
            }
        }
        _ => {
            if let Ok(header) = from_wire::<LinkHeader>(bytes, 512) {
                assert_eq!(to_wire(&header).expect("what was decoded encodes"), bytes);
            }
        }
    }
}
