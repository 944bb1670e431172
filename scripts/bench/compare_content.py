#!/usr/bin/env python3
"""Content between two nodes on loopback: this project's beside Kubo's and Helia's, in turn, on the same cores.

    scripts/bench/compare_content.py [--program target/release/hanzod] [--turns 3] [--peers kubo,helia] [--json]

    64 MiB       one file, from one node to another of the same kind
    1,000 files  a directory of small ones

Each turn has new nodes and new bytes. A transfer's time runs from the order until the bytes are written out; ours
includes the start of the command line. Prints medians and ratios; see scripts/ipfs-interop for the packages.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "ipfs"))
import peers  # noqa: E402

MIB = 1 << 20


def main():
    args = arguments()
    peers.install()
    seconds = {}
    for turn in range(args.turns):
        for kind in ["gym", *args.peers]:
            for what in ("64 MiB", "1,000 files"):
                took = transfer(kind, what, turn, args.program)
                note(seconds, (kind, what), took)
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    show(medians, args)
    return 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--program", type=pathlib.Path, default=target / "release" / "hanzod")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--peers", type=lambda text: [name for name in text.split(",") if name], default=["kubo", "helia"])
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser.parse_args()


def note(seconds, key, took):
    seconds.setdefault(key, []).append(took)
    print(f"{key[0]:>6} {key[1]:12} {took:.2f} s", file=sys.stderr, flush=True)


def show(medians, args):
    rows = []
    for what in ("64 MiB", "1,000 files"):
        ours = medians["gym", what]
        for kind in args.peers:
            theirs = medians[kind, what]
            rows.append({"what": what, "peer": kind, "ours_s": ours, "theirs_s": theirs, "ratio": theirs / ours})
    if args.json:
        print(json.dumps(rows))
        return
    print("| what | beside | ours, s | theirs, s | ratio |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row['what']} | {row['peer']} | {row['ours_s']:.2f} | {row['theirs_s']:.2f} | {row['ratio']:.1f} |")


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


def start(kind, program, folder):
    return peers.Hanzod(program, folder) if kind == "gym" else peers.Process(kind, folder)


def transfer(kind, what, turn, program):
    with tempfile.TemporaryDirectory(prefix="gym-content-") as folder:
        folder = pathlib.Path(folder)
        thing = make(folder, what, turn)
        with start(kind, program, folder / "giver") as giver, start(kind, program, folder / "taker") as taker:
            taker.connect(giver)
            return taker.get(giver.add(thing), folder / "out")


if __name__ == "__main__":
    sys.exit(main())
