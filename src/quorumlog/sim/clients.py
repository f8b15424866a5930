"""Simulated clients: they append unique values, read, and remember what they were told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from quorumlog.model.block import Buffer, encode_block, parse_block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import Outcome, error_for
from quorumlog.model.messages.client import (
    AppendRequest,
    AppendResponse,
    FetchRequest,
    FetchResponse,
)
from quorumlog.model.messages.machine import QueryResponse
from quorumlog.sessions.entries import system_entry_of
from quorumlog.sim.commands import Commands
from quorumlog.sim.invariants.committed import entries_of
from quorumlog.sim.producers import Producers
from quorumlog.sim.transactions import TransactionalWriter
from quorumlog.storage.entries.entry_runs import EntryRun

if TYPE_CHECKING:
    from quorumlog.sim.cluster import SimulatedCluster
    from quorumlog.sim.node import SimulatedNode

BEYOND = 1 << 62
TRANSACTIONAL_CLIENT = "client 0"
"""Writes transactions, where there are any."""
READ_BYTES = 4_096
COMMANDS = 0.5
"""Share of requests that are for the state machine, where there is one."""
PATIENCE_MS = 4_000
"""A request unanswered for so long has an unknown fate."""


@dataclass(slots=True)
class Append:
    """One append; `floor`: the highest index acknowledged to anybody before it was sent."""

    bodies: list[bytes]
    floor: int
    first_index: int = -1


@dataclass(slots=True)
class Read:
    """One read's answer."""

    node_id: str
    floor: int
    linearizable: bool
    committed_index: int
    entries: list[tuple[int, tuple[int, int]]] = field(default_factory=list)


