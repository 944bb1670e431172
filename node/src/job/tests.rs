//! The service's task with everything around it but a swarm: what strangers say, and what they bring about.

use super::commit::{self, Draft, Trained, Values};
use super::done::{Done, Purpose};
use super::edge::{self, KnownKeys};
use super::faults::Faults;
use super::keep::Fallen;
use super::publish::Publisher;
use super::replica::{Assembly, Replica};
use super::service::{Service, Tools};
use super::state::{ModelState, Origin};
use super::trainer::{JobFiles, Task, TrainerHandle};
use super::turns::Turns;
use super::validate::Validator;
use crate::content::Content;
use crate::home::Home;
use crate::identity::{NodeIdentity, PeerIdentity, unix_now};
use crate::link::{LinkContext, LinkPool, Outbox};
use crate::metrics::Metrics;
use crate::net::{DirectSockets, NetEvent, NetHandle};
use crate::publish;
use crate::role::{Role, Roles};
use gym_protocol::cbor::object_hash;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes, Round, View};
use gym_protocol::job::spec::{JobFile, Resolved};
use gym_protocol::member::Held;
use gym_protocol::message::{
    Body, Close, Entry, JobBody, LinkHeader, Manifest, Offence, Roster, RosterMember, Status, Verified,
};
use gym_protocol::orchestrator::Follows;
use gym_protocol::tensor::{F32Tensor, TensorSet};
use gym_training::reward::Programs;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

mod validator;

const GENESIS: Hash32 = Hash32([3; 32]);

struct Rig {
    service: Service,
    tasks: Receiver<Task>,
    done: mpsc::Receiver<Done>,
    /// Takes what goes out.
    _net: Box<dyn std::any::Any>,
    _dir: tempfile::TempDir,
}

fn identity(dir: &std::path::Path) -> (Home, NodeIdentity) {
    let home = Home::locate(Some(dir)).unwrap();
    home.create().unwrap();
    let node = NodeIdentity::create(&home, GENESIS).unwrap();
    (home, node)
}

fn stranger() -> NodeIdentity {
    let dir = tempfile::tempdir().unwrap();
    identity(dir.path()).1
}

fn content(dir: &std::path::Path) -> Content {
    crate::content::alone(dir.join("store"))
}

/// A node of a role, whose trainer takes `tasks` at most before somebody looks.
fn rig(role: Role, tasks: usize) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let (home, identity) = identity(dir.path());
    let identity = Arc::new(identity);
    let (commands, net_commands) = mpsc::channel(1_024);
    let local = identity.keypair().unwrap().public().to_peer_id();
    let net = NetHandle::new(commands, local);
    let content = content(dir.path());
    let (trainer, tasks) = TrainerHandle::of_queue(tasks);
    let (metrics, stop) = (Metrics::default(), CancellationToken::new());
    let links = LinkPool::new(LinkContext {
        identity: identity.clone(),
        net: net.clone(),
        streams: libp2p_stream::Behaviour::new().new_control(),
        doors: crate::net::Doors::default(),
        direct: DirectSockets::Off,
        events: mpsc::channel(1).0,
        metrics: metrics.clone(),
        stop: stop.clone(),
        config: gym_crypto::link::Config::default(),
        epoch: Instant::now(),
        buffers: Default::default(),
        rates: Default::default(),
        members: Default::default(),
    });
    let scratch = dir.path().join("publishing");
    let publication = publish::new(
        publish::Config::default(),
        content.clone(),
        scratch,
        mpsc::channel(1).0,
    )
    .0;
    let (finished, done) = mpsc::channel(1_024);
    let tools = Tools {
        keys: KnownKeys::new(&identity),
        publisher: Publisher::new(net.clone()),
        publication,
        outbox: Outbox::new(links, mpsc::channel(1).0),
        home,
        keep_checkpoints: 8,
        checkpoint_grace: Duration::from_secs(600),
        fallen: Fallen::default(),
        roles: Roles::from_iter([role]),
        flat_ring_max: 64,
        redundancy: 1,
        max_connections: 512,
        clock_skew: 120,
        identity,
        net,
        content,
        trainer,
        metrics,
        faults: Faults(Vec::new()),
        programs: Programs::default(),
        done: finished,
    };
    let service = Service {
        tools,
        jobs: BTreeMap::new(),
        turns: Turns::default(),
        work: VecDeque::new(),
        connected: BTreeSet::new(),
        stop,
    };
    Rig {
        service,
        tasks,
        done,
        _net: Box::new(net_commands),
        _dir: dir,
    }
}

