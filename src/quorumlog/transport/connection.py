"""One connection: frames in and out, a handshake at its start, bounds on both directions."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, cast

from quorumlog.log_events import describe_error, log_event, reason_of
from quorumlog.model.block import Buffer
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello, Message, Response
from quorumlog.transport.scheduler import TrafficClass
from quorumlog.transport.shared_resources import SharedResources
from quorumlog.transport.time_slices import TimeSlices
from quorumlog.transport.unfinished_frame import UnfinishedFrame
from quorumlog.wire.decoder import HANDSHAKE_BYTES_MAX, FrameDecoder
from quorumlog.wire.frame import Frame, RefusedFrame, encode_frame
from quorumlog.wire.kinds import CLIENT_KINDS, HELLO_KINDS, PEER_KINDS

logger = logging.getLogger(__name__)

CLOSE_GRACE_SECONDS = 5.0
"""How long a connection that ends waits for the other side to read what was sent."""
UNREAD_PAUSE_BYTES = 1024 * 1024
"""No request of a client is handled while it has this much to read."""
PEER_ROLES = ("control", "bulk")
KEEP_ALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""The other side's host is asked whether it is there after 30 s of silence (tcp(7)); one that has
vanished has its connection ended after another 30: nothing that is sent would notice."""


HANDLER, TURN, MEMORY, UNREAD = "handler", "turn", "memory", "unread"
"""Why nothing is read: the handler asked for it, others have their turn, an unfinished frame waits
for memory, or answers are not read."""


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


@dataclass(frozen=True, slots=True)
class _Greeting:
    """This side's Hello, and the function that judges the other side's."""

    own_hello: Hello
    check: "Callable[[Hello], ConnectionHandler]"

    def refusal(self, text: str) -> Hello:
        """Return the message that the other side gets when it is refused."""
        own = self.own_hello
        code = ResponseCode.UNEXPECTED_MEMBER
        return Hello(cluster=own.cluster, node_id=own.node_id, role=own.role, code=code, text=text)


class ConnectionHandler(Protocol):
    """The part of a program that takes the frames of a connection."""

    def opened(self, connection: "Connection", hello: Hello) -> None:
        """The handshake is done; `hello` is the other side's."""
        ...

    def frame_received(self, connection: "Connection", frame: Frame) -> None:
        """A frame came."""
        ...

    def closed(self, connection: "Connection", reason: str) -> None:
        """The connection has ended."""
        ...


