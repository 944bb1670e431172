//! `testnet bench ring`: starts the members, gives the signal, checks the result, takes the medians.

use super::pipe::Member;
use super::report::Report;
use super::words::{Answer, Measured, Order, Setup};
use super::{RingArgs, data, wire};
use crate::folder::RunFolder;
use crate::output::{complain, line};
use anyhow::{Context, bail};
use gym_protocol::quant::SEGMENT;
use gym_protocol::ring::{Part, replay};

/// Runs it.
pub(super) fn main(args: &RingArgs) -> anyhow::Result<()> {
    let wire = wire(&args.wire)?;
    if args.members == 0 || args.mib == 0 || args.rounds == 0 {
        bail!("--members, --mib and --rounds must be at least 1");
    }
    let folder = RunFolder::create(None)?;
    let rounds = measure(args, &folder);
    let _ = std::fs::remove_dir_all(folder.root());
    let report = Report::new(args, wire, &rounds?);
    if args.json {
        line(&serde_json::to_string(&report)?);
    } else {
        report.lines().iter().for_each(|text| line(text));
    }
    Ok(())
}

/// Elements that each member brings.
pub(super) fn elements(args: &RingArgs) -> usize {
    args.mib * (1 << 20) / 4
}

/// What each member measured in each round that counts.
fn measure(args: &RingArgs, folder: &RunFolder) -> anyhow::Result<Vec<Vec<Measured>>> {
    let expected = expected(args)?;
    let mut ring = connect(args, folder)?;
    let mut rounds = Vec::new();
    for round in 0..=u64::from(args.rounds) {
        let measured = run(&mut ring, round)?;
        if let Some(slot) = measured.iter().position(|m| m.mean != expected) {
            bail!("round {round}: member {slot}'s mean is not the replay's, to the bit");
        }
        // The first round opens the links.
        if round > 0 {
            rounds.push(measured);
        }
    }
    Ok(rounds)
}

/// The digest of the mean that the members must come to: replayed from their deltas in this process.
fn expected(args: &RingArgs) -> anyhow::Result<String> {
    let parts: Vec<Part> = (0..args.members)
        .map(|slot| Part {
            delta: data::delta(slot, elements(args)),
            weight: data::weight(slot),
        })
        .collect();
    let mean = replay(&parts, wire(&args.wire)?, SEGMENT).context("the replay gives no mean")?;
    Ok(data::digest(&mean))
}

fn connect(args: &RingArgs, folder: &RunFolder) -> anyhow::Result<Vec<Member>> {
    let mut ring = Vec::new();
    let mut places = Vec::new();
    for slot in 0..args.members {
        let mut member = Member::start(slot, args.through.as_deref())?;
        member.order(&Order::Start(Setup {
            slot,
            members: args.members,
            elements: elements(args),
            wire: args.wire.clone(),
            home: folder.home(&format!("member-{slot}")),
            listen: super::numbered(&args.listen, slot),
            hops: args.hops,
            direct_sockets: args.direct_sockets,
        }))?;
        ring.push(member);
    }
    for member in &mut ring {
        let Answer::Listening { peer, address } = member.answer()? else {
            bail!("a member did not say where it listens");
        };
        places.push((peer, address));
    }
    let peers: Vec<String> = places.iter().map(|(peer, _)| peer.clone()).collect();
    let next = places.iter().cycle().skip(1);
    for (member, (_, address)) in ring.iter_mut().zip(next) {
        member.order(&Order::Meet {
            ring: peers.clone(),
            address: address.clone(),
        })?;
        member.answer()?;
    }
    complain(&format!("{} members are connected", args.members));
    Ok(ring)
}

fn run(ring: &mut [Member], round: u64) -> anyhow::Result<Vec<Measured>> {
    all(ring, &Order::Prepare { round })?;
    let answers = all(ring, &Order::Go)?;
    answers
        .into_iter()
        .map(|answer| {
            let Answer::Done(measured) = answer else {
                bail!("a member did not say what it measured");
            };
            Ok(*measured)
        })
        .collect()
}

fn all(ring: &mut [Member], order: &Order) -> anyhow::Result<Vec<Answer>> {
    ring.iter_mut().try_for_each(|member| member.order(order))?;
    ring.iter_mut().map(Member::answer).collect()
}
