"""Scanning the data files of a store in one job: planned once, read by tasks where they run."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from quorumlog.model.errors import CorruptionError
from quorumlog.spark.source.pushdown import IndexInterval, PushedFilters
from quorumlog.spark.store.batches import Batches
from quorumlog.spark.store.options import StoreOptions
from quorumlog.spark.store.planning import StorePartition, StoreRange, plan
from quorumlog.spark.store.schema import BODY_COLUMNS, INDEX_COLUMNS
from quorumlog.spark.worker import freeze_gc
from quorumlog.storage.files.mapped_files import MappedFiles
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.metadata.advice import REPAIR
from quorumlog.storage.offline.range_planner import FileRange
from quorumlog.storage.offline.range_reader import Checks, IndexedRun, RangeReader, StoredRun

_maps = MappedFiles(OsFileSystem())
"""Files that this worker process has mapped, kept between tasks."""


class StoreReader(DataSourceReader):
    """Reads the entries that the store held when the job was planned."""

    def __init__(self, options: StoreOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Return file ranges; see `quorumlog.spark.store.planning.plan`."""
        freeze_gc()
        with_bodies = not BODY_COLUMNS.isdisjoint(self._columns)
        parts = plan(self._options, self._indexes(), with_bodies=with_bodies)
        return parts or [InputPartition(None)]  # Spark would make one of none itself

    def _indexes(self) -> IndexInterval:
        """Return the indexes that a job needs."""
        return IndexInterval()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the entries of one range as Arrow batches.

        Raises `CorruptionError` for a damaged entry, unless the mode is permissive.
        """
        freeze_gc()
        if isinstance(partition, StorePartition):
            for one in partition.ranges:
                yield from self._rows(one)

    def _rows(self, one: StoreRange) -> Iterator[pa.RecordBatch]:
        options, part, wanted = self._options, one.part, frozenset(self._columns)
        # index records show neither DLedger's NOOPs nor bookkeeping entries
        checks = Checks(
            crcs=options.verify_crc,
            bodies=bool(wanted & BODY_COLUMNS),
            headers=not (options.include_all and wanted <= INDEX_COLUMNS),
        )
        batches = Batches(
            self._columns,
            part,
            rejected=one.rejected,
            include_all=options.include_all,
            checks_bodies=checks.crcs and checks.bodies,
        )
        for found in RangeReader(part, _maps, checks):
            if not options.is_permissive:
                refuse_damage(part, found)
            if isinstance(found, StoredRun):
                yield batches.of_entries(found)
            else:
                yield batches.of_indexed(found)


class FilteringStoreReader(StoreReader):
    """Takes conditions on the index from Spark, and reads only the range that meets them."""

    def __init__(self, options: StoreOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        # of a damaged entry all but the index may be null
        self._conditions = PushedFilters("index", nullable=True)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  (Spark's name)
        """Return the conditions that Spark must check itself."""
        return self._conditions.take(filters)

    def _indexes(self) -> IndexInterval:
        return self._conditions.on("index")


def refuse_damage(part: FileRange, found: StoredRun | IndexedRun) -> None:
    """Raise `CorruptionError` for the first wanted entry that is damaged."""
    damaged: dict[int, tuple[int | None, str]]
    if isinstance(found, StoredRun):
        damaged = {
            found.first_index + ordinal: (found.offset + int(found.block.offsets[ordinal]), reason)
            for ordinal, reason in found.wrong.items()
        }
    else:
        last = found.first_index + len(found.records) - 1
        damaged = {max(found.first_index, part.wanted): (found.offset, found.reason)}
        if not found.reason or last < part.wanted:
            return
    index = min((index for index in damaged if index >= part.wanted), default=None)
    if index is not None:
        offset, reason = damaged[index]
        place = "" if offset is None else f"byte {offset}, "
        raise CorruptionError(
            f"{part.path}: {place}entry {index}: {reason}. With mode=permissive it would be a row "
            f"with crc_ok = false. {REPAIR}",
            part.path,
            offset or 0,
            index,
            reason,
        )
