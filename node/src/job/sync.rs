//! `/gym/sync/1`: what to ask a peer about jobs, and its answers.

use super::log::MessageId;
use gym_protocol::cbor::{self, CborError};
use gym_protocol::ids::{CidBytes, Hash32};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Envelopes that fit one answer, in bytes.
pub(crate) const MAX_ENVELOPES: usize = 6 * 1024 * 1024;
/// The longest question or answer, in bytes.
const MAX_MESSAGE: usize = 8 * 1024 * 1024;
/// Ids that fit one question: 64 KiB of them with room to spare.
const MAX_IDS: usize = 6_000;
/// What is kept is named whole: else the oldest of it would come again with every answer.
const _: () = assert!(super::log::MAX_KEPT < MAX_IDS);

/// A question, on the wire [kind, job, ids, envelopes].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Which jobs are there?
    Jobs,
    /// What was said in this job that is not among these?
    Round { job: CidBytes, known: Vec<MessageId> },
    /// What do you have of the hops of this manifest's ring?
    Hops { job: CidBytes, manifest: Hash32 },
    /// Here is what you lack.
    Push { job: CidBytes, envelopes: Vec<Vec<u8>> },
}

#[derive(Serialize, Deserialize)]
struct Wire(u8, CidBytes, ByteBuf, Vec<ByteBuf>);

impl Question {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, CborError> {
        let wire = match self {
            Self::Jobs => Wire(0, CidBytes::default(), ByteBuf::new(), Vec::new()),
            Self::Round { job, known } => Wire(1, job.clone(), pack(known), Vec::new()),
            Self::Hops { job, manifest } => {
                Wire(3, job.clone(), ByteBuf::from(manifest.0.to_vec()), Vec::new())
            }
            Self::Push { job, envelopes } => Wire(2, job.clone(), ByteBuf::new(), bufs(envelopes)),
        };
        cbor::to_wire(&wire)
    }

    /// `None` when the bytes are no question, or not its one encoding.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        Self::read(bytes).filter(|question| question.encode().is_ok_and(|again| again == bytes))
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let Wire(kind, job, ids, envelopes) = cbor::from_wire(bytes, MAX_MESSAGE).ok()?;
        match kind {
            0 => Some(Self::Jobs),
            1 => Some(Self::Round {
                job,
                known: unpack(&ids)?,
            }),
            2 => Some(Self::Push {
                job,
                envelopes: envelopes.into_iter().map(ByteBuf::into_vec).collect(),
            }),
            3 => Some(Self::Hops {
                job,
                manifest: Hash32(ids.as_slice().try_into().ok()?),
            }),
            _ => None,
        }
    }
}

/// An answer: envelopes, and the ids of what the answerer has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) envelopes: Vec<Vec<u8>>,
    pub(crate) known: Vec<MessageId>,
}

impl Answer {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, CborError> {
        cbor::to_wire(&(bufs(&self.envelopes), pack(&self.known)))
    }

    /// `None` when the bytes are no answer, or not its one encoding.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        Self::read(bytes).filter(|answer| answer.encode().is_ok_and(|again| again == bytes))
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (envelopes, known): (Vec<ByteBuf>, ByteBuf) = cbor::from_wire(bytes, MAX_MESSAGE).ok()?;
        let envelopes = envelopes.into_iter().map(ByteBuf::into_vec).collect();
        Some(Self {
            envelopes,
            known: unpack(&known)?,
        })
    }
}

fn pack(ids: &[MessageId]) -> ByteBuf {
    ByteBuf::from(
        ids.iter()
            .rev()
            .take(MAX_IDS)
            .rev()
            .copied()
            .flatten()
            .collect::<Vec<u8>>(),
    )
}

fn unpack(bytes: &[u8]) -> Option<Vec<MessageId>> {
    let (ids, rest) = bytes.as_chunks::<8>();
    rest.is_empty().then(|| ids.to_vec())
}

fn bufs(envelopes: &[Vec<u8>]) -> Vec<ByteBuf> {
    envelopes.iter().cloned().map(ByteBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_survive_the_wire() {
        let job = CidBytes::new(vec![1, 2, 3]).unwrap();
        for q in [
            Question::Jobs,
            Question::Round {
                job: job.clone(),
                known: vec![[1; 8], [2; 8]],
            },
            Question::Hops {
                job: job.clone(),
                manifest: Hash32([5; 32]),
            },
            Question::Push {
                job,
                envelopes: vec![vec![1], vec![2, 3]],
            },
        ] {
            assert_eq!(Question::decode(&q.encode().unwrap()), Some(q));
        }
        let a = Answer {
            envelopes: vec![vec![9; 40]],
            known: vec![[7; 8]],
        };
        assert_eq!(Answer::decode(&a.encode().unwrap()), Some(a));
        assert_eq!(Question::decode(b"nonsense"), None);
    }

    #[test]
    fn a_question_has_one_encoding() {
        let more = Wire(0, CidBytes::default(), pack(&[[1; 8]]), Vec::new());
        assert_eq!(Question::decode(&cbor::to_wire(&more).unwrap()), None);
        let many = Wire(
            1,
            CidBytes::default(),
            ByteBuf::from(vec![0; 8 * (MAX_IDS + 1)]),
            Vec::new(),
        );
        assert_eq!(Question::decode(&cbor::to_wire(&many).unwrap()), None);
    }
}
