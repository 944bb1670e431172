#!/usr/bin/env python3
"""This project's GSPO step beside TRL's, alternating on the same cores, one thread each; medians over all steps.
Run:  cargo build --release -p gym-training --bin bench
      scripts/bench/compare_trl.py target/release/bench PYTHON [ROUNDS [STEPS]]
PYTHON is an interpreter with torch, transformers, trl, peft and datasets. CPU times are compared: others may use the machine."""
import json, os, statistics, subprocess, sys, tempfile

bench, python = sys.argv[1:3]
rounds, steps = (int(a) for a in (sys.argv[3:] + ["2", "6"][len(sys.argv) - 3:]))
script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_trl.py")


def ours():
    return json.loads(subprocess.check_output([os.path.abspath(bench), "--threads", "1", "--steps", str(steps), "--json"]))


def trl():
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        subprocess.run([python, script, "--threads", "1", "--steps", str(steps), "--mode", "trl4", "--json", out],
                       cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.load(open(out))["trl4"]


runs = [(ours(), trl()) for _ in range(rounds)]
median = lambda side, of: statistics.median(of(run[side]) for run in runs)
print("| | GYM | TRL | GYM/TRL |\n| --- | --- | --- | --- |")
for name, of, unit in [
    ("rollouts, completion tokens/CPU-s", lambda r: r["rollout_tok_s"]["cpu_median"], 0),
    ("training (forward and backward), tokens/CPU-s", lambda r: r["train_tok_s_88"]["cpu_median"], 0),
    ("the rest of a step, CPU-s", lambda r: r["other_s"]["cpu"]["median"], 3),
    ("whole step, CPU-s", lambda r: r["seconds_per_rollout_step"]["cpu"]["median"], 3),
    ("whole step, wall s", lambda r: r["seconds_per_rollout_step"]["wall"]["median"], 3),
    ("peak memory, MiB", lambda r: r["peak_rss_mib"], 0),
]:
    a, b = median(0, of), median(1, of)
    print(f"| {name} | {a:.{unit}f} | {b:.{unit}f} | {a / b:.2f} |")
