//! One member: the node's network and sealed links, and the ring's machine, as a job drives them.

use super::data;
use super::stages::{Stages, process_cpu};
use super::sums::{MANIFEST, Sums};
use super::words::{Answer, Measured, Order, Setup};
use crate::output::line;
use anyhow::{Context, bail};
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes};
use gym_protocol::message::{LinkHeader, LinkKind, Phase};
use gym_protocol::ring::{Contribution, Reduced, Segment};
use hanzod::connected::{Connected, default_limits};
use hanzod::content::{self, bitswap, unixfs::Layout};
use hanzod::home::Home;
use hanzod::identity::NodeIdentity;
use hanzod::link::{Damage, Outbox};
use hanzod::metrics::Metrics;
use hanzod::net::{self, Mdns, NetEvent};
use hanzod::role::{Role, Roles};
use std::io::BufRead as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long anything of a round may take.
const DEADLINE: Duration = Duration::from_secs(240);
const GENESIS: Hash32 = Hash32([7; 32]);

/// Runs a member until the benchmark closes its pipe.
pub(super) fn main() -> anyhow::Result<()> {
    let (sender, orders) = mpsc::channel(4);
    std::thread::Builder::new().name("orders".into()).spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
        // The benchmark is gone.
        std::process::exit(0);
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the member's runtime")?;
    let result = runtime.block_on(obey(orders));
    if let Err(e) = &result {
        say(&Answer::Failed(format!("{e:#}")))?;
    }
    result
}

fn say(answer: &Answer) -> anyhow::Result<()> {
    line(&serde_json::to_string(answer)?);
    Ok(())
}

async fn obey(mut orders: mpsc::Receiver<String>) -> anyhow::Result<()> {
    let mut member: Option<Member> = None;
    while let Some(line) = orders.recv().await {
        let answer = match (serde_json::from_str(&line)?, &mut member) {
            (Order::Start(setup), member @ None) => {
                let (started, answer) = Member::start(setup).await?;
                *member = Some(started);
                answer
            }
            (Order::Meet { ring, address }, Some(member)) => member.meet(&ring, &address).await?,
            (Order::Prepare { round }, Some(member)) => member.prepare(round),
            (Order::Go, Some(member)) => member.go().await?,
            (order, _) => bail!("{order:?} out of order"),
        };
        say(&answer)?;
    }
    Ok(())
}

struct Member {
    setup: Setup,
    node: Connected,
    outbox: Outbox,
    failed: mpsc::Receiver<PeerBytes>,
    next: PeerBytes,
    /// All members in ring order.
    ring: Vec<PeerBytes>,
    round: u64,
    contribution: Option<Contribution>,
    /// The last mean, for the next one.
    room: Vec<f32>,
    _tasks: JoinSet<()>,
}

impl Member {
    async fn start(setup: Setup) -> anyhow::Result<(Self, Answer)> {
        let home = Home::locate(Some(&setup.home))?;
        home.create()?;
        let store = content::Config {
            root: home.content(),
            limit: 1 << 20,
            layout: Layout::default(),
            bitswap: bitswap::Config::default(),
        };
        let (_, exchange) = content::open(store)?;
        let network = net::Setup {
            config: net::Config {
                listen: vec![setup.listen.parse().context("the address to listen on")?],
                mdns: Mdns::Off,
                direct_sockets: setup.direct_sockets,
                ..net::Config::default()
            },
            roles: Roles::from_iter([Role::Worker]),
            identity: Arc::new(NodeIdentity::create(&home, GENESIS)?),
            metrics: Metrics::default(),
            bootstrap: Vec::new(),
            content: exchange,
        };
        let mut tasks = JoinSet::new();
        let node = Connected::start(network, default_limits(), &CancellationToken::new(), &mut tasks)?;
        let address = listener(&node).await?;
        let (failures, failed) = mpsc::channel(4);
        let me = node.identity.peer();
        let member = Self {
            outbox: Outbox::new(node.links.clone(), failures),
            next: me.clone(),
            ring: Vec::new(),
            node,
            setup,
            failed,
            round: 0,
            contribution: None,
            room: Vec::new(),
            _tasks: tasks,
        };
        Ok((
            member,
            Answer::Listening {
                peer: hex::encode(me.as_bytes()),
                address,
            },
        ))
    }

    async fn meet(&mut self, ring: &[String], address: &str) -> anyhow::Result<Answer> {
        let peer = |hex: &String| PeerBytes::new(hex::decode(hex)?).context("a member's peer id");
        self.ring = ring.iter().map(peer).collect::<anyhow::Result<_>>()?;
        let next = self.ring.iter().cycle().nth(self.setup.slot as usize + 1);
        self.next = next.context("a ring without members")?.clone();
        if self.next != self.node.identity.peer() {
            self.node.net.dial_address(address.parse()?).await?;
            self.node.net.record(&self.next).await?;
        }
        Ok(Answer::Met)
    }