fn job_of(orchestrator: &NodeIdentity, submitted: u64) -> JobBody {
    let text = "name = \"w\"\nmodel = \"m\"\ntrain = \"t\"\nheldout = \"h\"\nrewards = [{ name = \"numeric\" }]\n[schedule]\nrounds = 3\n[lora]\nrank = 2\n";
    let cid = |n: u8| CidBytes::from_cid(&crate::content::block::cid_of(0x55, &[n]));
    let spec = JobFile::parse(text).unwrap().resolve(Resolved {
        base: cid(1),
        train: cid(2),
        heldout: cid(3),
    });
    JobBody {
        spec: Box::new(spec),
        orchestrator: orchestrator.peer(),
        submitted,
        rows: 100,
    }
}

fn adapter() -> TensorSet {
    let tensor = |shape: [u64; 2]| F32Tensor {
        shape: shape.to_vec(),
        data: vec![0.5; (shape[0] * shape[1]) as usize],
    };
    TensorSet(BTreeMap::from([
        ("a.lora_A.weight".to_owned(), tensor([2, 3])),
        ("a.lora_B.weight".to_owned(), tensor([4, 2])),
    ]))
}

fn frames(replica: &Replica, job: &CidBytes, round: u64, from: &PeerBytes, to: &PeerBytes) -> Vec<NetEvent> {
    let sealed = |(header, payload): (LinkHeader, Vec<u8>)| NetEvent::Sealed {
        from: from.clone(),
        header: Box::new(header),
        payload,
    };
    let frames = replica.frames(job, round, from, to);
    frames.into_iter().map(sealed).collect()
}

impl Rig {
    /// Somebody's signed message comes in.
    fn hear(&mut self, by: &NodeIdentity, body: Body) -> Verified {
        let message = edge::sign(by, body, Vec::new()).unwrap();
        self.service.accept(message.clone());
        self.service.run_machines();
        message
    }

    /// Somebody's identity record comes in.
    fn meet(&self, other: &NodeIdentity) {
        let opened = PeerIdentity::open(other.record_bytes(), &other.peer(), &GENESIS, unix_now());
        let keys = &self.service.tools.keys;
        keys.learn(&other.peer(), &Arc::new(opened.unwrap())).unwrap();
    }

    fn announce(&mut self, by: &NodeIdentity, submitted: u64) -> CidBytes {
        self.hear(by, Body::Job(job_of(by, submitted))).job
    }

    fn tasks(&self) -> Vec<Task> {
        self.tasks.try_iter().collect()
    }

    /// Model and questions of the job whose turn it is arrive and are loaded.
    fn load(&mut self, job: &CidBytes) -> Held {
        let files = JobFiles {
            base: "base".into(),
            train: "train".into(),
            heldout: "heldout".into(),
        };
        self.service.on_files(job, Ok(files));
        assert!(matches!(&self.tasks()[..], [Task::Load { job: loaded, .. }] if loaded == job));
        let names = self.service.jobs[job].names.clone();
        let state = ModelState::new(&names, 0, adapter(), TensorSet::default()).unwrap();
        let held = Held {
            closed: 0,
            state: state.hash,
            checkpoint: CidBytes::from_cid(&crate::content::block::cid_of(0x55, b"zero")),
        };
        self.service.on_done(Done::Zero {
            job: job.clone(),
            result: Ok((Arc::new(state), held.clone())),
        });
        self.service.run_machines();
        held
    }

    /// The orchestrator calls this node, as it said to be ready, and others.
    fn call(&mut self, by: &NodeIdentity, job: &CidBytes, held: &Held, others: &[&NodeIdentity]) -> Hash32 {
        let keys = self.service.tools.keys.clone();
        let said = self.service.jobs[job].log.lacking(&BTreeSet::new(), usize::MAX);
        let mut said = said.iter().filter_map(|e| Verified::open(e, &keys).ok());
        let ready_at = said.find_map(|m| {
            if let Body::Ready(ready) = m.body {
                return Some(ready.at);
            }
            None
        });
        let me = RosterMember {
            peer: self.service.tools.me(),
            record: self.service.tools.identity.record_hash(),
            ready_at: ready_at.unwrap_or_default(),
        };
        let others = others.iter().map(|other| RosterMember {
            peer: other.peer(),
            record: other.record_hash(),
            ready_at: 0,
        });
        let roster = Roster {
            job: job.clone(),
            round: Round(0),
            attempt: 0,
            members: [me].into_iter().chain(others).collect(),
            parent: held.state,
            checkpoint: held.checkpoint.clone(),
        };
        object_hash(&self.hear(by, Body::Roster(roster)).encoded)
    }
}

