//! Programs that work, and programs that fail in every way; each costs its own sample.

use super::*;
use std::io::Write;

fn program(script: &str) -> (tempfile::NamedTempFile, RewardSpec) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(script.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let spec = RewardSpec {
        program: Some(vec!["/bin/sh".into(), path]),
        // Long beside what a shell takes on a busy machine: a good sample must never meet it.
        sample_timeout_ms: Some(4_000),
        batch_timeout_ms: Some(120_000),
        ..RewardSpec::named("command")
    };
    (file, spec)
}

/// What a shell script answers to completions `c0`, `c1`, …
fn answers(script: &str, count: usize) -> Vec<Result<f64, Unscored>> {
    let (_file, spec) = program(script);
    score(&spec, count)
}

fn score(spec: &RewardSpec, count: usize) -> Vec<Result<f64, Unscored>> {
    let texts: Vec<String> = (0..count).map(|i| format!("c{i}\n\"")).collect();
    let samples: Vec<Sample<'_>> = texts
        .iter()
        .map(|completion| Sample {
            prompt: "p",
            completion,
            completion_tokens: 1,
            answer: "a",
            row: &serde_json::Value::Null,
        })
        .collect();
    Program::new(spec).unwrap().score_batch(&samples)
}

#[test]
fn a_good_program_judges_a_batch_in_one_process() {
    let script = "n=0; while read -r line; do echo $$ >> \"$0.pids\"; echo \"0.$n\"; n=$((n+1)); done";
    let (file, spec) = program(script);
    assert_eq!(score(&spec, 4), [Ok(0.0), Ok(0.1), Ok(0.2), Ok(0.3)]);
    let pids = std::fs::read_to_string(format!("{}.pids", file.path().display())).unwrap();
    let mut pids: Vec<&str> = pids.lines().collect();
    pids.dedup();
    assert_eq!(pids.len(), 1);
    std::fs::remove_file(format!("{}.pids", file.path().display())).unwrap();
}

#[test]
fn it_reads_prompt_completion_answer_and_row() {
    let script = r#"while read -r line; do
        case "$line" in *'"answer":"a"'*'"completion":"c0\n\""'*'"prompt":"p"'*'"row":null'*) echo 1;; *) echo 0;; esac
    done"#;
    assert_eq!(answers(script, 1), [Ok(1.0)]);
}

/// Fails on the second of three in the way `failure` says, and works on the others.
fn one_bad(failure: &str) -> Vec<Result<f64, Unscored>> {
    answers(
        &format!("while read -r line; do case \"$line\" in *c1*) {failure};; *) echo 2;; esac; done"),
        3,
    )
}

#[test]
fn each_failure_costs_its_own_sample() {
    let cases = [
        ("exit 3", Unscored::ProgramExit),
        ("kill -9 $$", Unscored::ProgramExit),
        ("sleep 30", Unscored::ProgramTimeout),
        ("echo hello", Unscored::ProgramGarbage),
        ("printf '\\377\\n'", Unscored::ProgramGarbage),
        ("echo true", Unscored::ProgramGarbage),
        ("echo null", Unscored::ProgramNull),
        ("echo NaN", Unscored::ProgramNotFinite),
        ("echo -Infinity", Unscored::ProgramNotFinite),
        ("echo 1e999", Unscored::ProgramNotFinite),
        ("true", Unscored::ProgramSilent),
        ("echo 1; echo 1", Unscored::ProgramOutput),
        ("yes 1", Unscored::ProgramOutput),
        ("cat /dev/zero", Unscored::ProgramOutput),
    ];
    for (failure, reason) in cases {
        assert_eq!(one_bad(failure), [Ok(2.0), Err(reason), Ok(2.0)], "{failure}");
    }
}

#[test]
fn a_program_that_is_not_there_costs_every_sample_and_no_more() {
    let spec = RewardSpec {
        program: Some(vec!["/nonexistent/judge".into()]),
        ..RewardSpec::named("command")
    };
    assert_eq!(score(&spec, 2), [Err(Unscored::ProgramStart); 2]);
}

#[test]
fn a_batch_has_its_deadline() {
    let (_file, mut spec) = program("sleep 60");
    spec.sample_timeout_ms = Some(2_000);
    spec.batch_timeout_ms = Some(900);
    let start = Instant::now();
    assert_eq!(score(&spec, 50), [Err(Unscored::ProgramTimeout); 50]);
    // Without the batch's deadline it would be 100 s.
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn nothing_it_started_is_left() {
    let script = "sleep 47 & echo $! > \"$0.pid\"; while read -r line; do echo 1; done";
    let (file, spec) = program(script);
    assert_eq!(score(&spec, 2), [Ok(1.0); 2]);
    let note = format!("{}.pid", file.path().display());
    let pid = std::fs::read_to_string(&note).unwrap();
    std::fs::remove_file(note).unwrap();
    let status = format!("/proc/{}/stat", pid.trim());
    let deadline = Instant::now() + Duration::from_secs(5);
    // Gone, or a zombie that init has not taken yet.
    while std::fs::read_to_string(&status).is_ok_and(|s| !s.contains(") Z")) {
        assert!(Instant::now() < deadline, "process {pid} is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_environment_is_short() {
    let script = "while read -r line; do env | grep -c ^CARGO || true; done";
    assert_eq!(answers(script, 1), [Ok(0.0)]);
}

#[cfg(target_os = "linux")]
#[test]
fn the_network_is_refused() {
    use std::net::TcpListener;
    assert!(Isolation::probe().is_effective(), "this kernel has no seccomp");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // bash opens the socket itself; the same line works without the filter.
    let script = format!("(echo > /dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo 1 || echo 0");
    let bash = |script: &str| vec!["/bin/bash".into(), "-c".into(), script.to_owned()];
    let outside = std::process::Command::new("/bin/bash")
        .args(["-c", &script])
        .output()
        .unwrap();
    assert_eq!(outside.stdout, b"1\n");
    let spec = RewardSpec {
        program: Some(bash(&format!("while read -r line; do {script}; done"))),
        ..RewardSpec::named("command")
    };
    assert_eq!(score(&spec, 1), [Ok(0.0)]);
}
