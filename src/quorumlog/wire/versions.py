"""What the two sides of a connection agree on, and which kinds of messages need what.

Both sides say Hello at once, each with the versions that it speaks and the features that it takes.
What they agree on follows from the two Hellos alone, by one rule on both sides: no message is added
for it. A release that has no such fields yet speaks version 1 without features.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RemoteProtocolError, UnsupportedError
from quorumlog.model.features import OWN_FEATURES, SECURITY, THROTTLING
from quorumlog.model.messages import client, login, security
from quorumlog.model.messages.base import Hello, Message, Responses
from quorumlog.model.messages.peer import PeerTurn
from quorumlog.model.release import RELEASE
from quorumlog.wire.frame import FIRST_VERSION
from quorumlog.wire.kinds import KIND_OF_MESSAGE, MESSAGE_OF_KIND

WIRE_MIN: Final = 1
WIRE_MAX: Final = 1
"""The versions that this release speaks: those of the release before are among them."""


class Agreement(NamedTuple):
    """What a connection uses: a version of the wire, and features as bits."""

    version: int
    features: int


BEFORE_HELLO: Final = Agreement(FIRST_VERSION, 0)
"""What holds until both have said Hello."""


class Need(NamedTuple):
    """What the other side must have stated before it gets a kind of message.

    `release` is the first that takes it, for people; `feature` is one bit, or 0.
    """

    release: str
    version: int = FIRST_VERSION
    feature: int = 0


_SECURITY: Final = Need("0.1.0", feature=SECURITY)
_SECURED: Final[tuple[type[Message], ...]] = (
    login.Authenticate,
    security.UsersRequest,
    security.AlterUsersRequest,
    security.AclsRequest,
    security.AlterAclsRequest,
    security.CheckAclRequest,
    security.QuotasRequest,
    security.AlterQuotasRequest,
    security.CheckSecurityRequest,
)
NEEDS: Final[dict[int, Need]] = {
    **{KIND_OF_MESSAGE[one]: _SECURITY for one in _SECURED},
    KIND_OF_MESSAGE[client.Throttled]: Need("0.1.0", feature=THROTTLING),
}
"""By number of the kind. A kind that is not here has been taken by every release since the first
one that states versions. An answer goes only to who has sent its request, and needs no row."""


class HelloRefusedError(RemoteProtocolError):
    """The two sides cannot work together; `code` says why."""

    def __init__(self, text: str, code: ResponseCode) -> None:
        super().__init__(text)
        self.code = code


def stating_versions(hello: Hello) -> Hello:
    """Return a Hello that states what this release speaks and takes."""
    return msgspec.structs.replace(
        hello,
        wire_min=WIRE_MIN,
        wire_max=WIRE_MAX,
        features=OWN_FEATURES,
        release=RELEASE,
    )


def agree(own: Hello, other: Hello) -> Agreement:
    """Return what both sides use: the newest version that both speak, the features of both.

    Raises `HelloRefusedError` if there is no such version, or if they state different clusters. Its
    text is for both sides.
    """
    version = min(own.wire_max, other.wire_max)
    if version < max(own.wire_min, other.wire_min):
        older = own if own.wire_max < other.wire_max else other
        text = f"{_spoken(own)}, {_spoken(other)}: upgrade {_who(older)}, release by release"
        raise HelloRefusedError(text, ResponseCode.UNSUPPORTED_VERSION)
    if own.cluster_id and other.cluster_id and own.cluster_id != other.cluster_id:
        text = (
            f"{_who(own)} is of the cluster with the id {own.cluster_id}, {_who(other)} of that "
            f"with {other.cluster_id}"
        )
        raise HelloRefusedError(text, ResponseCode.WRONG_CLUSTER)
    return Agreement(version, own.features & other.features)


def untaken(agreed: Agreement) -> Mapping[type[Message], Need]:
    """Return the kinds of messages that the other side has not said it takes."""
    return {
        MESSAGE_OF_KIND[kind]: need
        for kind, need in NEEDS.items()
        if agreed.version < need.version or need.feature & ~agreed.features
    }


def check_taken(
    message: Message, not_taken: Mapping[type[Message], Need], other: Hello | None
) -> None:
    """Raise `UnsupportedError` if the other side does not take a message, or a part of it."""
    kinds: list[type[Message]] = [type(message)]
    if isinstance(message, PeerTurn | Responses):
        kinds += [MESSAGE_OF_KIND[part[0]] for part in message.parts]
    for kind in kinds:
        if kind in not_taken:
            release = "an earlier release" if other is None else _release(other)
            who = "the other side" if other is None else _who(other)
            raise UnsupportedError(
                f"{kind.__name__} needs quorumlog {not_taken[kind].release} or newer, and {who} "
                f"runs {release}"
            )


def _who(hello: Hello) -> str:
    return hello.node_id or "the client"


def _release(hello: Hello) -> str:
    return f"quorumlog {hello.release}" if hello.release else "an earlier release"


def _spoken(hello: Hello) -> str:
    """Return which versions a side speaks, in words."""
    spoken = f"version {hello.wire_min}"
    if hello.wire_max != hello.wire_min:
        spoken = f"versions {hello.wire_min} to {hello.wire_max}"
    return f"{_who(hello)} ({_release(hello)}) speaks {spoken} of the wire"