class Connection(asyncio.BufferedProtocol):
    """Either side of a connection.

    `greet` is called with the other side's Hello; it returns the handler, or raises
    `RemoteProtocolError` with the text for the other side. `shared`: what all connections that a
    node accepted share, which bounds the memory and time of each; None: no bounds.
    """

    def __init__(
        self,
        own_hello: Hello,
        greet: Callable[[Hello], ConnectionHandler],
        limits: Limits,
        counters: TransportCounters,
        *,
        on_lost: Callable[["Connection"], None] | None = None,
        shared: SharedResources | None = None,
    ) -> None:
        self._greeting = _Greeting(own_hello, greet)
        self._limits = limits
        self._counters = counters
        self._on_lost = on_lost
        self._shared = shared
        self._decoder = FrameDecoder(
            limits,
            frame_bytes_max=HANDSHAKE_BYTES_MAX,
            staged=shared.staged if shared is not None else None,
            allocates_ahead=shared is None,
        )
        self._slices: TimeSlices | None = None
        self._unfinished: UnfinishedFrame | None = None
        if shared is not None:
            self._decoder.kinds = HELLO_KINDS
            self._slices = TimeSlices(shared)
            self._unfinished = UnfinishedFrame(self, self._decoder, shared.budgets)
        self._transport: asyncio.Transport | None = None
        self._handler: ConnectionHandler | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.reason = ""
        self._pauses = _Pauses()
        self.answered = 0
        """Requests that succeeded: a client with any is no longer unproven."""
        self.last_received_at = 0.0
        self.bytes_in = self.bytes_out = 0
        self.hello: Hello | None = None
        self._refused_text = ""
        self.remote_address = "?"

    # -- asyncio.BufferedProtocol -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who we are, and wait for the other side to do so."""
        stream = cast(asyncio.Transport, transport)  # uvloop's do not inherit from asyncio's
        self._transport = stream
        _keep_alive(stream)
        unsent_max = self._limits.outbox_bytes_max
        stream.set_write_buffer_limits(
            high=unsent_max if self._shared is None else UNREAD_PAUSE_BYTES
        )
        peer = transport.get_extra_info("peername")
        self.remote_address = f"{peer[0]}:{peer[1]}" if peer else "?"
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(
            self._limits.handshake_ms / 1000, self.close, "no handshake in time"
        )
        self._write(self._greeting.own_hello, 0, ())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where bytes are received: for a large frame, where it will stay."""
        space = self._decoder.space()
        return space if self._slices is None else self._slices.read_buffer(space)

    def buffer_updated(self, nbytes: int) -> None:
        """Decode frames and pass them to the handler."""
        self.bytes_in += nbytes
        shared = self._shared
        if shared is not None:
            self.last_received_at = shared.now()
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
                if used and not self._pauses.reasons and used.is_over() and decoder.has_unread:
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
                elif self._handler is not None:
                    self._handler.frame_received(self, frame)
                else:
                    self._handshake(frame.message)
        except RemoteProtocolError as error:
            self._counters.garbage += 1
            log_event(
                logger,
                logging.WARNING,
                "closing a connection",
                remote=self.remote_address,
                reason=str(error),
            )
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

    @property
    def is_member(self) -> bool:
        """Whether a member of one of the node's groups has made this connection."""
        return self._shared is not None and self._slices is None

    @property
    def traffic_class(self) -> TrafficClass:
        """See `Schedulable`."""
        if self.hello is None:
            return TrafficClass.HANDSHAKE
        if not self.answered:
            return TrafficClass.UNPROVEN
        return TrafficClass.INTERACTIVE if self._slices is None else self._slices.traffic_class

    @property
    def yields_to_interactive(self) -> bool:
        """Whether this client is not interactive, and there are clients that are."""
        shared = self._shared
        if shared is None or not shared.scheduler.has_interactive:
            return False
        return self.traffic_class is not TrafficClass.INTERACTIVE

    @property
    def is_closed_loop(self) -> bool:
        """Whether this client is known to wait for its answers."""
        return self._slices is not None and self._slices.is_closed_loop

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
        return HANDLER in self._pauses.reasons or TURN in self._pauses.reasons

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
        """Call the handler's `closed`, once."""
        self._transport = None
        self._end_deadline()
        self._forget_unfinished()
        self._unfinished = None  # refers back: without it this object is freed at once
        if self._shared is not None:
            self._shared.unfinished.discard(self)
            self._shared.budgets.answers.forget(self)
        reason = self.reason or "closed by the other side"
        if exc is not None and not self.reason:
            reason = reason_of(exc) if isinstance(exc, OSError) else describe_error(exc)
        handler, self._handler = self._handler, None
        try:
            if handler is not None:
                handler.closed(self, reason)
        finally:
            if self._on_lost is not None:
                self._on_lost(self)

    # -- frames -----------------------------------------------------------------------------

    def _answer_refused(self, frame: RefusedFrame) -> None:
        if frame.text != self._refused_text:  # the same one again and again is said once
            self._refused_text = frame.text
            log_event(
                logger,
                logging.WARNING,
                "refusing a frame",
                who=None if self.hello is None else self.hello.node_id or self.hello.role,
                remote=self.remote_address,
                reason=frame.text,
            )
        response = Response(code=frame.code, text=frame.text)
        self.send(response, correlation_id=frame.correlation_id)
        if self._handler is None:  # refusals of refusals would go on for ever
            self.close(frame.text)

    def _handshake(self, message: Message) -> None:
        if not isinstance(message, Hello):
            raise RemoteProtocolError(f"{type(message).__name__} before Hello")
        self._end_deadline()
        if message.code != ResponseCode.SUCCESS:
            self.close(f"refused by {self.remote_address}: {message.text}")
            return
        try:
            self._handler = self._greeting.check(message)
        except RemoteProtocolError as error:
            log_event(
                logger,
                logging.WARNING,
                "refusing a connection",
                remote=self.remote_address,
                reason=str(error),
            )
            self._write(self._greeting.refusal(str(error)), 0, ())
            self.close(str(error))
            return
        self.hello = message
        self._decoder.frame_bytes_max = self._limits.frame_bytes_max
        if self._shared is not None:
            self._decoder.kinds = PEER_KINDS if message.role in PEER_ROLES else CLIENT_KINDS
        if self._shared is not None and self._shared.is_member(message):
            self._slices, self._decoder.allocates_ahead = None, True
            if self._unfinished is not None:
                self._unfinished.becomes_members()
        self._handler.opened(self, message)

    def _end_deadline(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None:
            deadline.cancel()

    def send(
        self,
        message: Message,
        *,
        correlation_id: int = 0,
        attachments: Sequence[Buffer] = (),
        has_room: bool = False,
    ) -> bool:
        """Send a frame; return False, with nothing sent, if closed or too much is unsent.

        `has_room`: what is unsent was looked at before, and left room for what is attached. Raises
        `UnexpectedArgumentError` when the frame would be above a limit.
        """
        stream, limits = self._transport, self._limits
        if stream is None or stream.is_closing():
            return False
        slices, most = self._slices, limits.outbox_bytes_max
        if slices is not None:
            most = min(most, limits.send_bytes_max // 2)
        size = sum(map(len, attachments))
        if not has_room and stream.get_write_buffer_size() + size > most:
            return False
        try:
            self._write(message, correlation_id, attachments)
        except RuntimeError as error:  # uvloop has closed it without a call of connection_lost
            self.reason = self.reason or str(error)
            self.connection_lost(None)
            return False
        if slices is not None and self._shared is not None:
            slices.sent(size)
            self._shared.budgets.answers.sent(self)
            if correlation_id and isinstance(message, Response):
                self.answered += message.code == ResponseCode.SUCCESS
        return True

    def _write(self, message: Message, correlation_id: int, parts: Sequence[Buffer]) -> None:
        if self._transport is not None:
            frame = encode_frame(
                message, correlation_id=correlation_id, attachments=parts, limits=self._limits
            )
            self.bytes_out += sum(map(len, frame))
            if len(frame) == 1:
                self._transport.write(frame[0])
            else:
                self._transport.writelines(frame)

    @property
    def outbox_bytes(self) -> int:
        """Bytes given to `send` that the operating system has not yet taken."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the connection is not ending."""
        stream = self._transport
        return self._handler is not None and stream is not None and not stream.is_closing()

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


def _keep_alive(stream: asyncio.Transport) -> None:
    own_socket = stream.get_extra_info("socket")
    with suppress(OSError, ValueError):  # closed already: connection_lost follows
        own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE:
            if hasattr(socket, name):
                own_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
