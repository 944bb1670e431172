#!/usr/bin/env python3
"""Content between two nodes on loopback: this project's beside Kubo's and Helia's, in turn, on the same cores.

    scripts/bench/compare_content.py [--program target/release/hanzod] [--turns 3] [--peers kubo,helia] [--json]

    64 MiB       one file, from one node to another of the same kind
    1,000 files  a directory of small ones
    providers    64 MiB from four of our nodes against from one, each behind a link of 8 MB/s (a proxy of ours)

Each turn has new nodes and new bytes. A transfer's time runs from the order until the bytes are written out; ours
includes the start of the command line. Prints medians and ratios; see scripts/ipfs-interop for the packages.
"""

import argparse
import json
import os
import pathlib
import random
import socket
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "ipfs"))
import peers  # noqa: E402

LINK = 8e6  # bytes a second
LATE = 0.05  # seconds
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
        for count in (1, 4):
            note(seconds, ("gym", f"{count} providers"), provided(count, turn, args.program))
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
    one, four = medians["gym", "1 providers"], medians["gym", "4 providers"]
    rows.append({"what": "four providers against one", "peer": "gym", "ours_s": four, "theirs_s": one, "ratio": one / four})
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


def provided(count, turn, program):
    with tempfile.TemporaryDirectory(prefix="gym-content-") as folder:
        folder = pathlib.Path(folder)
        thing = make(folder, "64 MiB", turn)
        givers, links = [], []
        taker = None
        try:
            for index in range(count):
                givers.append(peers.Hanzod(program, folder / f"giver{index}"))
                links.append(Link(givers[-1]))
                cid = givers[-1].add(thing)
            taker = peers.Hanzod(program, folder / "taker", [part for link in links for part in ("--bootstrap", link.address())])
            wait_for(taker, givers)
            return taker.get(cid, folder / "out")
        finally:
            for node in [*givers, *([taker] if taker else [])]:
                node.stop()
            for link in links:
                link.stop()


def wait_for(taker, givers):
    deadline = time.monotonic() + 60
    wanted = {giver.peer for giver in givers}
    while not wanted <= {peer["peer"] for peer in json.loads(taker.call("peers", "--json"))}:
        if time.monotonic() > deadline:
            raise peers.Failed("not every provider was connected within 60 s")
        time.sleep(0.1)


class Link:
    """Carries connections to a node, at most LINK bytes a second from it."""

    def __init__(self, giver):
        self.giver = giver
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.lock, self.free_at = threading.Lock(), 0.0
        threading.Thread(target=self.accept, daemon=True).start()

    def address(self):
        return f"/ip4/127.0.0.1/tcp/{self.listener.getsockname()[1]}/p2p/{self.giver.peer}"

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", int(self.giver.address().split("/")[4])))
            threading.Thread(target=self.carry, args=(near, far, None), daemon=True).start()
            threading.Thread(target=self.carry, args=(far, near, LINK), daemon=True).start()

    def carry(self, source, sink, rate):
        try:
            while data := source.recv(16 << 10):
                if rate:
                    with self.lock:
                        # A wake-up that was late is made up for.
                        self.free_at = max(self.free_at, time.monotonic() - LATE) + len(data) / rate
                        wait = self.free_at - time.monotonic()
                    if wait > 0.002:
                        time.sleep(wait)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            sink.close()

    def stop(self):
        self.listener.close()


if __name__ == "__main__":
    sys.exit(main())
