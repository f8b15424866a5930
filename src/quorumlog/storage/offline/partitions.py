"""The partitions of topics in a store, and whether their record batches are whole; reads only.

What the log says of partitions is in its system entries and in the tables that were saved with the
last checkpoint, so a group's directory tells by itself what is in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from crc32c import crc32c

from quorumlog.model.block import HEADER_SIZE, Block, headers
from quorumlog.model.errors import CorruptionError, UnexpectedArgumentError
from quorumlog.model.wording import topic_id_text
from quorumlog.records.batch import CRC_BEGIN
from quorumlog.sessions.entries import system_entries_in
from quorumlog.sessions.table_set import TableSet
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.metadata.tables_file import TablesFile
from quorumlog.storage.offline.store_files import open_files
from quorumlog.topics.batch_index import BatchIndex
from quorumlog.topics.partition_table import AppendedBatch, PartitionTable


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """One partition as a store has it: records from `log_start` to `end` - 1 may be read.

    `batches` and `size_bytes` are of those; `epochs` are (leader epoch, its first offset).
    """

    topic: str
    partition: int
    topic_id: str
    channel: int
    log_start: int
    end: int
    batches: int
    size_bytes: int
    epochs: tuple[tuple[int, int], ...]


class WrongBatch(msgspec.Struct, frozen=True):
    """A record batch that is not as it should be: its place in the block, and why."""

    row: int
    text: str


class PartitionScan:
    """Follows the partitions of a store through its blocks, in order.

    `unknown_text` says why what was saved cannot be used; then only partitions are known whose
    opening is still in the log.
    """

    def __init__(self, files: FileSystem, directory: str) -> None:
        self.table, self._as_of, self.unknown_text = PartitionTable(), -1, ""
        self.batches = BatchIndex()
        self._expected: dict[int, int] = {}
        try:
            saved = TablesFile(files, directory).load(read_only=True)
            if saved is not None:
                tables = TableSet.decode(saved)
                self.table, self._as_of = tables.partitions, tables.as_of
        except (CorruptionError, UnexpectedArgumentError) as error:
            self.unknown_text = str(error)

    def take(self, block: Block, first_index: int) -> list[WrongBatch]:
        """Take the next block; return its batches that are wrong."""
        entries, wrong = system_entries_in(block, first_index), list[WrongBatch]()
        if not entries and not self.table.reads_users:
            return wrong
        for index, what in self.table.found_in(block, first_index, entries):
            if isinstance(what, AppendedBatch):
                row = index - first_index
                if text := self._fault_of(block, row, what):
                    wrong.append(WrongBatch(row, text))
                self._place(index, what)
            if index > self._as_of:
                self.table.apply(index, what)
        return wrong

    def skip(self) -> None:
        """Entries are missing between the blocks: what follows may begin anywhere."""
        self._expected.clear()

    def _place(self, index: int, batch: AppendedBatch) -> None:
        partition = self.table.partitions.get(batch.channel)
        if partition is None:
            return
        if index <= self._as_of or partition.next_offset == batch.header.base_offset:
            self.batches.add(batch.channel, index, batch.header)

    def _fault_of(self, block: Block, row: int, batch: AppendedBatch) -> str:
        """Return what is wrong with a record batch, or an empty text."""
        header, start = batch.header, int(block.offsets[row]) + HEADER_SIZE
        body = block.data[start : int(block.offsets[row]) + int(block.sizes[row])]
        expected = self._expected.get(batch.channel, header.base_offset)
        self._expected[batch.channel] = header.last_offset + 1
        where = f"record batch on channel {batch.channel}"
        if header.size_bytes != len(body):
            return f"{where}: it states {header.size_bytes} bytes, and has {len(body)}"
        if header.count < 1 or header.last_offset_delta != header.count - 1:
            return f"{where}: count {header.count}, last offset delta {header.last_offset_delta}"
        if header.base_offset != expected:
            return f"{where}: base offset {header.base_offset}, where {expected} follows"
        term = int(headers(block)["term"][row])
        if header.leader_epoch != term:
            return f"{where}: leader epoch {header.leader_epoch} in an entry of term {term}"
        crc = crc32c(body[CRC_BEGIN:])
        return "" if crc == header.crc else f"{where}: CRC-32C {crc:#010x}, not {header.crc:#010x}"

    def partitions(self) -> Iterator[StoredPartition]:
        """Yield what there is at the end, by topic and number."""
        found = sorted(
            self.table.partitions.items(), key=lambda pair: (pair[1].topic, pair[1].number)
        )
        for channel, one in found:
            kept = self.batches.batches_from(channel, one.log_start)
            sizes = [batch.size_bytes for batch in kept] if one.log_start < one.next_offset else []
            yield StoredPartition(
                one.topic,
                one.number,
                topic_id_text(one.topic_id),
                channel,
                one.log_start,
                one.next_offset,
                len(sizes),
                sum(sizes),
                one.epochs,
            )


@dataclass(slots=True)
class PartitionsReport:
    """The partitions of a store, and why some of what it holds could not be read."""

    directory: str
    partitions: list[StoredPartition] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)


def list_partitions(
    files: FileSystem, directory: str, data_directories: Sequence[str] = ()
) -> PartitionsReport:
    """Return the partitions of a group's directory, up to the end of its log, committed or not.

    Raises `StorageError` if there is no store.
    """
    report, store = PartitionsReport(directory), open_files(files, directory, data_directories)
    try:
        found = PartitionScan(files, directory)
        scan = store.scan()
        try:
            for run in scan:
                found.take(run.block, run.first_index)
        except CorruptionError as error:
            report.damage.append(str(error))
        report.damage += [str(scan.error_of(damage)) for damage in scan.damages]
        if found.unknown_text:
            report.damage.append(found.unknown_text)
        report.partitions = list(found.partitions())
    finally:
        store.close()
    return report
