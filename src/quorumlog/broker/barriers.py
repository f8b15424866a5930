"""Reads that wait until this node knows what `__cluster` had committed when they were asked for."""

from collections.abc import Callable
from typing import Final, NamedTuple

from quorumlog.model.codes import ResponseCode
from quorumlog.node.replica.replica import Replica

BARRIERS_MAX: Final = 65_536
"""Reads that wait at a time."""


class _Barrier(NamedTuple):
    until_index: int
    deadline_ms: int
    done: Callable[[bool], None]


class Barriers:
    """The reads of one node. `now_ms` reads a monotonic clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._waiting: list[_Barrier] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, replica: Replica | None, timeout_ms: int, done: Callable[[bool], None]) -> None:
        """Call `done` once `replica` has applied all that is committed now, or with False.

        The leader asks a majority first whether it still leads.
        """
        if replica is None or len(self._waiting) >= BARRIERS_MAX:
            done(False)
            return
        deadline_ms = self._now_ms() + timeout_ms

        def asked(code: ResponseCode, text: str, index: int) -> None:
            if code is not ResponseCode.SUCCESS:
                done(False)
            elif replica.applied_index >= index:
                done(True)
            else:
                self._waiting.append(_Barrier(index, deadline_ms, done))

        replica.pending_requests.read(asked)

    def look(self, applied_index: int) -> None:
        """Let those go on that need no more than what is applied, or whose time is over."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        now_ms = self._now_ms()
        for one in waiting:
            if one.until_index <= applied_index or now_ms >= one.deadline_ms:
                one.done(one.until_index <= applied_index)
            else:
                self._waiting.append(one)

    def end(self) -> None:
        """Refuse what waits: the node stops."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.done(False)
