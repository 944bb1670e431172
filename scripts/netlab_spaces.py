"""Network namespaces with a TUN device each: made, listed, cleaned up."""

import contextlib
import ctypes
import fcntl
import os
import signal
import struct
import subprocess
import time

RUN = "/run/netlab"
NETNS = "/run/netns"
CLONE_NEWNET = 0x40000000
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
OFFLOADS = [0x01 | 0x02 | 0x04 | 0x20 | 0x40, 0x01 | 0x02 | 0x04]  # checksum, TCP 4 and 6, and UDP 4 and 6 where known
LEAVE_S = 2.0


class Unavailable(Exception):
    """Namespaces cannot be made here."""


class Taken(Exception):
    """Another netlab uses the prefix."""


class Spaces:
    """The namespaces of one run; a lock that dies with this process says that they are in use."""

    def __init__(self, prefix, members, offload, mtu, sysctls):
        if os.geteuid() != 0:
            raise Unavailable("it needs root, to make network namespaces")
        if not os.path.exists("/dev/net/tun"):
            raise Unavailable("/dev/net/tun is not there")
        self.prefix = prefix
        self.names = [f"{prefix}{i}" for i in range(1, members + 1)]
        self.addresses = [f"10.77.0.{i}" for i in range(1, members + 1)]
        self.control = f"{RUN}/{prefix}.sock"
        self.devices = []
        clean_stale()
        self.lock = lock(prefix, self.names)
        try:
            for name, address in zip(self.names, self.addresses):
                self.devices.append(make(name, address, offload, mtu, sysctls))
        except BaseException:
            self.close()
            raise

    def close(self):
        for device in self.devices:
            os.close(device)
        self.devices = []
        if self.lock is not None:
            for name in self.names:
                remove(name)
            os.unlink(f"{RUN}/{self.prefix}")
            os.close(self.lock)
            self.lock = None


def make(name, address, offload, mtu, sysctls):
    """One namespace; gives its device."""
    try:
        ip("netns", "add", name)
        device = open_tun(name, offload)
    except (subprocess.CalledProcessError, FileNotFoundError, PermissionError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise Unavailable(f"the namespace {name} cannot be made: {said.strip()}") from None
    lines = ["link set lo up", f"link set tun0 mtu {mtu} txqueuelen 1000 up", f"addr add {address}/24 dev tun0"]
    ip("-n", name, "-batch", "-", input="\n".join(lines) + "\n")
    for setting in ["net.ipv6.conf.all.disable_ipv6=1", *sysctls]:
        write_sysctl(name, *setting.split("=", 1))
    return device


def open_tun(name, offload):
    """A TUN device inside the namespace `name`, held from here."""
    with inside(name):
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        request = struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI | IFF_VNET_HDR)
        fcntl.ioctl(device, TUNSETIFF, request)
    for wanted in OFFLOADS if offload else [0]:
        try:
            fcntl.ioctl(device, TUNSETOFFLOAD, wanted)
            break
        except OSError:
            if wanted == OFFLOADS[-1]:
                raise
    return device


def write_sysctl(name, key, value):
    path = "/proc/sys/" + key.strip().replace(".", "/")
    try:
        with inside(name), open(path, "w", encoding="ascii") as file:
            file.write(value.strip())
    except OSError as error:
        if "ipv6" not in key:  # a kernel without IPv6 needs it turned off no further
            raise Unavailable(f"{key} cannot be set to {value} in {name}: {error.strerror}") from None


@contextlib.contextmanager
def inside(name):
    """This thread in the namespace `name` (os.setns came with Python 3.12)."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    there = os.open(f"{NETNS}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(libc, there)
        try:
            yield
        finally:
            enter(libc, home)
    finally:
        os.close(there)
        os.close(home)


def enter(libc, namespace):
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def lock(prefix, names):
    os.makedirs(RUN, exist_ok=True)
    held = os.open(f"{RUN}/{prefix}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise Taken(f"another netlab uses the prefix {prefix}; give another --prefix") from None
    os.ftruncate(held, 0)
    os.write(held, "\n".join(names).encode())
    for name in names:
        remove(name)
    return held


def clean_stale():
    """Removes the namespaces of runs that ended without doing so."""
    with contextlib.suppress(FileNotFoundError):
        for prefix in os.listdir(RUN):
            if prefix.endswith(".sock"):
                continue
            path = f"{RUN}/{prefix}"
            with open(path, encoding="ascii") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                for name in file.read().split():
                    remove(name)
                for left in (path, f"{path}.sock"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(left)


def remove(name):
    """Ends what runs in a namespace and removes it."""
    if not os.path.exists(f"{NETNS}/{name}"):
        return
    until = time.monotonic() + LEAVE_S
    for kind in (signal.SIGTERM, signal.SIGKILL):
        while pids := processes(name):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, kind)
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        until = time.monotonic() + LEAVE_S
    subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def processes(name):
    listed = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True)
    return [pid for pid in map(int, listed.stdout.split()) if pid != os.getpid()]


def ip(*args, **options):
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True, **options)
