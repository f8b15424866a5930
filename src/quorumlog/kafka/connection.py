"""One connection of a Kafka client: frames in, answers out, bounds on both."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from quorumlog.auth.hosts import without_port
from quorumlog.auth.login import REVOKED_TEXT, ConnectionLogin, Logins
from quorumlog.kafka.client_login import ClientLogin
from quorumlog.kafka.context import Services
from quorumlog.kafka.frames import FrameReader, ReceivedFrame
from quorumlog.kafka.memory import KafkaMemory
from quorumlog.kafka.request_queue import RequestQueue
from quorumlog.log_events import log_event
from quorumlog.model.block import Buffer
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.limits import Limits
from quorumlog.transport.shared_resources import SharedResources
from quorumlog.transport.stream import HANDLER, StreamConnection, TransportCounters
from quorumlog.wire.frame import RefusedFrame

logger = logging.getLogger(__name__)

IDLE_S: Final = 600.0
"""A connection that has sent nothing for this long, and waits for nothing, is closed."""


class KafkaConnection(StreamConnection):
    """A connection that a Kafka client has made."""

    _decoder: FrameReader

    def __init__(
        self,
        services: Services,
        memory: KafkaMemory,
        limits: Limits,
        counters: TransportCounters,
        *,
        on_lost: Callable[[Any], None] | None,
        shared: SharedResources,
        logins: Logins | None = None,
    ) -> None:
        reader = FrameReader(staged=shared.staged, allocates_ahead=False)
        super().__init__(reader, limits, counters, on_lost=on_lost, shared=shared)
        self._services = services
        self._memory = memory
        self._queue = RequestQueue(services, memory, self)
        self._logins = logins
        self._login: ClientLogin | None = None
        self._is_introduced = self._is_unread = False

    @property
    def is_introduced(self) -> bool:
        """See `StreamConnection`: whether a request has come."""
        return self._is_introduced

    @property
    def called(self) -> str:
        """See `StreamConnection`: the client id."""
        return self._queue.client_id

    @property
    def is_stranger(self) -> bool:
        """See `StreamConnection`."""
        return not self._is_introduced or (self._login is not None and self._login.is_needed)

    @property
    def is_idle(self) -> bool:
        """Whether the client waits for nothing."""
        return self._queue.is_empty

    def _begun(self) -> None:
        """See `StreamConnection`: the client speaks first."""
        if self._ended_by_quota_of_address():
            return
        if self._logins is None:
            self.ended_by_quota_of_user()
            return
        login = ConnectionLogin(
            self._logins, self.origin, self.principal, lambda: self.abort(REVOKED_TEXT)
        )
        self._login = self._queue.login = ClientLogin(login, self._admit)
        if login.is_needed:
            self._decoder.await_login()
            self._expect_login(lambda: login.is_decided)
        elif not login.is_possible:
            self.ended_by_quota_of_user()

    def _ended_by_quota_of_address(self) -> bool:
        """End it, and return True, if its address has too many, or makes them too fast."""
        shared = self._shared
        if shared is None:
            return False
        host = without_port(self.remote_address)
        reason = shared.admissions.refusal_of_address(self, host, shared.now())
        if reason:
            self.refused(reason)
        return bool(reason)

    def ended_by_quota_of_user(self) -> bool:
        """See `request_queue.Connection`."""
        shared = self._shared
        if shared is None:
            return False
        reason = shared.admissions.refusal_of_user(self, self.principal)
        if reason:
            self.refused(reason)
        return bool(reason)

    def _admit(self, principal: str, mechanism: str) -> None:
        """The client has logged in."""
        self.principal, self.login_mechanism = principal, mechanism
        if self.ended_by_quota_of_user():
            return
        self._decoder.end_login()
        self._watch_idle()

    def _first_frame(self, connection: StreamConnection, frame: ReceivedFrame) -> None:
        self._is_introduced = True
        self._on_frame = self._take
        if self._login is None or not self._login.is_needed:
            self._watch_idle()
        self._take(self, frame)

    def _take(self, connection: StreamConnection, frame: ReceivedFrame) -> None:
        self._services.counters.bytes_in += frame.size
        login = self._login
        if login is not None and login.is_raw:
            login.step_raw(bytes(frame.buffer[frame.start :]), self.send, self.close)
        else:
            self._queue.add(frame)

    def _watch_idle(self) -> None:
        self._end_deadline()
        self._deadline = asyncio.get_running_loop().call_later(IDLE_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        loop, left = asyncio.get_running_loop(), IDLE_S
        if self._queue.is_empty and not self._queue.is_muted:
            left -= self._services.now() - self.last_received_at
        if left > 0:
            self._deadline = loop.call_later(left, self._close_if_idle)
        else:
            self.close(f"nothing came for {IDLE_S:g} s")

    def _answer_refused(self, frame: RefusedFrame) -> None:
        """See `StreamConnection`: frames of this protocol are taken, or end the connection."""

    def _ended(self, reason: str) -> None:
        self._queue.close()
        if self._login is not None:
            self._login.end()
        self._services.executor.forget(self)
        log_event(
            logger,
            logging.DEBUG,
            "Kafka client disconnected",
            client=self._queue.client_id,
            remote=self.remote_address,
            reason=reason,
        )

    # -- what the queue says ------------------------------------------------------------------

    @property
    def is_read_by_client(self) -> bool:
        """See `request_queue.Connection`."""
        return not self._is_unread

    def queue_changed(self) -> None:
        """See `request_queue.Connection`."""
        if self._queue.is_full or self._memory.is_paused(self):
            self.pause_reading()
        elif HANDLER in self._pauses.reasons:
            self.resume_reading()

    def memory_changed(self) -> None:
        """See `memory.Holder`."""
        self.queue_changed()

    def malformed(self, error: RemoteProtocolError) -> None:
        """See `request_queue.Connection`."""
        self._counters.garbage += 1
        self._tell_garbage(str(error))
        self.close(str(error))

    def _tell_garbage(self, reason: str) -> None:
        self._services.counters.malformed += 1
        self.tell(reason)

    def refused(self, reason: str) -> None:
        """See `request_queue.Connection`."""
        self.tell(reason)
        self.close(reason)

    def tell(self, reason: str) -> None:
        """See `request_queue.Connection`."""
        event = "closing the connection of a Kafka client"
        self._tell_refused(event, reason, client=self._queue.client_id)

    # -- out ----------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`: no request is handled until the client has read more."""
        self._is_unread = True
        super().pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._is_unread = False
        super().resume_writing()
        self._queue.changed()

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send an answer, unless the connection is about to end."""
        stream = self._transport
        if stream is None or stream.is_closing():
            return
        size = sum(map(len, buffers))
        self.bytes_out += size
        self._services.counters.bytes_out += size
        self.answered += self._login is None or not self._login.is_needed
        self._decoder.allocates_ahead = True
        try:
            if len(buffers) == 1:
                stream.write(buffers[0])
            else:
                stream.writelines(buffers)
        except RuntimeError as error:  # uvloop has closed it without a call of connection_lost
            self.reason = self.reason or str(error)
            self.connection_lost(None)
            return
        if self._slices is not None and self._shared is not None:
            self._slices.sent(size)
            self._shared.budgets.answers.sent(self)
