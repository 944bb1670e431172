#!/usr/bin/env python
"""The ring against PyTorch's gloo and hivemind's averager: the same vector, the same cores, in turn, ratios of medians.

Run: python compare_ring.py TESTNET [--members 4] [--mib 64] [--rounds 5] [--turns 3] [--hivemind PYTHON] [--json FILE]
TESTNET is this project's `testnet`, built with --release. gloo runs in this Python (it needs torch); hivemind in PYTHON
(it needs hivemind and numpy < 2.3), left out without one.

Every turn runs each contender once, so that all of them meet the same load. A figure is the median over all rounds of all
turns; seconds of ours are the slowest member's, of gloo and hivemind the first's, as their scripts have it."""
import argparse, json, os, statistics as st, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def ours(a, wire):
    command = [a.testnet, "bench", "ring", "--members", str(a.members), "--mib", str(a.mib), "--rounds", str(a.rounds),
               "--wire", wire, "--json"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def script(python, name, args, cwd):
    with tempfile.NamedTemporaryFile("r", suffix=".json") as f:
        command = [python, os.path.join(HERE, name), *args, "--json", f.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=cwd)
        return json.load(f)["rows"]


def gloo(a, cwd):
    rows = script(sys.executable, "bench_gloo.py",
                  ["--worlds", str(a.members), "--mib", str(a.mib), "--reps", str(a.rounds)], cwd)
    return rows[0]["algbw_gb_s_median"]


def hivemind(a, cwd):
    rows = script(a.hivemind, "bench_hivemind.py",
                  ["--worlds", str(a.members), "--mib", str(a.mib), "--comp", "none", "--reps", "3"], cwd)
    return rows[0]["algbw_gb_s_median"] if rows else None


def main():
    p = argparse.ArgumentParser()
    p.add_argument("testnet")
    p.add_argument("--members", type=int, default=4)
    p.add_argument("--mib", type=int, default=64)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--wires", default="f32,q8")
    p.add_argument("--hivemind")
    p.add_argument("--json")
    a = p.parse_args()
    a.testnet = os.path.abspath(a.testnet)
    wires, load = a.wires.split(","), os.getloadavg()
    gb_s = {w: [] for w in [*wires, "gloo", "hivemind"]}
    runs = {w: [] for w in wires}
    with tempfile.TemporaryDirectory() as cwd:
        for _ in range(a.turns):
            gb_s["gloo"].append(gloo(a, cwd))
            for wire in wires:
                run = ours(a, wire)
                runs[wire].append(run)
                gb_s[wire].append(run["algbw_gb_s"])
            if a.hivemind and (figure := hivemind(a, cwd)):
                gb_s["hivemind"].append(figure)
    median = {name: st.median(v) for name, v in gb_s.items() if v}
    print(f"{a.members} x {a.mib} MiB, {a.turns} turns of {a.rounds} rounds, load before and after "
          f"{load[0]:.1f} {os.getloadavg()[0]:.1f}")
    print("| what | GB/s, median of turns | every turn | x gloo | x hivemind |\n| --- | --- | --- | --- | --- |")
    for name, m in median.items():
        turns = ", ".join(f"{v:.3f}" for v in gb_s[name])
        ratio = lambda other: f"{m / median[other]:.2f}" if other in median else ""
        print(f"| {name} | {m:.3f} | {turns} | {ratio('gloo')} | {ratio('hivemind')} |")
    for wire in wires:
        stages = {k: st.median(r["stages"][k] for r in runs[wire]) for k in runs[wire][0]["stages"]}
        print(f"{wire}: processor seconds {st.median(r['cpu_seconds'] for r in runs[wire]):.3f}, bytes "
              f"{max(r['bytes_ratio'] for r in runs[wire]):.5f} of theory; "
              + ", ".join(f"{k} {v:.3f}" for k, v in stages.items()))
    if a.json:
        json.dump(dict(gb_s=gb_s, median=median, runs=runs, load=load), open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
