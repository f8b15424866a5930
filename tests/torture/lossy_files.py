"""Files that lose what was not fsynced when the power goes.

A node that runs with `LossyFileSystem` writes down, before each change, what would have to be
undone if the change did not reach the disk. Whoever killed it with SIGKILL then calls `lose_power`,
which undoes a random part of what was not durable: whole pages, some sectors of a page, sizes, and
the newest names of each directory. What fsync reported as durable stays.
"""

import errno
import os
import pickle
import struct
import threading
from pathlib import Path

from quorumlog.storage.files.os_files import OsFile, OsFileSystem, Space, storage_error

PAGE = 4_096
SECTOR = 512
JOURNAL = "journal"
ROTATE_BYTES = 32 << 20
_LENGTH = struct.Struct(">I")


class Journal:
    """What is not durable yet, in memory and in a file that survives the process.

    `pages` has, by inode, what each page held when the file was last synced, `sizes` its length
    then. `names` has, by directory, the undo of each change of a name, oldest first. Every inode
    that has something to undo keeps a second name in the journal's directory.
    """

    def __init__(self, directory):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.lock = threading.RLock()
        self.pages, self.sizes, self.names = _read(self.directory)  # of processes before this one
        self._saved = 0
        self._file = None
        self._rotate()

    def _rotate(self):
        """Begin the file again with what counts now."""
        fresh = self.directory / f"{JOURNAL}.new"
        file = fresh.open("wb", buffering=0)
        self._write(file, ("all", self.pages, self.sizes, self.names))
        fresh.replace(self.directory / JOURNAL)
        if self._file is not None:
            self._file.close()
        self._file = file

    def _write(self, file, record):
        data = pickle.dumps(record)
        file.write(_LENGTH.pack(len(data)) + data)

    def _note(self, *record):
        self._write(self._file, record)
        if self._file.tell() > ROTATE_BYTES:
            self._rotate()

    def keep(self, path):
        """Return the inode of a file, which keeps a second name from now on."""
        inode = os.stat(path).st_ino
        link = self.directory / str(inode)
        if not link.exists():
            os.link(path, link)
        return inode

    def before_write(self, descriptor, inode, begin, end):
        """Bytes begin … end of a file will be written."""
        known = self.pages.setdefault(inode, {})
        fresh = {
            page: os.pread(descriptor, PAGE, page * PAGE)
            for page in range(begin // PAGE, -(-end // PAGE))
            if page not in known
        }
        if fresh:
            known.update(fresh)
            self._note("pages", inode, fresh)
        self.before_resize(descriptor, inode)

    def before_resize(self, descriptor, inode):
        """The length of a file may change."""
        if inode not in self.sizes:
            self.sizes[inode] = os.fstat(descriptor).st_size
            self._note("size", inode, self.sizes[inode])

    def synced(self, inode, pages):
        """All of a file that was written before is durable."""
        if pages or inode in self.sizes:
            self.pages.pop(inode, None)
            self.sizes.pop(inode, None)
            self._note("synced", inode)

    def renamed(self, directory, undo):
        """A name in a directory will change."""
        self.names.setdefault(directory, []).append(undo)
        self._note("name", directory, undo)

    def directory_synced(self, directory):
        """The names in a directory are durable."""
        if self.names.pop(directory, None):
            self._note("names", directory)

    def save(self, path):
        """Give what a name stands for now a second name; None: it stands for nothing."""
        if not os.path.exists(path):
            return None
        self._saved += 1
        link = self.directory / f"saved-{os.getpid()}-{self._saved}"
        os.link(path, link)
        return str(link)


class Room:
    """What is left of a disk, in bytes; None: as much as there is. Used by one thread at a time."""

    def __init__(self):
        self.left = None

    def take(self, path, count):
        """A file grows. Raises `StorageError` if the disk is full."""
        if self.left is not None and count > 0:
            if count > self.left:
                text = "No space left on device, as this run says"
                raise storage_error(path, "write", OSError(errno.ENOSPC, text))
            self.left -= count

    def give(self, count):
        """So many bytes are not used any more."""
        if self.left is not None:
            self.left += count


class LossyFile(OsFile):
    """A file whose changes can be undone until it is synced."""

    def __init__(self, path, descriptor, journal, room):
        super().__init__(path, descriptor)
        self._journal = journal
        self._room = room
        self._inode = os.fstat(descriptor).st_ino

    def write_at(self, buffers, offset):
        length = sum(memoryview(buffer).nbytes for buffer in buffers)
        with self._journal.lock:
            self._room.take(self.path, offset + length - os.fstat(self._descriptor).st_size)
            self._journal.before_write(self._descriptor, self._inode, offset, offset + length)
            super().write_at(buffers, offset)

    def resize(self, size):
        with self._journal.lock:
            before = os.fstat(self._descriptor).st_size
            self._room.take(self.path, size - before)
            self._journal.before_resize(self._descriptor, self._inode)
            if size < before:
                self._journal.before_write(self._descriptor, self._inode, size, before)
            super().resize(size)

    def sync(self):
        with self._journal.lock:
            super().sync()
            self._journal.synced(self._inode, self._journal.pages.get(self._inode))


class LossyFileSystem(OsFileSystem):
    """The operating system's files, with a journal of what is not durable."""

    journal: Journal
    room = Room()

    def open(self, path, *, create=False, writable=True):
        with self.journal.lock:
            is_new = create and not os.path.exists(path)
            if is_new:
                self.journal.renamed(os.path.dirname(path), ("remove", path))
            file = super().open(path, create=create, writable=writable)
            if writable:
                self.journal.keep(path)
            lossy = LossyFile(path, os.dup(file._descriptor), self.journal, self.room)
            file.close()
            return lossy

    def sync_directory(self, path):
        with self.journal.lock:
            super().sync_directory(path)
            self.journal.directory_synced(path.rstrip("/"))

    def space(self, path):
        found = super().space(path)
        left = self.room.left
        return found if left is None else Space(found.total_bytes, left)

    def replace(self, source, target):
        with self.journal.lock:
            self._give(target)
            saved = self.journal.save(target)
            self.journal.renamed(os.path.dirname(target), ("rename", target, source, saved))
            super().replace(source, target)

    def _give(self, path):
        if os.path.exists(path):
            self.room.give(os.path.getsize(path))

    def remove(self, path):
        with self.journal.lock:
            self._give(path)
            saved = self.journal.save(path)
            if saved is not None:
                self.journal.renamed(os.path.dirname(path), ("restore", path, saved))
            super().remove(path)


def _read(directory):
    """Return pages, sizes and names as the journal's file has them."""
    pages, sizes, names = {}, {}, {}
    path = Path(directory) / JOURNAL
    data = path.read_bytes() if path.exists() else b""
    at = 0
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            break  # the kill came while it was written: nothing was changed yet
        kind, *fields = pickle.loads(data[at : at + length])
        at += length
        if kind == "all":
            pages, sizes, names = fields
        elif kind == "pages":
            pages.setdefault(fields[0], {}).update(fields[1])
        elif kind == "size":
            sizes.setdefault(*fields)
        elif kind == "synced":
            pages.pop(fields[0], None)
            sizes.pop(fields[0], None)
        elif kind == "name":
            names.setdefault(fields[0], []).append(fields[1])
        elif kind == "names":
            names.pop(fields[0], None)
    return pages, sizes, names


def lose_power(directory, generator):
    """Undo a random part of what a killed node had not made durable; return what was undone."""
    directory = Path(directory)
    pages, sizes, names = _read(directory)
    undone = {"pages": 0, "sizes": 0, "names": 0}
    share = generator.choice([0.0, 0.5, 0.9, 1.0])  # of what is lost; the disk decides
    for inode in sorted(set(pages) | set(sizes)):
        path = directory / str(inode)
        if path.exists():
            _undo_content(path, pages.get(inode, {}), sizes.get(inode), share, generator, undone)
    for undos in names.values():
        kept = len(undos) - sum(generator.random() < share for _ in undos)
        for undo in reversed(undos[kept:]):
            undone["names"] += _undo_name(undo)
    for path in directory.glob("*"):
        path.unlink()
    return undone


def _undo_content(path, pages, size, share, generator, undone):
    with path.open("r+b", buffering=0) as file:
        now = os.fstat(file.fileno()).st_size
        cuts = size is not None and size != now and generator.random() < share
        end = max(now, size) if cuts else now
        for page, before in sorted(pages.items()):
            begin = page * PAGE
            if begin >= end or generator.random() >= share:
                continue
            page_now = bytearray(os.pread(file.fileno(), PAGE, begin).ljust(PAGE, b"\0"))
            undone_page = before.ljust(PAGE, b"\0")
            keeps = 0.5 if generator.random() < 0.3 else 0.0  # torn: some sectors are new
            for sector in range(0, PAGE, SECTOR):
                if generator.random() >= keeps:
                    page_now[sector : sector + SECTOR] = undone_page[sector : sector + SECTOR]
            os.pwrite(file.fileno(), page_now[: end - begin], begin)
            undone["pages"] += 1
        if cuts:
            os.ftruncate(file.fileno(), size)
            undone["sizes"] += 1


def _undo_name(undo):
    kind, path, *rest = undo
    if kind == "remove":
        if not os.path.exists(path):
            return 0
        os.unlink(path)
    elif kind == "rename":
        source, saved = rest
        if not os.path.exists(path):
            return 0
        os.rename(path, source)
        if saved is not None and os.path.exists(saved):
            os.link(saved, path)
    elif kind == "restore":
        (saved,) = rest
        if os.path.exists(path) or not os.path.exists(saved):
            return 0
        os.link(saved, path)
    return 1
