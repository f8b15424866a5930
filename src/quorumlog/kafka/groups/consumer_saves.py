"""What has changed of a group by the consumer protocol is saved before members are told.

While a save is under way, what changes meanwhile waits, and is saved together.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.consumers import Answered, Consumer, Consumers, HeartbeatAnswer
from quorumlog.machine.cluster.commands import SaveConsumers


class SavedAnswer(Protocol):
    """Is called with NONE, and whether something was saved; or with why a group cannot go on."""

    def __call__(self, error: ErrorCode, *, is_saved: bool) -> None:
        """See the class."""
        ...


class SaveStore(Protocol):
    """What is needed of the coordinator to save a group."""

    @property
    def term(self) -> int:
        """The term of `__cluster` in which it coordinates."""
        ...

    def saved_members(self, name: str) -> Iterable[str]:
        """Return the ids of the members of a group that are saved."""
        ...

    def order(self, command: SaveConsumers, ended: SavedAnswer) -> None:
        """Have something saved; call `ended` once."""
        ...

    def unsaved(self, name: str) -> None:
        """A group goes on in memory, as disks are full: have it save again later."""
        ...

    def give_up(self, name: str, error: ErrorCode) -> None:
        """A group cannot go on from what it has in memory: its record counts."""
        ...


class Waiting(NamedTuple):
    """An answer that waits until a change is saved. `is_new`: it is that to a newcomer."""

    change: int
    answer: HeartbeatAnswer
    done: Answered
    is_new: bool = False


class ConsumerSaves:
    """Saves of one group, of whose record the `version` is known.

    `epoch` returns that of the group; `rise` has it rise, and the next target be of it.
    """

    def __init__(
        self,
        name: str,
        version: int,
        members: Consumers,
        store: SaveStore,
        epoch: Callable[[], int],
        rise: Callable[[], None],
    ) -> None:
        self.changes = 0
        """Changes until now, of which some may be unsaved."""
        self.is_saving = False
        """Whether a save is under way, so that it is not known what the record will say."""
        self._name = name
        self._version = version
        self._members = members
        self._store = store
        self._epoch = epoch
        self._rise = rise
        self._saved_change = 0
        self._changed: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        self._waiting: list[Waiting] = []
        self._is_unsaved = self._has_ended = False

    @property
    def is_saved(self) -> bool:
        """Whether the record says all that there is to say of the group."""
        return not (self._changed or self._removed or self.is_saving)

    def note(self, member: Consumer) -> None:
        """A member has changed."""
        self.changes += 1
        member.change = self.changes
        self._changed[member.member_id] = None

    def note_removed(self, member_id: str) -> None:
        """There is no member of this id any more."""
        self.changes += 1
        self._changed.pop(member_id, None)
        self._removed[member_id] = None

    def answer(self, waiting: Waiting) -> None:
        """Give an answer once all is saved that it tells."""
        if waiting.change <= self._saved_change:
            waiting.done(waiting.answer)
            return
        self._waiting.append(waiting)
        self.save()

    def save(self) -> None:
        """Save what has changed, unless a save is under way: then once that has ended."""
        if self.is_saved or self.is_saving or self._has_ended:
            return
        saved = set(self._store.saved_members(self._name))
        changed, self._changed = self._changed, {}
        removed, self._removed = {one: None for one in self._removed if one in saved}, {}
        if not changed and not removed:  # who has gone was not saved yet
            self._release(self.changes)
            return
        command = SaveConsumers(
            self._store.term,
            self._name,
            self._version,
            self._epoch(),
            [self._members.by_id[one].saved() for one in changed],
            list(removed),
        )
        self.is_saving = True
        self._store.order(command, partial(self._saved, self.changes, changed, removed))

    def _saved(
        self,
        change: int,
        changed: dict[str, None],
        removed: dict[str, None],
        error: ErrorCode,
        *,
        is_saved: bool,
    ) -> None:
        self.is_saving = False
        if self._has_ended:
            return
        if error is not ErrorCode.NONE:
            self._store.give_up(self._name, error)
            return
        if is_saved:
            self._version += 1
            self._is_unsaved = False
            self._release(change)
        else:
            self._go_on_unsaved(change, changed, removed)
        if self.changes > change:
            self.save()

    def _go_on_unsaved(
        self, change: int, changed: dict[str, None], removed: dict[str, None]
    ) -> None:
        """Go on in memory, as disks are full.

        The epoch rises first, and who waits is to ask again: if the next coordinator does not know
        what a member is told, it does not know the epoch either that this was told with.
        """
        there = {one: None for one in changed if one in self._members.by_id}
        self._changed, self._removed = there | self._changed, removed | self._removed
        self._store.unsaved(self._name)
        if self._is_unsaved:
            self._release(change)
            return
        self._is_unsaved = True
        self._rise()
        self._saved_change = change
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.done(HeartbeatAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def _release(self, change: int) -> None:
        """Answer those who wait for what has happened up to a change."""
        self._saved_change = change
        waiting = self._waiting
        self._waiting = [one for one in waiting if one.change > change]
        for one in waiting:
            if one.change <= change:
                one.done(one.answer)

    def end(self, error: ErrorCode) -> None:
        """Answer all who wait: nothing is saved any more."""
        self._has_ended = True
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            is_for_newcomers = error is ErrorCode.GROUP_MAX_SIZE_REACHED and not one.is_new
            passing = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_for_newcomers else error
            one.done(HeartbeatAnswer(passing))
