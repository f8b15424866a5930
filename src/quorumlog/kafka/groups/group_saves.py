"""How the coordinator has groups saved in `__cluster`, and what it does if that fails.

Saves of one group by the classic protocol are not under way at the same time, as an earlier one
might be applied after a later one. Each holds the whole group, so of those that are asked for
meanwhile only the newest is kept, with the waiters of all of them. What waits has a bound: a static
member that is started again and again has its group saved each time.
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
"""Bytes of what waits to be saved of all groups, with `WAITER_BYTES` for each waiter, and of
answers that wait for a save of a group by the consumer protocol.

What is under way is bounded elsewhere (`broker.commands.CALL_BYTES_MAX`), but not who waits for it.
"""
WAITER_BYTES: Final = 4_096
"""More than a waiter takes: a member that waits for its answer, with its id and the one before."""
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

Waiter: TypeAlias = Callable[[ErrorCode], None]
"""Called once, with NONE or with why a group was not saved. It holds `WAITER_BYTES` at most."""


@dataclass(slots=True)
class _Waiting:
    """What is saved next of a group. `waiters`: of this save, and of those that it replaced."""

    group: SaveGroup
    group_bytes: int
    waiters: list[Waiter]

    @property
    def waiter_bytes(self) -> int:
        return WAITER_BYTES * len(self.waiters)

    @property
    def size_bytes(self) -> int:
        return self.group_bytes + self.waiter_bytes


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
        """About how many bytes that takes, and those who wait for it or have waited for what is
        under way now. The first save of a group does not count: there is one of each at most.
        Answers to members by the consumer protocol that wait for a save count, too."""

    def is_saving(self, name: str) -> bool:
        """Whether a save of a group by the classic protocol is under way."""
        return name in self._saving

    def save(self, group: SaveGroup, done: Waiter) -> None:
        """Have a group by the classic protocol saved; `done` may be called at once."""
        name = group.group
        if name not in self._saving:
            self._saving[name] = None
            self._order_save(group, [done], 0)
            return
        before = self._saving[name]
        if before is not None and before.group.term != group.term:  # of an earlier coordinator
            self._take(name)
            for waiter in before.waiters:
                waiter(ErrorCode.NOT_COORDINATOR)
            before = self._saving[name]
        group_bytes = _size_of(group)
        growth = WAITER_BYTES + group_bytes - (0 if before is None else before.group_bytes)
        if self.waiting_bytes + growth > WAITING_BYTES_MAX:
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        self.waiting_bytes += growth
        if before is None:
            self._saving[name] = _Waiting(group, group_bytes, [done])
        else:
            before.group, before.group_bytes = group, group_bytes
            before.waiters.append(done)

    def wait(self, size_bytes: int) -> bool:
        """See `SaveStore`."""
        if self.waiting_bytes + size_bytes > WAITING_BYTES_MAX:
            return False
        self.waiting_bytes += size_bytes
        return True

    def waited(self, size_bytes: int) -> None:
        """See `SaveStore`."""
        self.waiting_bytes -= size_bytes

    def _take(self, name: str) -> _Waiting | None:
        """Return what is to be saved next of a group; nothing is then."""
        waiting, self._saving[name] = self._saving[name], None
        self.waiting_bytes -= 0 if waiting is None else waiting.size_bytes
        return waiting

    def _order_save(self, group: SaveGroup, waiters: Sequence[Waiter], counted_bytes: int) -> None:
        """Have a group saved; its waiters are counted until that has ended."""

        def ended(error: ErrorCode, *, is_saved: bool) -> None:
            if error is ErrorCode.NONE and not is_saved:
                self._unsaved(group.group)
            self.waiting_bytes -= counted_bytes
            waiting = self._take(group.group)
            if waiting is None:
                del self._saving[group.group]
            else:
                self._order_save(waiting.group, waiting.waiters, waiting.waiter_bytes)
            for waiter in waiters:
                waiter(error)

        self.waiting_bytes += counted_bytes
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
