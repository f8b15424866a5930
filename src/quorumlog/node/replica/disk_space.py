"""How full a replica's disks are, and the files that appends will need soon."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from quorumlog.log_events import log_event
from quorumlog.model.block import Block
from quorumlog.model.config import GroupConfig
from quorumlog.model.errors import (
    LeaderPendingFullError,
    NoSpaceError,
    OutOfDescriptorsError,
    StorageError,
)
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.raft.events import RoomChanged
from quorumlog.sessions.entries import only_releases
from quorumlog.storage.files.space import DiskState
from quorumlog.storage.files.write_plans import Preparable

logger = logging.getLogger(__name__)

ENTRIES_LEFT: Final = 256
"""Entries that make room for which a place in the index is left while disks are full."""
ELECTIONS_ENTRIES: Final = 16
ELECTIONS_BYTES: Final = 4 * 1024
"""What entries that make room leave for those that elections need (NOOPs, memberships)."""
_NO_FILE: Final = "the disk has no room for another data file"


class DiskSpace:
    """The part of a replica that knows how full its disks are.

    `read_state` measures the disks of the group, on a thread of the executor; all methods run on
    the event loop's thread.
    """

    def __init__(
        self, context: ReplicaContext, read_state: Callable[[GroupConfig], DiskState]
    ) -> None:
        self._context = context
        self._read_state = read_state
        self._is_checking = False
        self._making: set[str] = set()
        self._lacks_room = False
        self.disk = DiskState()

    def full_text(self, size_bytes: int) -> str:
        """Say why an append of this size is refused now; empty if it is not."""
        if self.disk.full_text or not self.disk.is_tight:
            return self.disk.full_text
        limits = self._context.limits
        wanted = 2 * max(size_bytes, limits.push_bytes_max)
        return "" if self._has_made(wanted, limits.block_entries_max) else _NO_FILE

    def takes(self, size_bytes: int, count: int) -> bool:
        """Whether entries are taken that the leader has appended: into files that are made already.

        What it took before the disks were full comes before what makes room again, and must not
        keep that back. Room for a push of the latter is left.
        """
        if not self.disk.is_tight:
            return True
        size_bytes += self._context.limits.push_bytes_max
        return self._has_made(size_bytes, count + ENTRIES_LEFT)

    def _has_made(self, size_bytes: int, count: int) -> bool:
        room = self._context.log.free_space()
        return room.size_bytes >= size_bytes and room.entries >= count

    def takes_releasing(self, block: Block, releases: Callable[[memoryview], bool]) -> bool:
        """Whether entries are taken although the disk is full: without them it would stay full.

        They make room (`only_releases`), and have a place in files that are made already, beside
        that of entries that elections need.
        """
        size_bytes, count = len(block.data) + ELECTIONS_BYTES, block.count + ELECTIONS_ENTRIES
        return self._has_made(size_bytes, count) and only_releases(block, releases)

    def report(self) -> None:
        """Report to the core if this replica began, or ceased, to lack room for appends."""
        lacks_room = bool(self.full_text(0))
        if lacks_room != self._lacks_room:
            self._lacks_room = lacks_room
            self._context.step(RoomChanged(lacks_room))

    def check(self, checked: Callable[[], None]) -> None:
        """Measure the disks unless that is under way; `checked` is called if it succeeds."""
        if self._is_checking:
            return

        def done(disk: DiskState) -> None:
            self._is_checking = False
            self._found(disk)
            checked()

        self._is_checking = True
        read = partial(self._read_state, self._context.config)
        self._context.environment.executor.run(read, done, self._check_failed)

    def _found(self, disk: DiskState) -> None:
        if disk.full_text != self.disk.full_text:
            text = disk.full_text or "there is room again"
            level = logging.ERROR if disk.full_text else logging.INFO
            log_event(logger, level, "disk", group=self._context.config.group, text=text)
        self.disk = disk
        self.report()
        self.prepare_files()

    def _check_failed(self, error: Exception) -> None:
        self._is_checking = False
        if isinstance(error, LeaderPendingFullError):
            return  # the threads are busy; the next check comes anyway
        log_event(logger, logging.WARNING, "cannot see how full the disk is", text=str(error))

    def prepare_files(self) -> None:
        """Create the files that appends will need soon, on a thread beside the appends.

        On a full disk they are left: what stays free is for entries that elections need.
        """
        if self._context.health_text or self.disk.full_text:
            return
        for file in self._context.log.upcoming():
            if file.path not in self._making:
                self._making.add(file.path)
                self._make(file)

    def _make(self, file: Preparable) -> None:
        def done(_: None) -> None:
            self._making.discard(file.path)

        def failed(error: Exception) -> None:
            self._making.discard(file.path)
            if isinstance(error, NoSpaceError):
                # no promise is broken: appends are refused before they need the file
                self.disk = DiskState(
                    str(error), deletes_old=True, deletes_any=False, is_tight=True
                )
                self.report()
            elif isinstance(error, OutOfDescriptorsError):
                log_event(  # no promise is broken
                    logger,
                    logging.WARNING,
                    "file is made later",
                    file=str(file.path),
                    reason=str(error),
                )
            elif isinstance(error, StorageError):
                self._context.fail(error)
            elif not isinstance(error, LeaderPendingFullError):
                # else the threads are busy: the next check or write asks again
                text = "making a file ahead failed"
                log_event(logger, logging.ERROR, text, exc_info=error, file=str(file.path))

        self._context.environment.executor.run(file.prepare, done, failed)
