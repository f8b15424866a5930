"""Reading a range of the log in one job: planned once, fetched by tasks from the cluster."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from quorumlog.client import SyncClient
from quorumlog.model.errors import IndexOutOfRangeError, IndexRemovedError
from quorumlog.spark.decode import decode
from quorumlog.spark.options import ReadOptions

FETCH_BYTES = 4 * 1024 * 1024
_clients: dict[tuple[str, str, int], SyncClient] = {}
"""Connections of this worker process, kept between tasks."""


def client_for(options: ReadOptions) -> SyncClient:
    """Return this process's client for a group, made when first needed."""
    key = (options.servers, options.group, options.fetch_timeout_ms)
    if key not in _clients:
        _clients[key] = SyncClient(
            options.servers, options.group, timeout_ms=options.fetch_timeout_ms
        )
    return _clients[key]


@dataclass
class IndexRange(InputPartition):
    """Entries first … last."""

    first: int
    last: int


class LogReader(DataSourceReader):
    """Plans with the committed index as it is when the job begins."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return index ranges of about equal length.

        Raises `IndexRemovedError` or `IndexOutOfRangeError` when the range asked for is not there.
        """
        first, beyond = self._range()
        count = beyond - first
        if count <= 0:
            return [IndexRange(0, -1)]  # Spark would make a partition of its own of an empty list
        options = self._options
        by_size = -(-count // options.max_entries_per_partition)
        pieces = min(count, max(options.min_partitions, by_size))
        edges = [first + count * piece // pieces for piece in range(pieces + 1)]
        return [IndexRange(edges[i], edges[i + 1] - 1) for i in range(pieces)]

    def _range(self) -> tuple[int, int]:
        """Return first index and the index behind the last."""
        options = self._options
        with SyncClient(options.servers, options.group) as client:
            begin, committed = client.bounds(leader_only=options.leader_only)
        available = f"{options.group} has {begin} to {committed}"
        if options.start == "earliest":
            first = begin
        elif options.start == "latest":
            first = committed + 1
        else:
            first = options.start
        beyond = committed + 1 if options.end == "latest" else options.end
        if first < begin:
            raise IndexRemovedError(f"startingIndex {first} is no longer kept: {available}")
        if beyond > committed + 1:
            raise IndexOutOfRangeError(f"endingIndex {beyond} is beyond the end: {available}")
        return first, beyond

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the entries of one range as Arrow batches."""
        if not isinstance(partition, IndexRange):
            return
        options = self._options
        client = client_for(options)
        index = partition.first
        while index <= partition.last:
            fetched = client.fetch(
                index,
                partition.last,
                bytes_max=FETCH_BYTES,
                wait_ms=1_000,
                index_records=True,
                leader_only=options.leader_only,
            )
            if fetched.count:
                yield from decode(
                    fetched.data, fetched.records, self._columns, verify_crc=options.verify_crc
                )
                index = fetched.first_index + fetched.count
