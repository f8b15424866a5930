"""Requests of simulated clients to partitions, and what a node knew when it answered them."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from quorumlog.model.block import parse_block
from quorumlog.model.codes import ResponseCode, WriteLevel
from quorumlog.model.messages.client import AppendRequest, AppendResponse, FetchRequest
from quorumlog.node.replica.partition_reads import PartitionRead, ReadBatches
from quorumlog.records.batch import batch_header
from quorumlog.sim.client_connections import ClientConnections
from quorumlog.sim.node import SimulatedNode
from quorumlog.sim.partition_answers import BatchAcknowledged, PartitionServed
from quorumlog.sim.partition_batches import SentBatch, encode_batch, proposal_of
from quorumlog.topics.entries import LogStartsMoved, PartitionEntry

_OFFSET: Final = struct.Struct(">q")
READ_BYTES: Final = 3_000
"""What a consumer asks for at a time."""
ANSWER_US: Final = 1_000
"""How long an answer with batches is on its way."""


@dataclass(slots=True)
class Connection:
    """One connection of a client to a node: requests arrive in the order in which they are sent.

    One that the network loses holds up those after it, until the client gives the connection up.
    """

    node: SimulatedNode
    sent: int = 0
    _expected: int = 0
    _early: dict[int, Callable[[], None]] = field(default_factory=dict)

    def next_number(self) -> int:
        """Return the number of the next request."""
        self.sent += 1
        return self.sent - 1

    def arrived(self, number: int, act: Callable[[], None]) -> None:
        """A request has come through; act once those before it have."""
        self._early[number] = act
        while self._expected in self._early:
            self._expected += 1
            self._early.pop(self._expected - 1)()


class PartitionRequests:
    """What all clients of partitions send.

    `batches` are all that there ever were, by number; `starts_asked` are the log starts that
    clients asked for, as (channel, offset).
    """

    def __init__(self, connections: ClientConnections) -> None:
        self._connections = connections
        self.clock = connections.clock
        self.batches: dict[int, SentBatch] = {}
        self.starts_asked: set[tuple[int, int]] = set()

    def connect(self) -> Connection | None:
        """Return a new connection to whoever seems to lead; None: no node is up."""
        node = self._connections.target(leader=True)
        return None if node is None else Connection(node)

    def batch(self, channel: int, count: int, size: int, **fields: int) -> SentBatch:
        """Make a batch that is not sent yet."""
        number = len(self.batches) + 1
        floor = self._connections.floor
        sent = SentBatch(number, channel, count, size, floor, **fields)  # type: ignore[arg-type]
        sent.made_ms = self.clock.now_ms
        self.batches[number] = sent
        return sent

    def produce(
        self,
        name: str,
        connection: Connection,
        sent: SentBatch,
        take: Callable[[ResponseCode], None],
    ) -> None:
        """Send a batch, for the first time or again; `take` gets the answer, if one arrives."""
        node, number, data = connection.node, connection.next_number(), encode_batch(sent)
        sent.sends += 1

        def answered(response: AppendResponse, parts: bytes) -> None:
            code = ResponseCode(response.code)
            if code is ResponseCode.SUCCESS and response.level >= WriteLevel.REPLICATION:
                self._acknowledged(sent, response, _OFFSET.unpack(parts)[0])
            take(code)

        answer = self._connections.answering(node, name, answered)

        def propose() -> None:
            produced, block = proposal_of(sent, data, batch_header(data))

            def give(response: AppendResponse, _: Sequence[bytes]) -> None:
                offset = produced.base_offset
                is_proved = response.level >= WriteLevel.REPLICATION
                if response.code == ResponseCode.SUCCESS and is_proved:
                    committed, index = node.core.committed_index, response.first_index
                    self._connections.partitions_answered(
                        BatchAcknowledged(node.node_id, sent, offset, index, committed)
                    )
                answer(response, [_OFFSET.pack(offset)])

            node.enter(lambda: node.propose(block, give, produced, sent.level))

        request = AppendRequest(group="g", count=1)
        arrive = lambda: connection.arrived(number, propose)  # noqa: E731
        self._connections.carry(name, node, request, data, arrive)

    def _acknowledged(self, sent: SentBatch, response: AppendResponse, offset: int) -> None:
        """A client learns that its batch is stored; of a repeated one, maybe more than once."""
        if sent.offset < 0:
            sent.offset = offset
            self._connections.acknowledged_records(sent.floor, response.first_index, sent.count)

    def write(self, name: str, entry: PartitionEntry, take: Callable[[ResponseCode], None]) -> None:
        """Have whoever seems to lead append an entry of the system channel."""
        if isinstance(entry, LogStartsMoved):
            self.starts_asked.update(entry.starts)
        node = self._connections.target(leader=True)
        if node is None:
            take(ResponseCode.NOT_LEADER)
            return
        data = entry.encode()
        answer = self._connections.answering(node, name, lambda response, _: take(response.code))

        def arrive() -> None:
            block = parse_block(memoryview(bytearray(data)), count=1, entry_bytes_max=len(data))
            node.enter(lambda: node.propose(block, answer, entry))

        request = AppendRequest(group="g", count=1)
        self._connections.carry(name, node, request, data, arrive)

    def read(
        self,
        name: str,
        channel: int,
        offset: int,
        take: Callable[[ReadBatches], None],
        *,
        reads_committed: bool,
    ) -> None:
        """Read a partition from whoever seems to lead."""
        node = self._connections.target(leader=True)
        if node is None:
            take(ReadBatches(ResponseCode.NOT_LEADER))
            return
        reads = [PartitionRead(channel, offset, READ_BYTES, reads_committed)]
        clock = self.clock
        request = FetchRequest(group="g", begin_index=offset, bytes_max=READ_BYTES)

        def ask() -> None:
            core, asked_us = node.core, clock.now_us
            term, committed, as_of = core.term, core.committed_index, node.running.tables.as_of

            def answered(results: list[ReadBatches]) -> None:
                (found,) = results
                if found.code is ResponseCode.SUCCESS:
                    served = PartitionServed(
                        node.node_id,
                        term,
                        (asked_us, clock.now_us),
                        channel,
                        offset,
                        as_of,
                        committed,
                        found.high_watermark,
                        found.log_start,
                        found.stable_offset,
                        reads_committed,
                        found.aborted,
                        [batch_header(batch) for batch in found.batches],
                    )
                    self._connections.partitions_answered(served)
                clock.after_us(ANSWER_US, lambda: take(found))

            node.running.partition_reads.read(reads, READ_BYTES, answered, name)

        self._connections.carry(name, node, request, b"", lambda: node.enter(ask))