#[tokio::test]
async fn another_announcement_leaves_the_running_job_alone() {
    let mut rig = rig(Role::Worker, 64);
    let (orchestrator, other) = (stranger(), stranger());
    let running = rig.announce(&orchestrator, 1);
    assert!(rig.service.turns.has(&running));
    let held = rig.load(&running);
    rig.call(&orchestrator, &running, &held, &[]);
    let tasks = rig.tasks();
    assert!(
        matches!(&tasks[..], [Task::Train(task)] if task.job == running),
        "{tasks:?}"
    );
    // Tiny models of strangers, and of one who never ends.
    let second = rig.announce(&other, 1);
    for n in 2..40 {
        rig.announce(&other, n);
    }
    for _ in 0..3 {
        rig.service.take_turns();
    }
    assert!(rig.service.turns.has(&running));
    assert!(
        rig.service
            .jobs
            .values()
            .all(|j| j.id == running || j.fetching.is_none())
    );
    // Nothing that was on its way for another is loaded either.
    rig.service.on_files(
        &second,
        Ok(JobFiles {
            base: "b".into(),
            train: "t".into(),
            heldout: "h".into(),
        }),
    );
    assert!(rig.tasks().is_empty());
    assert!(rig.service.jobs[&running].member.is_some() && rig.service.jobs[&running].model.is_some());
    // Its end is the next one's beginning.
    let over = Status {
        job: running.clone(),
        closed: 0,
        standing: 2,
        why: "enough".into(),
    };
    rig.hear(&orchestrator, Body::Status(over));
    let next = rig.service.turns.current().cloned().unwrap();
    assert_eq!(
        rig.service.jobs[&next].body.submitted, 39,
        "an orchestrator's latest is the one that counts"
    );
    assert!(rig.service.jobs[&next].fetching.is_some());
    rig.load(&next);
}

#[tokio::test]
async fn announcements_without_end_take_bounded_places() {
    let mut rig = rig(Role::Bootstrap, 1);
    let (first, flood) = (stranger(), stranger());
    let kept = rig.announce(&first, 1);
    for n in 0..300 {
        rig.announce(&flood, n);
    }
    assert!(rig.service.jobs.contains_key(&kept) && rig.service.jobs.len() <= 33);
    // Old announcements that come again drive out nothing.
    let before: Vec<CidBytes> = rig.service.jobs.keys().cloned().collect();
    rig.announce(&flood, 3);
    assert!(rig.service.jobs.keys().eq(&before));
    // Where many announce much, who has most gives way, and what is over first of all.
    for _ in 0..9 {
        let one = stranger();
        (0..31).for_each(|n| drop(rig.announce(&one, n)));
    }
    assert_eq!(rig.service.jobs.len(), super::places::MAX_JOBS);
    let late = rig.announce(&stranger(), 1);
    assert!(rig.service.jobs.contains_key(&late) && rig.service.jobs.contains_key(&kept));
    let over = Status {
        job: late.clone(),
        closed: 0,
        standing: 3,
        why: String::new(),
    };
    let job = rig.service.jobs.get_mut(&late).unwrap();
    job.standing = Some((gym_protocol::message::Standing::Failed, over.why));
    let later = rig.announce(&stranger(), 1);
    assert!(rig.service.jobs.contains_key(&later) && !rig.service.jobs.contains_key(&late));
}

fn manifest(job: &CidBytes, round: u64, member: &PeerBytes) -> Manifest {
    Manifest {
        job: job.clone(),
        round: Round(round),
        view: View(0),
        roster: Hash32::ZERO,
        parent: Hash32::ZERO,
        entries: vec![Entry {
            member: member.clone(),
            cid: CidBytes::default(),
            weight: 1,
            server: member.clone(),
        }],
        grid: None,
        kept: Vec::new(),
        left_out: Vec::new(),
    }
}

/// A commit that `by` signed for a round.
fn replica(rig: &Rig, job: &CidBytes, roster: Hash32, held: &Held, by: &NodeIdentity) -> Replica {
    let names = rig.service.jobs[job].names.clone();
    let (layout, dir) = (adapter(), tempfile::tempdir().unwrap());
    let draft = Draft {
        names: &names,
        layout: &layout,
        delta: &[0.25; 14],
        round: Round(0),
        parent: held.state,
        trained: &Trained::default(),
    };
    let files = commit::build(&draft, Values::Checked, by, &dir.path().join("sequence")).unwrap();
    Replica {
        roster,
        salt: Hash32::ZERO,
        cid: CidBytes::default(),
        files,
    }
}

