//! What becomes of a validator's wishes.

use super::*;

/// A validator whose trainer has room for nothing, with its base evaluated.
fn validating() -> (Rig, CidBytes, NodeIdentity) {
    let mut rig = rig(Role::Validator, 1);
    let orchestrator = stranger();
    let job = rig.announce(&orchestrator, 1);
    rig.load(&job);
    assert!(matches!(&rig.tasks()[..], [Task::Evaluate { tag: 0, .. }]));
    let fill = Task::Evaluate {
        job: job.clone(),
        tag: 1_000,
        adapter: None,
        questions: 0,
    };
    assert!(rig.service.tools.trainer.ask(fill));
    (rig, job, orchestrator)
}

impl Rig {
    fn validator(&mut self, job: &CidBytes) -> &mut Validator {
        self.service
            .jobs
            .get_mut(job)
            .unwrap()
            .validator
            .as_mut()
            .unwrap()
    }
}

#[tokio::test]
async fn every_way_a_wish_can_end_leaves_the_validator_free() {
    let (mut rig, job, orchestrator) = validating();
    let of = |round| manifest(&job, round, &orchestrator.peer());
    // The roster is not known.
    let wish = rig.validator(&job).on_close(&of(1));
    assert!(
        wish.is_some() && rig.validator(&job).on_close(&of(2)).is_none(),
        "one at a time"
    );
    rig.service.grant(&job, wish);
    // The trainer has no room for the state before.
    let wish = rig.validator(&job).on_close(&of(3));
    assert!(wish.is_some(), "an unknown roster frees it");
    let state = rig.service.jobs[&job].model.clone().unwrap();
    let entry = of(3).entries[0].clone();
    let delta = vec![0.0; state.adapter.elements()];
    let wish = rig
        .validator(&job)
        .on_delta(Round(3), entry.clone(), &state, &delta);
    assert!(wish.is_some());
    rig.service.grant(&job, wish);
    // Nor for the one after.
    assert!(
        rig.validator(&job).on_close(&of(4)).is_some(),
        "a refusal frees it"
    );
    let Some(crate::job::validate::Wish::Evaluate { tag, .. }) =
        rig.validator(&job)
            .on_delta(Round(4), entry.clone(), &state, &delta)
    else {
        panic!("nothing to evaluate")
    };
    let after = rig.validator(&job).on_evaluated(tag, 1, 2);
    assert_eq!(after.len(), 1);
    rig.service.grant(&job, after);
    assert!(
        rig.validator(&job).on_close(&of(5)).is_some(),
        "a refusal frees it"
    );
    // The delta is of another form, or cannot be had; the trainer fails.
    assert!(
        rig.validator(&job)
            .on_delta(Round(5), entry.clone(), &state, &[])
            .is_none()
    );
    assert!(rig.validator(&job).on_close(&of(6)).is_some());
    rig.service.on_done(Done::Validated {
        job: job.clone(),
        round: Round(6),
        entry: entry.clone(),
        state: state.clone(),
        delta: Err("gone".into()),
    });
    assert!(rig.validator(&job).on_close(&of(7)).is_some());
    let held = Held {
        closed: 7,
        state: Hash32::ZERO,
        checkpoint: CidBytes::default(),
    };
    rig.service.on_done(Done::State {
        job: job.clone(),
        held,
        purpose: crate::job::done::Purpose::Delta {
            round: Round(7),
            entry: entry.clone(),
        },
        result: Err("gone".into()),
    });
    assert!(rig.validator(&job).on_close(&of(8)).is_some());
    let Some(crate::job::validate::Wish::Evaluate { tag, .. }) =
        rig.validator(&job).on_delta(Round(8), entry, &state, &delta)
    else {
        panic!("nothing to evaluate")
    };
    rig.validator(&job).on_failed(tag);
    assert!(rig.validator(&job).on_close(&of(9)).is_some());
    assert_eq!(
        rig.validator(&job).passed_over(),
        3,
        "what was passed over is counted"
    );
}

#[tokio::test]
async fn a_refused_base_costs_no_report() {
    let (mut rig, job, _) = validating();
    // The base was refused, and the job is done meanwhile.
    rig.validator(&job).on_refused(0);
    let state = rig.service.jobs[&job].model.clone().unwrap();
    let last = Arc::new(state.adapter.clone());
    assert!(
        rig.validator(&job)
            .on_last(Round(3), CidBytes::default(), last)
            .is_none()
    );
    rig.service.evaluate_again();
    assert!(rig.validator(&job).is_evaluating(), "the trainer is full still");
    rig.tasks();
    rig.service.evaluate_again();
    let [
        Task::Evaluate {
            tag, adapter: None, ..
        },
    ] = rig.tasks()[..]
    else {
        panic!("the base is asked for again")
    };
    let wishes = rig.validator(&job).on_evaluated(tag, 1, 2);
    rig.service.grant(&job, wishes);
    let [
        Task::Evaluate {
            tag,
            adapter: Some(_),
            ..
        },
    ] = rig.tasks()[..]
    else {
        panic!("the last checkpoint follows")
    };
    assert_eq!(rig.validator(&job).on_evaluated(tag, 2, 2).len(), 1);
    assert!(!rig.validator(&job).is_evaluating());
}

/// Gossip keeps no order: a job's end may be heard of before its last round's close.
#[tokio::test]
async fn the_last_checkpoint_is_evaluated_in_whichever_order_the_end_is_told() {
    for closes in [
        ["first", "last", "end"],
        ["first", "end", "last"],
        ["end", "first", "last"],
    ] {
        let mut rig = rig(Role::Validator, 8);
        let orchestrator = stranger();
        let job = rig.announce(&orchestrator, 1);
        let zero = rig.load(&job);
        let base = rig.validator(&job).on_evaluated(0, 1, 2);
        assert!(base.is_empty() && !rig.validator(&job).is_evaluating());
        for what in closes {
            let body = match what {
                "first" => Body::Close(close(&job, 0, Hash32::ZERO)),
                "last" => Body::Close(close(&job, 1, zero.state)),
                _ => Body::Status(Status {
                    job: job.clone(),
                    closed: 2,
                    standing: 1,
                    why: "all rounds are closed".into(),
                }),
            };
            rig.hear(&orchestrator, body);
        }
        assert!(rig.validator(&job).is_evaluating(), "{closes:?}");
        let done = tokio::time::timeout(Duration::from_secs(30), rig.done.recv());
        let Ok(Some(Done::State { held, purpose, .. })) = done.await else {
            panic!("nothing is fetched: {closes:?}")
        };
        assert!(matches!(purpose, Purpose::Last) && held.closed == 2, "{closes:?}");
        assert!(rig.done.try_recv().is_err(), "once");
    }
}

fn close(job: &CidBytes, round: u64, state: Hash32) -> Close {
    Close {
        job: job.clone(),
        round: Round(round),
        view: View(0),
        manifest: Hash32::ZERO,
        state,
        checkpoint: CidBytes::from_cid(&crate::content::block::cid_of(0x55, b"last")),
        attests: Vec::new(),
        signers: Some(serde_bytes::ByteBuf::from([1])),
    }
}
