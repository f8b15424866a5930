"""Carrying out the plans of many groups with few fsyncs.

What several groups append at the same time goes through one journal, with one fsync for all of
them; everything else is written to the groups' own files and fsynced there. Which of the two is
decided anew each time (docs/decisions/0039-one-journal-for-all-groups.md).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from quorumlog.model.block import Buffer
from quorumlog.model.errors import InvariantViolation
from quorumlog.storage.files.os_files import File
from quorumlog.storage.files.write_plans import (
    Action,
    JournaledGroup,
    JournalItem,
    Plan,
    Step,
    Target,
    WritePlan,
)

HINT_PAUSE_MS = 50
"""Longest time between a group commit and the hint that it is durable."""


class Journal(Protocol):
    """A log of what groups append; see `quorumlog.storage.journal`."""

    @property
    def place(self) -> tuple[int, int]:
        """Number of the journal, and sequence of the next record; (0, 0): it has none yet."""
        ...

    def choose(self, appends: Sequence[Sequence[Plan]]) -> list[Sequence[Plan]]:
        """Return those of the appends, one list for each group, that go through the journal."""
        ...

    def append(self, items: Sequence[JournalItem]) -> None:
        """Write one record and make it durable; what it holds was written to the files before."""
        ...

    def forget(self, group: JournaledGroup) -> None:
        """This group has left the journal, and does not come back."""
        ...

    def has_settled(self) -> bool:
        """Whether a part of it became durable in the groups' files since the last call."""
        ...

    def close(self) -> None:
        """Make everything durable in the groups' files, and remove the journal."""
        ...

    def abandon(self) -> None:
        """Close its files, and leave what they hold to the next start."""
        ...


class GroupStore:
    """Carries out plans of any number of groups in one data directory; used by one thread.

    Without `now_ms` (milliseconds of a clock that never goes back) hints are written at once.
    """

    def __init__(
        self, journal: Journal | None = None, now_ms: Callable[[], int] | None = None
    ) -> None:
        self._journal = journal
        self._now_ms = now_ms
        self._unsynced: dict[File, None] = {}
        self._written: dict[int, Callable[[], None]] = {}
        self._hints: dict[int, Callable[[], None]] = {}
        self._hinted_ms = 0
        # the journal itself says that these are durable, until it is settled
        self._journaled: dict[int, Callable[[], None]] = {}

    def execute(self, plans: Sequence[WritePlan], *, sync: bool) -> None:
        """See `Store`."""
        ours = [_ours(plan) for plan in plans]
        items: list[JournalItem] = []
        journaled = self._for_journal(ours) if sync and self._journal is not None else set()
        run = _Run(self._unsynced)
        for plan in ours:
            owner = id(plan.owner)
            if owner in journaled:
                _take_into_journal(plan, run, items)
                self._hints.pop(owner, None)
                if plan.synced is not None:
                    self._journaled[owner] = plan.synced
            else:
                self._take(plan, owner, run)
        run.flush()
        if items and self._journal is not None:
            self._journal.append(items)
        if sync:
            for file in self._unsynced:
                if file.is_open:  # else it was removed, or is durable: too many were open
                    file.sync()
            self._unsynced.clear()
            self._hints.update(self._written)
            self._written.clear()
            self._write_hints()

    def _take(self, plan: Plan, owner: int, run: "_Run") -> None:
        """Carry out a plan in the files of its group."""
        if plan.appended is None:
            self._write_hint_of(owner)  # what it says may not be true any more afterwards
        if plan.removes is not None:
            plan.removes(*(self._journal.place if self._journal is not None else (0, 0)))
        for step in plan.steps:
            run.take(step)
        if plan.leaves is not None and self._journal is not None:
            self._journal.forget(plan.leaves)
        if plan.synced is not None:
            self._written[owner] = plan.synced
            self._journaled.pop(owner, None)

    def _for_journal(self, plans: Sequence[Plan]) -> set[int]:
        """Return the owners whose plans go through the journal this time."""
        appends: dict[int, list[Plan]] = {}
        others: set[int] = set()
        for plan in plans:
            if plan.appended is None:
                others.add(id(plan.owner))
            else:
                appends.setdefault(id(plan.owner), []).append(plan)
        groups = [of_group for owner, of_group in appends.items() if owner not in others]
        if self._journal is None or not groups:
            return set()
        return {id(of_group[0].owner) for of_group in self._journal.choose(groups)}

    # -- hints --------------------------------------------------------------------------------

    def _write_hint_of(self, owner: int) -> None:
        for waiting in (self._journaled, self._hints):
            hint = waiting.pop(owner, None)
            if hint is not None:
                hint()

    def _write_hints(self) -> None:
        """Write the hints that are due: they say what is durable, and are not fsynced."""
        if self._journal is not None and self._journal.has_settled():
            self._hints = {**self._journaled, **self._hints}
            self._journaled.clear()
        if not self._hints:
            return
        if self._now_ms is not None:
            now_ms = self._now_ms()
            if now_ms - self._hinted_ms < HINT_PAUSE_MS:
                return
            self._hinted_ms = now_ms
        for hint in self._hints.values():
            hint()
        self._hints.clear()

    def idle(self) -> bool:
        """See `Store`."""
        self._write_hints()
        return bool(self._hints)

    def close(self) -> None:
        """See `Store`."""
        try:
            for owner in [*self._hints, *self._journaled]:
                self._write_hint_of(owner)
            if self._journal is not None:
                self._journal.close()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """See `Store`."""
        if self._journal is not None:
            self._journal.abandon()


def _ours(plan: WritePlan) -> Plan:
    if not isinstance(plan, Plan):
        raise InvariantViolation(f"a plan of this store: {plan}")
    return plan


def _take_into_journal(plan: Plan, run: "_Run", items: list[JournalItem]) -> None:
    """Write a plan to its files, and collect what has to be durable before it is done."""
    for step in plan.steps:
        if isinstance(step, Action) or plan.appended is None:
            raise InvariantViolation("only appends go through the journal")
        run.take(step, syncs=False)
        if step.durable:
            items.append(JournalItem(plan.appended, step.target, step.offset, step.buffers))


class _Run:
    """Joins neighbouring writes to one file."""

    def __init__(self, unsynced: dict[File, None]) -> None:
        self._unsynced = unsynced
        self._open: dict[Target, tuple[int, int, list[Buffer], bool]] = {}

    def take(self, step: Step, *, syncs: bool = True) -> None:
        if isinstance(step, Action):
            self.flush()
            step.action()
            return
        length = sum(map(len, step.buffers))
        fresh: tuple[int, int, list[Buffer], bool] = (step.offset, step.offset, [], False)
        start, end, buffers, durable = self._open.get(step.target, fresh)
        if end != step.offset:
            self._write(step.target, start, buffers, durable=durable)
            start, end, buffers, durable = fresh
        buffers.extend(step.buffers)
        durable = durable or (step.durable and syncs)
        self._open[step.target] = (start, end + length, buffers, durable)

    def flush(self) -> None:
        for target, (start, _, buffers, durable) in self._open.items():
            self._write(target, start, buffers, durable=durable)
        self._open.clear()

    def _write(self, target: Target, start: int, buffers: list[Buffer], *, durable: bool) -> None:
        file = target.writable()
        file.write_at(buffers, start)
        if durable:  # only now: a file that is opened meanwhile may close this one, durable
            self._unsynced[file] = None
