//! The signed envelope and its check.

use super::bodies::{
    Attest, Close, Commitment, Complaint, Cutoff, JobBody as Job, Links, Manifest, Proof, Ready, Receipt,
    Report, Reveal, Roster, Status, wire_struct,
};
use super::kept::Holding;
use crate::cbor::{self, CborError};
use crate::ids::{CidBytes, PeerBytes};
use crate::job::spec::RangeError;
use serde_bytes::ByteBuf;

/// The largest envelope accepted: a close that carries its attests (about 5 KB each) fits.
pub const MAX_ENVELOPE: usize = 1 << 20;

wire_struct! {
    /// [kind, sender, body, Ed25519 signature, ML-DSA signature or empty].
    Envelope {
        /// [`Kind`] number.
        kind: u8,
        /// Who signed.
        sender: PeerBytes,
        /// The encoded body.
        body: ByteBuf,
        /// Ed25519 over the signature input.
        ed25519: ByteBuf,
        /// ML-DSA-87 over the same, for the kinds that both keys sign.
        mldsa: ByteBuf,
    }
}

/// Who can check signatures; implemented by the node with the identity records it knows, by the simulator with stand-ins.
pub trait Verifier {
    /// Checks `ed25519`, and `mldsa` where given, over (domain, genesis, body) with `sender`'s keys.
    ///
    /// # Errors
    /// [`VerifyError::UnknownSender`] when the ML-DSA key is not known yet, [`VerifyError::BadSignature`] otherwise.
    fn verify(
        &self,
        sender: &PeerBytes,
        domain: &'static str,
        body: &[u8],
        ed25519: &[u8],
        mldsa: Option<&[u8]>,
    ) -> Result<(), VerifyError>;
}

/// Why a signature was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The sender's identity record has not been seen.
    #[error("the sender's identity record is not known yet; it is exchanged when the two nodes connect")]
    UnknownSender,
    /// A signature is wrong.
    #[error("the {0} signature does not verify")]
    BadSignature(&'static str),
}

/// Why an envelope was refused.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// Not an envelope, or not canonical.
    #[error("message of {len} bytes is not a valid envelope: {source}")]
    Envelope {
        /// Bytes received.
        len: usize,
        /// What the decoder says.
        source: CborError,
    },
    /// A kind this version does not know.
    #[error("message kind {0} is not known to this version")]
    Kind(u8),
    /// A signature that the kind does not carry: one message has one encoding.
    #[error("{0:?} carries an ML-DSA signature, which it must not")]
    Surplus(Kind),
    /// A close certificate holds something that is no attest.
    #[error("a close certificate holds a {0:?}; it may hold attests only")]
    Nested(Kind),
    /// The body does not parse.
    #[error("{kind:?} body does not parse: {source}")]
    Body {
        /// The kind.
        kind: Kind,
        /// What the decoder says.
        source: CborError,
    },
    /// A job that asks for what no node does.
    #[error("the job announced by {sender} is refused: {source}")]
    Job {
        /// Who announced it.
        sender: PeerBytes,
        /// What is out of its range.
        source: RangeError,
    },
    /// A signature is missing or wrong.
    #[error("{kind:?} from {sender}: {source}")]
    Signature {
        /// The kind.
        kind: Kind,
        /// The claimed sender.
        sender: PeerBytes,
        /// Why.
        source: VerifyError,
    },
}

