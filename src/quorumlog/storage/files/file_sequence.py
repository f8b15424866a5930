"""Bytes in order, spread over files of one size, named by their start (spec 20 section 3)."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock

from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.storage.files.os_files import (
    FileSystem,
    is_resident,
    not_a_file,
    release_pages,
)
from quorumlog.storage.files.sequence_file import BESIDE, SequenceFile, is_name, name_of

MAPS_MAX = 64
"""Files of one sequence mapped for reading at a time; the least recently used is let go. Of a node
with many groups each has fewer: every map takes a descriptor."""
WRITABLE_MAX = 2
"""Files of one sequence that are open to be written: the last, and the one before it."""
MAPPED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes read of mapped files of one sequence until they count as the process's memory no longer: it
would seem to grow with whatever is read."""
READ_AROUND_BYTES = 1024 * 1024
"""What the system may map around what is read (it maps parts of the page cache)."""


class FileSequence:
    """The files in order. Looked up from any thread, changed on the owner's thread.

    `directories` are where the files are; `directory_for` names the one for a new file, given its
    number (position / file size), and is called on whichever thread makes the file.
    """

    def __init__(
        self,
        files: FileSystem,
        directories: Sequence[str],
        file_size: int,
        directory_for: Callable[[int], str] | None = None,
        *,
        maps_max: int = MAPS_MAX,
    ) -> None:
        self._files = files
        self.directories = list(directories)
        self.file_size = file_size
        self._directory_for = directory_for or (lambda number: self.directories[0])
        self._origin = 0
        self._by_start: dict[int, SequenceFile] = {}
        self._pending_removal: dict[int, SequenceFile] = {}
        self._maps_max = maps_max
        self._maps: OrderedDict[int, memoryview] = OrderedDict()
        self._maps_lock = Lock()
        self._mapped_bytes = 0
        self._writable: list[SequenceFile] = []
        self.unknown_files: list[str] = []
        """Paths of other things in the directories; they are not touched."""
        self._ignored: dict[int, str] = {}
        """Paths of what has the name of a file of the sequence but does not belong to it, by start.
        Each is renamed only when a file needs its name."""

    @property
    def directory(self) -> str:
        """The first directory: names the sequence in messages."""
        return self.directories[0]

    @property
    def starts(self) -> list[int]:
        """Start positions, ascending."""
        return sorted(self._by_start)

    @property
    def made_starts(self) -> list[int]:
        """Start positions of the files that are there to be read, ascending."""
        return [start for start, file in self._by_start.items() if file.is_made]

    def __len__(self) -> int:
        return len(self._by_start)

    # -- loading ------------------------------------------------------------------------------

    def load(self, *, read_only: bool = False) -> None:
        """Add the files that exist, and remove files that a crash left half made.

        A file that does not belong to the sequence, or whose position no file of it can have, goes
        to `unknown_files`. Raises `CorruptionError` for a file that is too large, for a name that
        appears twice, and when it is not clear which files belong together.
        """
        for directory in self.directories:
            for name in self._files.names(directory):
                path = f"{directory}/{name}"
                is_file = not self._files.obstacle(path)
                if is_name(name) and is_file:
                    self._add_existing(directory, int(name))
                elif is_name(name):
                    self._ignored[int(name)] = path
                elif is_file and is_name(name.removesuffix(BESIDE)):
                    if not read_only:
                        self._files.remove(path)
                else:
                    self.unknown_files.append(path)
        self._by_start = dict(sorted(self._by_start.items()))
        if self._by_start:
            self._ignore_misplaced()

    def _ignore_misplaced(self) -> None:
        """Ignore files that do not lie whole file sizes away from most others.

        Files of the log have their full size, so if any file has it, only those are counted.
        """
        whole = [start for start, file in self._by_start.items() if self._is_whole(file)]
        origins = Counter(start % self.file_size for start in whole or self._by_start)
        (origin, count), *others = origins.most_common()
        if others and others[0][1] == count:
            first, other = (
                next(file.path for start, file in self._by_start.items() if start % size == rest)
                for size, rest in ((self.file_size, one) for one in (origin, others[0][0]))
            )
            raise CorruptionError(
                f"{first} and {other}: files of a log begin whole multiples of {self.file_size} "
                "bytes apart, so only one of them belongs to this log, and it is not clear "
                "which; move away the one that was put there",
                other,
                0,
            )
        self.set_origin(origin)
        for start in [start for start in self._by_start if start % self.file_size != origin]:
            self.unknown_files.append(self._by_start.pop(start).path)

    def _is_whole(self, file: SequenceFile) -> bool:
        return size_of(self._files, file.path) == self.file_size

    def _add_existing(self, directory: str, start: int) -> None:
        path = f"{directory}/{name_of(start)}"
        if start in self._by_start:
            raise CorruptionError(
                f"{path} and {self._by_start[start].path} have one name; move one away", path, 0
            )
        size = size_of(self._files, path)
        if size > self.file_size:
            raise CorruptionError(
                f"{path} has {size} bytes instead of {self.file_size}: what lies after byte "
                f"{self.file_size} is no part of the log; cut it off (truncate -s "
                f"{self.file_size} {path}), or restore the file",
                path,
                size,
            )
        self._by_start[start] = SequenceFile(
            self._files,
            directory,
            start,
            self.file_size,
            is_made=True,
            opened=self._bound_writable,
        )

    def set_origin(self, position: int) -> None:
        """State where a file starts; the others lie whole file sizes away."""
        self._origin = position % self.file_size

    def ignore(self, start: int) -> None:
        """Ignore a file that has the name of a file of the sequence but is not part of it."""
        changed = dict(self._by_start)
        file = changed.pop(start)
        self._ignored[start] = file.path
        self._by_start = changed
        self.forget_maps([file])  # last: until here a reader may have mapped it again

    def ignored_files(self) -> list[str]:
        """Return the paths of ignored files: they have a name of the sequence but are no part."""
        return list(self._ignored.values())

    def require_no_obstacle(self, start: int) -> None:
        """Raise `NotAFileError` if the name of the file with this start is taken by something that
        is no file, such as a directory.
        """
        path = self._ignored.get(start)
        if path is not None and (obstacle := self._files.obstacle(path)):
            raise not_a_file(path, obstacle)

    def gaps(self, first: int, last: int) -> list[int]:
        """Return the starts of files that should hold positions first … last and do not.

        A file that is shorter than it should be counts as missing.
        """
        missing = []
        start = self.start_of(first)
        while start <= last:
            file = self._by_start.get(start)
            if file is None or not self._is_whole(file):
                missing.append(start)
            start += self.file_size
        return missing

    # -- finding ------------------------------------------------------------------------------

    def file_starting(self, start: int) -> SequenceFile:
        """Return the file with this start, added to the sequence if it is new."""
        if start not in self._by_start:
            if not self._by_start:
                self.set_origin(start)
            changed = dict(self._by_start)
            directory = self._directory_for(start // self.file_size)
            predecessor = self._pending_removal.pop(start, None)
            ignored_path = self._ignored.pop(start, None)
            changed[start] = SequenceFile(
                self._files,
                directory,
                start,
                self.file_size,
                predecessor=predecessor,
                ignored_path=ignored_path,
                opened=self._bound_writable,
            )
            self._by_start = dict(sorted(changed.items()))
        return self._by_start[start]

    def _bound_writable(self, opened: SequenceFile) -> None:
        """Close the file that was opened first if there are too many; on the thread that writes."""
        others = [file for file in self._writable if file.is_open and file is not opened]
        self._writable = [*others, opened]
        for file in self._writable[:-WRITABLE_MAX]:
            file.sync_and_close()

    def has(self, position: int) -> bool:
        """Whether a file that was made holds a position."""
        file = self._by_start.get(self.start_of(position))
        return file is not None and file.is_made

    def start_of(self, position: int) -> int:
        """Return the start of the file that holds a position."""
        return position - (position - self._origin) % self.file_size

    def positions_after(self, end: int) -> tuple[int, int]:
        """Return where the entry after an end may start: at that end, or in the next file."""
        return end, self.start_of(end) + self.file_size

    def file_at(self, position: int) -> SequenceFile:
        """Return the file that holds a position, added to the sequence if it is new."""
        # as in `start_of`: every write asks for its file
        start = position - (position - self._origin) % self.file_size
        return self._by_start.get(start) or self.file_starting(start)

    def path_at(self, position: int) -> str:
        """Return the path of the file that holds, or should hold, a position."""
        start = self.start_of(position)
        file = self._by_start.get(start)
        return file.path if file is not None else f"{self.directory}/{name_of(start)}"

    def written_ranges(self, position: int, length: int) -> list[tuple[int, int]]:
        """Return the written parts of that many bytes from a position on, within its file."""
        start = self.start_of(position)
        file = self._files.open(self._by_start[start].path, writable=False)
        try:
            end = min(position - start + length, file.size())
            ranges = file.written_ranges(position - start, end)
        finally:
            file.close()
        return [(start + first, start + after) for first, after in ranges]

    def map_at(self, position: int) -> tuple[int, memoryview]:
        """Return start and read-only bytes of the file that holds a position.

        Raises `StorageError` when there is no such file.
        """
        start = self.start_of(position)
        with self._maps_lock:
            view = self._maps.get(start)
            if view is not None:
                self._maps.move_to_end(start)
                return start, view
        known = self._by_start.get(start)
        if known is None:
            raise StorageError(f"{self.directory}: no file holds position {position}")
        file = self._files.open(known.path, writable=False)
        try:
            view = file.map()
        finally:
            file.close()
        with self._maps_lock:
            if len(view) == self.file_size and self._by_start.get(start) is known:
                self._maps[start] = view
                if len(self._maps) > self._maps_max:
                    self._maps.popitem(last=False)
        return start, view

    def resident_at(self, begin: int, end: int) -> memoryview | None:
        """Return the file that `map_at` returns for positions begin … end - 1, without any wait.

        None: they are not in one mapped file, not all in the page cache, or that is not known.
        """
        start = self.start_of(begin)
        with self._maps_lock:
            view = self._maps.get(start)
        if view is None or end > start + self.file_size:
            return None
        return view if is_resident(view, begin - start, end - start) else None

    def was_read(self, size_bytes: int) -> None:
        """Count `size_bytes` of mapped files that were read; on any thread."""
        with self._maps_lock:
            self._mapped_bytes += size_bytes + READ_AROUND_BYTES
            if self._mapped_bytes > MAPPED_BYTES_MAX:
                self._mapped_bytes = 0
                for view in self._maps.values():
                    release_pages(view)

    def files_over(self, first: int, last: int) -> list[SequenceFile]:
        """Return the files that hold positions first … last."""
        return [
            file
            for start, file in self._by_start.items()
            if start <= last and first < start + self.file_size
        ]

    # -- changing -----------------------------------------------------------------------------

    def forget_maps(self, removed: Sequence[SequenceFile]) -> None:
        """Drop the maps that readers made of removed files; on any thread."""
        with self._maps_lock:
            for file in removed:
                self._maps.pop(file.start, None)

    def drop_from(self, position: int) -> list[SequenceFile]:
        """Drop all files that start at or after a position; return them, last first."""
        return self._drop([start for start in self.starts if start >= position])[::-1]

    def drop_before(self, position: int) -> list[SequenceFile]:
        """Drop all files that end at or before a position; return them, first first."""
        return self._drop([start for start in self.starts if start + self.file_size <= position])

    def _drop(self, starts: list[int]) -> list[SequenceFile]:
        dropped = [self._by_start[start] for start in starts]
        self._pending_removal = {
            start: file for start, file in self._pending_removal.items() if not file.is_removed
        } | {file.start: file for file in dropped}
        gone = set(starts)
        self._by_start = {key: file for key, file in self._by_start.items() if key not in gone}
        self.forget_maps(dropped)
        return dropped

    def close(self) -> None:
        """Close all files."""
        with self._maps_lock:
            self._maps.clear()
        for file in self._by_start.values():
            file.close()


def existing_file_size(
    files: FileSystem, directories: Sequence[str], *, record_bytes: int = 1
) -> int | None:
    """Return the size that the files of an existing sequence have; None if there are none.

    Some may have been cut short, so the largest counts. If it ends inside a record of
    `record_bytes`, it had room for that record at least.
    """
    sizes = [
        size_of(files, f"{directory}/{name}")
        for directory in directories
        for name in files.names(directory)
        if is_name(name) and not files.obstacle(f"{directory}/{name}")
    ]
    return -(-max(sizes) // record_bytes) * record_bytes if sizes else None


def size_of(files: FileSystem, path: str) -> int:
    """Return the length of a file in bytes."""
    file = files.open(path, writable=False)
    try:
        return file.size()
    finally:
        file.close()
