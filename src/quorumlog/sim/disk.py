"""Files in memory that fail and forget as real ones do, decided by a random generator.

What was written and not made durable survives a loss of power by chance, 512-byte sector by
sector. A name survives by chance until its directory was synced; names that a rename connects
survive together.
"""

import copy
import errno
import os
import posixpath
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from random import Random
from typing import Final, Literal, NoReturn

from quorumlog.model.block import Buffer
from quorumlog.model.errors import StorageError, StoreLockedError
from quorumlog.sim.content import PAGE_BYTES, SECTOR_BYTES, Content, Survival, Survivors, room_of
from quorumlog.sim.names import Change, Directory, Names, Node, Obstacle
from quorumlog.storage.files.os_files import DANGLING_LINK, Space, not_a_file, storage_error

DISK_BYTES: Final = 1 << 40
"""Room of a disk that nobody has filled."""
NEW_FILE_BYTES: Final = 4_096
"""Room that must be free for a new file."""

Kind = Literal["EIO", "ENOSPC"]
_Fault = Kind | Literal["crash"]


class SimulatedCrash(BaseException):
    """The machine or the process stopped in the middle of a call; no handler may go on."""


def _refuse(path: str, operation: str, number: int) -> NoReturn:
    raise storage_error(path, operation, OSError(number, os.strerror(number)))


