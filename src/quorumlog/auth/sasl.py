"""SASL (RFC 4422): what a mechanism is, and what its steps return.

A login is an exchange: the client's message goes into `step`, which says what comes next. No
mechanism knows of a port, a clock or a thread, so both ports use the same ones.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeAlias

STEPS_MAX: Final = 4
"""Messages of a client in one login; the longest mechanism has two."""
MESSAGE_BYTES_MAX: Final = 6 * 1024
"""Bytes of such a message; a token of OAUTHBEARER is the longest that there is."""


class Reason(Enum):
    """Why a login was refused: for counters and the log. Clients are not told."""

    MALFORMED = "malformed"
    MECHANISM = "mechanism"
    UNKNOWN_USER = "unknown_user"
    PASSWORD = "password"  # noqa: S105  (what is wrong, not a password)
    CHANNEL_BINDING = "channel_binding"
    TOKEN = "token"  # noqa: S105
    SUPER_USER = "super_user"
    OTHER_USER = "other_user"


class Continue(NamedTuple):
    """The client is to answer `data`."""

    data: bytes


class Done(NamedTuple):
    """The client is `user`. `expires_ms`: Unix time until which that holds; 0: no end."""

    user: str
    data: bytes = b""
    expires_ms: int = 0


class Failed(NamedTuple):
    """The client has not shown who it is; `text` says more for the log of this node."""

    reason: Reason
    text: str = ""


class Compute(NamedTuple):
    """`work` takes long: it is to be run on a thread, and then `then` with what it has returned."""

    work: Callable[[], bool]
    then: Callable[[bool], Done | Failed]


Step: TypeAlias = Continue | Done | Failed | Compute


class Exchange(Protocol):
    """One login by one mechanism."""

    @property
    def user(self) -> str:
        """Who the client says that it is, as far as it has said so; for delays and the log."""
        ...

    def step(self, data: bytes) -> Step:
        """Take a message of the client; after `Done` or `Failed` no other."""
        ...