    fn prepare(&mut self, round: u64) -> Answer {
        let delta = data::delta(self.setup.slot, self.setup.elements);
        let own = Contribution::new(delta, data::weight(self.setup.slot)).with_buffers(self.outbox.buffers());
        self.contribution = Some(own.with_room(std::mem::take(&mut self.room)));
        self.round = round;
        Answer::Prepared
    }

    async fn go(&mut self) -> anyhow::Result<Answer> {
        let contribution = self.contribution.take().context("nothing was prepared")?;
        let before = self.counted();
        let (cpu, links, start) = (
            process_cpu(),
            Stages::of_links(&self.node.metrics),
            Instant::now(),
        );
        let mut sums = Sums::new(&self.setup, &self.ring, &self.node.identity, contribution)?;
        let reduced = tokio::time::timeout(DEADLINE, self.reduce(&mut sums))
            .await
            .context("the all-reduce took too long")??;
        let wall_s = start.elapsed().as_secs_f64();
        let cpu_s = process_cpu() - cpu;
        let after = self.counted();
        let links_now = Stages::of_links(&self.node.metrics);
        let mut stages = sums.stages();
        stages.seal = links_now.seal - links.seal;
        stages.open = links_now.open - links.open;
        let known: f64 = stages.named().iter().map(|(_, s)| s).sum();
        stages.transport = (cpu_s - known).max(0.0);
        stages.wait = (wall_s - cpu_s).max(0.0);
        let mean = data::digest(&reduced.mean);
        self.room = reduced.mean;
        Ok(Answer::Done(Box::new(Measured {
            wall_s,
            cpu_s,
            stages,
            sealed_bytes: after.0 - before.0,
            header_bytes: after.1 - before.1,
            handshake_bytes: self.node.metrics.get("gym_link_handshake_bytes_total", &[]),
            mean,
        })))
    }

    /// Sealed payload and what is around it, sent so far.
    fn counted(&self) -> (u64, u64) {
        let of = |name| self.node.metrics.get(name, &[("kind", "ring")]);
        (
            of("gym_link_sent_bytes_total"),
            of("gym_link_sent_header_bytes_total"),
        )
    }

    async fn reduce(&mut self, sums: &mut Sums) -> anyhow::Result<Reduced> {
        let mut out = Vec::new();
        sums.start(&mut out);
        loop {
            for segment in out.drain(..) {
                self.send(segment)?;
            }
            if let Some(reduced) = sums.finish() {
                return Ok(reduced);
            }
            tokio::select! {
                event = self.node.events.recv() => match event {
                    Some(NetEvent::Sealed { header, payload, .. }) if header.round == self.round => {
                        sums.receive(segment_of(&header, payload)?, &mut out)?;
                    }
                    Some(NetEvent::LinkOffence { what, .. }) => bail!("a link was closed: {what}"),
                    Some(NetEvent::LinkFailed { reason, .. }) => bail!("a frame was not delivered: {reason}"),
                    Some(_) => {}
                    None => bail!("the network has stopped"),
                },
                Some(peer) = self.failed.recv() => bail!("{peer} takes nothing"),
            }
        }
    }

    fn send(&mut self, s: Segment) -> anyhow::Result<()> {
        let header = LinkHeader {
            kind: LinkKind::Ring.number(),
            job: CidBytes::new(vec![1; 36]).context("a CID of 36 bytes")?,
            round: self.round,
            view: 0,
            manifest: MANIFEST,
            phase: s.phase.number(),
            step: s.step,
            chunk: s.chunk,
            segment: s.segment,
            slot: self.setup.slot,
            sender: self.node.identity.peer(),
            receiver: self.next.clone(),
        };
        if !self.outbox.send(&self.next, header, s.payload, Damage::None) {
            bail!("the next member takes nothing");
        }
        Ok(())
    }
}

async fn listener(node: &Connected) -> anyhow::Result<String> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(address) = node.net.listeners().await?.pop() {
            return Ok(address.to_string());
        }
        if Instant::now() >= until {
            bail!("it does not listen after 20 s");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn segment_of(header: &LinkHeader, payload: Vec<u8>) -> anyhow::Result<Segment> {
    Ok(Segment {
        phase: Phase::from_number(header.phase).context("a phase that does not exist")?,
        step: header.step,
        chunk: header.chunk,
        segment: header.segment,
        payload,
    })
}
