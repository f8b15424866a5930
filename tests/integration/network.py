"""Nodes in network namespaces of their own, joined by a bridge, with any direction to be cut.

A cut is a wrong hardware address for the other node, so that packets leave and never arrive: no
reset, no ICMP, as with a broken switch. Clients are on the bridge and reach every node always.
"""

import itertools
import os
import socket
import subprocess
import sys
import time

from quorumlog.local.layout import POLL_SECONDS
from quorumlog.local.process import KILL_SECONDS
from quorumlog.model.config import GroupConfig, NodeConfig, dump_config
from small_files import SMALL_FILES

PORT = 7_101
NOWHERE = "02:00:00:00:00:ff"
START_SECONDS = 120.0
CONNECT_SECONDS = 5.0
"""For one attempt to connect; meanwhile the system has sent what got lost twice again."""


def prefix_of(pid):
    """Return what names of namespaces and links of a process begin with.

    A link's name has at most 15 characters.
    """
    return f"q{pid:x}"


PREFIX = prefix_of(os.getpid())
SUBNET = f"198.18.{os.getpid() % 255}"
"""Of the range for benchmarks (RFC 2544), so of nobody's network."""


class NotPermittedError(Exception):
    """This machine does not let us make networks; says why."""


def ip(*arguments):
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotPermittedError("there is no ip command (iproute2)") from None
    if done.returncode:
        raise NotPermittedError(f"'ip {' '.join(arguments)}': {done.stderr.strip()}")


def remove_all_of(pid, node_ids):
    """Remove the network of a process that was killed."""
    for node_id in node_ids:
        ip("netns", "del", f"{prefix_of(pid)}-{node_id}")
    ip("link", "del", f"{prefix_of(pid)}-br")


class Network:
    """One namespace for each node. `make` raises `NotPermittedError`; always call `remove`."""

    def __init__(self, node_ids):
        self.node_ids = list(node_ids)
        self._undo = []

    def address(self, node_id):
        return f"{SUBNET}.{10 + self.node_ids.index(node_id)}"

    def namespace(self, node_id):
        return f"{PREFIX}-{node_id}"

    def _hardware(self, node_id):
        return f"02:00:00:00:01:{self.node_ids.index(node_id):02x}"

    def make(self):
        bridge = f"{PREFIX}-br"
        ip("link", "add", bridge, "type", "bridge")
        self._undo.append(("link", "del", bridge))
        ip("addr", "add", f"{SUBNET}.254/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for node_id in self.node_ids:
            space, link = self.namespace(node_id), f"{PREFIX}-{node_id}"
            ip("netns", "add", space)
            self._undo.append(("netns", "del", space))
            hardware = self._hardware(node_id)
            peer = ("peer", "name", "eth0", "netns", space, "address", hardware)
            ip("link", "add", link, "type", "veth", *peer)
            self._undo.append(("link", "del", link))
            ip("link", "set", link, "master", bridge, "up")
            ip("-n", space, "addr", "add", f"{self.address(node_id)}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
        self.heal()

    def remove(self):
        while self._undo:
            ip(*self._undo.pop())

    # -- cuts ---------------------------------------------------------------------------------

    def pairs(self):
        return list(itertools.permutations(self.node_ids, 2))

    def cut(self, sender, receiver):
        """Lose what one node sends to another."""
        self._neighbour(sender, receiver, NOWHERE)

    def join(self, sender, receiver):
        """Undo a cut."""
        self._neighbour(sender, receiver, self._hardware(receiver))

    def split(self, *sides):
        """Cut both directions between every two nodes that are on different sides."""
        side = {node_id: number for number, ids in enumerate(sides) for node_id in ids}
        for sender, receiver in self.pairs():
            if side[sender] != side[receiver]:
                self.cut(sender, receiver)

    def heal(self):
        """Undo all cuts."""
        for sender, receiver in self.pairs():
            self.join(sender, receiver)

    def unplug(self, node_id):
        """Lose everything to and from a node, also of clients."""
        ip("link", "set", f"{PREFIX}-{node_id}", "down")

    def plug(self, node_id):
        """Undo `unplug`."""
        ip("link", "set", f"{PREFIX}-{node_id}", "up")

    def _neighbour(self, sender, receiver, hardware):
        arguments = ("lladdr", hardware, "nud", "permanent", "dev", "eth0")
        space = self.namespace(sender)
        ip("-n", space, "neigh", "replace", self.address(receiver), *arguments)


class NetworkCluster:
    """Node processes n0, n1 … of group g, each in its namespace of a network."""

    def __init__(self, directory, network, **group_options):
        self.network = network
        self.node_ids = network.node_ids
        self.addresses = {name: f"{network.address(name)}:{PORT}" for name in self.node_ids}
        self._directory = directory
        self._processes = {}
        peers = ";".join(f"{node_id}-{address}" for node_id, address in self.addresses.items())
        options = {**SMALL_FILES, **group_options}
        group = GroupConfig(group="g", peers=peers, **options)
        for node_id in self.node_ids:
            config = NodeConfig(
                self_id=node_id,
                store_base_dir=str(directory / node_id),
                cluster=PREFIX,
                groups=[group],
                insecure=True,
            )
            self._config(node_id).write_bytes(dump_config(config))

    @property
    def servers(self):
        return ",".join(self.addresses.values())

    def _config(self, node_id):
        return self._directory / f"{node_id}.toml"

    def up(self):
        """Start the nodes, and wait until they listen: what follows has a time of its own."""
        for node_id in self.node_ids:
            serve = [sys.executable, "-m", "quorumlog", "serve"]
            inside = ["ip", "netns", "exec", self.network.namespace(node_id), *serve]
            with (self._directory / f"{node_id}.log").open("ab") as log:
                self._processes[node_id] = subprocess.Popen(
                    [*inside, "--config", self._config(node_id)], stderr=log
                )
        deadline = time.monotonic() + START_SECONDS
        for node_id, process in self._processes.items():
            while not self._listens(node_id):
                log = self._directory / f"{node_id}.log"
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, f"{node_id} does not start: {log.read_text()}"
                time.sleep(POLL_SECONDS)

    def _listens(self, node_id):
        try:
            socket.create_connection((self.network.address(node_id), PORT), CONNECT_SECONDS).close()
        except OSError:  # it is refused; or a link that was just made has no route yet
            return False
        return True

    def down(self):
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(KILL_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
