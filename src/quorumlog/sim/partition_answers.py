"""What a node has answered to clients of partitions, as it was when the node answered."""

from dataclasses import dataclass

from quorumlog.records.batch import BatchHeader
from quorumlog.sim.partition_batches import SentBatch


@dataclass(frozen=True, slots=True)
class BatchAcknowledged:
    """A batch was acknowledged at a level that a majority proves; `index` is that of its entry."""

    node_id: str
    sent: SentBatch
    offset: int
    index: int
    committed_index: int


@dataclass(frozen=True, slots=True)
class PartitionServed:
    """A read of a partition from an offset on was served by the leader of a term.

    `times_us`: when it arrived and when it was answered. `committed_index` is that of its arrival,
    and `as_of` the index up to which the node had then derived its committed tables. `aborted` are
    (producer id, first offset) of aborted transactions, for those who read committed ones.
    """

    node_id: str
    term: int
    times_us: tuple[int, int]
    channel: int
    offset: int
    as_of: int
    committed_index: int
    high_watermark: int
    log_start: int
    stable_offset: int
    reads_committed: bool
    aborted: list[tuple[int, int]]
    headers: list[BatchHeader]

    @property
    def what(self) -> str:
        """What findings call it."""
        return f"{self.node_id} served channel {self.channel} from {self.offset}"
