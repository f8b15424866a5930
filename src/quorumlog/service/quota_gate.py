"""What delays a client's requests on the node's own port, as long as it has used up a quota."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from quorumlog.auth.admissions import Admissions
from quorumlog.auth.hosts import without_port
from quorumlog.auth.quotas import CONSUMED, PRODUCED, REQUEST_RATE
from quorumlog.auth.throttles import STEP_S, Meter, Throttles, wait_ms
from quorumlog.model.features import THROTTLING
from quorumlog.model.messages.base import Hello, Response
from quorumlog.model.messages.client import (
    AppendRequest,
    FetchRequest,
    MetadataRequest,
    Throttled,
    WatchLeaderRequest,
)
from quorumlog.service.requests import ClientRequests
from quorumlog.transport.connection import Connection
from quorumlog.wire.frame import Frame

SIGN_S: Final = 0.15
"""Pause between two signs of life for a client that cannot be told to wait: it asks whether the
node is there after 0.2 s without any, and takes it for dead after 4."""
_FREE: Final = (MetadataRequest, WatchLeaderRequest)
"""Requests that are neither counted nor delayed: by them a client sees that a node is there, and
finds another one."""


class QuotaGate:
    """Handles a client's connection; `requests` gets its frames.

    A request is served, whatever it uses. If that is more than a quota has left, the client is told
    to wait (`Throttled`). One that sends more meanwhile has that served, too, and is then not read
    until its debt is paid; so is one that cannot be told. `now`: seconds of a clock that never goes
    back.
    """

    def __init__(
        self,
        throttles: Throttles,
        admissions: Admissions,
        requests: ClientRequests,
        now: Callable[[], float],
    ) -> None:
        self._throttles = throttles
        self._admissions = admissions
        self._requests = requests
        self._now = now
        self._meter: Meter
        """What the client uses, once the connection is open."""
        self._client_id = ""
        self._timer: asyncio.TimerHandle | None = None
        """Set while the client has to wait."""
        self._principal = ""
        """Whose connection this is counted as."""
        self._has_taken = self._is_closed = False

    def opened(self, connection: Connection, hello: Hello) -> None:
        """See `ConnectionHandler`."""
        self._client_id = hello.client
        self._meter = Meter(self._throttles, without_port(connection.remote_address))
        self._requests.gave = lambda size: self._gave(connection, size)
        self._requests.opened(connection, hello)
        self._is_admitted(connection)

    def _is_admitted(self, connection: Connection) -> bool:
        """Count the connection as its user's; end it, and return False, if that has too many."""
        self._principal = connection.principal
        reason = self._admissions.refusal_of_user(connection, connection.principal)
        if reason:
            connection.refuse(reason, has_taken=self._has_taken)
        return not reason

    def frame_received(self, connection: Connection, frame: Frame) -> None:
        """See `ConnectionHandler`."""
        # the client may have logged in meanwhile
        if connection.principal != self._principal and not self._is_admitted(connection):
            return
        self._has_taken = True
        if self._throttles.is_active and not isinstance(frame.message, _FREE):
            frame = self._counted(connection, frame)
        self._requests.frame_received(connection, frame)

    def closed(self, connection: Connection, reason: str) -> None:
        """See `ConnectionHandler`."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._requests.closed(connection, reason)

    def _counted(self, connection: Connection, frame: Frame) -> Frame:
        """Return a request after it was counted; one that reads asks for no more than is left."""
        meter, now, message = self._meter, self._now(), frame.message
        meter.name(connection.principal, self._client_id)
        meter.take(REQUEST_RATE, 1, now)
        if isinstance(message, AppendRequest):
            meter.take(PRODUCED, len(frame.attachment), now)
        if isinstance(message, FetchRequest) and message.bytes_max > 0:
            left = meter.left(CONSUMED, now)
            if left is not None and left < message.bytes_max:
                message = msgspec.structs.replace(message, bytes_max=max(1, int(left)))
                frame = msgspec.structs.replace(frame, message=message)
        if self._timer is not None:  # it does not wait
            connection.mute()
        self._throttle(connection, now)
        return frame

    def _gave(self, connection: Connection, size: int) -> None:
        """Something was read: entries, or answers of a state machine, maybe for who has left."""
        if self._throttles.is_active:
            now = self._now()
            self._meter.name(connection.principal, self._client_id)
            self._meter.take(CONSUMED, size, now)
            self._throttle(connection, now)

    def _throttle(self, connection: Connection, now: float) -> None:
        if self._is_closed or self._timer is not None:
            return
        if seconds := self._meter.begin_wait(now):
            if not connection.agreed.features & THROTTLING:
                connection.mute()
            self._tell(connection, seconds)

    def _tell(self, connection: Connection, seconds: float) -> None:
        """Tell the client to wait, or that the node is there, and look again a little later."""
        step_s = STEP_S
        if connection.agreed.features & THROTTLING:
            connection.send(Throttled(ms=wait_ms(seconds)))
        else:
            step_s = SIGN_S
            connection.send(Response())  # answers nothing, so it is ignored
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(min(seconds, step_s), self._look, connection)

    def _look(self, connection: Connection) -> None:
        """Go on if the debt is paid, or the quota is another one."""
        seconds = self._meter.wait_s(self._now())
        if seconds:
            self._tell(connection, seconds)
        else:
            self._timer = None
            connection.unmute()
