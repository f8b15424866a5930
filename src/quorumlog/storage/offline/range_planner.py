"""Dividing the entries of a store into ranges of its data files that can be read on their own.

Little is read for that: how the files start, the entries at the cuts, and what lies after the last
entry known to be good. A cut is made only at an entry whose header and index record agree, so what
is damaged lies inside a range. Reads only, takes no lock, works while a node runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from quorumlog.model.block import INDEX_RECORD_SIZE
from quorumlog.storage.entries.disk_reader import DiskReader
from quorumlog.storage.entries.index_records import first_after, record_at
from quorumlog.storage.entries.scanner import ScannedRun, Scanner, looks_torn
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.metadata.checkpoint import UNKNOWN_CRC, LogPoint, LogStart
from quorumlog.storage.metadata.dledger import committed_index_of
from quorumlog.storage.offline.store_files import StoreFiles

CUT_ATTEMPTS = 64
"""Entries read, one after the other, for one whose header and index record agree."""
_INDEX_MAX = 1 << 40
"""Above every index: where a search by halving starts when the end is not known."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The entries first … last of a log (none if last < first); the first is at `position`.

    `committed` is the index up to which entries are known to be committed, None if it is not known.
    """

    first: int
    last: int
    position: int
    committed: int | None


@dataclass(frozen=True, slots=True)
class FileRange:
    """Entries first … last, which are the bytes begin … end - 1 of one data file.

    `start` is the position in the log of the file's first byte. Entries before `wanted` are only
    walked over. `chain_before` is the chain CRC of the entry before the first, None if it is not
    known; `index_files` have (position, path); `damaged` are ranges that the replica quarantined.
    `takes_foreign`: entries that DLedger appended after ours are good, although without CRCs.
    """

    path: str
    is_missing: bool
    start: int
    begin: int
    end: int
    first: int
    last: int
    wanted: int
    chain_before: int | None
    index_files: tuple[tuple[int, str], ...]
    damaged: tuple[tuple[int, int], ...]
    takes_foreign: bool


@dataclass(frozen=True, slots=True)
class _PlannedRun:
    """Entries first … last from a position on; after them, at the latest, `end` follows."""

    first: int
    last: int
    position: int
    end: int

    @property
    def length(self) -> int:
        """Bytes."""
        return self.end - self.position


def committed_index(files: FileSystem, directory: str, store: StoreFiles) -> int | None:
    """Return up to where entries are known to be committed; None if that was never recorded.

    -1 if it was recorded that none is.
    """
    checkpoint = store.metadata.checkpoint
    dledger = committed_index_of(files, directory)
    if checkpoint is None:
        return dledger if dledger >= 0 else None
    return max(checkpoint.committed_index, checkpoint.log_start.before_begin_index, dledger)


def extent_of(store: StoreFiles, committed: int | None) -> Extent | None:
    """Return which entries a store holds, those up to a committed index if one is given.

    A torn tail is ignored. None: there are none. Raises `CorruptionError` when entries at the
    start or at the end are damaged and their index records are, too.
    """
    begin = _begin_of(store)
    if begin is None:
        return None
    first, durable = begin.index + 1, store.metadata.durable
    if committed is not None and durable is not None and committed <= durable.index:
        return Extent(first, committed, begin.position, committed)
    end = _end_of(store, begin)
    last = end if committed is None else min(end, committed)
    return Extent(first, last, begin.position, committed)


def _begin_of(store: StoreFiles) -> LogPoint | None:
    """Return the point that the first entry follows."""
    log_start = store.metadata.log_start
    if log_start is not None:
        return log_start.point
    scan = store.scan()
    run = next(iter(scan), None)
    damages = [damage for damage in scan.damages if damage.first_index <= damage.last_index]
    if damages:
        first, position = damages[0].first_index, damages[0].position
    elif run is not None:
        first, position = run.first_index, run.position
    else:
        return None
    return LogPoint(first - 1, position, UNKNOWN_CRC if first else 0)


def _end_of(store: StoreFiles, begin: LogPoint) -> int:
    """Return the last entry, by a scan from the last place known to be good."""
    metadata = store.metadata
    if metadata.checkpoint is not None:
        start = metadata.checkpoint.point
        if metadata.checkpoint.is_end:
            return start.index
    else:
        start = _begin_of_last_file(store, begin)
    scan = store.scan_after(start)
    last: ScannedRun | None = None
    for run in scan:
        last = run
    torn = last is not None and last.end == scan.end.position and _is_torn(store.data, last)
    return scan.end.index - torn


def _is_torn(data: FileSequence, last: ScannedRun) -> bool:
    """Whether the last entry is one of DLedger that ends in zeros, as recovery has it."""
    start, view = data.map_at(last.position)
    offset, size = int(last.block.offsets[-1]), int(last.block.sizes[-1])
    return not last.checked and looks_torn(view, last.position - start + offset, size)


def _begin_of_last_file(store: StoreFiles, begin: LogPoint) -> LogPoint:
    for start in reversed(store.data.starts):
        if start <= begin.position:
            break
        first = _first_in_file(store, start, begin.index + 1, _INDEX_MAX)
        if first is not None:
            return LogPoint(first[0] - 1, first[1], UNKNOWN_CRC)
    return begin


def _first_in_file(store: StoreFiles, start: int, low: int, high: int) -> tuple[int, int] | None:
    """Return index and position of the first entry of a data file, one of low … high.

    The index is believed if it has an entry at the file's start; else a header there, if another
    entry follows it. If neither helps, the first entry whose header and index record agree is
    taken. None: the file has no entry, or its first one is not known.
    """
    data, index = store.data, store.index
    stated = None
    if data.has(start):
        _, view = data.map_at(start)
        stated = int.from_bytes(view[8:16], "big", signed=True)
    after = first_after(index, start, low, high)
    for candidate in (stated, after):
        if candidate is not None and low <= candidate <= high:
            record = record_at(index, candidate)
            if record is not None and record["index"] == candidate and record["pos"] == start:
                return candidate, start
    if stated is not None and low <= stated <= high and _begins_with(data, start, stated):
        return stated, start
    reader = DiskReader(data, index, LogStart(before_begin_index=low - 1))
    for candidate in range(after, min(after + CUT_ATTEMPTS, high + 1)):
        if reader.is_where_stated(candidate):
            position = reader.place_of(candidate)[0]
            return (candidate, position) if data.start_of(position) == start else None
    return None


def _begins_with(data: FileSequence, start: int, first: int) -> bool:
    """Whether the entry at the start of a file is this one; the entry after it must agree."""
    count, scanner = 0, Scanner(data, start)
    for run in scanner:
        if run.first_index != first + count:
            return False
        count += run.block.count
        if count > 1 or run.checked:
            return True
    return count > 0 and scanner.stop is not None and not scanner.stop.reason


@dataclass(frozen=True, slots=True)
class PartitionSizing:
    """How a log is divided: into parts of at most `bytes_max`, all of about the same length.

    Their number is a multiple of `at_a_time`, so that tasks that run together end together; but
    less, if they were shorter than `bytes_min`.
    """

    bytes_max: int
    at_a_time: int = 1
    bytes_min: int = 1

    def length(self, total: int) -> int:
        """Return the length of the parts into which this many bytes are divided."""
        at_a_time = max(1, min(self.at_a_time, total // self.bytes_min))
        count = at_a_time * max(1, -(-total // (self.bytes_max * at_a_time)))
        return max(1, -(-total // count))


class RangePlanner:
    """Cuts the entries of a store into ranges."""

    def __init__(self, store: StoreFiles, extent: Extent) -> None:
        self._store = store
        self._data = store.data
        self._index = store.index
        self._extent = extent
        first = extent.first
        log_start = LogStart(first - 1, -1, extent.position, UNKNOWN_CRC if first else 0)
        self._reader = DiskReader(self._data, self._index, store.metadata.log_start or log_start)

    def ranges(self, first: int, last: int, sizing: PartitionSizing) -> list[FileRange]:
        """Return ranges that hold the entries first … last, in order.

        They are cut where files end and, as far as an index allows cuts inside of files, at each
        multiple of the length of a partition, counted from the start of the first.
        """
        runs = [self._trimmed(run, first, last) for run in self._files() if run.last >= first]
        runs = [run for run in runs if run.first <= last]
        length = sizing.length(sum(run.length for run in runs))
        ranges, before = [], 0
        for run in runs:
            parts = self._cut(run, length, length - before % length)
            ranges += [self._range(part, max(first, part.first)) for part in parts]
            before += run.length
        return ranges

    def _files(self) -> Iterator[_PlannedRun]:
        """Yield what lies in each data file.

        Entries whose place is not known count to the file before, where they are found missing.
        """
        data, extent = self._data, self._extent
        borders = [(extent.first, extent.position)]
        after = data.start_of(extent.position) + data.file_size
        for start in range(after, (data.starts or [0])[-1] + 1, data.file_size):
            found = _first_in_file(self._store, start, borders[-1][0], extent.last)
            if found is None:
                continue
            if found[0] == borders[-1][0]:
                borders.pop()  # nothing but a blank there
            borders.append(found)
        ends = [*(first - 1 for first, _ in borders[1:]), extent.last]
        for (first, position), last in zip(borders, ends, strict=True):
            yield _PlannedRun(first, last, position, data.start_of(position) + data.file_size)

    def _trimmed(self, run: _PlannedRun, first: int, last: int) -> _PlannedRun:
        """Trim what lies before `first` and after `last`, as far as it is known where."""
        begin, position = run.first, run.position
        for index in range(min(first, run.last), max(begin, first - CUT_ATTEMPTS), -1):
            found = self._agreed_position(index, run)
            if found is not None:
                begin, position = index, found
                break
        stop, end = min(last, run.last), run.end
        if stop >= begin and self._agreed_position(stop, run) is not None:
            end = sum(self._reader.place_of(stop))
        return _PlannedRun(begin, stop, position, end)

    def _cut(self, run: _PlannedRun, length: int, until_first: int) -> list[_PlannedRun]:
        """Cut a run `until_first` bytes after its start, and then after each `length` bytes."""
        edges = [(run.first, run.position)]
        for target in range(run.position + until_first, run.end, length):
            edge = self._edge_after(target, edges[-1][0] + 1, run)
            if edge is not None and edge[1] > edges[-1][1]:
                edges.append(edge)
        ends = [*edges[1:], (run.last + 1, run.end)]
        return [
            _PlannedRun(first, beyond - 1, position, end)
            for (first, position), (beyond, end) in zip(edges, ends, strict=True)
        ]

    def _edge_after(self, target: int, low: int, run: _PlannedRun) -> tuple[int, int] | None:
        """Return index and position of an entry at or after a position where a cut is safe."""
        index = first_after(self._index, target, low, run.last)
        for candidate in range(index, min(index + CUT_ATTEMPTS, run.last + 1)):
            position = self._agreed_position(candidate, run)
            if position is not None:
                return candidate, position
        return None

    def _agreed_position(self, index: int, run: _PlannedRun) -> int | None:
        """Return where an entry lies if header and index record agree, inside a run."""
        if not self._reader.is_where_stated(index):
            return None
        position = self._reader.place_of(index)[0]
        return position if run.position <= position < run.end else None

    def _range(self, run: _PlannedRun, wanted: int) -> FileRange:
        positions = (run.first * INDEX_RECORD_SIZE, (run.last + 1) * INDEX_RECORD_SIZE - 1)
        start = self._data.start_of(run.position)
        return FileRange(
            self._data.path_at(run.position),
            not self._data.has(run.position),
            start,
            run.position - start,
            run.end - start,
            run.first,
            run.last,
            wanted,
            self._reader.chain_before(run.first),
            tuple((file.start, file.path) for file in self._index.files_over(*positions)),
            self._store.damaged.within(run.first, run.last).ranges,
            self._store.is_original_compatible,
        )
