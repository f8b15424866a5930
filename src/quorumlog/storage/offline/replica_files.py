"""Replicas as files: what a group directory holds, and which files hold a range of its entries."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from quorumlog.model.block import INDEX_RECORD_SIZE
from quorumlog.model.errors import StorageError
from quorumlog.storage.entries.index_records import record_at
from quorumlog.storage.files.file_sequence import FileSequence, existing_file_size
from quorumlog.storage.files.os_files import FileSystem, OsFileSystem
from quorumlog.storage.log.layout import DATA, has_identity, read_identity
from quorumlog.storage.metadata.checkpoint import LogPoint
from quorumlog.storage.metadata.dledger import committed_index_of
from quorumlog.storage.metadata.store_metadata import StoreMetadata
from quorumlog.storage.offline.replica_ends import Tail, begin_of, end_of, entry_at
from quorumlog.storage.offline.store_files import StoreFiles, open_files

PROBES = 6
"""Index records read to find the entry near a position."""
OVERLAP = 4
"""Entries before a range that are read with it: the one before proves its first entry."""


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """A group directory; `data_directories` are where its data files are, if not in `data/`."""

    directory: str
    data_directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file: position of its first byte, and its first entry (-1: not known)."""

    start: int
    path: str
    first_index: int


@dataclass(frozen=True, slots=True)
class ReplicaPart:
    """Entries first … last of one replica and the files that hold them; travels to a task.

    Reading starts at `walk_from`; the whole replica ends at `end_index`.
    """

    name: str
    walk_from: int
    first: int
    last: int
    end_index: int
    data_file_bytes: int
    index_file_bytes: int
    data_paths: tuple[str, ...]
    index_paths: tuple[str, ...]

    def open(self) -> tuple[FileSequence, FileSequence]:
        """Return its data and index files, open for reading, as far as they are still there.

        Raises `StorageError` when this machine does not see their directories at all.
        """
        for directory in {path.rpartition("/")[0] for path in self.data_paths}:
            if not OsFileSystem().exists(directory):
                raise StorageError(
                    f"{directory} is not there on this machine; all executors must see the "
                    "stores under the same paths"
                )
        data = _chosen(self.data_paths, self.data_file_bytes)
        return data, _chosen(self.index_paths, self.index_file_bytes)


@dataclass(frozen=True, slots=True)
class Replica:
    """The content of the files of one group directory, as seen once.

    Entries up to `committed_index` are committed (-1: not known). `records_commits`: whether the
    store records it at all; DLedger's stores do not. `end_position` is the byte after the last
    entry.
    """

    name: str
    directory: str
    group: str
    begin_index: int
    end_index: int
    end_position: int
    committed_index: int
    records_commits: bool
    tail: Tail | None
    data_file_bytes: int
    index_file_bytes: int
    data_files: tuple[DataFile, ...]
    index_files: tuple[tuple[int, str], ...]

    def part(self, first: int, last: int) -> ReplicaPart | None:
        """Return what it has of entries first … last, None if nothing."""
        lower, upper = max(first, self.begin_index), min(last, self.end_index)
        if lower > upper:
            return None
        walk_from = max(self.begin_index, lower - OVERLAP)
        after = upper + 1  # the entry after the last one proves whether that one is in its place
        return ReplicaPart(
            self.name,
            walk_from,
            lower,
            upper,
            self.end_index,
            self.data_file_bytes,
            self.index_file_bytes,
            self._data_paths(walk_from, after),
            tuple(
                path
                for start, path in self.index_files
                if start <= after * INDEX_RECORD_SIZE
                and walk_from * INDEX_RECORD_SIZE < start + self.index_file_bytes
            ),
        )

    def _data_paths(self, first: int, last: int) -> tuple[str, ...]:
        """Return the files that may hold entries first … last."""
        found = []
        after = self.end_index
        for file in reversed(self.data_files):
            if file.first_index <= last and after >= first:
                found.append(file.path)
            if file.first_index >= 0:
                after = file.first_index - 1
        return tuple(reversed(found))

    def marks(self) -> list[tuple[int, int]]:
        """Return (index, position) of the first entry of each data file, and of the end."""
        known = [(file.first_index, file.start) for file in self.data_files]
        marks = [point for point in known if point[0] >= self.begin_index]
        return [*marks, (self.end_index + 1, self.end_position)]


