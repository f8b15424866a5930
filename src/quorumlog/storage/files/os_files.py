"""The only entry point to the operating system's files.

`FileSystem` and `File` say what storage needs; `OsFileSystem` does it. Every failure becomes a
`StorageError` that names file, operation and reason, and is never retried: after a failed write or
fsync the page cache says nothing about the disk (RELIABILITY 2.2). One thing is tried again: to
open something while no descriptor is free, which changed nothing (`SpareDescriptors`).
"""

import asyncio
import ctypes
import errno
import fcntl
import logging
import mmap
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from quorumlog.model.block import Buffer
from quorumlog.model.errors import (
    NoSpaceError,
    NotAFileError,
    OutOfDescriptorsError,
    StorageError,
    StoreLockedError,
)
from quorumlog.storage.files.extents import written_ranges

logger = logging.getLogger(__name__)

T = TypeVar("T")

IO_VECTOR_MAX = 1_024
"""Buffers in one pwritev (Linux's IOV_MAX)."""
DESCRIPTOR_WAIT_S = 5.0
"""How long a thread waits for a free descriptor; the disk thread waits without an end."""
DESCRIPTOR_PAUSE_MIN_S = 0.01
DESCRIPTOR_PAUSE_MAX_S = 0.5
RESIDENT_PAGES_MAX = 64
"""Pages that are looked up in the page cache at a time."""
LOCK_ATTEMPTS = 3
"""A tool that looks whether a node runs has the lock for a moment (`require_readable`)."""
LOCK_PAUSE_S = 0.01
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
OTHERS = 0o077
"""Bits of a mode that let anybody else than the owner do something."""


@dataclass(frozen=True, slots=True)
class Space:
    """Room of the disk that holds a path, as an ordinary user may use it."""

    total_bytes: int
    free_bytes: int