@lru_cache(maxsize=65_536)
def _absolute(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


class SimulatedFile:
    """An open file of a `SimulatedFileSystem`."""

    def __init__(
        self, disk: "SimulatedFileSystem", path: str, content: Content, *, writable: bool
    ) -> None:
        self.path = path
        self.is_open = True
        self._disk = disk
        self._content = content
        self._writable = writable
        self._life = disk.lives

    def _check(self, operation: str) -> Content:
        self._disk.check_on()
        if not self.is_open or self._life != self._disk.lives:
            _refuse(self.path, operation, errno.EBADF)
        return self._content

    def _check_read(self, operation: str) -> Content:
        content = self._check(operation)
        self._disk.count_read(self.path, operation)
        return content

    def write_at(self, buffers: Sequence[Buffer], offset: int) -> None:
        """See `File`."""
        content = self._check("write")
        if not self._writable:
            _refuse(self.path, "write", errno.EBADF)
        self._disk.write(self.path, content, b"".join(buffers), offset)

    def read_at(self, length: int, offset: int) -> bytes:
        """See `File`."""
        return bytes(self._check_read("read").cached[offset : offset + length])

    def sync(self) -> None:
        """See `File`."""
        content = self._check("fdatasync")
        self._disk.perform(
            self.path,
            "fdatasync",
            content.sync,
            on_failure=lambda: content.fail_sync(self._disk.random),
        )

    def drop_cache(self, offset: int = 0, length: int = 0) -> None:
        """See `File`."""
        content = self._check("fadvise")
        end = offset + length
        to_end = not length or end >= len(content.cached)
        content.drop_cache(offset, room_of(len(content.cached)) if to_end else end)

    def size(self) -> int:
        """See `File`."""
        self._check("stat")
        self._disk.reads += 1
        return len(self._content.cached)

    def written_ranges(self, begin: int, end: int) -> list[tuple[int, int]]:
        """See `File`."""
        self._check_read("fiemap")
        return [(begin, end)]

    def resize(self, size: int) -> None:
        """See `File`."""
        content = self._check("resize")
        if not self._writable:
            _refuse(self.path, "resize", errno.EINVAL)
        self._disk.resize(self.path, content, size)

    def map(self) -> memoryview:
        """Return the whole file read-only; once resized, it no longer shows later writes."""
        return memoryview(self._check_read("mmap").cached).toreadonly()

    def close(self) -> None:
        """See `File`. Nothing happens once the process died: clean-up must not hide why."""
        if not self._disk.is_off and self._life == self._disk.lives:
            self._check("close")
            self._disk.reads += 1
        self.is_open = False


class SimulatedLock:
    """A held lock of a `SimulatedFileSystem`."""

    def __init__(self, locks: dict[str, "SimulatedLock"], name: str) -> None:
        self._locks = locks
        self._name = name

    def release(self) -> None:
        """See `Lock`. Nothing happens once the process died."""
        if self._locks.get(self._name) is self:
            del self._locks[self._name]


class SimulatedFileSystem:
    """One machine's disk. The same random generator and calls give the same bytes.

    Attributes: `calls` counts calls that change or sync something, the first is 1; `reads` the
    others. `crash_at` is the number of the call in which the machine stops. `survival` says what
    outlives a loss of power of what was not durable. `is_off` is set between crash and restart.
    """

    def __init__(
        self,
        random: Random,
        *,
        total_bytes: int = DISK_BYTES,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.random = random
        self.total_bytes = total_bytes
        self.calls = 0
        self.reads = 0
        self.crash_at: int | None = None
        self.survival: Survival = "random"
        self.is_off = False
        self.lives = 0
        self._now_ms = now_ms
        self._names = Names(now_ms())
        self._locks: dict[str, SimulatedLock] = {}
        self._failures: dict[int, Kind] = {}
        self._path_failures: dict[str, Kind] = {}
        self.refused = 0
        """Calls that failed, as was planned, since the process began."""
        self._read_failures: dict[str, Kind] = {}

    # what tests do to the machine

    def fail(self, call_number: int, kind: Kind) -> None:
        """Make one call fail. A write may have written a part, a sync loses some of its sectors."""
        self._failures[call_number] = kind

    def fail_next(self, path_suffix: str, kind: Kind) -> None:
        """Make the next write, sync or other change of a file fail whose path ends like this."""
        self._path_failures[path_suffix] = kind

    def fail_reads(self, path_suffix: str, kind: Kind | None) -> None:
        """Make files unreadable whose path ends so; None: readable again."""
        if kind is None:
            self._read_failures.pop(path_suffix, None)
        else:
            self._read_failures[path_suffix] = kind

    def flip(self, path: str, byte_offset: int, mask: int) -> None:
        """Flip bits on the disk and in the cache."""
        content = self._content(path, "flip")
        content.cached[byte_offset] ^= mask
        if byte_offset < len(content.durable):
            content.durable[byte_offset] ^= mask

    def size_of(self, path: str) -> int:
        """Return how long a file is; no call of the system that is watched."""
        return len(self._content(path, "stat").cached)

    def forgive(self) -> None:
        """Let no call fail that was planned to."""
        self._failures.clear()
        self._path_failures.clear()
        self._read_failures.clear()

    def set_modified(self, path: str, milliseconds: int) -> None:
        """Set when a file or directory was last written."""
        self._node(path, "utime").modified_ms = milliseconds

    @property
    def free_bytes(self) -> int:
        """Bytes that no file has reserved."""
        return max(0, self.total_bytes - sum(file.allocated for file in self._names.contents()))

    def kill(self) -> None:
        """End the process: open files and locks are dead, the cache stays."""
        self.is_off = False
        self.refused = 0
        self.lives += 1
        self._locks.clear()

    def power_loss(self) -> None:
        """End the process and forget the cache: `survival` says what of it reached the disk."""
        self.kill()
        survivors = Survivors(self.random, self.survival)
        self._names.lose_power(survivors)
        for content in self._names.contents():
            content.lose_power(survivors)

    def restart(self) -> None:
        """Turn the machine on again, after a loss of power if it crashed."""
        if self.is_off:
            self.power_loss()
        else:
            self.kill()

    def copy(self, random: Random) -> "SimulatedFileSystem":
        """Return a machine with the same disk and cache, no process, no planned faults, no calls.

        A crashed machine gives a crashed one.
        """
        twin = SimulatedFileSystem(random, total_bytes=self.total_bytes, now_ms=self._now_ms)
        twin.survival = self.survival
        twin.is_off = self.is_off
        twin._names = copy.deepcopy(self._names)
        return twin

    # how calls come to pass

    def check_on(self) -> None:
        """Raise `StorageError` after a crash."""
        if self.is_off:
            raise StorageError("the machine is off")

    def count_read(self, path: str, operation: str) -> None:
        """Count a read of bytes, and let it fail if that was planned."""
        self.reads += 1
        for suffix, kind in self._read_failures.items():
            if path.endswith(suffix):
                _refuse(path, operation, getattr(errno, kind))

    def _count_call(self, path: str) -> _Fault | None:
        """Count a call; return what is to go wrong with it."""
        self.check_on()
        self.calls += 1
        if self.calls == self.crash_at:
            return "crash"
        for suffix in self._path_failures:
            if path.endswith(suffix):
                return self._path_failures.pop(suffix)
        return self._failures.pop(self.calls, None) if self._failures else None

    def _stop(self, path: str, operation: str, fault: _Fault) -> NoReturn:
        if fault != "crash":
            self.refused += 1
            _refuse(path, operation, getattr(errno, fault))
        self.is_off = True
        raise SimulatedCrash(f"call {self.calls}: {operation} of {path}")

    def perform(
        self,
        path: str,
        operation: str,
        effect: Callable[[], object],
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        """Carry out a call that happens whole or not at all."""
        fault = self._count_call(path)
        if fault is None:
            effect()
            return
        if fault != "crash":
            on_failure()
        elif self.random.random() < 0.5:
            with suppress(StorageError):
                effect()
        self._stop(path, operation, fault)

    def write(self, path: str, content: Content, data: bytes, offset: int) -> None:
        """Write to the cache, whole or, if it fails, in part."""
        fault = self._count_call(path)
        content.modified_ms = self._now_ms()
        if fault is None:
            fitting = len(data)
            if offset + fitting > content.allocated:
                fitting = self._reserve(content, offset + fitting) - offset
            if fitting >= len(data):
                content.write(data, offset)
                return
            content.write(data[: max(0, fitting)], offset)
            fault = "ENOSPC"
        elif fault == "crash" and self.random.random() < 0.5:
            self._write_sectors(content, data, offset)
        elif fault != "crash" or self.random.random() < 0.5:
            content.write(data[: self.random.randint(0, len(data))], offset)
        self._stop(path, "write", fault)

    def _write_sectors(self, content: Content, data: bytes, offset: int) -> None:
        """Write a random subset of the sectors."""
        start = 0
        while start < len(data):
            stop = start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES
            if self.random.random() < 0.5:
                content.write(data[start:stop], offset + start)
            start = stop

    def _reserve(self, content: Content, size: int) -> int:
        """Reserve room up to a size, or as much as there is; return up to where."""
        missing = room_of(size) - content.allocated
        if missing > 0:
            content.allocated += min(missing, self.free_bytes // PAGE_BYTES * PAGE_BYTES)
        return content.allocated

    def resize(self, path: str, content: Content, size: int) -> None:
        """Change the size, then reserve room: without it the size stays changed, as really."""

        def effect() -> None:
            content.resize(size)
            content.modified_ms = self._now_ms()
            if room_of(size) - content.allocated > self.free_bytes:
                _refuse(path, "resize", errno.ENOSPC)
            self._reserve(content, size)

        def on_failure() -> None:
            if self.random.random() < 0.5:
                content.resize(size)

        self.perform(path, "resize", effect, on_failure)

    # names

    def _node(self, path: str, operation: str) -> Node:
        self.check_on()
        node = self._names.now.get(_absolute(path))
        if node is None:
            _refuse(path, operation, errno.ENOENT)
        return node

    def _content(self, path: str, operation: str) -> Content:
        node = self._node(path, operation)
        if not isinstance(node, Content):
            raise not_a_file(path, self.obstacle(path))
        return node

    def _change(self, path: str, operation: str, change: Change) -> None:
        for name in change:
            parent = self._names.now.get(posixpath.dirname(name))
            if not isinstance(parent, Directory):
                _refuse(path, operation, errno.ENOENT if parent is None else errno.ENOTDIR)
            parent.modified_ms = self._now_ms()
        self._names.change(change)

    def make_directory(self, path: str) -> None:
        """See `FileSystem`."""
        self.check_on()
        name = _absolute(path)
        parent = posixpath.dirname(name)
        if not self._names.is_directory(name):
            self.make_directory(parent)
            self.perform(path, "mkdir", lambda: self._make_directory(path, name))
        self.sync_directory(parent)

    def _make_directory(self, path: str, name: str) -> None:
        if name in self._names.now:
            found = self.obstacle(path) or "a file"
            raise StorageError(f"{path} is {found} where a directory must be; move it away")
        self._change(path, "mkdir", {name: Directory(self._now_ms())})

    def names(self, path: str) -> list[str]:
        """See `FileSystem`."""
        self.check_on()
        self.reads += 1
        return self._names.within(_absolute(path))

    def exists(self, path: str) -> bool:
        """See `FileSystem`."""
        self.check_on()
        self.reads += 1
        node = self._names.now.get(_absolute(path))
        return node is not None and node != Obstacle(DANGLING_LINK)

    def obstacle(self, path: str) -> str:
        """See `FileSystem`."""
        self.check_on()
        self.reads += 1
        node = self._names.now.get(_absolute(path))
        if isinstance(node, Obstacle):
            return node.text
        return "a directory" if isinstance(node, Directory) else ""

    def is_directory(self, path: str) -> bool:
        """See `FileSystem`."""
        self.check_on()
        self.reads += 1
        return self._names.is_directory(_absolute(path))

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        """See `FileSystem`."""
        self.check_on()
        if create and _absolute(path) not in self._names.now:
            self.perform(path, "open", lambda: self._create(path))
        else:
            self.reads += 1
        return SimulatedFile(self, path, self._content(path, "open"), writable=writable)

    def _create(self, path: str) -> None:
        if self.free_bytes < NEW_FILE_BYTES:
            _refuse(path, "open", errno.ENOSPC)
        self._change(path, "open", {_absolute(path): Content(self._now_ms())})

    def sync_directory(self, path: str) -> None:
        """See `FileSystem`."""
        operation = "fsync of directory"
        if not isinstance(self._node(path, operation), Directory):
            _refuse(path, operation, errno.ENOTDIR)
        self.perform(path, operation, lambda: self._names.sync(_absolute(path)))

    def replace(self, source: str, target: str) -> None:
        """See `FileSystem`."""
        self.perform(target, "rename", lambda: self._replace(source, target))

    def _replace(self, source: str, target: str) -> None:
        content = self._names.now.get(_absolute(source))
        if content is None:
            _refuse(target, "rename", errno.ENOENT)
        if self._names.is_directory(_absolute(target)):
            _refuse(target, "rename", errno.EISDIR)
        if isinstance(content, Directory):
            self._move_directory(_absolute(source), _absolute(target))
        elif _absolute(source) != _absolute(target):
            change: Change = {_absolute(source): None, _absolute(target): content}
            self._change(target, "rename", change)

    def _move_directory(self, source: str, target: str) -> None:
        """Move a directory and all that is in it to a name that nothing has."""
        change: Change = {}
        for name, node in self._names.now.items():
            if name == source or name.startswith(f"{source}/"):
                change |= {name: None, target + name[len(source) :]: node}
        self._names.change(change)

    def remove(self, path: str) -> None:
        """See `FileSystem`."""
        self.perform(path, "remove", lambda: self._remove(path))

    def _remove(self, path: str) -> None:
        if self._names.is_directory(_absolute(path)):
            _refuse(path, "remove", errno.EISDIR)
        if _absolute(path) in self._names.now:
            self._change(path, "remove", {_absolute(path): None})

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it, one name after the other, or a file."""
        if not self._names.is_directory(_absolute(path)):
            self.remove(path)
            return
        for name in self.names(path):
            self.remove_tree(f"{path}/{name}")
        change: Change = {_absolute(path): None}
        self.perform(path, "rmdir", lambda: self._change(path, "rmdir", change))

    def lock(self, path: str) -> SimulatedLock:
        """See `FileSystem`."""
        self.check_on()
        name = _absolute(path)
        if name not in self._names.now:
            self.open(path, create=True).close()
        if name in self._locks:
            directory = path if self._names.is_directory(name) else posixpath.dirname(path)
            raise StoreLockedError(
                f"{directory} is in use by another process, or a node of this one; stop that first"
            )
        self._locks[name] = SimulatedLock(self._locks, name)
        return self._locks[name]

    def space(self, path: str) -> Space:
        """See `FileSystem`."""
        self._node(path, "statvfs")
        self.reads += 1
        return Space(self.total_bytes, self.free_bytes)

    def modified_ms(self, path: str) -> int:
        """See `FileSystem`."""
        self.reads += 1
        return self._node(path, "stat").modified_ms

    def random_bytes(self, length: int) -> bytes:
        """See `FileSystem`."""
        return self.random.randbytes(length)
