"""Batches of partitions get their offsets when the core takes them, so that none leaves a gap."""

from isal.isal_zlib import crc32

from quorumlog.model.block import HEADER_SIZE, Block, put_body_crc
from quorumlog.model.codes import ResponseCode
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.prepared_proposals import PreparedProposals
from quorumlog.node.replica.proposals import Batch, Refuse, Register, joined, parts_of
from quorumlog.node.replica.tables import Tables
from quorumlog.records.batch import set_log_append_time, stamp_batch
from quorumlog.topics.produced_batch import ProducedBatch

_CLOSED = "the partition on channel {} was closed meanwhile"


class StampedProposals(PreparedProposals):
    """Stamps the record batches of each batch of appends that is proposed.

    An append whose partition is gone is refused.
    """

    def __init__(
        self, context: ReplicaContext, tables: Tables, register: Register, refuse: Refuse
    ) -> None:
        super().__init__(context, register, refuse)
        self._tables = tables

    def _prepared(self, batch: Batch) -> Batch | None:
        following: dict[int, tuple[int, int]] = {}
        kept = []
        for member in parts_of(batch):
            produced = member.entry
            if isinstance(produced, ProducedBatch):
                if produced.channel not in self._tables.partitions_at_end.partitions:
                    text = _CLOSED.format(produced.channel)
                    self._refuse(member.answer, ResponseCode.UNKNOWN_PARTITION, text)
                    continue
                self._stamp(member.block, produced, following)
            kept.append(member)
        if len(kept) == len(batch.members):
            return batch
        return joined(kept) if kept else None

    def _stamp(
        self, block: Block, produced: ProducedBatch, following: dict[int, tuple[int, int]]
    ) -> None:
        """Stamp one record batch; `following` are next offset and newest append time by channel."""
        partition = self._tables.partitions_at_end.partitions[produced.channel]
        at_end = partition.next_offset, partition.append_time
        offset, time_ms = following.get(produced.channel, at_end)
        body = block.data[HEADER_SIZE:]
        if produced.gets_append_time:
            # the time does not go back within a partition, whatever the clocks of leaders say
            time_ms = max(self._context.environment.wall_ms(), time_ms)
            set_log_append_time(body, time_ms)
            produced.append_time = time_ms
        following[produced.channel] = offset + produced.header.count, time_ms
        stamp_batch(body, 0, offset, self._context.core.term)
        produced.base_offset = offset
        put_body_crc(block.data, 0, crc32(body))
