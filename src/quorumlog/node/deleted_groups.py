"""What is left of deleted groups: files that are moved and removed, tombstones that are forgotten.

All methods run on the event loop's thread; files are handled on another one.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from msgspec.structs import replace

from quorumlog.log_events import log_event
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import HOUR_MS
from quorumlog.model.errors import NoSpaceError, RequestError, StorageError
from quorumlog.model.group_records import GroupRecord
from quorumlog.node.environment import Executor
from quorumlog.node.group_catalog import GroupCatalog
from quorumlog.storage.metadata.group_files import (
    REFUSED_MAX,
    TOMBSTONES_MAX,
    GroupFiles,
    OccupiedError,
)

logger = logging.getLogger(__name__)

Done: TypeAlias = Callable[[ResponseCode, str], None]
"""Called once with the outcome: SUCCESS, or why nothing was done (or not all of it)."""
Key: TypeAlias = tuple[str, bytes]

TOMBSTONE_MS = 30 * 24 * HOUR_MS
"""A deleted group is remembered for this long: members that are away longer do not learn of it."""
RETRY_MS = 60_000
"""Pause before what could not be removed is removed again."""
CLEANED_MAX = 64
"""Groups whose files or tombstones one tick removes; the next ones follow when these are done."""


@dataclass(frozen=True, slots=True)
class LifecycleEnvironment:
    """What varies between a real and a simulated node. `wall_ms` reads the wall clock.

    `wake_at` asks for a call of `GroupLifecycle.tick` at a time of that clock.
    """

    executor: Executor
    wall_ms: Callable[[], int]
    wake_at: Callable[[int], None]

    def run(
        self,
        work: Callable[[], None],
        done: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Handle files on another thread; call `done` or `failed` on the loop's."""
        self.executor.run(work, lambda _: done(), failed)


