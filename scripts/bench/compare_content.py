#!/usr/bin/env python3
"""Content between two nodes on loopback: this project's beside Kubo's and Helia's, in turn, on the same cores.

    scripts/bench/compare_content.py [--program target/release/hanzod] [--turns 3] [--peers kubo,helia] [--json]
    scripts/bench/compare_content.py --providers 4 [--mbit 50] [--mib 32]

    64 MiB       one file, from one node to another of the same kind
    1,000 files  a directory of small ones

Each turn has new nodes and new bytes. A transfer's time runs from the order until the bytes are written out; ours
includes the start of the command line. What a turn leaves is removed at the end of all: ext4 makes new files slowly for a
minute after many were deleted. Prints medians and ratios, and the processor seconds of both nodes and the command, which a
busy machine changes less; see scripts/ipfs-interop for the packages.

With --providers, ours alone: a fetcher and so many providers in network namespaces of their own, joined by ../netlab
(needs root), each provider's uplink MBIT and the fetcher's downlink without a limit. One file from one of them, one from
all, and one from all of whom one is killed when a third is there.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "ipfs"))
import peers  # noqa: E402

MIB = 1 << 20
NETLAB = ROOT / "scripts" / "netlab"


def main():
    args = arguments()
    if args.providers:
        return providers(args)
    peers.install()
    seconds = {}
    with tempfile.TemporaryDirectory(prefix="gym-content-") as folder:
        for turn in range(args.turns):
            for kind in ["gym", *args.peers]:
                for what in ("64 MiB", "1,000 files"):
                    took = transfer(kind, what, turn, args.program, pathlib.Path(folder) / f"{turn}-{kind}-{what[:2]}")
                    note(seconds, (kind, what), *took)
    medians = {key: [statistics.median(values) for values in zip(*pairs)] for key, pairs in seconds.items()}
    show(medians, args)
    return 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--program", type=pathlib.Path, default=target / "release" / "hanzod")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--peers", type=lambda text: [name for name in text.split(",") if name], default=["kubo", "helia"])
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--providers", type=int, default=0, metavar="N", help="measure ours from N providers beside one")
    parser.add_argument("--mbit", type=float, default=50.0, help="each provider's uplink [50]")
    parser.add_argument("--mib", type=int, default=32, help="size of the file from providers [32]")
    return parser.parse_args()


def note(seconds, key, took, cpu=None):
    seconds.setdefault(key, []).append(took if cpu is None else (took, cpu))
    words = "" if cpu is None else f", {cpu:.2f} s of processors"
    print(f"{key[0]:>6} {key[1]:12} {took:.2f} s{words}", file=sys.stderr, flush=True)


def show(medians, args):
    rows = []
    for what in ("64 MiB", "1,000 files"):
        ours, ours_cpu = medians["gym", what]
        for kind in args.peers:
            theirs, theirs_cpu = medians[kind, what]
            times = {"ours_s": ours, "theirs_s": theirs, "ours_cpu_s": ours_cpu, "theirs_cpu_s": theirs_cpu}
            rows.append({"what": what, "peer": kind, **times, "ratio": theirs / ours})
    if args.json:
        print(json.dumps(rows))
        return
    print("| what | beside | ours, s | theirs, s | ratio | ours, CPU s | theirs, CPU s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        wall = f"{row['ours_s']:.2f} | {row['theirs_s']:.2f} | {row['ratio']:.1f}"
        print(f"| {row['what']} | {row['peer']} | {wall} | {row['ours_cpu_s']:.2f} | {row['theirs_cpu_s']:.2f} |")


def make(folder, what, turn):
    generator = random.Random(f"{what} {turn}")
    path = folder / "thing"
    if what == "1,000 files":
        path.mkdir()
        for index in range(1000):
            (path / f"{index:04}").write_bytes(generator.randbytes(generator.randrange(1, 3000)))
    else:
        path.write_bytes(generator.randbytes(64 * MIB))
    return path


def start(kind, program, folder, other=None):
    """A node, in the network of another of its kind."""
    if kind != "gym":
        return peers.Process(kind, folder)
    return peers.Hanzod(program, folder, other and other.genesis)


def transfer(kind, what, turn, program, folder):
    folder.mkdir()
    thing = make(folder, what, turn)
    with start(kind, program, folder / "giver") as giver, start(kind, program, folder / "taker", giver) as taker:
        taker.connect(giver)
        cid = giver.add(thing)
        before = processors(giver, taker)
        took = taker.get(cid, folder / "out")
        return took, processors(giver, taker) - before


def processors(*nodes):
    """Processor seconds of nodes and of the commands that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    for node in nodes:
        fields = pathlib.Path(f"/proc/{node.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def providers(args):
    """From one provider, from all, and from all of whom one is killed."""
    if "NETLAB_NAMES" not in os.environ:
        command = [NETLAB, "run", "--prefix", "content", "--members", args.providers + 1, "--", sys.executable, *sys.argv]
        os.execv(NETLAB, [str(part) for part in command])
    spaces = list(zip(os.environ["NETLAB_NAMES"].split(), os.environ["NETLAB_ADDRESSES"].split()))
    for member in range(2, len(spaces) + 1):
        subprocess.run([NETLAB, "ctl", "up", str(member), str(args.mbit)], check=True, stdout=subprocess.DEVNULL)
    seconds = {}
    with tempfile.TemporaryDirectory(prefix="gym-content-") as folder:
        for turn in range(args.turns):
            for what in ("one", "all", "all, one killed"):
                note(seconds, ("from", what), from_providers(args, spaces, pathlib.Path(folder) / f"{turn}-{what}", what))
    medians = {what: statistics.median(values) for (_, what), values in seconds.items()}
    rows = [{"from": what, "s": took, "ratio": medians["one"] / took} for what, took in medians.items()]
    if args.json:
        print(json.dumps(rows))
        return 0
    print(f"| {args.mib} MiB from, {args.providers} at {args.mbit:g} Mbit/s | s | one / this |\n| --- | --- | --- |")
    for row in rows:
        print(f"| {row['from']} | {row['s']:.2f} | {row['ratio']:.2f} |")
    return 0


def from_providers(args, spaces, folder, what):
    folder.mkdir()
    thing = folder / "thing"
    thing.write_bytes(random.Random(folder.name).randbytes(args.mib * MIB))
    nodes = []
    try:
        for number, (space, address) in enumerate(spaces):
            genesis = nodes[0].genesis if nodes else None
            through = ("ip", "netns", "exec", space)
            nodes.append(peers.Hanzod(args.program, folder / f"node-{number}", genesis, through, address))
        taker, *givers = nodes
        taker.connect(*givers)
        cid = [giver.add(thing) for giver in (givers[:1] if what == "one" else givers)][0]
        if what == "all, one killed":
            return get_while_one_dies(taker, givers[-1], cid, folder / "out", args.mib * MIB // 3)
        return taker.get(cid, folder / "out")
    finally:
        for node in nodes:
            node.stop()
        shutil.rmtree(folder)


def get_while_one_dies(taker, victim, cid, out, bytes_before):
    """Kills a provider when so many bytes are there."""
    before = time.monotonic()
    command = [*taker.through, taker.program, "--home", taker.home, "content", "get", cid, "--out", out]
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
    while json.loads(taker.call("content", "stat", "--json"))["bytes"] < bytes_before:
        if child.poll() is not None:
            raise peers.Failed("the fetch ended before a provider could be killed")
        time.sleep(0.02)
    victim.child.kill()
    if child.wait(peers.DEADLINE):
        raise peers.Failed(f"the fetch failed with exit code {child.returncode}")
    return time.monotonic() - before


if __name__ == "__main__":
    sys.exit(main())
