"""One connection, whatever its frames look like: receiving in turns, bounds on both directions.

Frames are handled as they come, or, on connections that a node accepted, in slices of time that the
scheduler grants; memory for unfinished frames and for answers that nobody reads is bounded.
"""

import asyncio
import logging
import socket
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from quorumlog.auth.certificates import ANONYMOUS
from quorumlog.auth.login import Origin, origin_of
from quorumlog.log_events import describe_error, log_event, reason_of
from quorumlog.model.audit_events import BY_CERTIFICATE, AuditedEvent, AuditEvent
from quorumlog.model.config import host_port
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.limits import Limits
from quorumlog.model.wording import foreign
from quorumlog.transport.lingering import CLOSE_GRACE_SECONDS
from quorumlog.transport.scheduler import TrafficClass
from quorumlog.transport.shared_resources import SharedResources
from quorumlog.transport.time_slices import TimeSlices
from quorumlog.transport.tls import Identity
from quorumlog.transport.tls_words import TlsError
from quorumlog.transport.unfinished_frame import UnfinishedFrame
from quorumlog.wire.frame import RefusedFrame
from quorumlog.wire.receiver import FrameReceiver, UnexpectedTlsError

logger = logging.getLogger(__name__)

UNREAD_PAUSE_BYTES = 1024 * 1024
"""No request of a client is handled while it has this much to read."""
KEEP_ALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""The other side's host is asked whether it is there after 30 s of silence (tcp(7)); one that has
vanished has its connection ended after another 30: nothing that is sent would notice."""
TLS_ALERT = bytes.fromhex("15 03 03 00 02 02 46")
"""A fatal alert protocol_version (RFC 8446, section 6), for a TLS client of a plain port."""

HANDLER, TURN, MEMORY, UNREAD, QUOTA = "handler", "turn", "memory", "unread", "quota"
"""Why nothing is read: the handler asked for it, others have their turn, an unfinished frame waits
for memory, answers are not read, or the client has used up a quota."""


@dataclass(slots=True)
class TransportCounters:
    """Totals over all connections of one listener or set of links."""

    accepted: int = 0
    frames_in: int = 0
    garbage: int = 0
    late_frames: int = 0
    ended_for_places: int = 0
    refused_places: int = 0
    accept_failures: int = 0


@dataclass(slots=True)
class _Pauses:
    """Why a connection is not read, and since when; 0: it is read."""

    reasons: set[str] = field(default_factory=set)
    since: float = 0.0


@dataclass(slots=True)
class _Times:
    """When something last came, and until when the other side has to say who it is, in seconds."""

    received_at: float = 0.0
    introduced_by: float = 0.0


class _Spoken(asyncio.BufferedProtocol):
    """What subclasses of `StreamConnection` say: what their frames mean."""

    @abstractmethod
    def _begun(self) -> None:
        """The connection is there: say who this is, if the protocol begins so."""

    @abstractmethod
    def _first_frame(self, connection: "StreamConnection", frame: Any) -> None:
        """Take a frame before anybody knows who the other side is."""

    @abstractmethod
    def _answer_refused(self, frame: RefusedFrame) -> None:
        """Answer a frame that can be told apart, and not be used."""

    @abstractmethod
    def _ended(self, reason: str) -> None:
        """The connection has ended; called once."""

    @property
    @abstractmethod
    def is_introduced(self) -> bool:
        """Whether the other side has said who it is."""

    @property
    @abstractmethod
    def is_stranger(self) -> bool:
        """Whether the other side has still to say who it is, or to log in."""

    @property
    @abstractmethod
    def called(self) -> str:
        """What the other side calls itself; it may be anything."""


class StreamConnection(_Spoken):
    """Either side of a connection. `decoder` makes frames of its bytes, and `_on_frame` takes each.

    `shared`: what all connections that a node accepted share, which bounds the memory and time of
    each; None: no bounds. Subclasses say what frames mean.
    """

    def __init__(
        self,
        decoder: FrameReceiver,
        limits: Limits,
        counters: TransportCounters,
        *,
        on_lost: Callable[[Any], None] | None,
        shared: SharedResources | None,
    ) -> None:
        self._decoder = decoder
        self._limits = limits
        self._counters = counters
        self._on_lost = on_lost
        self._shared = shared
        self._slices: TimeSlices | None = None
        self._unfinished: UnfinishedFrame | None = None
        if shared is not None:
            self._slices = TimeSlices(shared)
            self._unfinished = UnfinishedFrame(self, self._decoder, shared.budgets)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.reason = ""
        self._pauses, self._times = _Pauses(), _Times()
        self.answered = 0
        """Requests that succeeded: a client with any is no longer unproven."""
        self.bytes_in = self.bytes_out = 0
        self.remote_address = "?"
        self.identity = Identity()
        """Who the other side is, by its certificate."""
        self.principal = ANONYMOUS
        """Who the other side is, also by a login: `User:alice`, `Node:n0`."""
        self.login_mechanism = ""
        """By which mechanism of SASL it has logged in here; empty: it has not."""
        self._on_frame: Callable[[Any, Any], None] = self._first_frame

    # -- asyncio.BufferedProtocol -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        stream = cast(asyncio.Transport, transport)  # uvloop's do not inherit from asyncio's
        self.attach(stream)
        self.begin(stream, Identity())

    def attach(self, transport: asyncio.Transport) -> None:
        """See `SecuredProtocol`: the other side has to say who it is within a time from now on."""
        self._transport = transport
        _keep_alive(transport)
        peer = transport.get_extra_info("peername")
        self.remote_address = host_port(*peer[:2]) if peer else "?"
        if self._shared is not None:
            self._shared.strangers.came(self)
        loop = asyncio.get_running_loop()
        self._times.introduced_by = loop.time() + self._limits.handshake_ms / 1000
        self._deadline = loop.call_at(self._times.introduced_by, self.close, "no handshake in time")

    def begin(self, transport: asyncio.Transport, identity: Identity) -> None:
        """See `SecuredProtocol`."""
        self._transport = transport
        self.identity, self.principal = identity, identity.principal
        unsent_max = self._limits.outbox_bytes_max
        transport.set_write_buffer_limits(
            high=unsent_max if self._shared is None else UNREAD_PAUSE_BYTES
        )
        self._begun()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where bytes are received: for a large frame, where it will stay."""
        space = self._decoder.space()
        return space if self._slices is None else self._slices.read_buffer(space)

    def buffer_updated(self, nbytes: int) -> None:
        """Decode frames and pass them to the handler."""
        self.bytes_in += nbytes
        shared = self._shared
        if shared is not None:
            self._times.received_at = shared.now()
        self._decoder.received(nbytes)
        if self._slices is not None:
            self._slices.received(nbytes, is_staging=self._decoder.is_staging)
        self._take_frames()

    def _take_frames(self) -> None:
        """Handle whole frames: all of them, or those that there is time for."""
        decoder, taken = self._decoder, 0
        slices = self._slices
        if slices is not None and not self._pauses.reasons and not slices.begin(self.traffic_class):
            self._await_turn()
        try:
            while self._transport is not None and not self._transport.is_closing():
                used = self._slices if taken else None  # a handshake may have removed them
                if used and not self._pauses.reasons and decoder.has_unread and used.is_over():
                    used.slice_ended(leaves_something=True)
                    self._await_turn()
                if self._pauses.reasons:
                    decoder.set_aside()
                    if used and HANDLER in self._pauses.reasons and decoder.has_aside:
                        used.slice_ended(leaves_something=True)
                    break
                frame = decoder.next_frame()
                if frame is None:
                    if used is not None:
                        used.slice_ended()
                    break
                taken += 1
                self._counters.frames_in += 1
                if isinstance(frame, RefusedFrame):
                    self._answer_refused(frame)
                else:
                    self._on_frame(self, frame)
        except RemoteProtocolError as error:
            self._counters.garbage += 1
            self._tell_garbage(str(error))
            if isinstance(error, UnexpectedTlsError) and self._transport is not None:
                self._transport.write(TLS_ALERT)
            self.close(str(error))
        except Exception as error:
            text, remote = "handling bytes failed", self.remote_address
            log_event(logger, logging.ERROR, text, exc_info=error, remote=remote)
            self.close(f"internal error: {describe_error(error)}")
        if slices is not None:
            slices.end()
        unfinished = self._unfinished
        if unfinished is not None and (unfinished.began or decoder.is_mid_frame):
            self._account(unfinished, taken)

    def _tell_garbage(self, reason: str) -> None:
        """Write into the logs why the connection is about to be closed."""
        self._tell_refused("closing a connection", reason)

    def _tell_refused(
        self, event: str, reason: str, *, client: str = "", who: str | None = None
    ) -> None:
        """Write into the log, and into the audit log, that what came is not accepted.

        A host has one line a minute in the log. `client`, `who`: what the other side calls itself.
        """
        shared, remote = self._shared, self.remote_address
        reason = foreign(reason)
        named: dict[str, Any] = {"client": foreign(client)} if client else {}
        if who:
            named["who"] = foreign(who)
        if shared is None:  # this side has made the connection
            log_event(logger, logging.WARNING, event, **named, remote=remote, reason=reason)
            return
        shared.lines.warn(event, "", remote, **named, reason=reason)
        self._record_refusal(reason, client)

    def _record_refusal(self, reason: str, client: str = "") -> None:
        if self._shared is not None:
            self._shared.audit.record(
                AuditEvent(
                    event=AuditedEvent.CONNECTION_REFUSED,
                    principal=self.principal,
                    mechanism=self.mechanism,
                    address=self.remote_address,
                    client=foreign(client),
                    allowed=False,
                    reason=foreign(reason),
                )
            )

    @property
    def is_member(self) -> bool:
        """Whether a member of one of the node's groups has made this connection."""
        return self._shared is not None and self._slices is None

    @property
    def is_served(self) -> bool:
        """Whether the other side has got something here: it is a member, or was answered."""
        return bool(self.answered) or self.is_member

    @property
    def traffic_class(self) -> TrafficClass:
        """See `Schedulable`."""
        if not self.answered:
            return TrafficClass.UNPROVEN if self.is_introduced else TrafficClass.HANDSHAKE
        slices = self._slices
        return TrafficClass.INTERACTIVE if slices is None else slices.classifier.traffic_class

    def _await_turn(self) -> None:
        if self._shared is not None:
            self._pause(TURN)
            if TURN in self._pauses.reasons:
                self._shared.scheduler.wait(self)

    def _account(self, unfinished: UnfinishedFrame, taken: int) -> None:
        """Note what an unfinished frame holds; wait if that is too much."""
        if self._shared is None or self._transport is None or self._transport.is_closing():
            return
        if not unfinished.note(taken, self._shared.now(), is_answered=bool(self.answered)):
            self._pause(MEMORY)
        if unfinished.began:
            self._shared.unfinished.add(self)
        else:
            self._shared.unfinished.discard(self)

    @property
    def is_kept_waiting(self) -> bool:
        """See `MemoryHolder`: nothing is read from it, for reasons that are not its own."""
        return not self._pauses.reasons.isdisjoint((HANDLER, TURN, QUOTA))

    def go_on(self) -> None:
        """See `MemoryHolder`: there is memory again."""
        self._resume(MEMORY)

    def is_late(self, now: float) -> bool:
        """Whether a frame has been arriving for too long, or too slowly since."""
        unfinished, limits = self._unfinished, self._limits
        if unfinished is None or not unfinished.began or self._pauses.reasons:
            return False
        return unfinished.is_late(now, limits.frame_ms / 1000, limits.frame_bytes_per_second_min)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`: the other side does not read; no more of it is handled."""
        if self._shared is not None and not self.is_member:
            self._pause(UNREAD)

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._resume(UNREAD)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        if self._shared is not None:
            self._shared.unsecured.note_end(self, self._shared.now())
        self._transport = None
        self._end_deadline()
        self._forget_unfinished()
        self._unfinished = None  # refers back: without it this object is freed at once
        if self._shared is not None:
            self._shared.unfinished.discard(self)
            self._shared.budgets.answers.forget(self)
            self._shared.strangers.left(self)
            self._shared.admissions.left(self)
        if isinstance(exc, TlsError):
            self.reason = self.reason or str(exc)
            if not self.is_introduced:  # who refuses it has written a line about it
                self._record_refusal(str(exc))
        reason = self.reason or "closed by the other side"
        if exc is not None and not self.reason:
            reason = reason_of(exc) if isinstance(exc, OSError) else describe_error(exc)
        self._on_frame = _nobody  # refers back, too
        try:
            self._ended(reason)
        finally:
            if self._on_lost is not None:
                self._on_lost(self)

    @property
    def origin(self) -> Origin:
        """What logins have to know of the connection, which is there."""
        return origin_of(self.remote_address, is_encrypted=self.is_encrypted)

    def _expect_login(self, is_over: Callable[[], bool]) -> None:
        """Have the other side log in within the time for a handshake.

        `is_over`: whether it is refused or let in, and only waits for the time of its answer.
        """

        def close() -> None:
            if not is_over():
                self.close("no login in time")

        self._end_deadline()
        self._deadline = asyncio.get_running_loop().call_at(self._times.introduced_by, close)

    def _end_deadline(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None:
            deadline.cancel()

    @property
    def mechanism(self) -> str:
        """How the other side proved who it is: `certificate`, or how it has logged in; or not."""
        if self.login_mechanism or self.principal == ANONYMOUS:
            return self.login_mechanism
        return BY_CERTIFICATE if self.principal == self.identity.principal else ""

    @property
    def last_received_at(self) -> float:
        """When something came, by the clock of what connections share; 0: nothing has."""
        return self._times.received_at

    @property
    def is_encrypted(self) -> bool:
        """Whether nobody in between can read or change what is sent."""
        return self._transport is not None and bool(self._transport.get_extra_info("ssl_object"))

    def end_if(self, is_revoked: Callable[[Mapping[str, Any]], bool]) -> None:
        """End the connection if the other side has shown a certificate that is revoked."""
        stream = self._transport
        shown = None if stream is None else stream.get_extra_info("peercert")
        if shown and is_revoked(shown):
            self.abort("its certificate was revoked")

    @property
    def outbox_bytes(self) -> int:
        """Bytes given to `send` that the operating system has not yet taken."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def pause_reading(self) -> None:
        """Take no more bytes until `resume_reading`."""
        self._pause(HANDLER)

    def resume_reading(self) -> None:
        """Take bytes again."""
        self._resume(HANDLER)

    def run_slice(self) -> bool:
        """See `Schedulable`: it is this connection's turn again; nothing else is being handled."""
        self._pauses.reasons.discard(TURN)
        if self._transport is None or self._pauses.reasons or self._slices is None:
            return False
        is_idle = not self._decoder.has_aside
        self._slices.scheduled(is_idle=is_idle)
        self._read_again()
        return is_idle

    def _pause(self, why: str) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if not self._pauses.reasons:
                # it may not be read yet since an earlier pause, which goes on then
                self._pauses.since = self._pauses.since or asyncio.get_running_loop().time()
                self._transport.pause_reading()
            self._pauses.reasons.add(why)

    def _resume(self, why: str) -> None:
        """Go on unless it is paused for another reason, too.

        It goes on in a later turn: the caller may still use frames in the receive buffer.
        """
        self._pauses.reasons.discard(why)
        if not self._pauses.reasons and self._pauses.since:
            asyncio.get_running_loop().call_soon(self._read_again)

    def _read_again(self) -> None:
        if self._transport is None or self._pauses.reasons or not self._pauses.since:
            return
        if self._unfinished is not None:
            self._unfinished.paused(asyncio.get_running_loop().time() - self._pauses.since)
        self._pauses.since = 0.0
        if not self._transport.is_closing():
            self._transport.resume_reading()
        if self._decoder.has_aside:
            self._decoder.take_up()
            self._take_frames()

    def _forget_unfinished(self) -> None:
        """Free the bytes of an unfinished frame, since requests may keep this object alive."""
        self._decoder.discard()
        if self._unfinished is not None:
            self._unfinished.forget()

    def close(self, reason: str) -> None:
        """End the connection; what was sent is still delivered if the other side soon reads it."""
        self.reason = self.reason or reason
        if self._transport is not None and not self._transport.is_closing():
            self._forget_unfinished()
            self._transport.close()
            self._end_deadline()
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(CLOSE_GRACE_SECONDS, self.abort, "not read in time")

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        self.reason = self.reason or reason
        if self._transport is not None:
            self._transport.abort()


def _nobody(connection: StreamConnection, frame: object) -> None:
    """Take a frame of a connection that has ended."""


def _keep_alive(stream: asyncio.Transport) -> None:
    own_socket = stream.get_extra_info("socket")
    with suppress(OSError, ValueError):  # closed already: connection_lost follows
        own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE:
            if hasattr(socket, name):
                own_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
