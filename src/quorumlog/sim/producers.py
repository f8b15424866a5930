"""Idempotent producers of simulated clients: a block is sent until it is acknowledged."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isal.isal_zlib import crc32

from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.message import AppendRequest, AppendResponse
from quorumlog.model.session import SessionEntry, crc_of, session_of
from quorumlog.sim.finding import Finding

if TYPE_CHECKING:
    from quorumlog.sim.clients import Append, Clients
    from quorumlog.sim.cluster import SimulatedCluster

NEVER_OF_ONE = (
    ResponseCode.SEQUENCE_GAP,
    ResponseCode.SEQUENCE_MISMATCH,
    ResponseCode.PRODUCER_FENCED,
    ResponseCode.UNKNOWN_PRODUCER,
)
"""What a producer that sends one block at a time must not be told of the block it waits for."""


@dataclass(slots=True)
class _Producer:
    """`waiting`: the block that is not acknowledged yet, and its bytes."""

    producer_id: int
    next_sequence: int = 0
    waiting: "tuple[Append, bytes] | None" = None


class Producers:
    """Of all clients of a cluster; that nothing is stored twice, `acknowledged_kept` looks at."""

    def __init__(self, cluster: "SimulatedCluster", clients: "Clients") -> None:
        self._cluster = cluster
        self._clients = clients
        self._producers: dict[str, _Producer] = {}

    def append(self, name: str, make: "Callable[[], Append]", done: Callable[[], None]) -> None:
        """Send the block that waits, or the one that `make` gives."""
        producer = self._producers.setdefault(name, _Producer(len(self._producers) + 1))
        if producer.waiting is None:
            append = make()
            crc = crc_of(crc32(body) for body in append.bodies)
            entry = SessionEntry(
                producer.producer_id, 0, producer.next_sequence, len(append.bodies), crc
            )
            producer.waiting = (append, entry.encode() + encode_block(append.bodies))
        append, data = producer.waiting
        node = self._clients.target(leader=True)
        if node is None:
            done()
            return
        count = len(append.bodies) + 1
        request = AppendRequest(group="g", count=count)

        def take(response: AppendResponse, _: bytes) -> None:
            self._answered(producer, append, response)
            done()

        answered = self._clients.answering(node, name, take)

        def arrive() -> None:
            limit = node.config.limits.entry_bytes_max
            block = parse_block(memoryview(bytearray(data)), count=count, entry_bytes_max=limit)
            node.enter(lambda: node.running.propose(block, answered, session_of(block)))

        once = self._clients.once(node, arrive)
        self._cluster.network.carry(name, node.node_id, request, data, once)

    def _answered(self, producer: _Producer, append: "Append", response: AppendResponse) -> None:
        """Take an answer, unless an earlier or later one of this block came before."""
        if producer.waiting is None or producer.waiting[0] is not append:
            return
        if response.code in NEVER_OF_ONE:
            raise Finding("acknowledged_kept", f"a producer is told: {response.text}")
        if response.code == ResponseCode.SUCCESS:
            producer.waiting = None
            producer.next_sequence += len(append.bodies)
            self._clients.acknowledged(append, response.first_index + 1, response.last_index)
