"""Members of a consumer group, and the answers that they wait for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from quorumlog.kafka.errors import ErrorCode
from quorumlog.machine.cluster.commands import NO_GENERATION


class GroupProtocol(NamedTuple):
    """A way of assigning that a member can take part in, with what it says for it."""

    name: str
    metadata: bytes


class JoinRequest(NamedTuple):
    """What a consumer says of itself when it joins. Times are in milliseconds.

    `member_id`: empty if it is no member yet. `instance_id`: of a static member, which is the same
    one after a restart. `knows_ids`: it comes again with the id that it is given first.
    `may_skip`: it understands that it need not assign though it leads.
    """

    client_id: str
    client_host: str
    member_id: str
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    knows_ids: bool = True
    may_skip: bool = True


class JoinedMember(NamedTuple):
    """A member as its leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """The answer to a `JoinRequest`. `members`: what the leader assigns to, for others nobody."""

    error: ErrorCode
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: Sequence[JoinedMember] = ()
    skips_assignment: bool = False


class SyncRequest(NamedTuple):
    """A member asks what it is assigned; its leader says what all are.

    `protocol_type`, `protocol`: as the member knows them; None: it does not say.
    """

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


class SyncAnswer(NamedTuple):
    """What a member is assigned, in the words of its protocol."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


Joined: TypeAlias = Callable[[JoinAnswer], None]
Synced: TypeAlias = Callable[[SyncAnswer], None]


@dataclass(slots=True)
class Member:
    """A member. `joined` and `synced`: how it is answered, while it waits for that.

    `is_absent`: the present generation began without it, as it is static and had not come back. It
    may know a generation of this number from a coordinator that could not save it. `is_unsaved`:
    its id is being saved, and it is not told before.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = b""
    seen_ms: int = 0
    joined: Joined | None = None
    synced: Synced | None = None
    is_absent: bool = False
    is_unsaved: bool = False

    @classmethod
    def joining(cls, request: JoinRequest, member_id: str, now_ms: int) -> "Member":
        """Return a new member with an id, as it says of itself."""
        return cls(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            seen_ms=now_ms,
        )

    def update(self, request: JoinRequest) -> None:
        """Take what the member says of itself now."""
        self.client_id, self.client_host = request.client_id, request.client_host
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.protocols = request.protocols

    def metadata(self, protocol: str | None) -> bytes:
        """Return what it says for a protocol; nothing for one that it does not know."""
        found = (one.metadata for one in self.protocols if one.name == protocol)
        return next(found, b"")

    @property
    def has_joined(self) -> bool:
        """Whether it waits for a generation, and may be told of it."""
        return self.joined is not None and not self.is_unsaved

    @property
    def waits(self) -> bool:
        """Whether it waits for an answer: it has nothing to say until then."""
        return self.joined is not None or self.synced is not None

    def answer_join(self, answer: JoinAnswer) -> None:
        """Answer its join, if it waits for that."""
        joined, self.joined = self.joined, None
        if joined is not None:
            joined(answer)

    def answer_sync(self, answer: SyncAnswer) -> None:
        """Answer its sync, if it waits for that."""
        synced, self.synced = self.synced, None
        if synced is not None:
            synced(answer)
