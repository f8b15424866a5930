"""Commands and questions of simulated clients to a state machine, remembered as a history."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import Outcome, error_for
from quorumlog.model.machine_message import QueryRequest, QueryResponse
from quorumlog.model.message import AppendRequest, AppendResponse
from quorumlog.sim.operations import Kind, Operation
from quorumlog.sim.register import TAKEN, Command

if TYPE_CHECKING:
    from quorumlog.sim.clients import Clients
    from quorumlog.sim.cluster import SimulatedCluster
    from quorumlog.sim.node import SimulatedNode

KEYS_AT_A_TIME = 3
OPERATIONS_A_KEY = 60
"""Then others take the place of the keys: short histories are judged quickly."""


class Commands:
    """Of all clients of a cluster. `history` holds what was told, and what nobody was told."""

    def __init__(self, cluster: "SimulatedCluster", clients: "Clients") -> None:
        self._cluster = cluster
        self._clients = clients
        self._world = cluster.world
        self._sent = 0
        self._open: dict[int, Operation] = {}
        self._values: list[bytes] = []
        self.history: list[Operation] = []

    def _key(self) -> bytes:
        age = self._sent // (KEYS_AT_A_TIME * OPERATIONS_A_KEY)
        return b"%d/%d" % (age, self._world.random.randrange(KEYS_AT_A_TIME))

    def send(self, name: str, done: Callable[[], None]) -> None:
        """Send one command or question."""
        random = self._world.random
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
        """Return those whose answer never came: they may have happened."""
        return list(self._open.values())

    def _began(self, operation: Operation) -> int:
        self._open[self._sent] = operation
        return self._sent

    def _ended(self, number: int, *, happened: bool, result: bytes | bool | None) -> None:
        """An answer came; what did not happen is forgotten."""
        operation = self._open.pop(number, None)
        if operation is not None and happened:
            self.history.append(replace(operation, returned=self._world.now_us, result=result))

    # -- commands -----------------------------------------------------------------------------

    def _execute(self, name: str, command: Command, done: Callable[[], None]) -> None:
        node = self._clients.target(leader=True)
        if node is None:
            done()
            return
        kind = Kind.COMPARE_AND_SET if command.compares else Kind.PUT
        number = self._began(
            Operation(
                _number_of(name),
                command.key,
                kind,
                self._world.now_us,
                None,
                command.value,
                command.expected,
            )
        )
        body = msgspec.msgpack.encode(command)
        self._clients.asked.add(body)
        data = encode_block([body])
        request = AppendRequest(group="g", count=1, wants_results=True)

        def take(response: AppendResponse, result: bytes) -> None:
            if response.code == ResponseCode.SUCCESS:
                told = result == TAKEN if command.compares else None
                self._ended(number, happened=True, result=told)
            elif error_for(response.code, "").outcome is Outcome.DID_NOT_HAPPEN:
                self._ended(number, happened=False, result=None)
            done()

        answered = self._clients.answering(node, name, take)

        def arrive() -> None:
            limit = node.config.limits.entry_bytes_max
            block = parse_block(memoryview(bytearray(data)), count=1, entry_bytes_max=limit)
            node.enter(lambda: node.running.propose(block, answered))

        self._carry(name, node, request, data, arrive)

    # -- questions ----------------------------------------------------------------------------

    def _ask(self, name: str, key: bytes, done: Callable[[], None]) -> None:
        node = self._clients.target(leader=self._world.random.random() < 0.7)
        if node is None:
            done()
            return
        number = self._began(Operation(_number_of(name), key, Kind.GET, self._world.now_us, None))
        request = QueryRequest(group="g")

        def take(response: QueryResponse, value: bytes) -> None:
            happened = response.code == ResponseCode.SUCCESS
            self._ended(number, happened=happened, result=value or None)
            done()

        answered = self._clients.answering(node, name, take)

        def answer(code: ResponseCode, text: str, applied_index: int, value: bytes) -> None:
            answered(QueryResponse(code=code, text=text, applied_index=applied_index), [value])

        def arrive() -> None:
            node.enter(lambda: node.running.query(request, key, answer))

        self._carry(name, node, request, key, arrive)

    def _carry(
        self,
        name: str,
        node: "SimulatedNode",
        request: AppendRequest | QueryRequest,
        data: bytes,
        arrive: Callable[[], None],
    ) -> None:
        once = self._clients.once(node, arrive)
        self._cluster.network.carry(name, node.node_id, request, data, once)


def _number_of(name: str) -> int:
    return int(name.rpartition(" ")[2])
