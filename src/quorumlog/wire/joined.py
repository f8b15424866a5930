"""Joined frames: several messages in one frame (`PeerTurn`, `Responses`), made and split here.

A frame costs its header, two CRCs, a call to send it and one to receive it, whatever it carries.
What is to be said to one receiver in one turn of the event loop therefore goes out together. The
parts are handled in their order, each as if it had arrived by itself: one that is malformed is
dropped alone.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from quorumlog.model.block import Buffer
from quorumlog.model.codes import ResponseCode
from quorumlog.model.limits import KIB, MIB, Limits
from quorumlog.model.messages.base import JOINED_MAX, JoinedPart, Message, Responses
from quorumlog.model.messages.peer import PeerTurn
from quorumlog.wire.decoder import DECODERS
from quorumlog.wire.frame import Frame, RefusedFrame
from quorumlog.wire.kinds import (
    KIND_OF_MESSAGE,
    MESSAGE_OF_KIND,
    PEER_PART_KINDS,
    RESPONSE_KINDS,
)

PART_ATTACHED_MAX: Final = 64 * KIB
"""A message with more bytes attached travels alone: there is nothing to save by joining it."""
JOINED_ATTACHED_MAX: Final = 1 * MIB
JOINED_MESSAGES_MAX: Final = 64 * KIB
"""Bytes of the encoded messages in one frame."""

M = TypeVar("M", bound=Message)

_encode = msgspec.msgpack.Encoder().encode
_NO_ATTACHMENT = memoryview(bytearray())


class Outgoing(NamedTuple, Generic[M]):
    """A message that is to be sent; `size` is that of all its attachments."""

    message: M
    attachments: Sequence[Buffer]
    size: int
    correlation_id: int = 0


class Run(NamedTuple, Generic[M]):
    """Consecutive messages that fit one frame. One alone is sent as it is: `first`."""

    first: Outgoing[M]
    parts: list[JoinedPart]
    attachments: list[Buffer]


def attached_max(limits: Limits) -> int:
    """Return how many bytes may be attached to one joined frame."""
    return min(JOINED_ATTACHED_MAX, limits.block_bytes_max)


def runs_of(given: Sequence[Outgoing[M]], attached_bytes_max: int) -> Iterator[Run[M]]:
    """Yield messages, in their order, in as few frames as their bounds allow."""
    run: Run[M] | None = None
    messages = attached = 0
    for one in given:
        body = _encode(one.message)
        messages += len(body)
        attached += one.size
        if (
            run is None
            or messages > JOINED_MESSAGES_MAX
            or attached > attached_bytes_max
            or len(run.parts) == JOINED_MAX
        ):
            if run is not None:
                yield run
            run, messages, attached = Run(one, [], []), len(body), one.size
        kind = KIND_OF_MESSAGE[type(one.message)]
        run.parts.append((kind, one.correlation_id, body, one.size))
        run.attachments.extend(one.attachments)
    if run is not None:
        yield run


def split(joined: PeerTurn | Responses, attachment: memoryview) -> Iterator[Frame | RefusedFrame]:
    """Yield the messages of a joined frame as the frames that they would have been.

    Each attachment is copied: an entry that stays in memory must not keep a whole frame there.
    """
    if sum(part[3] for part in joined.parts) != len(attachment):
        text = f"the parts of a {type(joined).__name__} do not add up to what is attached"
        yield RefusedFrame(0, ResponseCode.UNEXPECTED_ARGUMENT, text)
        return
    kinds = PEER_PART_KINDS if type(joined) is PeerTurn else RESPONSE_KINDS
    end = 0
    for kind, correlation_id, body, size in joined.parts:
        begin, end = end, end + size
        if kind not in kinds:
            text = f"kind {kind} is no part of a {type(joined).__name__}"
            if kind in MESSAGE_OF_KIND:
                text = f"{MESSAGE_OF_KIND[kind].__name__} is no part of a {type(joined).__name__}"
            yield RefusedFrame(correlation_id, ResponseCode.UNSUPPORTED, text)
            continue
        try:
            message: Message = DECODERS[kind].decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            text = f"kind {kind} is malformed: {error}"
            yield RefusedFrame(correlation_id, ResponseCode.UNEXPECTED_ARGUMENT, text)
            continue
        own = memoryview(bytearray(attachment[begin:end])) if size else _NO_ATTACHMENT
        yield Frame(correlation_id, message, own)