macro_rules! kinds {
    ($($name:ident = $n:literal, $domain:literal, $both:literal, $codec:ident;)*) => {
        /// What an envelope carries.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $(#[doc = concat!("A ", stringify!($name), ", domain `", $domain, "`.")] $name,)* }

        impl Kind {
            /// Its number on the wire.
            #[must_use]
            pub fn number(self) -> u8 { match self { $(Self::$name => $n,)* } }

            /// The kind of a number.
            #[must_use]
            pub fn from_number(n: u8) -> Option<Self> { match n { $($n => Some(Self::$name),)* _ => None } }

            /// The signature domain.
            #[must_use]
            pub fn domain(self) -> &'static str { match self { $(Self::$name => $domain,)* } }

            /// Whether the ML-DSA key signs too.
            #[must_use]
            pub fn signed_by_both(self) -> bool { match self { $(Self::$name => $both,)* } }
        }

        /// A parsed body.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Body { $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name),)* }

        impl Body {
            /// Its kind.
            #[must_use]
            pub fn kind(&self) -> Kind { match self { $(Self::$name(_) => Kind::$name,)* } }

            /// The encoded body, the bytes that are signed.
            ///
            /// # Errors
            /// Never for bodies this crate builds; the codec's error is passed on.
            pub fn encode(&self) -> Result<Vec<u8>, CborError> {
                match self { $(Self::$name(b) => kinds!(@encode $codec, b),)* }
            }

            fn decode(kind: Kind, bytes: &[u8]) -> Result<Self, CborError> {
                Ok(match kind { $(Kind::$name => Self::$name(kinds!(@decode $codec, bytes)?),)* })
            }
        }

        $(impl From<$name> for Body { fn from(b: $name) -> Self { Self::$name(b) } })*
    };
    (@encode dag, $b:expr) => { cbor::to_dag($b) };
    (@encode wire, $b:expr) => { cbor::to_wire($b) };
    (@decode dag, $b:expr) => { cbor::from_dag($b, MAX_ENVELOPE) };
    (@decode wire, $b:expr) => { cbor::from_wire($b, MAX_ENVELOPE) };
}

kinds! {
    Job = 0, "gym/job/v1", true, dag;
    Roster = 1, "gym/roster/v1", true, dag;
    Manifest = 2, "gym/manifest/v1", true, dag;
    Attest = 3, "gym/attest/v1", true, dag;
    Close = 4, "gym/close/v1", true, dag;
    Report = 5, "gym/report/v1", true, dag;
    Ready = 16, "gym/ready/v1", false, wire;
    Commitment = 17, "gym/commitment/v1", false, wire;
    Receipt = 18, "gym/receipt/v1", false, wire;
    Cutoff = 19, "gym/cutoff/v1", false, wire;
    Reveal = 20, "gym/reveal/v1", false, wire;
    Complaint = 21, "gym/complaint/v1", false, wire;
    Status = 22, "gym/status/v1", false, wire;
    Links = 23, "gym/links/v1", false, wire;
    Proof = 24, "gym/proof/v1", false, wire;
    Holding = 25, "gym/holding/v1", false, wire;
}

impl Body {
    /// The job it is about; for a job announcement, its own id.
    #[must_use]
    pub fn job(&self, encoded: &[u8]) -> CidBytes {
        match self {
            Self::Job(_) => cbor::dag_cid(encoded),
            Self::Roster(b) => b.job.clone(),
            Self::Manifest(b) => b.job.clone(),
            Self::Attest(b) => b.job.clone(),
            Self::Close(b) => b.job.clone(),
            Self::Report(b) => b.job.clone(),
            Self::Ready(b) => b.job.clone(),
            Self::Commitment(b) => b.job.clone(),
            Self::Receipt(b) => b.job.clone(),
            Self::Cutoff(b) => b.job.clone(),
            Self::Reveal(b) => b.job.clone(),
            Self::Complaint(b) => b.job.clone(),
            Self::Status(b) => b.job.clone(),
            Self::Links(b) => b.job.clone(),
            Self::Proof(b) => b.job.clone(),
            Self::Holding(b) => b.job.clone(),
        }
    }

    /// The round it belongs to, if it belongs to one.
    #[must_use]
    pub fn round(&self) -> Option<u64> {
        match self {
            Self::Roster(b) => Some(b.round.0),
            Self::Manifest(b) => Some(b.round.0),
            Self::Attest(b) => Some(b.round.0),
            Self::Close(b) => Some(b.round.0),
            Self::Report(b) => Some(b.round.0),
            Self::Commitment(b) => Some(b.round.0),
            Self::Receipt(b) => Some(b.round.0),
            Self::Cutoff(b) => Some(b.round.0),
            Self::Reveal(b) => Some(b.round.0),
            Self::Complaint(b) => Some(b.round.0),
            Self::Proof(b) => Some(b.round.0),
            Self::Holding(b) => Some(b.round.0),
            Self::Job(_) | Self::Ready(_) | Self::Status(_) | Self::Links(_) => None,
        }
    }
}

