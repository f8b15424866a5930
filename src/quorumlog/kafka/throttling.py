"""Quotas on one connection: what its requests use, and how long none of them is begun."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from quorumlog.auth.hosts import without_port
from quorumlog.auth.quotas import CONSUMED, PRODUCED, REQUEST_RATE
from quorumlog.auth.throttles import STEP_S, Meter, Throttles, wait_ms
from quorumlog.kafka.codec import with_throttle_time
from quorumlog.kafka.pending_request import PendingRequest
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.block import Buffer

_FREE: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
"""Requests by which a client says who it is."""


class Throttling:
    """Delays the requests of a connection, as Kafka does since KIP-219.

    A request is served, whatever it uses; if that is more than a quota has left, its answer tells
    the client how long to wait, and until then nothing of the connection is begun or read.
    `changed` is called when that is over. `now`: seconds of a clock that never goes back.
    """

    __slots__ = ("_changed", "_client_id", "_meter", "_now", "_timer", "is_muted", "throttles")

    def __init__(
        self, throttles: Throttles, now: Callable[[], float], changed: Callable[[], None]
    ) -> None:
        self.throttles = throttles
        self.is_muted = False
        self._now = now
        self._changed = changed
        self._meter: Meter | None = None
        self._client_id = ""
        self._timer: asyncio.TimerHandle | None = None

    def begins(self, request: PendingRequest) -> None:
        """A request is about to be begun, whose client is known; to be called if quotas count."""
        if request.header.api_key in _FREE:
            return
        context = request.context
        if self._meter is None:
            self._meter = Meter(self.throttles, without_port(context.address))
            self._client_id = context.client_id  # as long as it is connected
        meter, now = self._meter, self._now()
        meter.name(context.principal, self._client_id)
        meter.take(REQUEST_RATE, 1, now)
        if request.is_produce:
            meter.take(PRODUCED, request.frame.size, now)
        self._mute(meter, now)

    def bytes_left(self) -> float | None:
        """Return how many bytes the client may read now; below 0: it has to wait; None: any."""
        return None if self._meter is None else self._meter.left(CONSUMED, self._now())

    def told(self, request: PendingRequest, answer: Sequence[Buffer]) -> Sequence[Buffer]:
        """Return the answer to a request with the time that the client has to wait."""
        meter, now = self._meter, self._now()
        if meter is None:
            return answer
        if request.bytes_read:
            meter.take(CONSUMED, request.bytes_read, now)
        self._mute(meter, now)
        seconds = meter.wait_s(now) if self.is_muted else 0.0
        return with_throttle_time(request.header, answer, wait_ms(seconds)) if seconds else answer

    def end(self) -> None:
        """The connection has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _mute(self, meter: Meter, now: float) -> None:
        if not self.is_muted and (seconds := meter.begin_wait(now)):
            self.is_muted = True
            self._look_later(seconds)

    def _look_later(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(min(seconds, STEP_S), self._look)

    def _look(self) -> None:
        """Go on if the debt is paid, or the quota is another one."""
        seconds = 0.0 if self._meter is None else self._meter.wait_s(self._now())
        if seconds:
            self._look_later(seconds)
            return
        self._timer = None
        self.is_muted = False
        self._changed()