class File(Protocol):
    """An open file."""

    path: str

    @property
    def is_open(self) -> bool:
        """Whether it was not closed yet."""
        ...

    def write_at(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers one after the other from offset on."""
        ...

    def read_at(self, length: int, offset: int) -> bytes:
        """Read up to length bytes; fewer at the end of the file."""
        ...

    def sync(self) -> None:
        """Make everything written to the file durable."""
        ...

    def drop_cache(self, offset: int = 0, length: int = 0) -> None:
        """Forget cached bytes that are not waiting to be written: the next read is of the disk.

        `length` 0: to the end.
        """
        ...

    def size(self) -> int:
        """Length in bytes."""
        ...

    def written_ranges(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of begin … end - 1 that may hold other bytes than zeros, in order."""
        ...

    def resize(self, size: int) -> None:
        """Cut or extend with zeros to a length, with room on disk reserved."""
        ...

    def map(self) -> memoryview:
        """Return the whole file read-only; stays valid after `close`."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class Lock(Protocol):
    """An exclusive claim on a directory."""

    def release(self) -> None:
        """Release the lock."""
        ...


class FileSystem(Protocol):
    """Directories and files by path."""

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents; their names are durable on return, also old ones."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if there is no such directory."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        ...

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory."""
        ...

    def obstacle(self, path: str) -> str:
        """Say what lies here that is no file, such as "a directory"; empty: a file, or nothing."""
        ...

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Open a file; with `create` it may be new. Raises `NotAFileError` for anything else."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def replace(self, source: str, target: str) -> None:
        """Rename source to target; a file of that name is replaced."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens if there is none."""
        ...

    def space(self, path: str) -> Space:
        """Return how much room there is where a path lies."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return when a file was last written, in milliseconds of the wall clock."""
        ...

    def lock(self, path: str) -> Lock:
        """Claim a directory, or a file of this name. Raises `StoreLockedError` if it is taken."""
        ...

    def random_bytes(self, length: int) -> bytes:
        """Return bytes nobody can guess."""
        ...


OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def storage_error(path: str, operation: str, error: OSError) -> StorageError:
    """Return the error that says what the operating system refused to do, to which file."""
    kind: type[StorageError] = StorageError
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        kind = NoSpaceError
    elif is_out_of_descriptors(error):
        kind = OutOfDescriptorsError
    return kind(f"{path}: {operation} failed: {error.strerror or error}")


def not_a_file(path: str, obstacle: str) -> NotAFileError:
    """Return the error for something that lies where a file must be."""
    return NotAFileError(f"{path} is {obstacle} where a file must be; move it away")


_OBSTACLES = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
DANGLING_LINK = "a link that leads nowhere"


def obstacle_at(path: str) -> str:
    """Say what lies at a path that is no file; empty: a file, or nothing. Raises `OSError`."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return DANGLING_LINK if os.path.islink(path) else ""
        raise
    return _OBSTACLES.get(stat.S_IFMT(mode), "")


def require_file(path: str) -> None:
    """Raise `NotAFileError` if something lies at a path that is no file."""
    with _named(path, "stat"):
        obstacle = obstacle_at(path)
    if obstacle:
        raise not_a_file(path, obstacle)


@contextmanager
def _named(path: str, operation: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_error(path, operation, error) from error


def is_out_of_descriptors(error: OSError) -> bool:
    """Whether this process (EMFILE) or the machine (ENFILE) is out of descriptors."""
    return error.errno in OUT_OF_DESCRIPTORS


class SpareDescriptors:
    """Descriptors held open so that storage can open files when nothing else can be opened.

    There is one object for the process (`SPARES`), since descriptors belong to the process. Any
    thread may call it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[int] = []
        self._wanted = 0
        self._patient = threading.local()
        self.waits = 0

    def hold(self, count: int) -> None:
        """Hold `count` descriptors: as many as can be had now, the rest later."""
        with self._lock:
            self._wanted = count
            while len(self._held) > count:
                os.close(self._held.pop())
        self._refill()

    def wait_on_this_thread(self) -> None:
        """Let this thread wait without a bound: for the disk thread, which has to go on."""
        self._patient.is_endless = True

    def use(self, path: str, call: Callable[[], T]) -> T:
        """Make a call that opens something; with a spare descriptor, or later, if there is none.

        Raises `OSError`: EMFILE or ENFILE only when waiting did not help. The loop's thread never
        waits.
        """
        pause_s, deadline = DESCRIPTOR_PAUSE_MIN_S, 0.0
        while True:
            try:
                made = call()
            except OSError as error:
                if not is_out_of_descriptors(error):
                    raise
                if self._give():
                    continue
                now = time.monotonic()
                if not deadline:
                    self.waits += 1
                    deadline = now + self._patience_s()
                    logger.warning("%s: no file descriptor is free; waiting for one", path)
                if now >= deadline:
                    raise
                time.sleep(pause_s)
                pause_s = min(DESCRIPTOR_PAUSE_MAX_S, 2 * pause_s)
                continue
            if len(self._held) < self._wanted:
                self._refill()
            return made

    def _patience_s(self) -> float:
        if getattr(self._patient, "is_endless", False):
            return float("inf")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return DESCRIPTOR_WAIT_S
        return 0.0

    def _give(self) -> bool:
        """Close a spare descriptor, so that another file can be opened; False if none is held."""
        with self._lock:
            if self._held:
                os.close(self._held.pop())
                return True
        return False

    def _refill(self) -> None:
        with self._lock:
            try:
                while len(self._held) < self._wanted:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return  # what was opened last took it: later there may be more


SPARES = SpareDescriptors()


class _Map(mmap.mmap):
    """A mapped file. `address`: where it is in memory; `is_writable`: the process may write it.

    Of a file that the process may not write, mincore(2) says that all of its pages are in memory.
    """

    address = 0
    is_writable = False


def _find_mincore() -> "Callable[[int, int, ctypes.Array[ctypes.c_char]], int] | None":
    """Return mincore(2), called without giving up the interpreter: it waits for nothing."""
    try:
        found = ctypes.PyDLL(None).mincore
    except (OSError, AttributeError):  # not this system's
        return None
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    found.restype = ctypes.c_int
    return found


_mincore = _find_mincore()


class OsFile:
    """A file of the operating system."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.is_open = True

    def write_at(self, buffers: Sequence[Buffer], offset: int) -> None:
        """See `File`. Every append comes here and to `sync`, so they do without `_named`."""
        rest, first = list(buffers), 0
        while first < len(rest):
            try:
                written = os.pwritev(self._descriptor, rest[first : first + IO_VECTOR_MAX], offset)
            except OSError as error:
                raise storage_error(self.path, "write", error) from error
            offset += written
            while first < len(rest) and written >= len(rest[first]):
                written -= len(rest[first])
                first += 1
            if written:  # a short write: it goes on in the middle of a buffer
                rest[first] = memoryview(rest[first])[written:]

    def read_at(self, length: int, offset: int) -> bytes:
        """See `File`."""
        with _named(self.path, "read"):
            return os.pread(self._descriptor, length, offset)

    def sync(self) -> None:
        """See `File`."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise storage_error(self.path, "fdatasync", error) from error

    def drop_cache(self, offset: int = 0, length: int = 0) -> None:
        """See `File`."""
        with _named(self.path, "fadvise"):
            os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        """See `File`."""
        with _named(self.path, "stat"):
            return os.fstat(self._descriptor).st_size

    def written_ranges(self, begin: int, end: int) -> list[tuple[int, int]]:
        """See `File`."""
        return written_ranges(self._descriptor, begin, end)

    def resize(self, size: int) -> None:
        """See `File`."""
        with _named(self.path, "resize"):
            os.ftruncate(self._descriptor, size)
            if size:
                os.posix_fallocate(self._descriptor, 0, size)

    def map(self) -> memoryview:
        """See `File`."""
        with _named(self.path, "mmap"):
            if not self.size():
                return memoryview(b"")
            # a map has a descriptor of its own
            return memoryview(SPARES.use(self.path, self._map))

    def _map(self) -> mmap.mmap:
        made = _Map(self._descriptor, 0, access=mmap.ACCESS_READ)
        made.is_writable = os.access(self.path, os.W_OK)
        made.address = np.frombuffer(made, np.uint8).ctypes.data
        return made

    def close(self) -> None:
        """See `File`."""
        self.is_open = False
        with _named(self.path, "close"):
            os.close(self._descriptor)


def release_pages(view: memoryview) -> None:
    """Stop counting the bytes of a mapped file as memory of this process.

    They stay in the system's page cache and remain valid for readers that still use them.
    """
    if isinstance(view.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        view.obj.madvise(mmap.MADV_DONTNEED)


def is_resident(view: memoryview, begin: int, end: int) -> bool:
    """Whether bytes begin … end - 1 of a mapped file are known to be in the page cache.

    Then reading them waits for no disk, unless the system needs their memory at this very moment.
    """
    pages_of = view.obj
    if not isinstance(pages_of, _Map) or not pages_of.is_writable or _mincore is None:
        return False
    start = begin - begin % mmap.PAGESIZE
    pages = -(-(end - start) // mmap.PAGESIZE)
    if not 0 < pages <= RESIDENT_PAGES_MAX:
        return False
    found = ctypes.create_string_buffer(pages)
    if _mincore(pages_of.address + start, pages * mmap.PAGESIZE, found):
        return False
    return all(page & 1 for page in found.raw)


def absolute_path(path: str) -> str:
    """Return a path that does not depend on the directory in which this process was started."""
    return os.path.abspath(path)


def remove_tree(path: str) -> None:
    """Remove a directory with all that is in it, or a file; nothing happens if there is none."""
    with _named(path, "remove"):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)


def boot_id() -> str:
    """Return an id of this machine until it restarts; empty if the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def device_and_inode(path: str) -> tuple[int, int]:
    """Return the kernel's numbers of a directory. Raises `StorageError`."""
    with _named(path, "stat"):
        found = os.stat(path)
    return found.st_dev, found.st_ino


def open_to_others(path: str, looks_max: int) -> Iterator[tuple[str, int]]:
    """Yield what others than its owner may use, in a directory and below it, with its mode.

    At most `looks_max` files and directories are looked at; what cannot be is left out.
    """
    looks, waiting = 0, [path]
    while waiting and looks < looks_max:
        one = waiting.pop()
        looks += 1
        try:
            mode = os.lstat(one).st_mode
            names = os.listdir(one) if stat.S_ISDIR(mode) else []
        except OSError:  # it has just been removed, or belongs to somebody else
            continue
        if mode & OTHERS and not stat.S_ISLNK(mode):  # the mode of a link means nothing
            yield one, stat.S_IMODE(mode)
        waiting.extend(f"{one}/{name}" for name in names)


def may_list(path: str) -> bool:
    """Whether this process may list a directory."""
    return os.access(path, os.R_OK | os.X_OK)


class OsLock:
    """A held flock; ends with the process at the latest."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """See `Lock`."""
        os.close(self._descriptor)


def _opened(path: str, flags: int) -> int:
    """Open a file without waiting: opening a FIFO would wait until somebody else opens it."""
    flags |= os.O_NONBLOCK
    return SPARES.use(path, lambda: os.open(path, flags | os.O_CLOEXEC, FILE_MODE))


def move_aside(files: FileSystem, path: str) -> str:
    """Rename something that is in the way of a file, durably; return the new name.

    It may belong to somebody, so it is not removed. Raises `StorageError` if it cannot be moved.
    """
    what = files.obstacle(path) or "a file that is not ours"
    directory, _, name = path.rpartition("/")
    aside, number = f"{directory}/moved.{name}", 1
    while files.exists(aside) or files.obstacle(aside):
        number += 1
        aside = f"{directory}/moved.{number}.{name}"
    try:
        files.replace(path, aside)
        files.sync_directory(directory)
    except (NoSpaceError, OutOfDescriptorsError):  # these pass, and the same may succeed then
        raise
    except StorageError as error:
        raise StorageError(f"{path} is {what}, in the way; move it away ({error})") from error
    logger.warning("%s was %s, in the way of one of ours; its name is %s now", path, what, aside)
    return aside


class OsFileSystem:
    """The operating system's file system."""

    def make_directory(self, path: str) -> None:
        """See `FileSystem`."""
        parent = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(path):
            self.make_directory(parent)
            if os.path.lexists(path):
                with _named(path, "stat"):
                    found = obstacle_at(path) or "a file"
                raise StorageError(f"{path} is {found} where a directory must be; move it away")
            with _named(path, "mkdir"):
                os.mkdir(path, DIRECTORY_MODE)
        self.sync_directory(parent)  # a crash may have come between making it and this

    def names(self, path: str) -> list[str]:
        """See `FileSystem`."""
        with _named(path, "list"):
            if not os.path.isdir(path):
                return []
            return sorted(SPARES.use(path, lambda: os.listdir(path)))

    def exists(self, path: str) -> bool:
        """See `FileSystem`."""
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        """See `FileSystem`."""
        return os.path.isdir(path)

    def obstacle(self, path: str) -> str:
        """See `FileSystem`."""
        with _named(path, "stat"):
            return obstacle_at(path)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> OsFile:
        """See `FileSystem`."""
        flags = os.O_RDWR if writable else os.O_RDONLY
        require_file(path)  # before it is opened: to open a device may do something
        with _named(path, "open"):
            return OsFile(path, _opened(path, flags | (os.O_CREAT if create else 0)))

    def sync_directory(self, path: str) -> None:
        """See `FileSystem`."""
        with _named(path, "fsync of directory"):
            descriptor = _opened(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def replace(self, source: str, target: str) -> None:
        """See `FileSystem`."""
        with _named(target, "rename"):
            os.replace(source, target)

    def remove(self, path: str) -> None:
        """See `FileSystem`."""
        with _named(path, "remove"):
            if os.path.exists(path):
                os.unlink(path)

    def space(self, path: str) -> Space:
        """See `FileSystem`."""
        with _named(path, "statvfs"):
            found = os.statvfs(path)
        usable = found.f_blocks - found.f_bfree + found.f_bavail  # without the reserve of root
        return Space(usable * found.f_frsize, found.f_bavail * found.f_frsize)

    def modified_ms(self, path: str) -> int:
        """See `FileSystem`."""
        with _named(path, "stat"):
            return os.stat(path).st_mtime_ns // 1_000_000

    def lock(self, path: str) -> OsLock:
        """See `FileSystem`."""
        is_directory = os.path.isdir(path)
        flags = os.O_RDONLY | os.O_DIRECTORY if is_directory else os.O_RDWR | os.O_CREAT
        if not is_directory:
            require_file(path)
        with _named(path, "open"):
            descriptor = _opened(path, flags)
        for attempt in range(LOCK_ATTEMPTS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return OsLock(descriptor)
            except OSError as error:
                if attempt + 1 < LOCK_ATTEMPTS:
                    time.sleep(LOCK_PAUSE_S)
                    continue
                os.close(descriptor)
                directory = path if is_directory else os.path.dirname(path)
                raise StoreLockedError(
                    f"{directory} is in use by another process, or a node of this one; "
                    "stop that first"
                ) from error
        raise StorageError(f"{path}: LOCK_ATTEMPTS must be above 0")

    def random_bytes(self, length: int) -> bytes:
        """See `FileSystem`."""
        return os.urandom(length)
