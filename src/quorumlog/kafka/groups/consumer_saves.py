"""What has changed of a group by the consumer protocol is saved before members are told.

While a save is under way, what changes meanwhile waits, and is saved together. Answers that wait
for it have a bound, of all groups together (`group_saves.WAITING_BYTES_MAX`): a client may send one
heartbeat after the other, or join under many ids, while `__cluster` is slow. Above it members are
told to try again. What changes is of members, or of those that are saved, which are bounded, too.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NamedTuple, Protocol

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.consumers import Answered, Consumer, Consumers, HeartbeatAnswer
from quorumlog.machine.cluster.commands import SaveConsumers

ANSWER_BYTES: Final = 4_096
"""More than an answer takes that waits, besides the partitions that it names. Its request counts
for the connection, which bounds them."""
PARTITION_BYTES: Final = 200
"""More than a partition takes that an answer names."""

TRY_AGAIN: Final = HeartbeatAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)


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

    def saved_members(self, name: str) -> Collection[str]:
        """Return the ids of the members of a group that are saved."""
        ...

    def order(self, command: SaveConsumers, ended: SavedAnswer) -> None:
        """Have something saved; call `ended` once."""
        ...

    def wait(self, size_bytes: int) -> bool:
        """Count an answer that waits for a save; False: there is no room, and it shall not wait."""
        ...

    def waited(self, size_bytes: int) -> None:
        """Answers that took so much together wait no more."""
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

    @property
    def size_bytes(self) -> int:
        """About how many bytes it takes, rather more."""
        return _size_bytes(len(self.answer.assigned or ()))


def _size_bytes(partitions: int) -> int:
    return ANSWER_BYTES + PARTITION_BYTES * partitions


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
        self._under_way: Collection[str] = ()
        """Members that the save under way says something of."""
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
        """There is no member of this id any more. One that was not saved need not be removed."""
        self.changes += 1
        self._changed.pop(member_id, None)
        if member_id in self._under_way or member_id in self._store.saved_members(self._name):
            self._removed[member_id] = None

    def may_wait(self, partitions: int) -> bool:
        """Whether there is room for an answer to wait that names this number of partitions."""
        size_bytes = _size_bytes(partitions)
        has_room = self._store.wait(size_bytes)
        if has_room:
            self._store.waited(size_bytes)
        return has_room

    def answer(self, waiting: Waiting) -> None:
        """Give an answer once all is saved that it tells; without room: have the member try again.

        Who has a member come nearer to its target asks `may_wait` before: one that comes nearer
        twice and is told neither has an epoch that nobody knows any more.
        """
        if waiting.change <= self._saved_change:
            waiting.done(waiting.answer)
            return
        if self._store.wait(waiting.size_bytes):
            self._waiting.append(waiting)
        else:
            waiting.done(TRY_AGAIN)
        self.save()

    def _taken(self, change: int | None = None) -> list[Waiting]:
        """Have those wait no more that wait for what has happened up to a change, or all."""
        last = self.changes if change is None else change
        taken = [one for one in self._waiting if one.change <= last]
        self._waiting = [one for one in self._waiting if one.change > last]
        self._store.waited(sum(one.size_bytes for one in taken))
        return taken

    def save(self) -> None:
        """Save what has changed, unless a save is under way: then once that has ended."""
        if self.is_saving or self._has_ended:
            return
        saved = self._store.saved_members(self._name)
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
        self.is_saving, self._under_way = True, changed
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
        self.is_saving, self._under_way = False, ()
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
        for one in self._taken():
            one.done(TRY_AGAIN)

    def _release(self, change: int) -> None:
        """Answer those who wait for what has happened up to a change."""
        self._saved_change = change
        for one in self._taken(change):
            one.done(one.answer)

    def end(self, error: ErrorCode) -> None:
        """Answer all who wait: nothing is saved any more."""
        self._has_ended = True
        for one in self._taken():
            is_for_newcomers = error is ErrorCode.GROUP_MAX_SIZE_REACHED and not one.is_new
            passing = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_for_newcomers else error
            one.done(HeartbeatAnswer(passing))
