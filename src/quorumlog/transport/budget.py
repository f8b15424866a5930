"""Memory of many connections under one bound: frames that are coming, requests that wait for their
answers, answers that nobody reads.

A frame may grow while there is room. Without room it waits, and only the oldest one goes on, so
that one frame is always finished; while appends take the memory, it waits for their answers, and
all others wait for it. Connections that hold memory but send no bytes are then ended. If
unread answers take too much memory, the connection that reads slowest is ended first.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

CHECK_S = 0.05
"""Pause between checks for frames that hold memory without progress while others wait for it."""
PROGRESS_BYTES_MIN = 16 * 1024
"""Bytes of a frame from one check to the next; with fewer it makes no progress."""
LATE_CHECKS_MAX = 2
"""Checks in a row without progress after which a connection is ended. After a single one the loop
may not have read yet what has arrived."""


class MemoryHolder(Protocol):
    """A connection, as those see it that bound its memory."""

    bytes_in: int
    bytes_out: int

    @property
    def is_kept_waiting(self) -> bool:
        """Whether the node does not read from it, for reasons that are not its own."""
        ...

    @property
    def outbox_bytes(self) -> int:
        """Bytes of answers that are not read yet."""
        ...

    def go_on(self) -> None:
        """There is memory for what it wants to receive."""
        ...

    def abort(self, reason: str) -> None:
        """End it."""
        ...


class RequestMemory:
    """Memory of requests that have arrived and wait for their answers, whoever sent them.

    Whoever takes a request holds its bytes here until it is answered. `bytes_max` is for all of
    them together; `is_full` says when no more may be taken.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.when_freed: Callable[[], None] | None = None
        """Called after each release, for those that wait for memory."""

    def has_taken_too_much(self, size: int) -> bool:
        """Whether requests hold more than they may, besides one of `size` bytes that is alone."""
        return self.used > self.bytes_max and self.used > size

    @property
    def is_half_full(self) -> bool:
        """Whether whoever sends more than one request at a time should wait."""
        return 2 * self.used > self.bytes_max

    def hold(self, size: int) -> None:
        """A request of `size` bytes was taken."""
        self.used += size

    def release(self, size: int) -> None:
        """A request of `size` bytes was answered."""
        self.used -= size
        if self.when_freed is not None:
            self.when_freed()


class FrameMemory:
    """Memory for unfinished frames of some connections: never more than `bytes_max` and one frame.

    No frame grows beyond the bound with what `appends` hold, either: a whole frame takes no less
    memory than one that is coming. (Requests that arrive whole at once have the bound of `appends`
    only.)

    The oldest is the one that came here first, not the one with the earliest time: a connection may
    change the time of its frame, and if several became the oldest in turn, each would hold more.
    """

    def __init__(self, bytes_max: int, appends: RequestMemory | None = None) -> None:
        self._bytes_max = bytes_max
        self._appends = appends or RequestMemory(0)
        self._held: dict[MemoryHolder, int] = {}
        self._came: dict[MemoryHolder, None] = {}
        """All that hold memory or wait for it; the first one goes on beyond the bound."""
        self._waiting: dict[MemoryHolder, int] = {}
        self._seen: dict[MemoryHolder, tuple[int, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.used = 0
        self.ended = 0

    def hold(self, holder: MemoryHolder, size: int) -> bool:
        """Hold `size` bytes for a connection; False: it must wait until `go_on` is called."""
        held = self._held.get(holder, 0)
        self._came.setdefault(holder)
        if size <= held or self._may_grow(holder, size - held):
            self._set(holder, size)
            if size < held:
                self._let_go_on()
            return True
        self._waiting[holder] = size
        self._appends.when_freed = self._let_go_on
        if self._timer is None:
            self._seen = {}
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)
        return False

    def forget(self, holder: MemoryHolder) -> None:
        """Release all memory of a connection, which waits for nothing any more."""
        self._waiting.pop(holder, None)
        self._came.pop(holder, None)
        self._set(holder, 0)
        self._let_go_on()

    def _may_grow(self, holder: MemoryHolder, more: int) -> bool:
        oldest = next(iter(self._came))
        if oldest is not holder and oldest in self._waiting:
            return False  # new appends could take its room again and again
        if self.used + self._appends.used + more <= self._bytes_max:
            return True
        # one must be finished, or all would wait for each other; appends are answered anyway
        return oldest is holder and not self._appends.is_half_full

    def _set(self, holder: MemoryHolder, size: int) -> None:
        held = self._held.get(holder, 0)
        self.used += size - held
        if size:
            self._held[holder] = size
        else:
            self._held.pop(holder, None)

    def _let_go_on(self) -> None:
        """Let the oldest go on, then those that have waited longest, as far as there is room."""
        while self._waiting:
            first = next(iter(self._came))
            holder = first if first in self._waiting else next(iter(self._waiting))
            size = self._waiting[holder]
            if not self._may_grow(holder, size - self._held.get(holder, 0)):
                return
            del self._waiting[holder]
            self._set(holder, size)
            holder.go_on()
        self._appends.when_freed = None

    def _is_short(self) -> bool:
        """Whether frames alone take the memory that others wait for."""
        wanted = (size - self._held.get(holder, 0) for holder, size in self._waiting.items())
        return self.used + min(wanted, default=0) > self._bytes_max

    def _check(self) -> None:
        """End those that hold memory and make no progress, while others wait for it."""
        self._timer = None
        seen, self._seen = self._seen, {}
        late: list[MemoryHolder] = []
        for holder in self._held if self._is_short() else ():
            if holder in self._waiting or holder.is_kept_waiting:
                continue
            bytes_in, looks = seen.get(holder, (holder.bytes_in - PROGRESS_BYTES_MIN, 0))
            looks = 0 if holder.bytes_in - bytes_in >= PROGRESS_BYTES_MIN else looks + 1
            self._seen[holder] = (holder.bytes_in, looks)
            if looks >= LATE_CHECKS_MAX:
                late.append(holder)
        for holder in late:
            self.ended += 1
            self.forget(holder)
            holder.abort("its frame makes no progress, and others wait for the memory")
        self._let_go_on()
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)


