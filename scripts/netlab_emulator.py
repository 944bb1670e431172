"""The links between netlab's namespaces: one loop that reads packets, holds them, and hands them on.

A packet from member a to member b passes: block, loss, the serialisation clock of a's uplink, that of the pair, the
one-way delay, then the clock of b's downlink. A clock is a router's queue: it sends `rate` and holds at most `queue_s`
seconds of it; what does not fit is dropped. A packet of several segments (segmentation offload) counts as what its
segments weigh on the wire and is dropped whole.
"""

import errno
import heapq
import os
import random
import select
import struct
import time

VNET = struct.Struct("=BBHHHH")  # virtio_net_hdr: flags, gso type, header length, gso size, checksum start and offset
LARGEST = VNET.size + 65536
BATCH = 32  # packets read from one device before the others have their turn
IDLE_S = 1.0
TCP, UDP = 6, 17


class Clock:
    """A rate and the bounded queue before it."""

    __slots__ = ("rate", "queue_s", "free")

    def __init__(self, queue_s):
        self.rate = 0.0  # bytes a second; 0 is unlimited
        self.queue_s = queue_s
        self.free = 0.0  # when what is queued will have been sent

    def take(self, now, size):
        """When the packet is through, or None when the queue is full."""
        if not self.rate:
            return now
        start = self.free if self.free > now else now
        if start - now > self.queue_s:
            return None
        self.free = start + size / self.rate
        return self.free

    def start(self, now, size):
        """As `take`, but when its sending begins: for the second clock on a way, which cuts through."""
        if not self.rate:
            return now
        start = self.free if self.free > now else now
        if start - now > self.queue_s:
            return None
        self.free = start + size / self.rate
        return start


class Pair:
    """One direction between two members."""

    __slots__ = ("delay", "loss", "blocked", "clock", "random", "packets", "bytes", "lost", "stopped", "dropped")

    def __init__(self, seed, queue_s):
        self.delay = 0.0
        self.loss = 0.0
        self.blocked = False
        self.clock = Clock(queue_s)
        self.random = random.Random(seed)
        self.packets = self.bytes = self.lost = self.stopped = self.dropped = 0

    def counters(self):
        names = ("packets", "bytes", "lost", "stopped", "dropped")
        return {name: getattr(self, name) for name in names}


class Emulator:
    """Routes between TUN devices. `devices` are file descriptors, `addresses` their 4-byte IPv4 addresses."""

    def __init__(self, devices, addresses, seed, queue_s):
        self.devices = devices
        self.member_of = {address: i for i, address in enumerate(addresses)}
        members = range(len(devices))
        self.pairs = [[Pair(f"{seed}:{a}:{b}", queue_s) for b in members] for a in members]
        self.up = [Clock(queue_s) for _ in members]
        self.down = [Clock(queue_s) for _ in members]
        self.waiting = []  # heap of (due, number, packet, size, member, whether its downlink is passed)
        self.number = 0
        self.late_s = 0.0  # the longest that this process itself was late
        self.strangers = 0  # packets to no member
        self.watched = {}  # further file descriptors: what to call when they are readable

    def watch(self, descriptor, call):
        self.watched[descriptor] = call

    def forget(self, descriptor):
        self.watched.pop(descriptor, None)

    def run(self, running):
        """Until `running()` is false."""
        numbers = {fd: i for i, fd in enumerate(self.devices)}
        while running():
            now = time.monotonic()
            wait = max(0.0, self.waiting[0][0] - now) if self.waiting else IDLE_S
            try:
                ready, _, _ = select.select([*self.devices, *self.watched], [], [], min(wait, IDLE_S))
            except InterruptedError:
                continue
            self.deliver(time.monotonic())
            for fd in ready:
                if fd in numbers:
                    self.read(fd, numbers[fd])
                elif fd in self.watched:
                    self.watched[fd]()

    def read(self, fd, sender):
        for _ in range(BATCH):
            try:
                packet = os.read(fd, LARGEST)
            except BlockingIOError:
                return
            self.send(sender, packet, time.monotonic())

    def send(self, sender, packet, now):
        receiver = self.member_of.get(packet[26:30]) if packet[10] >> 4 == 4 else None
        if receiver is None or receiver == sender:
            self.strangers += 1
            return
        pair = self.pairs[sender][receiver]
        if pair.blocked:
            pair.stopped += 1
            return
        if pair.loss and pair.random.random() < pair.loss:
            pair.lost += 1
            return
        size = wire_size(packet)
        due = self.up[sender].take(now, size)
        if due is not None:
            due = pair.clock.take(due, size) if pair.clock.rate else due
        if due is None:
            pair.dropped += 1
            return
        pair.packets += 1
        pair.bytes += size
        self.hold(due + pair.delay, packet, size, receiver, sender)

    def hold(self, due, packet, size, receiver, sender):
        self.number += 1
        heapq.heappush(self.waiting, (due, self.number, packet, size, receiver, sender))

    def deliver(self, now):
        waiting = self.waiting
        while waiting and waiting[0][0] <= now:
            due, _, packet, size, receiver, sender = heapq.heappop(waiting)
            if now - due > self.late_s:
                self.late_s = now - due
            if sender is not None and self.down[receiver].rate:
                start = self.down[receiver].start(due, size)
                if start is None:
                    self.pairs[sender][receiver].dropped += 1
                    continue
                if start > due:  # back among the others, so that lateness of this process reorders nothing
                    self.hold(start, packet, size, receiver, None)
                    continue
            write(self.devices[receiver], packet)

    def counters(self):
        members = range(len(self.devices))
        pairs = {f"{a + 1} {b + 1}": self.pairs[a][b].counters() for a in members for b in members if a != b}
        used = {name: counted for name, counted in pairs.items() if any(counted.values())}
        cpu = time.process_time()
        return {"pairs": used, "late_ms": 1e3 * self.late_s, "cpu_s": cpu, "strangers": self.strangers}


def wire_size(packet):
    """Bytes of the IP packets that this one is sent as."""
    _, kind, _, segment, _, _ = VNET.unpack_from(packet)
    size = len(packet) - VNET.size
    if not kind or not segment:
        return size
    header = 4 * (packet[10] & 15)
    protocol = packet[19]
    if protocol == TCP:
        header += 4 * (packet[10 + header + 12] >> 4)
    elif protocol == UDP:
        header += 8
    segments = -(-(size - header) // segment)
    return size + (segments - 1) * header


def write(device, packet):
    try:
        os.write(device, packet)
    except OSError as error:
        # A device that is down or full loses the packet, as a cable does.
        if error.errno not in (errno.EIO, errno.EAGAIN, errno.ENOBUFS, errno.EINVAL):
            raise