class DeletedGroups:
    """Carries out what follows from the deletion of a group, at once or when its time has come.

    `moved` is called with a name once nothing is in the way of a new group of that name;
    `is_changing` says whether that, or any other change, is still to come.
    """

    def __init__(
        self,
        catalog: GroupCatalog,
        files: GroupFiles,
        environment: LifecycleEnvironment,
        is_changing: Callable[[str], bool],
        moved: Callable[[str], None],
    ) -> None:
        self._catalog = catalog
        self._files = files
        self._environment = environment
        self._is_changing = is_changing
        self._moved = moved
        self._cleaning: set[Key] = set()
        self._retry_ms: dict[Key, int] = {}
        self._unburied: dict[Key, GroupRecord] = {}
        self._goes_on = False

    def bury(self, record: GroupRecord, done: Done) -> None:
        """Move the files of a group that is deleted and closed out of the way."""

        def failed(error: Exception) -> None:
            text = f"deleted; its files cannot be moved and will be tried again: {error}"
            log_event(logger, logging.ERROR, "group not moved", group=record.group, reason=text)
            # its directory is in the way: the name cannot be used again until it is moved
            self.move_later([record])
            done(code_of(error), text)

        def buried() -> None:
            self._moved(record.group)
            if record.purge or not self._catalog.node.deleted_group_reserved_hours:
                self.purge(record, done)
            else:
                done(ResponseCode.SUCCESS, "")
            self.tick()

        self._environment.run(partial(self._files.bury, record), buried, failed)

    def move_later(self, records: Iterable[GroupRecord]) -> None:
        """Move the files of deleted groups that cannot be moved now when there is a next tick."""
        self._unburied |= {record.key: record for record in records}
        if self._unburied:
            self._environment.wake_at(self._environment.wall_ms() + RETRY_MS)

    def purge(self, record: GroupRecord, done: Done) -> None:
        """Remove the files of a group that was moved; its tombstone stays."""
        if record.key in self._cleaning:
            done(ResponseCode.CHANGE_IN_PROGRESS, "its files are being removed already")
            return
        purged = replace(record, purged=True)

        def ended() -> None:
            self._catalog.deleted(purged)
            log_event(logger, logging.INFO, "files of a deleted group removed", group=record.group)
            done(ResponseCode.SUCCESS, "")

        def failed(error: Exception) -> None:
            text = f"deleted; its files cannot be removed and will be tried again: {error}"
            log_event(logger, logging.ERROR, "files not removed", group=record.group, reason=text)
            done(code_of(error), text)

        self._clean(record.key, partial(self._files.purge, purged), ended, failed)

    def _forget(self, record: GroupRecord) -> None:
        def failed(error: Exception) -> None:
            text = f"it will be tried again: {error}"
            log_event(logger, logging.ERROR, "tombstone kept", group=record.group, reason=text)

        self._clean(
            record.key,
            partial(self._files.forget, record),
            lambda: self._catalog.forgotten(record),
            failed,
        )

    def _clean(
        self,
        key: Key,
        work: Callable[[], None],
        done: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Remove something of a group; if that fails the group is left alone for a while."""
        self._cleaning.add(key)

        def cleaned() -> None:
            self._cleaning.discard(key)
            self._retry_ms.pop(key, None)
            done()
            self._go_on()

        def not_cleaned(error: Exception) -> None:
            self._cleaning.discard(key)
            self._retry_ms[key] = self._environment.wall_ms() + RETRY_MS
            self._environment.wake_at(self._retry_ms[key])
            failed(error)
            self._go_on()

        self._environment.run(work, cleaned, not_cleaned)

    # -- time ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Remove the files of groups whose time is up, and tombstones that are old or too many."""
        now_ms, next_ms = self._environment.wall_ms(), NEVER_MS
        unburied, self._unburied = self._unburied, {}
        for record in unburied.values():
            self.bury(record, ignored)
        surplus, begun = self._surplus(), 0
        room = CLEANED_MAX - len(self._cleaning)
        for record in self._catalog.tombstones():
            if record.key in self._cleaning or self._is_changing(record.group):
                continue
            at_ms = now_ms if record.key in surplus else self._due_ms(record)
            retry_ms = self._retry_ms.get(record.key, 0)
            if retry_ms <= now_ms + RETRY_MS:  # else the clock was set back meanwhile
                at_ms = max(at_ms, retry_ms)
            if at_ms > now_ms:
                next_ms = min(next_ms, at_ms)
            elif begun >= room:
                self._goes_on = True
                break
            elif record.purged:
                begun += 1
                self._forget(record)
            else:
                begun += 1
                self.purge(record, ignored)
        if next_ms < NEVER_MS:
            self._environment.wake_at(next_ms)
        self._go_on()

    def _go_on(self) -> None:
        """Ask for the next tick at once if the last one left something and all it began is done."""
        if self._goes_on and not self._cleaning:
            self._goes_on = False
            self._environment.wake_at(self._environment.wall_ms())

    def _due_ms(self, record: GroupRecord) -> int:
        """Return when something of a deleted group is to be removed next."""
        if record.purged:
            return record.deleted_ms + TOMBSTONE_MS if self._may_forget(record) else NEVER_MS
        if record.purge:
            return 0
        return record.deleted_ms + int(self._catalog.node.deleted_group_reserved_hours * HOUR_MS)

    def _may_forget(self, record: GroupRecord) -> bool:
        """A tombstone keeps a group from coming back that its configuration file still names."""
        return (
            record.was_refused or bool(record.peers) or not self._catalog.has_in_file(record.group)
        )

    def _surplus(self) -> set[Key]:
        """Return the oldest tombstones above the bounds."""
        purged = [
            record
            for record in self._catalog.tombstones()
            if record.purged and record.key not in self._cleaning
        ]
        refused = [record.key for record in purged if record.was_refused]
        deleted = [one.key for one in purged if not one.was_refused and self._may_forget(one)]
        return {
            *refused[: max(0, len(refused) - REFUSED_MAX)],
            *deleted[: max(0, len(deleted) - TOMBSTONES_MAX)],
        }


def ignored(code: ResponseCode, text: str) -> None:
    """Nobody waits for it."""


def code_of(error: Exception) -> ResponseCode:
    """Return the response code that stands for what handling files raised."""
    if isinstance(error, NoSpaceError):
        return ResponseCode.DISK_FULL
    if isinstance(error, OccupiedError):
        return ResponseCode.GROUP_REFUSED
    if isinstance(error, RequestError):
        return error.code  # as of threads that have no room now
    return (
        ResponseCode.DISK_ERROR if isinstance(error, StorageError) else ResponseCode.INTERNAL_ERROR
    )
