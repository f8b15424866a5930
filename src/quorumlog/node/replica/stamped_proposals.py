"""Batches of partitions get their offsets when the core takes them, so that none leaves a gap."""

from isal.isal_zlib import crc32

from quorumlog.model.block import HEADER_SIZE, put_body_crc
from quorumlog.model.codes import ResponseCode
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.prepared_proposals import PreparedProposals
from quorumlog.node.replica.proposals import Batch, Refuse, Register, joined, parts_of
from quorumlog.node.replica.tables import Tables
from quorumlog.records.batch import set_log_append_time, stamp_batch
from quorumlog.topics.partition_table import Partition
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
        partitions, refused = self._tables.partitions_at_end.partitions, set[int]()
        data, start = batch.block.data, 0
        for number, member in enumerate(batch.members):
            produced = member.entry
            stop = start + len(member.block.data)
            if isinstance(produced, ProducedBatch):
                partition = partitions.get(produced.channel)
                if partition is None:
                    text = _CLOSED.format(produced.channel)
                    self._refuse(member.answer, ResponseCode.UNKNOWN_PARTITION, text)
                    refused.add(number)
                else:
                    self._stamp(data[start:stop], produced, partition, following)
            start = stop
        if not refused:
            return batch
        kept = [one for number, one in enumerate(parts_of(batch)) if number not in refused]
        return joined(kept) if kept else None

    def _stamp(
        self,
        data: memoryview,
        produced: ProducedBatch,
        partition: Partition,
        following: dict[int, tuple[int, int]],
    ) -> None:
        """Stamp the record batch of an entry.

        `following` are next offset and newest append time by channel, of those stamped before.
        """
        at_end = partition.next_offset, partition.append_time
        offset, time_ms = following.get(produced.channel, at_end)
        body = data[HEADER_SIZE:]
        if produced.gets_append_time:
            # the time does not go back within a partition, whatever the clocks of leaders say
            time_ms = max(self._context.environment.wall_ms(), time_ms)
            set_log_append_time(body, time_ms)
            produced.append_time = time_ms
        following[produced.channel] = offset + produced.header.count, time_ms
        stamp_batch(body, 0, offset, self._context.core.term)
        produced.base_offset = offset
        put_body_crc(data, 0, crc32(body))
