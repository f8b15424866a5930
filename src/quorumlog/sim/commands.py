"""Commands and queries of simulated clients to a state machine, kept as a history.

With sessions a client sends a command until it learns what became of it, and only then another.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from quorumlog.model.block import encode_block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import Outcome, error_for
from quorumlog.model.messages.client import AppendRequest, AppendResponse
from quorumlog.model.messages.machine import QueryRequest, QueryResponse
from quorumlog.sessions.entries import encode_session_block
from quorumlog.sim.client_connections import ClientConnections
from quorumlog.sim.finding import Finding
from quorumlog.sim.machines import adapter_of
from quorumlog.sim.operations import Kind, Operation
from quorumlog.sim.producers import NEVER_OF_ONE
from quorumlog.sim.register import Command

KEYS_AT_A_TIME = 3
OPERATIONS_A_KEY = 60
"""After this number of operations other keys are used: short histories are checked quickly."""
SESSIONS_FROM = 1_000
"""Producer ids of command sessions start here; lower ones belong to producers."""
NEVER = (*NEVER_OF_ONE, ResponseCode.RESULTS_FORGOTTEN)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A command under way: its operation's number, and its block of `count` entries."""

    number: int
    command: Command
    data: bytes
    count: int


@dataclass(slots=True)
class _Session:
    """The session of one client; `waiting`: the command whose outcome it does not know yet."""

    producer_id: int
    next_sequence: int = 0
    waiting: _Sent | None = None

    def answered(self, sent: _Sent) -> None:
        """A command was executed; its answer may arrive more than once."""
        if self.waiting is sent:
            self.waiting = None
            self.next_sequence += 1


class Commands:
    """The commands of all clients. `history` holds operations whose outcome a client knows."""

    def __init__(
        self, connections: ClientConnections, state_machine: str, *, has_sessions: bool
    ) -> None:
        self._connections = connections
        self._clock = connections.clock
        self._adapter = adapter_of(state_machine)
        self._has_sessions = has_sessions
        self._sessions: dict[str, _Session] = {}
        self._sent = 0
        self._open: dict[int, Operation] = {}
        self._values: list[bytes] = []
        self.history: list[Operation] = []

    def _key(self) -> bytes:
        age = self._sent // (KEYS_AT_A_TIME * OPERATIONS_A_KEY)
        return b"%d/%d" % (age, self._clock.random.randrange(KEYS_AT_A_TIME))

    def send(self, name: str, done: Callable[[], None]) -> None:
        """Send one command or query."""
        random = self._clock.random
        session = self._sessions.get(name)
        if session is not None and session.waiting is not None:
            self._send(name, session.waiting, done)
            return
        self._sent += 1
        if random.random() < 0.5:
            self._ask(name, self._key(), done)
            return
        value = b"%d" % self._sent
        compares = random.random() < 0.5
        expected = random.choice(self._values) if compares and self._values else None
        self._values = [*self._values, value][-4:]
        self._execute(name, Command(self._key(), value, compares, expected), done)

    def unknown(self) -> list[Operation]:
        """Return operations without an answer: they may have happened."""
        return list(self._open.values())

    def _invoke(self, operation: Operation) -> int:
        self._open[self._sent] = operation
        return self._sent

    def _returned(self, number: int, *, happened: bool, result: bytes | bool | None) -> None:
        """Take an answer; an operation that did not happen is forgotten."""
        operation = self._open.pop(number, None)
        if operation is not None and happened:
            self.history.append(replace(operation, returned=self._clock.now_us, result=result))

    # -- commands -----------------------------------------------------------------------------

    def _execute(self, name: str, command: Command, done: Callable[[], None]) -> None:
        kind = Kind.COMPARE_AND_SET if command.compares else Kind.PUT
        number = self._invoke(
            Operation(
                _number_of(name),
                command.key,
                kind,
                self._clock.now_us,
                None,
                command.value,
                command.expected,
            )
        )
        body = self._adapter.command(command)
        self._connections.asked.add(body)
        sent = _Sent(number, command, encode_block([body]), 1)
        if self._has_sessions:
            session = self._sessions.setdefault(name, _Session(SESSIONS_FROM + len(self._sessions)))
            block = encode_session_block(
                session.producer_id, session.next_sequence, [body], keeps_results=True
            )
            session.waiting = sent = _Sent(number, command, block, 2)
        self._send(name, sent, done)

    def _send(self, name: str, sent: "_Sent", done: Callable[[], None]) -> None:
        """Send a command, for the first time or again."""
        node, session = self._connections.target(leader=True), self._sessions.get(name)
        if node is None:
            if session is None:
                self._returned(sent.number, happened=False, result=None)
            done()
            return
        request = AppendRequest(group="g", count=sent.count, wants_results=True)

        def take(response: AppendResponse, result: bytes) -> None:
            if response.code == ResponseCode.SUCCESS:
                took = sent.command.compares and self._adapter.took_place(result)
                known = took if sent.command.compares else None
                self._returned(sent.number, happened=True, result=known)
                if session is not None:
                    session.answered(sent)
            elif session is not None:
                if response.code in NEVER and session.waiting is sent:
                    raise Finding("linearizable", f"a client is told: {response.text}")
            elif error_for(response.code, "").outcome is Outcome.DID_NOT_HAPPEN:
                self._returned(sent.number, happened=False, result=None)
            done()

        answered = self._connections.answering(node, name, take)

        self._connections.propose(name, node, request, sent.data, answered)

    # -- queries ------------------------------------------------------------------------------

    def _ask(self, name: str, key: bytes, done: Callable[[], None]) -> None:
        node = self._connections.target(leader=self._clock.random.random() < 0.7)
        if node is None:
            done()
            return
        number = self._invoke(Operation(_number_of(name), key, Kind.GET, self._clock.now_us, None))
        request, query = QueryRequest(group="g"), self._adapter.query(key)

        def take(response: QueryResponse, value: bytes) -> None:
            happened = response.code == ResponseCode.SUCCESS
            found = self._adapter.value(value) if happened else None
            self._returned(number, happened=happened, result=found)
            done()

        answered = self._connections.answering(node, name, take)

        def answer(code: ResponseCode, text: str, applied_index: int, value: bytes) -> None:
            answered(QueryResponse(code=code, text=text, applied_index=applied_index), [value])

        def arrive() -> None:
            node.enter(lambda: node.running.query(request, query, answer, name))

        self._connections.carry(name, node, request, query, arrive)


def _number_of(name: str) -> int:
    return int(name.rpartition(" ")[2])
