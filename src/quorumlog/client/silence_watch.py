"""Notices that a server has fallen silent while somebody waits for it."""

import asyncio
import math
from typing import Protocol

from quorumlog.transport.connection import Connection

CHECK_S = 0.2
"""How often the server is checked while a prompt request waits."""
RECHECK_S = 0.1
"""How often once the server was pinged and has not answered."""
POLL_CHECK_S = 1.0
"""How often while only long polls wait, which the server may keep on purpose."""
TOLD_S = 3.0
"""A server that has told a client to wait is not asked for this long whether it is there: it tells
so each second."""
GONE_S = 4.0
"""A server silent for this long counts as gone: a process that is frozen keeps its connections."""


class Watched(Protocol):
    """The connection to a server, as its watch sees it."""

    @property
    def transport(self) -> Connection | None:
        """The connection whose bytes are counted, once there is one."""
        ...

    @property
    def is_opening(self) -> bool:
        """Whether it is being opened."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        ...

    @property
    def unanswered(self) -> int:
        """Number of requests that wait for an answer."""
        ...

    @property
    def waits_for_polls_only(self) -> bool:
        """Whether every request that waits is a long poll."""
        ...

    def ping(self) -> None:
        """Ask the server something that it answers at once."""
        ...

    def fell_silent(self) -> None:
        """The server has not answered the ping yet; called at every check."""
        ...

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        ...


class SilenceWatch:
    """A timer that runs while a request, or the opening of a connection, waits for the server.

    Each check compares how many bytes came and went. The first one that sees no movement pings the
    server, the next ones report that it is silent, and after `GONE_S` the connection ends.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._timer: asyncio.TimerHandle | None = None
        self._interval_s = 0.0
        self._bytes_in = 0
        self._unsent = 0
        self._was_unsent = False
        self._silent_s = 0.0
        self._is_pinged = False
        self._told_at = self.throttled_until = -math.inf
        """When the server last said that this client has to wait, and until when."""

    def throttled(self, ms: int) -> None:
        """The server has told this client to wait."""
        self._told_at = asyncio.get_running_loop().time()
        self.throttled_until = self._told_at + ms / 1000

    @property
    def _may_be_mute(self) -> bool:
        """Whether the server need not answer now, as this client has to wait."""
        now = asyncio.get_running_loop().time()
        return now < min(self.throttled_until, self._told_at + TOLD_S)

    @property
    def is_running(self) -> bool:
        """Whether the next check is due at some time."""
        return self._timer is not None

    @property
    def is_silent(self) -> bool:
        """Whether the last check found that the server says nothing, and nothing came since."""
        transport = self._watched.transport
        came = transport.bytes_in if transport is not None else 0
        return self._silent_s > 0 and came == self._bytes_in

    def before_request(self, transport: Connection, *, is_poll: bool) -> None:
        """Have the server checked, since a request is about to be sent."""
        if self._timer is None:
            self.has_progress(transport)
            self.start(is_slow=is_poll)
        elif not is_poll and self._interval_s > CHECK_S:
            self._timer.cancel()
            self.start()

    def sent(self, queued_bytes: int) -> None:
        """Count bytes that a request has added to what waits to be sent."""
        self._unsent += queued_bytes

    def start(self, *, is_slow: bool = False) -> None:
        """Have the next check made after an interval."""
        prompt_s = RECHECK_S if self._is_pinged else CHECK_S
        self._interval_s = POLL_CHECK_S if is_slow else prompt_s
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self.check)

    def stop(self) -> None:
        """Make no further check."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self) -> None:
        """Check whether the server is there, as long as anybody waits for it."""
        self._timer = None
        watched = self._watched
        transport = watched.transport
        if not watched.is_opening and (transport is None or not transport.is_open):
            return
        if not self.has_progress(transport):
            # not the time that has passed: this process itself may have stood still meanwhile
            self._silent_s += self._interval_s
        if not watched.is_opening and not watched.unanswered:
            if not self._is_pinged:  # else it owes an answer: the silence goes on
                self._silent_s = 0.0
            return
        if self._silent_s and not self._may_be_mute:
            self._act_on_silence()
        if watched.is_opening or watched.is_open:
            self.start(is_slow=watched.waits_for_polls_only)

    def has_progress(self, transport: Connection | None) -> bool:
        """Return whether anything came or went since the last time; then the silence is over.

        That the operating system takes bytes proves that the server reads only if they did not all
        fit into its buffer.
        """
        came = transport.bytes_in if transport is not None else 0
        unsent = transport.outbox_bytes if transport is not None else 0
        moved = came != self._bytes_in or (self._was_unsent and unsent < self._unsent)
        self._bytes_in, self._unsent, self._was_unsent = came, unsent, unsent > 0
        if moved:
            self._silent_s, self._is_pinged = 0.0, False
        return moved

    def _act_on_silence(self) -> None:
        if not self._is_pinged:
            self._is_pinged = True
            self._watched.ping()
        elif self._silent_s >= GONE_S:
            self._watched.abort(f"has not said anything for {self._silent_s:.1f} s")
        else:
            self._watched.fell_silent()
