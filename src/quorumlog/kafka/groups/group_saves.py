"""How the coordinator has groups saved in `__cluster`, and what it does if that fails.

Saves of one group by the classic protocol are not under way at the same time, as an earlier one
might be carried out after a later one. Of those that wait meanwhile the last one says all, so only
that is kept, with those that wait for its end. What waits has a bound: a static member that is
started again and again has its group saved each time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from quorumlog.kafka.broker_view import BrokerView
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.consumer_saves import SavedAnswer
from quorumlog.machine.cluster.commands import (
    GroupsChanged,
    SaveConsumers,
    SaveGroup,
)
from quorumlog.machine.cluster.consumer_groups import GROUP_BYTES, size_of_member, size_of_texts
from quorumlog.model.codes import ResponseCode

SAVE_MS: Final = 5_000
"""How long saving may take, as in Kafka (offsets.commit.timeout.ms)."""
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of what waits to be saved of all groups, with `CALL_BYTES` for each that waits for it."""
CALL_BYTES: Final = 1_024
"""More than somebody takes who waits for a save."""
_ERRORS: Final = {
    ResponseCode.SUCCESS: ErrorCode.NONE,
    ResponseCode.CLUSTER_FULL: ErrorCode.GROUP_MAX_SIZE_REACHED,
    ResponseCode.UNEXPECTED_ARGUMENT: ErrorCode.GROUP_MAX_SIZE_REACHED,
    ResponseCode.NOT_LEADER: ErrorCode.NOT_COORDINATOR,
    ResponseCode.INCONSISTENT_TERM: ErrorCode.NOT_COORDINATOR,
    ResponseCode.NODE_STOPPING: ErrorCode.NOT_COORDINATOR,
}
"""Why a group is not saved. After all others members try again later; they look for the coordinator
first, as for those of which another one may save it. On a full disk a group goes on unsaved."""

Done: TypeAlias = Callable[[ErrorCode], None]
"""Called once, with NONE or with why a group was not saved."""


@dataclass(slots=True)
class _Waiting:
    """What is saved next of a group. `calls`: those that wait for it, or for one before it."""

    group: SaveGroup
    group_bytes: int
    calls: list[Done]

    @property
    def size_bytes(self) -> int:
        return self.group_bytes + CALL_BYTES * len(self.calls)


class GroupSaves:
    """Saves of all groups of one coordinator.

    `unsaved` is called with the name of a group of the classic protocol that goes on in memory, as
    disks are full; `ended` with each command that has ended, after those who wait for it.
    """

    def __init__(
        self,
        broker: BrokerView,
        unsaved: Callable[[str], None],
        ended: Callable[[SaveGroup | SaveConsumers], None],
    ) -> None:
        self._broker = broker
        self._unsaved = unsaved
        self._ended = ended
        self._saving: dict[str, _Waiting | None] = {}
        """Groups of which a save is under way, with what is to be saved after it."""
        self.waiting_bytes = 0
        """About how many bytes that takes."""

    def is_saving(self, name: str) -> bool:
        """Whether a save of a group by the classic protocol is under way."""
        return name in self._saving

    def save(self, group: SaveGroup, done: Done) -> None:
        """Have a group by the classic protocol saved; `done` may be called at once."""
        name = group.group
        if name not in self._saving:
            self._saving[name] = None
            self._order_save(group, [done])
            return
        before = self._saving[name]
        if before is not None and before.group.term != group.term:  # of an earlier coordinator
            self._take(name)
            for call in before.calls:
                call(ErrorCode.NOT_COORDINATOR)
            before = self._saving[name]
        calls = [] if before is None else before.calls
        waiting = _Waiting(group, _size_of(group), [*calls, done])
        growth = waiting.size_bytes - (0 if before is None else before.size_bytes)
        if self.waiting_bytes + growth > WAITING_BYTES_MAX:
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        self.waiting_bytes += growth
        self._saving[name] = waiting

    def _take(self, name: str) -> _Waiting | None:
        """Return what is to be saved next of a group; nothing is then."""
        waiting, self._saving[name] = self._saving[name], None
        self.waiting_bytes -= 0 if waiting is None else waiting.size_bytes
        return waiting

    def _order_save(self, group: SaveGroup, calls: Sequence[Done]) -> None:
        def ended(error: ErrorCode, *, is_saved: bool) -> None:
            if error is ErrorCode.NONE and not is_saved:
                self._unsaved(group.group)
            waiting = self._take(group.group)
            if waiting is None:
                del self._saving[group.group]
            else:
                self._order_save(waiting.group, waiting.calls)
            for call in calls:
                call(error)

        self.order(group, ended)

    def order(self, command: SaveGroup | SaveConsumers, ended: SavedAnswer) -> None:
        """Have a group saved; on a full disk it goes on unsaved if no other node coordinates."""

        def ordered(code: ResponseCode, text: str, result: Any) -> None:
            outcome = result.code if isinstance(result, GroupsChanged) else code
            if outcome is ResponseCode.DISK_FULL:
                self._broker.ask_barrier(SAVE_MS, has_passed)
            else:
                error = _ERRORS.get(outcome, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                end(error, is_saved=outcome is ResponseCode.SUCCESS)

        def has_passed(is_leader: bool) -> None:
            goes_on = is_leader and self._broker.coordinator_term == command.term
            error = ErrorCode.NONE if goes_on else ErrorCode.COORDINATOR_NOT_AVAILABLE
            end(error, is_saved=False)

        def end(error: ErrorCode, *, is_saved: bool) -> None:
            ended(error, is_saved=is_saved)
            self._ended(command)

        self._broker.order(command, SAVE_MS, ordered)


def _size_of(group: SaveGroup) -> int:
    """Return about how many bytes a group takes that is to be saved."""
    texts = size_of_texts(group.group, group.protocol_type, group.protocol, group.leader)
    return GROUP_BYTES + texts + sum(map(size_of_member, group.members))
