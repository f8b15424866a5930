"""Simulated clients: they append unique values, read, and remember the answers."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial

from quorumlog.model.block import encode_block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import Outcome, error_for
from quorumlog.model.messages.client import (
    AppendRequest,
    AppendResponse,
    FetchRequest,
    FetchResponse,
)
from quorumlog.sim.client_connections import ClientConnections
from quorumlog.sim.client_requests import Append, Attempt, Read
from quorumlog.sim.commands import Commands
from quorumlog.sim.invariants.committed import entries_of
from quorumlog.sim.operations import Operation
from quorumlog.sim.producers import Producers
from quorumlog.sim.transactions import TransactionalWriter
from quorumlog.storage.entries.entry_runs import EntryRun

BEYOND = 1 << 62
TRANSACTIONAL_CLIENT = "client 0"
"""The client that writes transactions, where there are any."""
READ_BYTES = 4_096
COMMANDS = 0.5
"""Share of requests that are for the state machine, where there is one."""
PATIENCE_MS = 4_000
"""After this time without an answer the outcome of a request is unknown."""


class Clients:
    """All clients of a cluster: each sends an append or a read, waits, and sends the next."""

    def __init__(
        self,
        connections: ClientConnections,
        state_machine: str,
        *,
        has_sessions: bool,
        has_transactions: bool,
    ) -> None:
        self._connections = connections
        self._clock = connections.clock
        self._has_machine = bool(state_machine)
        self._has_sessions = has_sessions
        self._sent = 0
        self.reads = 0
        self.is_running = False
        self.pause_ms = (1, 60)
        self._paused_until_ms = 0
        self._commands = Commands(connections, state_machine, has_sessions=has_sessions)
        self._producers = Producers(connections)
        self._transactions = TransactionalWriter(connections) if has_transactions else None

    @property
    def asked(self) -> set[bytes]:
        """All values ever sent."""
        return self._connections.asked

    @property
    def refused(self) -> set[bytes]:
        """Values whose appends were answered as not stored."""
        return self._connections.refused

    @property
    def floor(self) -> int:
        """The highest index acknowledged so far."""
        return self._connections.floor

    @property
    def appended(self) -> int:
        """How many values were acknowledged."""
        return self._connections.appended

    @property
    def operations(self) -> list[Operation]:
        """Commands and queries to the state machine, those of unknown outcome included."""
        return [*self._commands.history, *self._commands.unknown()]

    @property
    def batches(self) -> None:
        """See `ClientsView`: these clients append entries."""

    @property
    def starts_asked(self) -> AbstractSet[tuple[int, int]]:
        """See `ClientsView`."""
        return frozenset()

    @property
    def attempts(self) -> list[Attempt] | None:
        """All attempts to write a batch in a transaction; None: no client writes transactions."""
        return None if self._transactions is None else self._transactions.attempts

    def start(self, count: int) -> None:
        """Start this many clients."""
        self.is_running = True
        for number in range(count):
            self._clock.after_ms(number, partial(self._next, f"client {number}"))

    def pause_until(self, time_ms: int) -> None:
        """Send nothing new before a time."""
        self._paused_until_ms = max(self._paused_until_ms, time_ms)

    def _next(self, name: str) -> None:
        """Send the next request of one client, and go on when it is answered or given up."""
        if not self.is_running:
            return
        paused_ms = self._paused_until_ms - self._clock.now_ms
        if paused_ms > 0:
            self._clock.after_ms(paused_ms, lambda: self._next(name))
            return
        random = self._clock.random
        going_on = [False]

        def go_on() -> None:
            if not going_on[0]:
                going_on[0] = True
                self._clock.after_ms(random.uniform(*self.pause_ms), lambda: self._next(name))

        if self._transactions is not None and name == TRANSACTIONAL_CLIENT:
            self._transactions.go_on(name, go_on)
        elif self._has_machine and random.random() < COMMANDS:
            self._commands.send(name, go_on)
        elif random.random() < 0.8:
            self.append(random.randint(1, 8), random.choice((5, 40, 400)), name, go_on)
        else:
            self.read(name, go_on)
        self._clock.after_ms(PATIENCE_MS, go_on)

    # -- appends ----------------------------------------------------------------------------

    def append(
        self, count: int, size: int, name: str = "client", done: Callable[[], None] = lambda: None
    ) -> None:
        """Send one append."""
        if self._has_sessions and name.startswith("client "):
            self._producers.append(name, lambda: self._made(count, size), done)
            return
        node = self._connections.target(leader=True)
        append = self._made(count, size)
        bodies = append.bodies
        if node is None:
            self._connections.refused.update(bodies)
            done()
            return
        request = AppendRequest(group="g", count=count)
        answered = self._connections.answering(
            node, name, lambda r, _: self._appended(append, r, done)
        )
        data = encode_block(bodies)

        self._connections.propose(name, node, request, data, answered)

    def _made(self, count: int, size: int) -> Append:
        bodies = [f"{self._sent + n} ".encode().ljust(size, b".") for n in range(count)]
        self._sent += count
        self._connections.asked.update(bodies)
        return Append(bodies, self.floor)

    def _appended(self, append: Append, response: AppendResponse, done: Callable[[], None]) -> None:
        if response.code == ResponseCode.SUCCESS:
            self._connections.acknowledged(append, response.first_index, response.last_index)
        elif error_for(response.code, "").outcome is Outcome.DID_NOT_HAPPEN:
            self._connections.refused.update(append.bodies)
        done()

    # -- reads ------------------------------------------------------------------------------

    def read(self, name: str, done: Callable[[], None]) -> None:
        """Send one read: of the newest index, or of entries, from the leader or from anybody."""
        random = self._clock.random
        leader_only, linearizable = random.random() < 0.5, random.random() < 0.6
        node = self._connections.target(leader=leader_only)
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
            read_committed=self._transactions is None,
        )
        floor = self.floor
        answered = self._connections.answering(
            node, name, lambda r, data: self._read(node.node_id, request, floor, r, data, done)
        )

        def arrive() -> None:
            node.enter(lambda: node.running.fetch(request, answered))

        self._connections.carry(name, node, request, b"", arrive)

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
            self._connections.read(read)
        done()
