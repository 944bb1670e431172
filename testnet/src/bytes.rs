//! Bytes a worker sent in the ring, against what the ring needs in theory.

use crate::event::Closed;
use crate::node::NodeProcess;
use gym_protocol::ids::Rank;
use gym_protocol::job::spec::Wire;
use gym_protocol::quant::ring_payload_bytes;
use serde::Serialize;
use serde_json::Value;

/// What one worker sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Sent {
    /// Ring payload with its sealing, counted at the stream.
    pub(crate) ring: u64,
    /// Ring frames.
    pub(crate) ring_frames: u64,
    /// Headers of ring frames, in clear.
    pub(crate) ring_headers: u64,
    /// Replicas of commits with their sealing.
    pub(crate) replicas: u64,
    /// Handshakes of sealed links, both directions.
    pub(crate) handshakes: u64,
}

impl Sent {
    /// Asks the node for its counters.
    pub(crate) fn of(node: &NodeProcess) -> anyhow::Result<Self> {
        let status = node.client()?.get("/v1/status")?;
        Ok(Self::read(&status["metrics"]))
    }

    fn read(metrics: &Value) -> Self {
        let count = |name: &str| metrics.get(name).and_then(Value::as_u64).unwrap_or(0);
        Self {
            ring: count("gym_link_sent_bytes_total{kind=\"ring\"}"),
            ring_frames: count("gym_link_sent_frames_total{kind=\"ring\"}"),
            ring_headers: count("gym_link_sent_header_bytes_total{kind=\"ring\"}"),
            replicas: count("gym_link_sent_bytes_total{kind=\"replica\"}"),
            handshakes: count("gym_link_handshake_bytes_total"),
        }
    }
}

/// Payload bytes that `peer` has to send for these rounds: f32 2(N−1)/N·L·4 a round, bf16 half of it; q8 and q4
/// packed hops, scales and the scale ring.
pub(crate) fn theory<'a>(
    wire: Wire,
    elements: usize,
    peer: &str,
    rounds: impl Iterator<Item = &'a Closed>,
) -> u64 {
    let of_round = |closed: &Closed| {
        let place = closed.members.iter().position(|member| member == peer)?;
        let (n, rank) = (
            u32::try_from(closed.members.len()).ok()?,
            u32::try_from(place).ok()?,
        );
        Some(ring_payload_bytes(wire, n, elements, Rank(rank)))
    };
    rounds.filter_map(of_round).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn theory_is_the_formula_and_absent_members_send_nothing() {
        let closed = Closed {
            round: 0,
            view: 0,
            state_hash: String::new(),
            checkpoint: String::new(),
            signers: Vec::new(),
            members: ["a", "b", "c", "d"].map(String::from).to_vec(),
            left_out: Vec::new(),
            grid: None,
        };
        let rounds = [closed.clone(), closed];
        assert_eq!(theory(Wire::F32, 1000, "b", rounds.iter()), 2 * (2 * 3 * 250 * 4));
        assert_eq!(theory(Wire::F32, 1000, "e", rounds.iter()), 0);
        let of = |wire| theory(wire, 1000, "b", rounds.iter());
        assert_eq!(of(Wire::Bf16), of(Wire::F32) / 2);
        assert!(of(Wire::Q8) < of(Wire::Bf16));
        assert!(of(Wire::Q4) < of(Wire::Q8));
    }

    #[test]
    fn counters_are_read_by_kind() {
        let metrics = json!({
            "gym_link_sent_bytes_total{kind=\"ring\"}": 7, "gym_link_sent_bytes_total{kind=\"replica\"}": 8,
            "gym_link_handshake_bytes_total": 9
        });
        let sent = Sent::read(&metrics);
        assert_eq!((sent.ring, sent.replicas, sent.handshakes), (7, 8, 9));
    }
}
