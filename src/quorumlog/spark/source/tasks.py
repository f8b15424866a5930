"""What a task does: the entries of one range, fetched and decoded, as Arrow batches."""

from collections.abc import Iterator

import pyarrow as pa

from quorumlog.client import FetchedBlock
from quorumlog.model.errors import IndexRemovedError
from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.spark.source.arrow import decode_block
from quorumlog.spark.source.clusters import Cluster
from quorumlog.spark.source.offsets import DataLossPolicy
from quorumlog.spark.source.options import ReadOptions
from quorumlog.spark.source.planning import IndexRange
from quorumlog.spark.source.verify import Verify, verify_block
from quorumlog.storage.entries.checksums import header_words


def read_range(
    cluster: Cluster, part: IndexRange, options: ReadOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a range, the next block on its way while one is decoded.

    Entries that retention removes meanwhile are an error, or skipped and logged (failOnDataLoss).
    Raises `DataLossError`, `CorruptionError` (verifyCrc), `RequestError` after fetchTimeoutMs.
    """
    losses = DataLossPolicy(options.fail_on_data_loss)
    index = part.first
    while index <= part.last:
        blocks = cluster.blocks(
            part.group,
            index,
            part.last,
            options.isolation,
            leader_only=options.leader_only,
            headers_only="body" not in columns,
            local_reads=options.local_reads,
        )
        try:
            for fetched in blocks:
                yield from _batches(fetched, part.group, options, columns)
                index = fetched.first_index + fetched.count
        except IndexRemovedError:
            begin = cluster.bounds(part.group, options.isolation).begin
            index = losses.first_kept(part.group, index, part.last, begin)


def _batches(
    fetched: FetchedBlock, group: str, options: ReadOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    block = fetched.block(DEFAULT_LIMITS.entry_bytes_max)
    words, verify = header_words(block), options.verify
    if not fetched.is_checked or verify is Verify.ALL:
        verify_block(block, words, fetched.first_index, verify, bodies=not fetched.headers_only)
    return decode_block(
        block,
        words,
        columns,
        rejected=fetched.rejected,
        group=group,
        channel=options.channel,
    )
