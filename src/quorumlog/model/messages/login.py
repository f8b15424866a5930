"""Logging in: the messages of a mechanism of SASL, and their answers."""

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from quorumlog.model.bounds import Code, Label, Milliseconds, Name, Text
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.base import Message

REFUSED_TEXT: Final = "login refused"
"""What a client is told, whatever the reason: another text would help who guesses."""
LOGIN_DATA_BYTES_MAX: Final = 6 * 1024
"""Bytes that a mechanism sends at a time; a token is the longest that there is."""
LoginData: TypeAlias = Annotated[bytes, Meta(max_length=LOGIN_DATA_BYTES_MAX)]


class Authenticate(Message, frozen=True, kw_only=True):
    """From a client: the next message of a login by a mechanism, the first of which begins it."""

    mechanism: Name
    data: LoginData


class Authenticated(Message, frozen=True, kw_only=True):
    """The answer to `Authenticate`.

    `more`: the client is to answer `data`. Otherwise it is `principal`, for `lifetime_ms`, 0
    without an end; or, with another code than SUCCESS, not let in, and the connection ends.
    """

    code: Code = ResponseCode.SUCCESS
    text: Text = ""
    data: LoginData = b""
    more: bool = False
    principal: Label = ""
    lifetime_ms: Milliseconds = 0
