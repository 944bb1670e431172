#!/usr/bin/env python
"""The ring against PyTorch's gloo and hivemind's averager: the same vector, the same cores, in turn, ratios of medians.

Run: python compare_ring.py TESTNET [--members 4] [--mib 64] [--rounds 5] [--turns 3] [--hivemind PYTHON] [--json FILE]
     python compare_ring.py TESTNET --wan [--mib 64,4] [--mbit 200] [--delay-ms 50] [--loss 0]
TESTNET is this project's `testnet`, built with --release; --beside NAME=TESTNET is another build of it, in the same turns. gloo runs in this Python (it needs torch); hivemind in PYTHON
(it needs hivemind and numpy < 2.3), left out without one. --wan puts every member, ours and gloo's, into a network
namespace of its own, all joined by ../netlab (needs root): each member's uplink and downlink carry MBIT, each way takes
DELAY_MS, so that a round trip takes twice that.

Every turn runs each contender once, so that all of them meet the same load. A figure is the median over turns of the
median over a turn's rounds; seconds of ours are the slowest member's, of gloo and hivemind the first's, as their scripts
have it."""
import argparse, json, os, statistics as st, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
NETLAB = os.path.join(os.path.dirname(HERE), "netlab")
GLOO_PORT = 29400


def ours(a, testnet, wire, mib):
    command = [testnet, "bench", "ring", "--members", str(a.members), "--mib", str(mib), "--rounds", str(a.rounds),
               "--wire", wire, "--json"]
    if a.spaces:
        prefix = a.spaces[0][0].rstrip("1")
        network = a.spaces[0][1].rsplit(".", 1)[0]
        command += ["--through", f"ip netns exec {prefix}{{+1}}", "--listen", f"/ip4/{network}.{{+1}}/tcp/0"]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return json.loads(out.splitlines()[-1])


def rows(command, file, cwd):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=cwd)
    with open(file) as f:
        return json.load(f)["rows"]


def gloo(a, mib, cwd):
    file = os.path.join(cwd, "gloo.json")
    command = [sys.executable, os.path.join(HERE, "bench_gloo.py"), "--worlds", str(a.members), "--mib", str(mib),
               "--reps", str(a.rounds)]
    others = []
    if a.spaces:
        command += ["--master", f"{a.spaces[0][1]}:{GLOO_PORT}", "--ifname", "tun0"]
        ranks = [["ip", "netns", "exec", name, *command, "--rank", str(r)] for r, (name, _) in enumerate(a.spaces)]
        command, *others = ranks
    others = [subprocess.Popen(c, stdout=subprocess.DEVNULL, cwd=cwd) for c in others]
    try:
        return rows([*command, "--json", file], file, cwd)[0]["algbw_gb_s_median"]
    finally:
        for process in others:
            process.wait(timeout=60)


def hivemind(a, mib, cwd):
    file = os.path.join(cwd, "hivemind.json")
    found = rows([a.hivemind, os.path.join(HERE, "bench_hivemind.py"), "--worlds", str(a.members), "--mib", str(mib),
                  "--comp", "none", "--reps", "3", "--json", file], file, cwd)
    return found[0]["algbw_gb_s_median"] if found else None


def compare(a, mib, cwd):
    """Takes the turns at one size; prints the table and gives everything that was measured."""
    load = os.getloadavg()
    builds = {w + ("" if not name else f" ({name})"): (testnet, w)
              for name, testnet in a.testnets.items() for w in a.wires.split(",")}
    gb_s = {name: [] for name in [*builds, "gloo", "hivemind"]}
    runs = {name: [] for name in builds}
    for _ in range(a.turns):
        gb_s["gloo"].append(gloo(a, mib, cwd))
        for name, (testnet, wire) in builds.items():
            runs[name].append(ours(a, testnet, wire, mib))
            gb_s[name].append(runs[name][-1]["algbw_gb_s"])
        if a.hivemind and (figure := hivemind(a, mib, cwd)):
            gb_s["hivemind"].append(figure)
    median = {name: st.median(v) for name, v in gb_s.items() if v}
    where = f"{a.mbit:g} Mbit/s, {a.delay_ms:g} ms each way, {a.loss:g} % lost" if a.spaces else "loopback"
    print(f"{a.members} x {mib} MiB, {where}, {a.turns} turns of {a.rounds} rounds, load before and after "
          f"{load[0]:.1f} {os.getloadavg()[0]:.1f}")
    table(a, mib, gb_s, median, runs)
    return dict(mib=mib, gb_s=gb_s, median=median, runs=runs, load=load)


def table(a, mib, gb_s, median, runs):
    print("| what | GB/s, median of turns | seconds | every turn, GB/s | x gloo | x hivemind |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, m in median.items():
        turns = ", ".join(f"{v:.4f}" for v in gb_s[name])
        ratio = lambda other: f"{m / median[other]:.2f}" if other in median else ""
        print(f"| {name} | {m:.4f} | {mib * 2**20 / m / 1e9:.3f} | {turns} | {ratio('gloo')} | {ratio('hivemind')} |")
    for wire, made in runs.items():
        stages = {k: st.median(r["stages"][k] for r in made) for k in made[0]["stages"]}
        print(f"{wire}: processor seconds {st.median(r['cpu_seconds'] for r in made):.3f}, bytes "
              f"{max(r['bytes_ratio'] for r in made):.5f} of theory; "
              + ", ".join(f"{k} {v:.3f}" for k, v in stages.items()), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("testnet")
    p.add_argument("--beside", action="append", default=[], metavar="NAME=TESTNET")
    p.add_argument("--members", type=int, default=4)
    p.add_argument("--mib", default="64")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--wires", default="f32,q8")
    p.add_argument("--hivemind")
    p.add_argument("--json")
    p.add_argument("--wan", action="store_true")
    p.add_argument("--mbit", type=float, default=200)
    p.add_argument("--delay-ms", type=float, default=50)
    p.add_argument("--loss", type=float, default=0)
    a = p.parse_args()
    if a.wan and "NETLAB_NAMES" not in os.environ:
        links = ["--members", a.members, "--delay-ms", a.delay_ms, "--mbit", a.mbit, "--loss", a.loss]
        os.execv(NETLAB, [NETLAB, "run", "--prefix", "ring", *map(str, links), "--", sys.executable, *sys.argv])
    builds = [("", a.testnet), *(pair.split("=", 1) for pair in a.beside)]
    a.testnets = {name: os.path.abspath(path) for name, path in builds}
    a.spaces = list(zip(os.environ["NETLAB_NAMES"].split(), os.environ["NETLAB_ADDRESSES"].split())) if a.wan else []
    with tempfile.TemporaryDirectory() as cwd:
        sizes = [compare(a, int(mib), cwd) for mib in a.mib.split(",")]
    if a.spaces:
        links = json.loads(subprocess.run([NETLAB, "ctl", "counters"], check=True, stdout=subprocess.PIPE).stdout)
        dropped = sum(pair["dropped"] for pair in links["pairs"].values())
        print(f"the links' emulator: late by {links['late_ms']:.1f} ms at most, {dropped} packets dropped by full queues")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(sizes, f, indent=1)


if __name__ == "__main__":
    main()
