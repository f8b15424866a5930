"""One connection of our own protocol: frames in and out, a handshake at its start."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from quorumlog.model.block import Buffer
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello, Message, Response
from quorumlog.transport.scheduler import TrafficClass
from quorumlog.transport.shared_resources import SharedResources
from quorumlog.transport.stream import QUOTA, StreamConnection, TransportCounters
from quorumlog.transport.tls_words import TlsError
from quorumlog.wire.decoder import HANDSHAKE_BYTES_MAX, LOGIN_BYTES_MAX, FrameDecoder
from quorumlog.wire.frame import Frame, RefusedFrame, encode_frame
from quorumlog.wire.kinds import CLIENT_KINDS, HELLO_KINDS, LOGIN_KINDS, PEER_KINDS
from quorumlog.wire.versions import (
    BEFORE_HELLO,
    HelloRefusedError,
    Need,
    agree,
    check_taken,
    untaken,
)

PEER_ROLES = ("control", "bulk")


@dataclass(frozen=True, slots=True)
class _Greeting:
    """This side's Hello, and the function that judges the other side's."""

    own_hello: Hello
    check: "Callable[[Hello], ConnectionHandler]"

    def refusal(self, text: str, code: ResponseCode) -> Hello:
        """Return the message that the other side gets when it is refused."""
        return msgspec.structs.replace(self.own_hello, code=code, text=text)


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


class Connection(StreamConnection):
    """Either side of a connection.

    `greet` is called with the other side's Hello; it returns the handler, or raises
    `RemoteProtocolError` with the text for the other side. Before it, `check_identity` does so if
    the other side is not who its Hello says, and raises `HelloRefusedError` for another reason.
    `shared`: see `StreamConnection`.
    `agreed` is what both sides use, once the other's Hello has come. `refused_with` is the code
    with which either side refused the other's Hello, or SUCCESS. `has_no_tls`: it has ended, for a
    reason of TLS that the next one would meet, too.
    """

    _decoder: FrameDecoder

    def __init__(
        self,
        own_hello: Hello,
        greet: Callable[[Hello], ConnectionHandler],
        limits: Limits,
        counters: TransportCounters,
        *,
        on_lost: Callable[["Connection"], None] | None = None,
        shared: SharedResources | None = None,
        check_identity: Callable[["Connection", Hello], None] = lambda connection, hello: None,
    ) -> None:
        decoder = FrameDecoder(
            limits,
            frame_bytes_max=HANDSHAKE_BYTES_MAX,
            staged=shared.staged if shared is not None else None,
            allocates_ahead=shared is None,
        )
        if shared is not None:
            decoder.kinds = HELLO_KINDS
        super().__init__(decoder, limits, counters, on_lost=on_lost, shared=shared)
        self._greeting = _Greeting(own_hello, greet)
        self._check_identity = check_identity
        self._handler: ConnectionHandler | None = None
        self.hello: Hello | None = None
        self.agreed = BEFORE_HELLO
        self.refused_with: int = ResponseCode.SUCCESS
        self.has_no_tls = False
        self._untaken: Mapping[type[Message], Need] = {}
        self._refused_text = ""

    @property
    def is_introduced(self) -> bool:
        """See `StreamConnection`."""
        return self.hello is not None

    @property
    def called(self) -> str:
        """See `StreamConnection`."""
        hello = self.hello
        if hello is None:
            return ""
        return f"node {hello.node_id}" if hello.role in PEER_ROLES else hello.client

    @property
    def is_stranger(self) -> bool:
        """See `StreamConnection`: whether there is a time by which it has to be over."""
        return self._deadline is not None

    def _begun(self) -> None:
        refusal = self.identity.refusal
        if refusal:  # before our Hello, after which the other side would think that it is in
            self._refuse_hello(refusal, ResponseCode.LOGIN_REFUSED)
        else:
            self._write(self._greeting.own_hello, 0, ())

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self.has_no_tls = isinstance(exc, TlsError) and exc.is_final
        super().connection_lost(exc)

    def _first_frame(self, connection: StreamConnection, frame: Frame) -> None:
        self._handshake(frame.message)

    def _ended(self, reason: str) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.closed(self, reason)

    def _answer_refused(self, frame: RefusedFrame) -> None:
        if frame.text != self._refused_text:  # the same one again and again is said once
            self._refused_text = frame.text
            who = None if self.hello is None else self.hello.node_id or self.hello.role
            self._tell_refused("refusing a frame", frame.text, who=who)
        response = Response(code=frame.code, text=frame.text)
        self.send(response, correlation_id=frame.correlation_id)
        if self._handler is None:  # refusals of refusals would go on for ever
            self.close(frame.text)

    def _handshake(self, message: Message) -> None:
        if not isinstance(message, Hello):
            raise RemoteProtocolError(f"{type(message).__name__} before Hello")
        self._end_deadline()
        if message.code != ResponseCode.SUCCESS:
            self.refused(message)
            return
        try:
            self._check_identity(self, message)
        except HelloRefusedError as error:
            self._refuse_hello(str(error), error.code)
            return
        except RemoteProtocolError as error:
            self._refuse_hello(str(error), ResponseCode.LOGIN_REFUSED)
            return
        try:
            agreed = agree(self._greeting.own_hello, message)
            self._handler = self._greeting.check(message)
        except HelloRefusedError as error:
            self._refuse_hello(str(error), error.code)
            return
        except RemoteProtocolError as error:
            self._refuse_hello(str(error), ResponseCode.UNEXPECTED_MEMBER)
            return
        self.hello = message
        self.agreed, self._untaken = agreed, untaken(agreed)
        self._decoder.version = agreed.version
        self._decoder.frame_bytes_max = self._limits.frame_bytes_max
        if self._shared is not None:
            self._decoder.kinds = PEER_KINDS if message.role in PEER_ROLES else CLIENT_KINDS
        if self._shared is not None and self._shared.is_member(message):
            self._slices, self._decoder.allocates_ahead = None, True
            if self._unfinished is not None:
                self._unfinished.becomes_members()
        self._on_frame = self._handler.frame_received
        self._handler.opened(self, message)

    def refused(self, hello: Hello) -> None:
        """End the connection: the other side has refused this side's Hello, as its own says."""
        self.refused_with = hello.code
        self.close(f"refused by {self.remote_address}: {hello.text}")

    def _refuse_hello(self, reason: str, code: ResponseCode) -> None:
        """Say why the other side may not be here, and end the connection."""
        self.refused_with = code
        self._tell_refused("refusing a connection", reason)
        self._write(self._greeting.refusal(reason, code), 0, ())
        self.close(reason)

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

    def mute(self) -> None:
        """Take no more bytes until `unmute`, as the client has used up a quota."""
        self._pause(QUOTA)

    def unmute(self) -> None:
        """Take bytes again, as far as quotas are concerned."""
        self._resume(QUOTA)

    def refuse(self, reason: str, *, has_taken: bool = False) -> None:
        """End the connection: the client is told why, and that nothing of it was taken.

        `has_taken`: something was, so that it is told nothing.
        """
        if has_taken:
            self._tell_refused("refusing a connection", reason)
            self.close(reason)
        else:
            self._refuse_hello(reason, ResponseCode.UNEXPECTED_MEMBER)

    def await_login(self, is_over: Callable[[], bool]) -> None:
        """Take nothing from a client but its login, within the time for a handshake.

        `is_over`: whether it was refused, so that the connection ends once that is answered.
        """
        self._decoder.kinds, self._decoder.frame_bytes_max = LOGIN_KINDS, LOGIN_BYTES_MAX
        self._expect_login(is_over)

    def admit(self, principal: str, mechanism: str) -> None:
        """Take requests: the client has logged in, by a mechanism."""
        self.principal, self.login_mechanism = principal, mechanism
        self._decoder.kinds = CLIENT_KINDS
        self._decoder.frame_bytes_max = self._limits.frame_bytes_max
        self._end_deadline()

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
        `UnexpectedArgumentError` when the frame would be above a limit, and `UnsupportedError` when
        the other side has not said that it takes such a message.
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
            if self._untaken:
                check_taken(message, self._untaken, self.hello)
            frame = encode_frame(
                message,
                correlation_id=correlation_id,
                attachments=parts,
                limits=self._limits,
                version=self.agreed.version,
            )
            self.bytes_out += sum(map(len, frame))
            if len(frame) == 1:
                self._transport.write(frame[0])
            else:
                self._transport.writelines(frame)

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done and the connection is not ending."""
        stream = self._transport
        return self._handler is not None and stream is not None and not stream.is_closing()