class Clients:
    """All clients of a cluster: each sends an append or a read, waits, and sends the next.

    `asked` are all values ever sent, `refused` those of which a client was told that they were not
    stored, `floor` is the highest index acknowledged so far.
    """

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._sent = 0
        self.asked: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.floor = -1
        self.appended = 0
        self.reads = 0
        self.answers: dict[str, int] = {}
        self.is_running = False
        self.pause_ms = (1, 60)
        self._paused_until_ms = 0
        self.commands = Commands(cluster, self)
        self.producers = Producers(cluster, self)
        self.transactions = TransactionalWriter(cluster, self) if cluster.has_transactions else None

    def start(self, count: int) -> None:
        """Begin with so many clients."""
        self.is_running = True
        for number in range(count):
            self._world.after_ms(number, partial(self._next, f"client {number}"))

    def pause_until(self, time_ms: int) -> None:
        """Send nothing new before a time."""
        self._paused_until_ms = max(self._paused_until_ms, time_ms)

    def _next(self, name: str) -> None:
        """Send the next request of one client, and go on when it is answered or given up."""
        if not self.is_running:
            return
        paused_ms = self._paused_until_ms - self._world.now_ms
        if paused_ms > 0:
            self._world.after_ms(paused_ms, lambda: self._next(name))
            return
        random = self._world.random
        going_on = [False]

        def go_on() -> None:
            if not going_on[0]:
                going_on[0] = True
                self._world.after_ms(random.uniform(*self.pause_ms), lambda: self._next(name))

        if self.transactions is not None and name == TRANSACTIONAL_CLIENT:
            self.transactions.go_on(name, go_on)
        elif self._cluster.state_machine and random.random() < COMMANDS:
            self.commands.send(name, go_on)
        elif random.random() < 0.8:
            self.append(random.randint(1, 8), random.choice((5, 40, 400)), name, go_on)
        else:
            self.read(name, go_on)
        self._world.after_ms(PATIENCE_MS, go_on)

    def target(self, *, leader: bool) -> "SimulatedNode | None":
        """Return whom a client asks: mostly who leads, sometimes anybody."""
        random, nodes = self._world.random, list(self._cluster.nodes.values())
        up = [node for node in nodes if node.is_up]
        leaders = [node for node in up if node.core.leader_id == node.node_id]
        if leader and leaders and random.random() < 0.95:
            return random.choice(leaders)
        return random.choice(up) if up else None

    # -- appends ----------------------------------------------------------------------------

    def append(
        self, count: int, size: int, name: str = "client", done: Callable[[], None] = lambda: None
    ) -> None:
        """Send one append."""
        if self._cluster.has_sessions and name.startswith("client "):
            self.producers.append(name, lambda: self._made(count, size), done)
            return
        node = self.target(leader=True)
        append = self._made(count, size)
        bodies = append.bodies
        if node is None:
            self.refused.update(bodies)
            done()
            return
        request = AppendRequest(group="g", count=count)
        answered = self.answering(node, name, lambda r, _: self._appended(append, r, done))
        data = encode_block(bodies)

        self.propose(name, node, request, data, answered)

    def propose(
        self,
        name: str,
        node: "SimulatedNode",
        request: AppendRequest,
        data: bytes,
        answered: Callable[..., None],
    ) -> None:
        """Carry a client's block to a node."""

        def arrive() -> None:
            block = parse_block(
                memoryview(bytearray(data)),
                count=request.count,
                entry_bytes_max=node.config.limits.entry_bytes_max,
            )
            node.enter(lambda: node.propose(block, answered, system_entry_of(block)))

        self._cluster.network.carry(name, node.node_id, request, data, self.once(node, arrive))

    def _made(self, count: int, size: int) -> Append:
        bodies = [f"{self._sent + n} ".encode().ljust(size, b".") for n in range(count)]
        self._sent += count
        self.asked.update(bodies)
        return Append(bodies, self.floor)

    def once(self, node: "SimulatedNode", arrive: Callable[[], None]) -> Callable[[], None]:
        """Clients talk over connections: nothing arrives twice, nor in another process's life."""
        life, seen = node.life, [False]

        def deliver() -> None:
            if not seen[0] and node.is_up and node.life == life:
                seen[0] = True
                arrive()

        return deliver

    def answering(
        self, node: "SimulatedNode", name: str, take: Callable[..., None]
    ) -> Callable[..., None]:
        """Return what carries an answer back to a client, once."""

        def answered(
            response: AppendResponse | FetchResponse | QueryResponse, parts: Sequence[Buffer] = ()
        ) -> None:
            data = b"".join(bytes(part) for part in parts)
            taken = [False]

            def arrive() -> None:
                if not taken[0]:
                    taken[0] = True
                    take(response, data)

            self._cluster.network.carry(node.node_id, name, response, data, arrive)

        return answered

    def _appended(self, append: Append, response: AppendResponse, done: Callable[[], None]) -> None:
        self._count(response.code)
        if response.code == ResponseCode.SUCCESS:
            self.acknowledged(append, response.first_index, response.last_index)
        elif error_for(response.code, "").outcome is Outcome.DID_NOT_HAPPEN:
            self.refused.update(append.bodies)
        done()

    def acknowledged(self, append: Append, first_index: int, last_index: int) -> None:
        """A client was told where its append is."""
        append.first_index = first_index
        for invariant in self._cluster.invariants:
            invariant.acknowledged(append)
        self.floor = max(self.floor, last_index)
        self.appended += len(append.bodies)

    def _count(self, code: int) -> None:
        name = ResponseCode(code).name
        self.answers[name] = self.answers.get(name, 0) + 1

    # -- reads ------------------------------------------------------------------------------

    def read(self, name: str, done: Callable[[], None]) -> None:
        """Send one read: of the newest index, or of entries, from the leader or from anybody."""
        random = self._world.random
        leader_only, linearizable = random.random() < 0.5, random.random() < 0.6
        node = self.target(leader=leader_only)
        if node is None:
            done()
            return
        begin = BEYOND if random.random() < 0.5 else random.randint(0, max(0, self.floor + 5))
        request = FetchRequest(
            group="g",
            begin_index=begin,
            bytes_max=READ_BYTES,
            index_records=True,
            leader_only=leader_only,
            linearizable=linearizable,
            # where there are no transactions both mean the same
            read_committed=not self._cluster.has_transactions,
        )
        floor = self.floor
        answered = self.answering(
            node, name, lambda r, data: self._read(node.node_id, request, floor, r, data, done)
        )

        def arrive() -> None:
            node.enter(lambda: node.running.fetch(request, answered))

        self._cluster.network.carry(name, node.node_id, request, b"", self.once(node, arrive))

    def _read(
        self,
        node_id: str,
        request: FetchRequest,
        floor: int,
        response: FetchResponse,
        data: bytes,
        done: Callable[[], None],
    ) -> None:
        if response.code == ResponseCode.SUCCESS:
            self.reads += 1
            records, entries = data[: response.index_bytes], data[response.index_bytes :]
            found = []
            if response.count:
                parts = (memoryview(entries), memoryview(records))
                found = entries_of(EntryRun(response.first_index, response.count, *parts, True))
            read = Read(node_id, floor, request.linearizable, response.committed_index, found)
            for invariant in self._cluster.invariants:
                invariant.read(read)
        done()
