"""`netlab check`: what the links give against what was asked. Run by netlab among the namespaces of one run."""

import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time

from netlab_spaces import inside

HERE = os.path.dirname(os.path.abspath(__file__))
PAYLOAD = 1448 / 1500  # of a TCP packet at that MTU
ECHO, SINK = 7007, 7008
PINGS = 20
PROBES = 2000
TRY_S = 1.0


def check(args):
    """Runs this file's `main` among namespaces."""
    links = ["--members", args.members, "--delay-ms", args.delay_ms, "--mbit", args.mbit, "--loss", args.loss]
    links += ["--queue-ms", args.queue_ms, "--offload", args.offload, "--mtu", args.mtu, "--seed", args.seed]
    links += ["--prefix", args.prefix, *(word for setting in args.sysctl for word in ("--sysctl", setting))]
    asked = [args.delay_ms, args.mbit, args.loss, args.seconds]
    command = [f"{HERE}/netlab", "run", *links, "--", sys.executable, "-B", __file__, *asked]
    return subprocess.run([str(word) for word in command], check=False).returncode


def main():
    delay_ms, mbit, loss, seconds = map(float, sys.argv[1:])
    names = os.environ["NETLAB_NAMES"].split()
    addresses = os.environ["NETLAB_ADDRESSES"].split()
    for name in names:
        start_echo(name)
    ok = [ping(names[0], addresses[1], 2 * delay_ms), block(names[0], addresses[1])]
    if loss:
        ok.append(lose(names[0], addresses[1], loss))
    ok.append(transfer(names, addresses, mbit, loss, seconds))
    return 0 if all(ok) else 1


def start_echo(name):
    with inside(name):
        place = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        place.bind(("0.0.0.0", ECHO))

    def serve():
        while True:
            said, caller = place.recvfrom(2048)
            place.sendto(said, caller)

    threading.Thread(target=serve, daemon=True).start()


def ping(name, address, asked_ms):
    times = [echo(name, address) for _ in range(PINGS)]
    got = 1e3 * statistics.median(t for t in times if t is not None)
    ok = abs(got - asked_ms) < max(3.0, 0.1 * asked_ms)
    return say("round trip", f"{got:.1f} ms", f"{asked_ms:.1f} ms", ok)


def block(name, address):
    control("block", "1", "2")
    out = echo(name, address)
    control("unblock", "1", "2")
    control("block", "2", "1")
    back = echo(name, address)
    control("unblock", "2", "1")
    tries = [echo(name, address) for _ in range(5)]
    ok = out is None and back is None and any(t is not None for t in tries)
    return say("one-way block", "nothing passed" if out is None and back is None else "packets passed", "", ok)


def lose(name, address, percent):
    """Of probes sent one way and echoed the other."""
    with inside(name), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        caller.settimeout(TRY_S)
        back = 0
        for _ in range(PROBES // 100):
            for _ in range(100):
                caller.sendto(b"probe", (address, ECHO))
            for _ in range(100):
                try:
                    caller.recv(64)
                    back += 1
                except TimeoutError:
                    break
    asked = 1 - (1 - percent / 100) ** 2
    got = 1 - back / PROBES
    spread = (asked * (1 - asked) / PROBES) ** 0.5
    return say("loss, both ways", f"{100 * got:.2f} %", f"{100 * asked:.2f} %", abs(got - asked) < 4 * spread)


def transfer(names, addresses, mbit, loss, seconds):
    """TCP from every member to the next at once."""
    results = [0.0] * len(names)
    before = control("counters")["cpu_s"]
    began = time.monotonic()
    pairs = [(i, (i + 1) % len(names)) for i in range(len(names))]
    workers = [threading.Thread(target=receive, args=(names[b], seconds, results, b)) for _, b in pairs]
    workers += [threading.Thread(target=send, args=(names[a], addresses[b], seconds)) for a, b in pairs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    counted = control("counters")
    cpu = (counted["cpu_s"] - before) / (time.monotonic() - began)
    got = statistics.median(results)
    asked = mbit * PAYLOAD
    # Never more than asked. Less is TCP's own: its start, its probing, what loss takes.
    ok = not mbit or got < 1.03 * asked and (bool(loss) or got > 0.8 * asked)
    say("TCP payload", f"{got:.1f} Mbit/s", f"{asked:.1f} Mbit/s" if mbit else "unlimited", ok)
    print(f"                 every member: {', '.join(f'{r:.1f}' for r in results)} Mbit/s")
    print(f"                 the emulator used {100 * cpu:.0f} % of a core, was late by {counted['late_ms']:.1f} ms at most")
    return ok


def receive(name, seconds, results, index):
    """The rate in the later half, when the sender has found it."""
    with inside(name):
        place = socket.create_server(("0.0.0.0", SINK))
    with place:
        place.settimeout(2 * seconds + 10)
        caller, _ = place.accept()
    with caller:
        room = bytearray(1 << 20)
        began = time.monotonic()
        counted, first = 0, None
        while got := caller.recv_into(room):
            now = time.monotonic()
            if now - began < seconds / 2:
                continue
            if first is None:
                first = now
            else:
                counted += got
            last = now
        results[index] = counted * 8 / 1e6 / max(last - first, 1e-9) if first else 0.0


def send(name, address, seconds):
    data = bytes(1 << 18)
    with inside(name):
        for _ in range(100):
            try:
                caller = socket.create_connection((address, SINK), timeout=10)
                break
            except OSError:
                time.sleep(0.05)
    with caller:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            caller.send(data)


def echo(name, address):
    """Seconds there and back, or None."""
    with inside(name), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        caller.settimeout(TRY_S)
        began = time.monotonic()
        caller.sendto(b"ping", (address, ECHO))
        try:
            caller.recv(64)
        except TimeoutError:
            return None
        return time.monotonic() - began


def control(*words):
    told = subprocess.run([f"{HERE}/netlab", "ctl", *words], check=True, capture_output=True, text=True)
    return json.loads(told.stdout)


def say(what, got, asked, ok):
    print(f"{what:16} {got:18} asked {asked:16} {'ok' if ok else 'NOT AS ASKED'}", flush=True)
    return ok


if __name__ == "__main__":
    sys.exit(main())
