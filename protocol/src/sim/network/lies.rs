//! What members with a fault say that is not so.

use super::Network;
use crate::ids::PeerBytes;
use crate::message::{Body, Commitment, Complaint, HeldChunk, Holding, LinkHeader, Offence, Receipt, Reveal};
use crate::sim::host::Fault;
use crate::sim::{cid, hash, peer, signed};

impl Network {
    /// What a member says in place of `body`.
    pub(super) fn said(&mut self, i: u32, body: Body) -> Body {
        if let Body::Holding(holding) = body {
            return Body::Holding(self.said_to_hold(i, holding));
        }
        if let Body::Receipt(receipt) = &body
            && self.has(i, Fault::FalseReceipts(receipt.round.0))
        {
            return Body::Receipt(Receipt {
                cid: cid(&[b"a lie"]),
                ..receipt.clone()
            });
        }
        body
    }

    fn has(&self, i: u32, fault: Fault) -> bool {
        self.hosts[i as usize].has(fault)
    }

    /// Who says that it holds every chunk says of their means what it has heard.
    fn said_to_hold(&mut self, i: u32, holding: Holding) -> Holding {
        for held in holding.held.iter() {
            self.means.insert((holding.manifest, held.chunk), held.mean);
        }
        let lies = self.has(i, Fault::SaysAll(holding.round.0));
        let Some(scope) = self.manifests.get(&holding.manifest).filter(|_| lies) else {
            return holding;
        };
        let mean = |chunk| self.means.get(&(holding.manifest, chunk)).copied();
        let all: Vec<HeldChunk> = (0..scope.chunks())
            .map(|chunk| HeldChunk {
                chunk,
                mean: mean(chunk).unwrap_or_else(|| hash(&[b"a lie"])),
            })
            .collect();
        let held = all.try_into().unwrap_or_default();
        Holding { held, ..holding }
    }

    /// Before its commitment and its reveal a member, or a stranger beside it, reveals something for everybody.
    pub(super) fn forge_reveals(&mut self, i: u32, body: &Body) {
        let (Body::Commitment(Commitment {
            job, round, roster, ..
        })
        | Body::Reveal(Reveal {
            job, round, roster, ..
        })) = body
        else {
            return;
        };
        let senders = [
            (Fault::ForgesReveals(round.0), peer(i)),
            (
                Fault::StrangerReveals(round.0),
                PeerBytes::new(b"a stranger".to_vec()).unwrap_or_default(),
            ),
        ];
        let members = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        let lying: Vec<PeerBytes> = senders
            .into_iter()
            .filter(|(fault, _)| self.has(i, *fault))
            .map(|(_, sender)| sender)
            .collect();
        for sender in lying {
            for member in 0..members {
                let reveal = Body::Reveal(Reveal {
                    job: job.clone(),
                    round: *round,
                    roster: *roster,
                    member: peer(member),
                    salt: hash(&[b"a lie"]),
                    cid: cid(&[b"a lie"]),
                });
                if let Some(m) = signed(&sender, reveal, Vec::new()) {
                    self.gossip(i, m);
                }
            }
        }
    }

    /// With its first segment under a manifest a member says that it waits for the one before it.
    pub(super) fn accuse(&mut self, i: u32, header: &LinkHeader) {
        let host = &mut self.hosts[i as usize];
        let missing = host.faults.iter().find_map(|fault| {
            if let Fault::Accuses(round, missing) = fault {
                (*round == header.round).then_some(*missing)
            } else {
                None
            }
        });
        let (Some(missing), Some(scope)) = (missing, self.manifests.get(&header.manifest)) else {
            return;
        };
        if host.accused_under.replace(header.manifest) == Some(header.manifest) {
            return;
        }
        let entries = &scope.manifest.entries;
        let Some(at) = entries.iter().position(|e| e.server == peer(i)) else {
            return;
        };
        let before = (at + entries.len() - 1) % entries.len();
        let Some(accused) = entries.get(before).map(|e| e.server.clone()) else {
            return;
        };
        let complaint = Body::Complaint(Complaint {
            job: header.job.clone(),
            round: scope.manifest.round,
            view: scope.manifest.view,
            context: header.manifest,
            accused,
            offence: Offence::Timeout.number(),
            missing,
        });
        if let Some(m) = signed(&peer(i), complaint, Vec::new()) {
            self.gossip(i, m);
        }
    }
}