class AnswerMemory:
    """Memory for unread answers of some connections.

    A connection's lag is the time since it has had something to read, less the time that the bytes
    it read take at `bytes_per_second_min`: reading a few bytes now and then does not help.
    """

    def __init__(self, bytes_max: int, unread_s: float, bytes_per_second_min: int) -> None:
        self._bytes_max = bytes_max
        self._unread_s = unread_s
        self._bytes_per_second_min = bytes_per_second_min
        self._unread: dict[MemoryHolder, tuple[int, int, float]] = {}
        self.used = 0
        self.ended = 0

    def sent(self, holder: MemoryHolder) -> None:
        """Something was given to a connection."""
        if holder.outbox_bytes or holder in self._unread:
            now = asyncio.get_running_loop().time()
            self._note(holder, now)
            if self.used > self._bytes_max:
                self._make_room(now)

    def forget(self, holder: MemoryHolder) -> None:
        """A connection has ended."""
        left, _, _ = self._unread.pop(holder, (0, 0, 0.0))
        self.used -= left

    def check(self) -> None:
        """End connections that lag too far. To be called now and then."""
        now = asyncio.get_running_loop().time()
        self._refresh(now)
        for holder, (_, _, since) in list(self._unread.items()):
            if now - since > self._unread_s:
                self._end(
                    holder,
                    f"it is {self._unread_s:g} s behind with reading its answers, at "
                    f"{self._bytes_per_second_min} bytes per second",
                )

    def _note(self, holder: MemoryHolder, now: float) -> None:
        """Note what a connection has left to read, and up to when it has read fast enough."""
        left = holder.outbox_bytes
        taken = holder.bytes_out - left
        before, taken_before, since = self._unread.get(holder, (0, taken, now))
        self.used += left - before
        if left:
            since += (taken - taken_before) / self._bytes_per_second_min
            self._unread[holder] = (left, taken, min(now, since))
        else:
            self._unread.pop(holder, None)

    def _refresh(self, now: float) -> None:
        for holder in list(self._unread):
            self._note(holder, now)

    def _make_room(self, now: float) -> None:
        self._refresh(now)
        slowest = sorted(self._unread, key=lambda holder: self._unread[holder][2])
        for holder in slowest:
            if self.used <= self._bytes_max:
                return
            self._end(holder, "its answers are not being read, and others need the memory")

    def _end(self, holder: MemoryHolder, reason: str) -> None:
        self.ended += 1
        self.forget(holder)
        holder.abort(reason)


class Budgets:
    """All bounds on memory of the connections that a node accepted."""

    def __init__(
        self,
        receive_bytes_max: int,
        peer_receive_bytes_max: int,
        send_bytes_max: int,
        unread_ms: int,
        bytes_per_second_min: int,
        appends: RequestMemory,
    ) -> None:
        unproven = receive_bytes_max // 4
        self.unproven = FrameMemory(unproven)
        """Memory of connections none of whose requests was answered yet."""
        self.clients = FrameMemory(receive_bytes_max - unproven, appends)
        self.members = FrameMemory(peer_receive_bytes_max)
        self.answers = AnswerMemory(send_bytes_max, unread_ms / 1000, bytes_per_second_min)
