"""Simulated nodes with many groups, and the connections between them; invariants check each event.

Connections are ordered, as TCP's are: nodes that reach each other have one.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from quorumlog.model.block import decode_entries
from quorumlog.model.errors import StorageError
from quorumlog.model.messages.base import Message
from quorumlog.model.messages.peer import PeerMessage
from quorumlog.node.replica.replica import Replica
from quorumlog.sim import cluster
from quorumlog.sim.finding import Finding
from quorumlog.sim.group_checks import CheckedGroup, GroupChecks
from quorumlog.sim.group_node import GroupNode, node_config
from quorumlog.sim.links import Link
from quorumlog.sim.network import Trace
from quorumlog.sim.simulation_clock import SimulationClock

LIMITS = replace(
    cluster.LIMITS, message_bytes_max=4_096, frame_bytes_max=12_288, outbox_bytes_max=12_288
)
"""As there are several groups, more is on its way over a link."""
FIRST_PORT = 7_101
DELAY_US = (100, 2_000)
READ_BYTES = 1 << 20
IDENTITY_BYTES = 16


class GroupCluster:
    """Nodes n0, n1 … without a group; `cut` are those that reach nobody.

    `severed` are pairs that do not reach each other. What is sent in a direction of `one_way` is
    lost: no new connection comes about, and one that there is must break before that direction
    works again (`break_connection`), as a connection loses nothing in its midst.
    """

    def __init__(self, seed: int, count: int = 3) -> None:
        self.clock = SimulationClock(seed)
        self.random = self.clock.random
        self.trace = Trace(self.clock)
        self.ids = [f"n{number}" for number in range(count)]
        addresses = {one: f"127.0.0.1:{FIRST_PORT + at}" for at, one in enumerate(self.ids)}
        self.peers = ";".join(f"{one}-{address}" for one, address in addresses.items())
        self.nodes = self._make_nodes(addresses)
        self.checks = GroupChecks(self.nodes, self.clock, seed, self._prepare)
        self.cut: set[str] = set()
        self.severed: set[frozenset[str]] = set()
        self.one_way: set[tuple[str, str]] = set()
        self.has_filled = False
        """Whether the disk of a node has been full."""
        self.paces: dict[Link, int] = {}
        self._touched: GroupNode | None = None
        self._epochs: dict[tuple[str, str], int] = {}
        self._arrives_us: dict[tuple[str, str], int] = {}
        self._connected: set[frozenset[str]] = set()
        self._looked_at: dict[tuple[str, bytes], int] = {}

    def _make_nodes(self, addresses: Mapping[str, str]) -> Mapping[str, GroupNode]:
        return {one: GroupNode(self, node_config(one, at, LIMITS)) for one, at in addresses.items()}

    def _prepare(self, group: CheckedGroup) -> None:
        """A group is checked from now on."""

    # -- connections ----------------------------------------------------------------------------

    def peers_of(self, node_id: str) -> list[str]:
        """See `GroupNetwork`."""
        return [peer for peer in self.ids if frozenset((node_id, peer)) in self._connected]

    def connection(self, sender: str, receiver: str) -> Hashable:
        """See `Wires`."""
        is_there = frozenset((sender, receiver)) in self._connected
        return self._epochs.get((sender, receiver), 0) if is_there else None

    def takes_joined(self, receiver: str) -> bool:
        """See `Wires`: all nodes are of this version."""
        return True

    def sent(self, sender: str, parts: Sequence[PeerMessage]) -> None:
        """See `Wires`."""
        self.checks.sent(self.nodes[sender], parts)

    def carry(self, sender: str, receiver: str, message: Message, data: bytes) -> None:
        """See `Wires`: in order, unless the connection breaks."""
        pair = sender, receiver
        epoch, now_us = self._epochs.get(pair, 0), self.clock.now_us
        due_us = max(self._arrives_us.get(pair, 0), now_us + self.random.randint(*DELAY_US))
        self._arrives_us[pair] = due_us
        target = self.nodes[receiver]

        def arrive() -> None:
            is_there = self._epochs.get(pair, 0) == epoch and pair not in self.one_way
            if is_there and target.is_up:
                self.trace.record(pair, message, data)
                target.enter(lambda: target.receive(pair[0], message, data))

        self.clock.after_us(due_us - now_us, arrive)

    def update_connections(self) -> None:
        """Connect nodes that reach each other, and break the connections of others."""
        for one in self.ids:
            for other in self.ids:
                pair = frozenset((one, other))
                if one >= other:
                    continue
                reach = self._reach(one, other)
                if reach and pair not in self._connected and not self._is_one_way(one, other):
                    self._connected.add(pair)
                    for node_id, peer in ((one, other), (other, one)):
                        node = self.nodes[node_id]
                        node.enter(partial(node.connected, peer))
                elif not reach:
                    self.break_connection(one, other)

    def break_connection(self, one: str, other: str) -> None:
        """Break the connection between two nodes, if there is one; what is on its way is lost."""
        pair = frozenset((one, other))
        if pair not in self._connected:
            return
        self._connected.discard(pair)
        for key in ((one, other), (other, one)):
            self._epochs[key] = self._epochs.get(key, 0) + 1
            self.nodes[key[0]].disconnected(key[1])

    def _is_one_way(self, one: str, other: str) -> bool:
        return (one, other) in self.one_way or (other, one) in self.one_way

    def _reach(self, one: str, other: str) -> bool:
        """Whether nodes run and reach each other."""
        are_up = self.nodes[one].is_up and self.nodes[other].is_up
        is_cut = {one, other} & self.cut or frozenset((one, other)) in self.severed
        return are_up and not is_cut

    # -- time -------------------------------------------------------------------------------------

    def touch(self, node: GroupNode) -> None:
        """See `GroupNetwork`."""
        self._touched = node

    def run_until(self, end_ms: int) -> None:
        """Let everything happen up to a time; check the invariants after each event."""
        self.clock.run_until(end_ms, self._check)

    def _check(self) -> None:
        node, self._touched = self._touched, None
        if node is not None:
            self.checks.after_event(node)

    # -- what there is ----------------------------------------------------------------------------

    def replicas(self) -> Iterator[tuple[GroupNode, Replica]]:
        """Yield all replicas of nodes that run."""
        for node in self.nodes.values():
            for replica in list(node.replicas.values()) if node.is_up else ():
                yield node, replica

    def check_entries(self) -> None:
        """Raise `Finding` if a log has entries of another group, such as one of the same name."""
        for node, replica in self.replicas():
            log, identity = replica.log, replica.core.given_identity
            key = node.node_id, identity
            index = max(self._looked_at.get(key, 0), log.before_begin_index + 1)
            if index > log.end_index:
                self._looked_at[key] = min(index, log.end_index + 1)
                continue
            try:
                run = log.read(index, log.end_index, READ_BYTES)
            except StorageError:
                continue
            self._looked_at[key] = run.last_index + 1
            for entry in decode_entries(run.block()):
                if entry.is_data and entry.body[:IDENTITY_BYTES] != identity:
                    where = f"{node.node_id}/{replica.config.group}"
                    text = f"{where}: entry {entry.index} is another group's"
                    raise Finding("no_predecessor", text)

    def find_damage(self) -> str:
        """Read all logs where bits were flipped, as a scrub would; return what is damaged."""
        for node, replica in self.replicas():
            if node.is_damaged and not replica.is_broken:
                node.enter(partial(cluster.read_all, replica))
        damaged = [
            f"{node.node_id}/{replica.config.group}"
            for node, replica in self.replicas()
            if replica.log.damaged
        ]
        return f"not repaired: {damaged}" if damaged else ""

    def describe(self) -> list[str]:
        """Return the state of every node, line by line."""
        lines = []
        for node_id, node in self.nodes.items():
            lines.append(f"{node_id} {'up' if node.is_up else f'down: {node.why_stopped}'}")
            for name, replica in node.replicas.items():
                core, log = replica.core, replica.log
                lines.append(
                    f"  {name} {core.given_identity.hex()[:6]} {core.role.value} term {core.term}, "
                    f"log {log.before_begin_index + 1} to {log.end_index}, committed "
                    f"{core.committed_index}"
                )
        return lines
