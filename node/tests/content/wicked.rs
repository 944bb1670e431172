//! A peer that serves whatever blocks it was given, over TCP, Noise and yamux, and the encodings that such blocks and
//! bitswap messages are made of, written apart from the code under test.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use cid::Cid;
use cid::multihash::Multihash;
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::identity::Keypair;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, Stream, StreamProtocol, SwarmBuilder, identify, noise, tcp, yamux};
use sha2::{Digest, Sha256};

const BITSWAP: StreamProtocol = StreamProtocol::new("/ipfs/bitswap/1.2.0");

#[derive(NetworkBehaviour)]
struct Behaviour {
    identify: identify::Behaviour,
    streams: libp2p_stream::Behaviour,
}

/// Serves `blocks` from a thread of its own until the test program ends; returns its address.
pub(crate) fn serve(blocks: BTreeMap<Cid, Vec<u8>>) -> Multiaddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let mut swarm = SwarmBuilder::with_existing_identity(Keypair::generate_ed25519())
                .with_tokio()
                .with_tcp(
                    tcp::Config::default().nodelay(true),
                    noise::Config::new,
                    yamux::Config::default,
                )
                .unwrap()
                .with_behaviour(|key| Behaviour {
                    identify: identify::Behaviour::new(identify::Config::new(
                        "ipfs/0.1.0".to_owned(),
                        key.public(),
                    )),
                    streams: libp2p_stream::Behaviour::new(),
                })
                .unwrap()
                .build();
            let mut control = swarm.behaviour().streams.new_control();
            let mut incoming = control.accept(BITSWAP).unwrap();
            swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
            let blocks = Arc::new(blocks);
            loop {
                tokio::select! {
                    event = swarm.select_next_some() => if let SwarmEvent::NewListenAddr { address, .. } = event {
                        let local = *swarm.local_peer_id();
                        sender.send(address.with_p2p(local).unwrap()).unwrap();
                    },
                    Some((asker, stream)) = incoming.next() => {
                        let (blocks, mut control) = (Arc::clone(&blocks), control.clone());
                        tokio::spawn(async move {
                            // The asker may hang up.
                            if let Ok(out) = control.open_stream(asker, BITSWAP).await {
                                let _ = answer(stream, out, &blocks).await;
                            }
                        });
                    }
                }
            }
        });
    });
    receiver.recv().unwrap()
}

/// Answers every want of a stream: HAVE or the block, or that it is not here.
async fn answer(mut asked: Stream, mut out: Stream, blocks: &BTreeMap<Cid, Vec<u8>>) -> std::io::Result<()> {
    loop {
        let mut length = Vec::new();
        while length.last().is_none_or(|byte| byte & 0x80 != 0) {
            let mut next = [0];
            asked.read_exact(&mut next).await?;
            length.push(next[0]);
        }
        let mut body = vec![0; read_varint(&mut length.as_slice()) as usize];
        asked.read_exact(&mut body).await?;
        for (number, wants) in fields(&body) {
            if number != 1 {
                continue;
            }
            for (_, entry) in fields(&wants).into_iter().filter(|(number, _)| *number == 1) {
                let entry = fields(&entry);
                let bytes = |n| {
                    entry
                        .iter()
                        .find(|(number, _)| *number == n)
                        .map(|(_, bytes)| bytes.clone())
                };
                let cid = Cid::try_from(bytes(1).unwrap().as_slice()).unwrap();
                let (is_cancel, is_have) = (
                    bytes(3).is_some_and(|v| v != [0]),
                    bytes(4).is_some_and(|v| v != [0]),
                );
                let reply = match blocks.get(&cid) {
                    _ if is_cancel => continue,
                    Some(block) if !is_have => message_with_block(&cid, block),
                    found => {
                        let kind = u64::from(found.is_none());
                        let presence = [field(1, &cid.to_bytes()), number_field(2, kind)].concat();
                        [field(1, &[]), field(4, &presence)].concat()
                    }
                };
                out.write_all(&frame(&reply)).await?;
            }
        }
        out.flush().await?;
    }
}