#[tokio::test]
async fn strangers_replicas_change_nothing() {
    let mut rig = rig(Role::Worker, 64);
    let (orchestrator, member) = (stranger(), stranger());
    rig.meet(&member);
    let job = rig.announce(&orchestrator, 1);
    let held = rig.load(&job);
    let me = rig.service.tools.me();
    let flood = |roster, by: &NodeIdentity| {
        let replica = Replica {
            roster,
            salt: Hash32::ZERO,
            cid: CidBytes::default(),
            files: BTreeMap::from([("delta.bin".to_owned(), vec![7; 3 << 20])]),
        };
        frames(&replica, &job, 0, &by.peer(), &me)
    };
    let roster = rig.call(&orchestrator, &job, &held, &[&member]);
    let before = rig.service.tools.content.stat().await.unwrap();
    // Of nobody who is called: nothing is put together.
    for _ in 0..70 {
        let by = stranger();
        for event in flood(roster, &by).into_iter().take(2) {
            rig.service.on_net(event).await;
        }
    }
    let is_empty = |a: &Assembly| format!("{a:?}") == format!("{:?}", Assembly::default());
    assert!(is_empty(&rig.service.jobs[&job].assembly));
    // Of a member, but no signed delta: nothing is stored.
    for event in flood(roster, &member) {
        rig.service.on_net(event).await;
    }
    let Some(Done::Replica { outcome: Err(_), .. }) = rig.done.recv().await else {
        panic!("it is not refused")
    };
    assert_eq!(rig.service.tools.content.stat().await.unwrap(), before);
    // A member's own commit, meanwhile and after.
    let mut good = replica(&rig, &job, roster, &held, &member);
    let other = tempfile::tempdir().unwrap();
    let other = content(other.path());
    let added = other
        .add_map(good.files.clone(), crate::content::Pin::No)
        .await
        .unwrap();
    good.cid = CidBytes::from_cid(&added.cid);
    for event in frames(&good, &job, 0, &member.peer(), &me) {
        rig.service.on_net(event).await;
    }
    let Some(Done::Replica { outcome, .. }) = rig.done.recv().await else {
        panic!("it is not looked at")
    };
    assert_eq!(outcome.unwrap().delta.len(), 14);
    // It is kept, while the round needs it, from collection.
    rig.service.tools.content.gc().await.unwrap();
    assert!(rig.service.tools.content.store().has(&added.cid));
    // Without end it is not looked at.
    for _ in 0..10 {
        for event in frames(&good, &job, 0, &member.peer(), &me) {
            rig.service.on_net(event).await;
        }
    }
    assert!(
        rig.service
            .tools
            .metrics
            .get("gym_offences_total", &[("kind", Offence::Unexpected.label())])
            > 0
    );
}

#[tokio::test]
async fn a_committed_delta_has_the_adapters_form() {
    let mut rig = rig(Role::Worker, 64);
    let (orchestrator, member) = (stranger(), stranger());
    rig.meet(&member);
    let job = rig.announce(&orchestrator, 1);
    let held = rig.load(&job);
    let active = &rig.service.jobs[&job];
    let awaited = |round| {
        rig.service
            .awaited(active, &member.peer(), Round(round), held.state)
            .unwrap()
    };
    let names = active.names.clone();
    let dir = tempfile::tempdir().unwrap();
    let counter = dir.path().join("sequence");
    let made = |layout: &TensorSet, round, counter: &std::path::Path| {
        let delta = vec![0.25; layout.elements()];
        let draft = Draft {
            names: &names,
            layout,
            delta: &delta,
            round: Round(round),
            parent: held.state,
            trained: &Trained::default(),
        };
        commit::build(&draft, Values::Checked, &member, counter).unwrap()[commit::DELTA].clone()
    };
    let check = |bytes: &[u8], round| commit::check(bytes, &awaited(round), &rig.service.tools.keys);
    // As many elements under another name, and in another shape.
    let mut renamed = adapter();
    let tensor = renamed.0.remove("a.lora_B.weight").unwrap();
    renamed.0.insert("b.lora_B.weight".to_owned(), tensor);
    let mut turned = adapter();
    turned.0.get_mut("a.lora_B.weight").unwrap().shape = vec![2, 4];
    let mut more = adapter();
    let empty = F32Tensor {
        shape: vec![0],
        data: Vec::new(),
    };
    more.0.insert("z".to_owned(), empty);
    for (layout, what) in [(renamed, "missing"), (turned, "shape"), (more, "no tensor")] {
        let (reason, why) = check(&made(&layout, 0, &counter), 0).unwrap_err();
        assert_eq!(reason, gym_protocol::message::Reason::Malformed);
        assert!(why.contains(what), "{why}");
    }
    // Sequence numbers rise from round to round, however often one is looked at and in whatever order.
    let first = made(&adapter(), 0, &counter);
    let second = made(&adapter(), 1, &counter);
    let third = made(&adapter(), 2, &counter);
    for (bytes, round) in [(&first, 0), (&third, 2), (&second, 1), (&first, 0), (&third, 2)] {
        check(bytes, round).unwrap();
    }
    let lost = dir.path().join("lost");
    let (_, why) = check(&made(&adapter(), 3, &lost), 3).unwrap_err();
    assert!(why.contains("sequence 1 does not rise"), "{why}");
    // The clock's tolerance is the network's.
    let strict = super::form::Awaited {
        clock_skew: 0,
        ..awaited(4)
    };
    commit::check(&made(&adapter(), 4, &counter), &strict, &rig.service.tools.keys).unwrap();
}

