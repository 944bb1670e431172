//! How fast a link seals and opens segments of 1 MiB on one core, beside the aes-gcm crate alone:
//! `cargo run --release -p gym-crypto --example seal_speed`.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that prints, and stops at what cannot be"
)]

use aes_gcm::aead::AeadInOut as _;
use aes_gcm::{Aes256Gcm, KeyInit as _};
use gym_crypto::identity::Identity;
use gym_crypto::link::{Config, Initiator, LinkParty, respond};
use gym_crypto::record::{Anchor, SignedRecord, Validity, VerifiedRecord};
use std::time::Instant;

const SEGMENT: usize = 1 << 20;
const TURNS: usize = 9;
const SEGMENTS: u64 = 64;
const GENESIS: [u8; 32] = [7; 32];

fn main() {
    let (a, b) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let (of_a, of_b) = (record(&a), record(&b));
    let party = |keys, own| LinkParty::new(keys, own, &GENESIS).unwrap();
    let (initiator, first) = Initiator::new(party(&a, &of_a), &of_b).unwrap();
    let (pending, second) = respond(party(&b, &of_b), &of_a, &first, Config::default()).unwrap();
    let mut sealer = initiator.finish(&second, 0, Config::default()).unwrap();
    let (plain, mut sealed) = (vec![1; SEGMENT], Vec::new());
    sealer.seal_into(0, b"header", &plain, &mut sealed).unwrap();
    let mut opener = pending.open_first(b"header", &mut sealed).unwrap();
    let cipher = Aes256Gcm::new(&[7; 32].into());
    let (mut seal, mut open, mut crate_seal, mut crate_open) = (vec![], vec![], vec![], vec![]);
    // Written to beforehand: the first touch of a page costs as much as sealing it.
    let mut messages: Vec<Vec<u8>> = (0..SEGMENTS).map(|_| vec![1; SEGMENT + 28]).collect();
    for turn in 0..TURNS as u64 {
        messages
            .iter_mut()
            .for_each(|message| message.resize(SEGMENT + 28, 1));
        seal.push(timed(|| {
            for sealed in &mut messages {
                sealer.seal_into(0, b"header", &plain, sealed).unwrap();
            }
        }));
        open.push(timed(|| {
            for sealed in &mut messages {
                opener.open(0, b"header", sealed).unwrap();
            }
        }));
        let nonce = |i: usize| {
            let mut nonce = [0; 12];
            nonce[..8].copy_from_slice(&(turn * SEGMENTS + i as u64).to_le_bytes());
            nonce
        };
        crate_seal.push(timed(|| {
            for (i, message) in messages.iter_mut().enumerate() {
                cipher
                    .encrypt_in_place(&nonce(i).into(), b"header", message)
                    .unwrap();
            }
        }));
        crate_open.push(timed(|| {
            for (i, message) in messages.iter_mut().enumerate() {
                cipher
                    .decrypt_in_place(&nonce(i).into(), b"header", message)
                    .unwrap();
            }
        }));
    }
    for (name, times) in [
        ("a link seals", seal),
        ("a link opens", open),
        ("the aes-gcm crate seals", crate_seal),
        ("the aes-gcm crate opens", crate_open),
    ] {
        println!("{name}: {:.2} GB/s, median of {TURNS}", median(times));
    }
}

fn record(identity: &Identity) -> VerifiedRecord {
    let validity = Validity {
        issued: 1_000,
        expires: 2_000,
    };
    let signed = SignedRecord::first(identity, &GENESIS, validity);
    signed.verify(&GENESIS, 1_500, Anchor::Itself).unwrap()
}

/// GB/s over the turn's segments.
fn timed(act: impl FnOnce()) -> f64 {
    let start = Instant::now();
    act();
    SEGMENTS as f64 * SEGMENT as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
