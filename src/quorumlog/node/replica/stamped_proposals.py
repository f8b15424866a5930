"""Batches of partitions get their offsets when the core takes them, so that none leaves a gap.

Between the stamp and the core's step nothing else can happen (as with an append hook, decision
0038): the offsets that a batch gets are those that follow in its partition.
"""

from functools import partial

from isal.isal_zlib import crc32

from quorumlog.model.block import HEADER_SIZE, Block, put_body_crc
from quorumlog.model.codes import ResponseCode
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.proposals import Batch, Refuse, Register, joined, parts_of
from quorumlog.node.replica.tables import Tables
from quorumlog.raft.events import Proposed
from quorumlog.records.batch import set_log_append_time, stamp_batch
from quorumlog.topics.produced_batch import ProducedBatch

_CLOSED = "the partition on channel {} was closed meanwhile"


class StampedProposals:
    """Stamps the record batches of each batch of appends that is proposed.

    `register` makes the proposal of what is left of it. `refuse` answers an append whose partition
    is gone.
    """

    def __init__(
        self, context: ReplicaContext, tables: Tables, register: Register, refuse: Refuse
    ) -> None:
        self._context = context
        self._tables = tables
        self._register = register
        self._refuse = refuse

    def propose(self, batch: Batch) -> None:
        """Propose a batch; its records get their offsets when it is the proposal's turn."""
        self._context.shell.step(None, prepare=partial(self._proposal_of, batch))

    def _proposal_of(self, batch: Batch) -> Proposed | None:
        """Stamp a batch; return the proposal, None if every append of it was refused."""
        if not self._context.core.takes_proposals:
            return self._register(batch)  # the core refuses it: nothing gets an offset
        following: dict[int, int] = {}
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
            return self._register(batch)
        return self._register(joined(kept)) if kept else None

    def _stamp(self, block: Block, produced: ProducedBatch, following: dict[int, int]) -> None:
        """Stamp one record batch; `following` are the next offsets after those before it."""
        partition = self._tables.partitions_at_end.partitions[produced.channel]
        offset = following.get(produced.channel, partition.next_offset)
        following[produced.channel] = offset + produced.header.count
        body = block.data[HEADER_SIZE:]
        if produced.gets_append_time:
            # the time does not go back within a partition, whatever the clocks of leaders say
            time_ms = max(self._context.environment.wall_ms(), partition.append_time)
            set_log_append_time(body, time_ms)
            produced.append_time = time_ms
        stamp_batch(body, 0, offset, self._context.core.term)
        produced.base_offset = offset
        put_body_crc(block.data, 0, crc32(body))
