"""Commits of offsets on their way into `__cluster`, in the order in which they came.

Those that come while others are under way go together in one command after these, so that many
clients cost little more than one. And none overtakes another: a command that `__cluster` refused,
as it had no room, say, is sent again later, and would bring an earlier offset back.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from quorumlog.kafka.broker_view import BrokerView
from quorumlog.machine.cluster.commands import (
    CommitOffsets,
    CommitTogether,
    GroupsChanged,
    OffsetsCommitted,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.wording import counted

COMMIT_MS: Final = 5_000
"""How long a commit waits for its turn, and then for its command."""
TOGETHER_MAX: Final = 500
"""Commits in one command."""
TOGETHER_BYTES: Final = 64 * 1024
"""Bytes of the commits in one command, by `_size_of`, unless it is a single one: less than the
smallest entry that a log may be allowed to have."""
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of the commits that wait for their turn, by `_size_of`."""
_COMMIT_BYTES, _OFFSET_BYTES = 64, 48
"""More than a commit, and each of its offsets, takes without texts."""
Committed: TypeAlias = Callable[[ResponseCode, str, GroupsChanged | None], None]
"""Called once: with SUCCESS and the result, or with the code and the reason why there is none."""


class _Waiting(NamedTuple):
    command: CommitOffsets
    size: int
    deadline_ms: int
    done: Committed


class OffsetCommits:
    """The commits of one coordinator; `now_ms` reads a clock that never goes back."""

    def __init__(self, broker: BrokerView, now_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._is_under_way = self._is_sending = False

    def __len__(self) -> int:
        return len(self._waiting)

    def commit(self, command: CommitOffsets, done: Committed) -> None:
        """Have offsets committed after all that were given before; `done` may be called at once."""
        size = _size_of(command)
        if self._waiting and self._bytes + size > WAITING_BYTES_MAX:
            text = f"{counted(len(self._waiting), 'commit')} wait already; try again later"
            done(ResponseCode.LEADER_PENDING_FULL, text, None)
            return
        self._waiting.append(_Waiting(command, size, self._now_ms() + COMMIT_MS, done))
        self._bytes += size
        self._send()

    def _send(self) -> None:
        """Send the next command, unless one is under way, or the caller does so."""
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self._waiting and not self._is_under_way:
                self._order(self._next())
        finally:
            self._is_sending = False

    def _next(self) -> list[_Waiting]:
        """Take those that go into the next command, all of one term; the late ones are answered."""
        some: list[_Waiting] = []
        size, now_ms = 0, self._now_ms()
        while self._waiting and len(some) < TOGETHER_MAX:
            one = self._waiting[0]
            is_late = now_ms >= one.deadline_ms
            if some and (
                is_late
                or size + one.size > TOGETHER_BYTES
                or one.command.term != some[0].command.term
            ):
                break
            self._waiting.popleft()
            self._bytes -= one.size
            if is_late:
                text = "__cluster did not apply in time what was to be committed before"
                one.done(ResponseCode.TIMEOUT, text, None)
            else:
                some.append(one)
                size += one.size
        return some

    def _order(self, some: Sequence[_Waiting]) -> None:
        if not some:
            return
        commands = [one.command for one in some]
        first = commands[0]

        def ordered(code: ResponseCode, text: str, result: Any) -> None:
            self._is_under_way = False
            if isinstance(result, OffsetsCommitted):
                results = result.results
            elif isinstance(result, GroupsChanged):
                results = [result] * len(some)
            else:
                code = ResponseCode.UNSUPPORTED if code is ResponseCode.SUCCESS else code
                results = []
            try:
                for number, one in enumerate(some):
                    one.done(code, text, results[number] if results else None)
            finally:
                self._send()

        self._is_under_way = True
        command = first if len(commands) == 1 else CommitTogether(first.term, commands)
        self._broker.order(command, COMMIT_MS, ordered)


def _size_of(command: CommitOffsets) -> int:
    texts = len(command.group.encode()) + len(command.member_id.encode())
    offsets = sum(_OFFSET_BYTES + len(one.metadata.encode()) for one in command.offsets)
    return _COMMIT_BYTES + texts + offsets