/// A message whose form and signatures have been checked: all that the machines accept.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// Who signed.
    pub sender: PeerBytes,
    /// What it says.
    pub body: Body,
    /// The job it is about.
    pub job: CidBytes,
    /// The encoded body: its SHA3-256 is a roster's or manifest's hash.
    pub encoded: Vec<u8>,
    /// The whole envelope, to pass on.
    pub envelope: Vec<u8>,
    /// The attests within a close certificate, checked likewise; empty for other kinds.
    pub nested: Vec<Self>,
}

impl Verified {
    /// Parses and checks an envelope.
    ///
    /// # Errors
    /// What is malformed, unknown or wrongly signed.
    pub fn open(bytes: &[u8], verifier: &dyn Verifier) -> Result<Self, MessageError> {
        let envelope: Envelope =
            cbor::from_wire(bytes, MAX_ENVELOPE).map_err(|source| MessageError::Envelope {
                len: bytes.len(),
                source,
            })?;
        let kind = Kind::from_number(envelope.kind).ok_or(MessageError::Kind(envelope.kind))?;
        let mldsa = kind.signed_by_both().then_some(envelope.mldsa.as_slice());
        if mldsa.is_none() && !envelope.mldsa.is_empty() {
            return Err(MessageError::Surplus(kind));
        }
        verifier
            .verify(
                &envelope.sender,
                kind.domain(),
                &envelope.body,
                &envelope.ed25519,
                mldsa,
            )
            .map_err(|source| MessageError::Signature {
                kind,
                sender: envelope.sender.clone(),
                source,
            })?;
        let body =
            Body::decode(kind, &envelope.body).map_err(|source| MessageError::Body { kind, source })?;
        if let Body::Job(job) = &body {
            job.spec.check().map_err(|source| MessageError::Job {
                sender: envelope.sender.clone(),
                source,
            })?;
        }
        let job = body.job(&envelope.body);
        let nested = open_nested(&body, verifier)?;
        let encoded = envelope.body.into_vec();
        Ok(Self {
            sender: envelope.sender,
            job,
            body,
            encoded,
            envelope: bytes.to_vec(),
            nested,
        })
    }

    /// Wraps a message of one's own, signed already; `nested` are the attests of a close.
    ///
    /// # Errors
    /// The codec's, which this crate's bodies do not cause.
    pub fn own(
        sender: PeerBytes,
        body: Body,
        encoded: Vec<u8>,
        ed25519: Vec<u8>,
        mldsa: Vec<u8>,
        nested: Vec<Self>,
    ) -> Result<Self, CborError> {
        let envelope = Envelope {
            kind: body.kind().number(),
            sender: sender.clone(),
            body: ByteBuf::from(encoded.clone()),
            ed25519: ByteBuf::from(ed25519),
            mldsa: ByteBuf::from(mldsa),
        };
        let bytes = cbor::to_wire(&envelope)?;
        let job = body.job(&encoded);
        Ok(Self {
            sender,
            body,
            job,
            encoded,
            envelope: bytes,
            nested,
        })
    }
}

fn open_nested(body: &Body, verifier: &dyn Verifier) -> Result<Vec<Verified>, MessageError> {
    let Body::Close(close) = body else {
        return Ok(Vec::new());
    };
    close
        .attests
        .iter()
        .map(|bytes| {
            // An attest holds nothing itself, so a close within a close ends here.
            let envelope: Envelope =
                cbor::from_wire(bytes, MAX_ENVELOPE).map_err(|source| MessageError::Envelope {
                    len: bytes.len(),
                    source,
                })?;
            match Kind::from_number(envelope.kind) {
                Some(Kind::Attest) => Verified::open(bytes, verifier),
                Some(kind) => Err(MessageError::Nested(kind)),
                None => Err(MessageError::Kind(envelope.kind)),
            }
        })
        .collect()
}