/// Blocks in the making.
#[derive(Default)]
pub(crate) struct Dag {
    pub(crate) blocks: BTreeMap<Cid, Vec<u8>>,
}

/// Whether links declare what is under them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Declared {
    Truly,
    AsOneByte,
}

impl Dag {
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Cid {
        self.put(0x55, bytes.to_vec())
    }

    /// A directory; each link with its name and the size it declares.
    pub(crate) fn directory(&mut self, links: &[(&str, Cid, u64)]) -> Cid {
        self.node(links, &number_field(1, 1))
    }

    pub(crate) fn symlink(&mut self, target: &str) -> Cid {
        self.node(&[], &[number_field(1, 4), field(2, target.as_bytes())].concat())
    }

    /// A part of a sharded directory of width 256.
    pub(crate) fn shard(&mut self, links: &[(&str, Cid, u64)]) -> Cid {
        let header = [number_field(1, 5), number_field(5, 0x22), number_field(6, 256)];
        self.node(links, &header.concat())
    }

    /// A file of `levels` levels over one chunk of 256 KiB, each with 174 links to the same node below.
    pub(crate) fn file_bomb(&mut self, levels: u32, declared: Declared) -> Cid {
        let mut cid = self.raw(&[0; 256 << 10]);
        let (mut bytes, mut total) = (256_u64 << 10, 256_u64 << 10);
        for _ in 0..levels {
            let mut header = [number_field(1, 2), number_field(3, bytes * 174)].concat();
            header.extend(number_field(4, bytes).repeat(174));
            let told = if declared == Declared::Truly { total } else { 1 };
            cid = self.node(&[("", cid, told); 174], &header);
            bytes *= 174;
            total = total * 174 + self.blocks[&cid].len() as u64;
        }
        cid
    }

    fn node(&mut self, links: &[(&str, Cid, u64)], data: &[u8]) -> Cid {
        let links = links.iter().flat_map(|(name, cid, size)| {
            let link = [
                field(1, &cid.to_bytes()),
                field(2, name.as_bytes()),
                number_field(3, *size),
            ];
            field(2, &link.concat())
        });
        let block: Vec<u8> = links.chain(field(1, data)).collect();
        self.put(0x70, block)
    }

    fn put(&mut self, codec: u64, block: Vec<u8>) -> Cid {
        let cid = cid(codec, &block);
        self.blocks.insert(cid, block);
        cid
    }
}

pub(crate) fn raw_cid(bytes: &[u8]) -> Cid {
    cid(0x55, bytes)
}

fn cid(codec: u64, bytes: &[u8]) -> Cid {
    Cid::new_v1(codec, Multihash::wrap(0x12, &Sha256::digest(bytes)).unwrap())
}

/// An entry of a want list: the block, and word when it is not there.
pub(crate) fn want(cid: &Cid) -> Vec<u8> {
    let entry = [field(1, &cid.to_bytes()), number_field(2, 1), number_field(5, 1)];
    field(1, &entry.concat())
}

pub(crate) fn message_with_block(cid: &Cid, data: &[u8]) -> Vec<u8> {
    let prefix = [vec![1], varint(cid.codec()), vec![0x12, 0x20]].concat();
    let block = [field(1, &prefix), field(2, data)].concat();
    [field(1, &[]), field(3, &block)].concat()
}

pub(crate) fn frame(body: &[u8]) -> Vec<u8> {
    [varint(body.len() as u64), body.to_vec()].concat()
}

pub(crate) fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![number << 3 | 2], varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn number_field(number: u8, value: u64) -> Vec<u8> {
    [vec![number << 3], varint(value)].concat()
}

pub(crate) fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            out.push(low);
            return out;
        }
        out.push(low | 0x80);
    }
}

fn read_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}

/// The fields of a protobuf message; a number as its bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = read_varint(&mut bytes);
        let value = read_varint(&mut bytes);
        let content = if key & 7 == 2 {
            let (content, rest) = bytes.split_at(value as usize);
            bytes = rest;
            content.to_vec()
        } else {
            varint(value)
        };
        found.push((key >> 3, content));
    }
    found
}
