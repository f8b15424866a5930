"""What a task does: the entries of one range, fetched and decoded, as Arrow batches."""

from collections.abc import Iterator

import pyarrow as pa

from quorumlog.client import FetchedBlock
from quorumlog.model.block import block_from_index_records
from quorumlog.model.errors import IndexRemovedError
from quorumlog.spark.clients import Cluster
from quorumlog.spark.decode import decode
from quorumlog.spark.offsets import LossRules
from quorumlog.spark.options import ReadOptions
from quorumlog.spark.planning import IndexRange
from quorumlog.spark.verify import Verify, verify_block


def read_range(
    cluster: Cluster, part: IndexRange, options: ReadOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a range, the next block on its way while one is decoded.

    Entries that retention removes meanwhile are an error, or skipped and logged (failOnDataLoss).
    Raises `DataLossError`, `CorruptionError` (verifyCrc), `RequestError` after fetchTimeoutMs.
    """
    losses = LossRules(options.fail_on_data_loss)
    index = part.first
    while index <= part.last:
        blocks = cluster.blocks(
            part.group, index, part.last, options.isolation, leader_only=options.leader_only
        )
        try:
            for fetched in blocks:
                yield from _batches(fetched, part.group, options.verify, columns)
                index = fetched.first_index + fetched.count
        except IndexRemovedError:
            begin = cluster.bounds(part.group, options.isolation).begin
            index = losses.first_kept(part.group, index, part.last, begin)


def _batches(
    fetched: FetchedBlock, group: str, verify: Verify, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    block = block_from_index_records(fetched.data, fetched.records)
    verify_block(block, fetched.first_index, verify, bodies="body" in columns)
    return decode(
        fetched.data,
        fetched.records,
        columns,
        verify_crc=False,
        rejected=fetched.rejected,
        group=group,
    )
