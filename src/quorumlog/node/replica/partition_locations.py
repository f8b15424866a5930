"""Where batches of partitions are in the files of this node, for readers on the same machine.

Only what may be read of a partition is located, as by `PartitionReads`, and of that only what is
durable here: such entries do not change before they are removed (decision 0058).
"""

from typing import Final

import msgspec

from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.client import StoreLocation
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.partition_reads import PartitionRead, PartitionReads
from quorumlog.node.replica.tables import Tables
from quorumlog.topics.batch_columns import PlacedBatch
from quorumlog.topics.partition_transactions import AbortedTransaction

BATCHES_MAX: Final = 1_024
"""Batches that are located at a time: finding them takes about 2 ms of the event loop."""
BYTES_MAX: Final = 1024 * 1024 * 1024
"""Bytes of batches that are located at a time: a reader asks again whether they are still there."""
ABORTED_MAX: Final = 1_024
"""Aborted transactions that an answer names; where there are more, nothing is located."""


class LocatedBatches(msgspec.Struct, frozen=True):
    """Batches whose entries are in files at `location`, which is None if none are.

    `aborted`, for those who read committed transactions: those that the batches have records of.
    """

    location: StoreLocation | None = None
    batches: list[PlacedBatch] = []
    aborted: list[AbortedTransaction] = []


class PartitionLocations:
    """The part of a replica that locates batches. All methods run on the event loop's thread."""

    def __init__(
        self,
        context: ReplicaContext,
        tables: Tables,
        reads: PartitionReads,
        location: StoreLocation | None,
    ) -> None:
        self._context = context
        self._tables = tables
        self._reads = reads
        self._location = location
        self.entries_located = 0

    def is_on(self, machine: str) -> bool:
        """Whether the files of this replica are on a machine, by the boot id of its kernel."""
        return self._location is not None and self._location.machine == machine

    def locate(self, read: PartitionRead, end: int) -> LocatedBatches | tuple[ResponseCode, str]:
        """Return where the batches from one with `read.offset` on are, those before offset `end`.

        The last one may end after it. A code with its text says why the partition cannot be read.
        """
        refused = self._reads.refusal() or self._reads.fault(read)
        if refused is not None:
            return refused
        context, table = self._context, self._tables.partitions
        if context.log.damaged:  # a read through the node has damage repaired, one of files not
            return LocatedBatches()
        stop = self._reads.end(read)
        found = self._tables.batches.batches_within(
            read.channel, read.offset, stop, BYTES_MAX, count_max=BATCHES_MAX, at_least=True
        )
        durable = context.core.durable_index
        found = [one for one in found if one.base_offset < end and one.index <= durable]
        if not found or found[0].base_offset > read.offset:
            return LocatedBatches()
        aborted: list[AbortedTransaction] = []
        if read.reads_committed:
            beyond = found[-1].last_offset + 1
            aborted = table.transactions.aborted_transactions(read.channel, read.offset, beyond)
            if len(aborted) > ABORTED_MAX:
                return LocatedBatches()
        self.entries_located += len(found)
        return LocatedBatches(self._location, found, aborted)