class _ChosenFiles(OsFileSystem):
    """The file system restricted to these files, as far as they exist."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._names: dict[str, list[str]] = {}
        for path in paths:
            directory, _, name = path.rpartition("/")
            self._names.setdefault(directory, []).append(name)

    @property
    def directories(self) -> list[str]:
        """Where they are."""
        return list(self._names)

    def names(self, path: str) -> list[str]:
        """See `FileSystem`."""
        return sorted(name for name in self._names.get(path, ()) if self.exists(f"{path}/{name}"))


def _chosen(paths: tuple[str, ...], file_bytes: int) -> FileSequence:
    files = _ChosenFiles(paths)
    sequence = FileSequence(files, files.directories or [""], file_bytes)
    sequence.load(read_only=True)
    return sequence


# -- reading a directory --------------------------------------------------------------------------


@contextmanager
def opened_store(files: FileSystem, store: StoreDirectory) -> Iterator[StoreFiles]:
    """Open the files of a group directory for reading.

    Raises `StorageError` when there is no store, `CorruptionError` when it cannot be read at all.
    """
    opened = open_files(files, store.directory, store.data_directories)
    try:
        yield opened
    finally:
        opened.close()


def read_replica(files: FileSystem, name: str, store: StoreDirectory) -> Replica:
    """Return what a group directory holds; reads only its metadata, its end, and first entries.

    Raises `StorageError` when there is no store, `CorruptionError` when it cannot be read at all.
    """
    empty = _without_data(files, name, store)
    if empty is not None:
        return empty
    with opened_store(files, store) as opened:
        end, tail = end_of(opened)
        firsts = _first_entries(opened, end.index)
        metadata = opened.metadata
        begin = begin_of(opened, firsts)
        checkpoint = metadata.checkpoint
        in_checkpoint = checkpoint.committed_index if checkpoint is not None else -1
        committed = max(in_checkpoint, committed_index_of(files, store.directory))
        return Replica(
            name=name,
            directory=store.directory,
            group=_group_of(files, store.directory),
            begin_index=begin,
            end_index=max(end.index, begin - 1),
            end_position=end.position,
            committed_index=min(committed, end.index),
            records_commits=checkpoint is not None,
            tail=tail,
            data_file_bytes=opened.data.file_size,
            index_file_bytes=opened.index.file_size,
            data_files=tuple(
                DataFile(start, opened.data.path_at(start), first) for start, first in firsts
            ),
            index_files=tuple(
                (start, opened.index.path_at(start)) for start in opened.index.starts
            ),
        )


def _without_data(files: FileSystem, name: str, store: StoreDirectory) -> Replica | None:
    """Return a replica of this program that has no data files; None: it has, or is no replica.

    Either nothing was ever appended, or all of them are gone.
    """
    directory = store.directory
    paths = list(store.data_directories) or [f"{directory}/{DATA}"]
    has_files = existing_file_size(files, paths) is not None
    if has_files or not has_identity(files, directory):
        return None
    identity = read_identity(files, directory)
    store_metadata = StoreMetadata(files, directory)
    try:
        metadata, _ = store_metadata.load(read_only=True)
    finally:
        store_metadata.close()
    before = metadata.log_start.before_begin_index if metadata.log_start is not None else -1
    durable, checkpoint = metadata.durable or LogPoint(), metadata.checkpoint
    return Replica(
        name=name,
        directory=directory,
        group=identity.group,
        begin_index=before + 1,
        end_index=max(before, durable.index),
        end_position=durable.position,
        committed_index=-1 if checkpoint is None else checkpoint.committed_index,
        records_commits=True,
        tail=None,
        data_file_bytes=identity.data_file_bytes,
        index_file_bytes=identity.index_file_bytes,
        data_files=(),
        index_files=(),
    )


def _group_of(files: FileSystem, directory: str) -> str:
    """Return the group whose data a directory says it holds; empty for one of DLedger."""
    if not has_identity(files, directory):
        return ""
    return read_identity(files, directory).group


def _first_entries(opened: StoreFiles, end_index: int) -> list[tuple[int, int]]:
    """Return (start, index of the first entry) of each data file, -1 where that is in doubt."""
    found, before = [], -1
    for start in opened.data.starts:
        entry = entry_at(opened.data, start)
        index = entry[0] if entry is not None else -1
        if len(opened.index) and index >= 0:
            record = record_at(opened.index, index)
            stated = -1 if record is None else int(record["pos"])
            if record is None or opened.data.start_of(stated) != start:
                index = -1
        if not before < index <= end_index:
            index = -1
        before = max(before, index)
        found.append((start, index))
    return found


# -- cutting into ranges --------------------------------------------------------------------------


def cuts_of(files: FileSystem, replica: Replica, store: StoreDirectory, size: int) -> list[int]:
    """Return the entries at which ranges of about `size` bytes of a replica start, its first too.

    By its index files where those are in order, else at the start of data files only.
    """
    marks = replica.marks()
    cuts = [replica.begin_index]
    if len(marks) < 2:
        return cuts
    with opened_store(files, store) as opened:
        since = marks[0][1]
        for low, high in pairwise(marks):
            if low[0] > cuts[-1] and low[1] - since >= size:
                cuts.append(low[0])
                since = low[1]
            count = (high[1] - low[1]) // size
            for number in range(1, count):
                cut = _index_near(opened.index, low[1] + number * size, low, high)
                if cuts[-1] < cut < high[0]:
                    cuts.append(cut)
                    since = low[1] + number * size
    return cuts


def _index_near(
    index: FileSequence, position: int, low: tuple[int, int], high: tuple[int, int]
) -> int:
    """Return an entry near a position; `low` and `high` are (index, position) around it."""
    near = (high[1] - low[1]) // 64
    guess = low[0]
    for _ in range(PROBES):
        if high[1] <= low[1] or high[0] <= low[0] + 1:
            break
        guess = low[0] + (position - low[1]) * (high[0] - low[0]) // (high[1] - low[1])
        guess = min(max(guess, low[0] + 1), high[0] - 1)
        record = record_at(index, guess)
        if record is None or int(record["index"]) != guess:
            break
        found = int(record["pos"])
        if not low[1] <= found <= high[1] or abs(found - position) <= near:
            break
        if found < position:
            low = (guess, found)
        else:
            high = (guess, found)
    return guess
