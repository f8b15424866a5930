"""Idempotent producers of simulated clients: a block is sent until it is acknowledged."""

from collections.abc import Callable
from dataclasses import dataclass

from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.client import AppendRequest, AppendResponse
from quorumlog.sessions.entries import encode_session_block
from quorumlog.sim.client_connections import ClientConnections
from quorumlog.sim.client_requests import Append
from quorumlog.sim.finding import Finding

NEVER_OF_ONE = (
    ResponseCode.SEQUENCE_GAP,
    ResponseCode.SEQUENCE_MISMATCH,
    ResponseCode.PRODUCER_FENCED,
    ResponseCode.UNKNOWN_PRODUCER,
)
"""Codes that a producer with one block at a time must not get for the block it waits for."""


@dataclass(slots=True)
class _Producer:
    """`waiting`: the block that is not acknowledged yet, and its bytes."""

    producer_id: int
    next_sequence: int = 0
    waiting: tuple[Append, bytes] | None = None


class Producers:
    """The idempotent producers of all clients; `acknowledged_kept` finds what is stored twice."""

    def __init__(self, connections: ClientConnections) -> None:
        self._connections = connections
        self._producers: dict[str, _Producer] = {}

    def append(self, name: str, make: Callable[[], Append], done: Callable[[], None]) -> None:
        """Send the block that waits, or the one that `make` gives."""
        producer = self._producers.setdefault(name, _Producer(len(self._producers) + 1))
        if producer.waiting is None:
            append = make()
            block = encode_session_block(
                producer.producer_id, producer.next_sequence, append.bodies
            )
            producer.waiting = (append, block)
        append, data = producer.waiting
        node = self._connections.target(leader=True)
        if node is None:
            done()
            return
        request = AppendRequest(group="g", count=len(append.bodies) + 1)

        def take(response: AppendResponse, _: bytes) -> None:
            self._answered(producer, append, response)
            done()

        answered = self._connections.answering(node, name, take)

        self._connections.propose(name, node, request, data, answered)

    def _answered(self, producer: _Producer, append: Append, response: AppendResponse) -> None:
        """Take an answer, unless an earlier or later one of this block came before."""
        if producer.waiting is None or producer.waiting[0] is not append:
            return
        if response.code in NEVER_OF_ONE:
            raise Finding("acknowledged_kept", f"a producer is told: {response.text}")
        if response.code == ResponseCode.SUCCESS:
            producer.waiting = None
            producer.next_sequence += len(append.bodies)
            self._connections.acknowledged(append, response.first_index + 1, response.last_index)