/// Whoever announces jobs and calls strangers to them takes no places of links from the job that runs.
#[tokio::test]
async fn places_of_links_are_kept_for_the_job_in_turn_alone() {
    let mut rig = rig(Role::Worker, 64);
    let (orchestrator, member) = (stranger(), stranger());
    let (other, of_other) = (stranger(), stranger());
    let running = rig.announce(&orchestrator, 1);
    let held = rig.load(&running);
    rig.call(&orchestrator, &running, &held, &[&member]);
    let waiting = rig.announce(&other, 1);
    rig.call(&other, &waiting, &held, &[&of_other]);
    assert!(!rig.service.jobs[&waiting].rosters.is_empty());
    let kept = |rig: &Rig| {
        rig.service.keep_places();
        let members = rig.service.tools.outbox.members();
        [&member, &of_other].map(|node| members.contains(&node.peer()))
    };
    assert_eq!(kept(&rig), [true, false]);
    let over = Status {
        job: running,
        closed: 0,
        standing: 2,
        why: "enough".into(),
    };
    rig.hear(&orchestrator, Body::Status(over));
    assert!(rig.service.turns.has(&waiting));
    assert_eq!(kept(&rig), [false, true]);
}

/// An orchestrator that trains, and one that has the round's state as a checkpoint alone, come to what the members attest.
#[tokio::test]
async fn an_audit_comes_to_what_an_honest_member_attests() {
    let mut rig = rig(Role::Worker, 64);
    let (orchestrator, member) = (stranger(), stranger());
    rig.meet(&member);
    let job = rig.announce(&orchestrator, 1);
    let mut held = rig.load(&job);
    let (content, names) = (
        rig.service.tools.content.clone(),
        rig.service.jobs[&job].names.clone(),
    );
    let zero = rig.service.jobs[&job].model.clone().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let add = |state, origin, name: &str| {
        super::member::add_checkpoint(&content, &names, state, origin, dir.path().join(name))
    };
    let (_, checkpoint) = add(zero.clone(), Origin::default(), "zero").await.unwrap();
    held.checkpoint = checkpoint;
    let roster = rig.call(&orchestrator, &job, &held, &[&member]);
    let commit = replica(&rig, &job, roster, &held, &member);
    let added = content
        .add_map(commit.files, crate::content::Pin::No)
        .await
        .unwrap();
    let mut manifest = manifest(&job, 0, &member.peer());
    manifest.roster = roster;
    manifest.parent = held.state;
    manifest.entries[0].cid = CidBytes::from_cid(&added.cid);
    let hash = object_hash(&rig.hear(&orchestrator, Body::Manifest(manifest.clone())).encoded);
    // As a member does.
    let stepped = zero.apply(&names, &[0.25; 14]).unwrap();
    let (stepped, checkpoint) = add(Arc::new(stepped), Origin::of(hash, &manifest), "one")
        .await
        .unwrap();
    let attested = Some(Follows {
        state: stepped.hash,
        checkpoint,
    });
    for in_memory in [true, false] {
        if !in_memory {
            let active = rig.service.jobs.get_mut(&job).unwrap();
            let later = ModelState {
                hash: Hash32([9; 32]),
                ..(*zero).clone()
            };
            (active.model, active.zero_state) = (Some(Arc::new(later)), None);
        }
        let auditor = rig.service.auditor(&job, hash).unwrap();
        let (_, follows) = auditor.run().await.unwrap();
        assert_eq!(follows, attested, "in memory: {in_memory}");
    }
    let of_job = rig.service.tools.home.jobs().join(job.to_string());
    let left = std::fs::read_dir(of_job.join("audits")).unwrap();
    assert_eq!(left.count(), 0, "nothing is left");
}
