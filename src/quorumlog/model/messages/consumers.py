"""Requests of consumers of a log to the leader of `__cluster`, which coordinates them.

`group` is `__cluster` in all of them. `consumer_group` is the group of the consumers; `log` is what
they read, a plain group with this identity (empty: not known), split into `partitions`.
"""

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from quorumlog.model.bounds import IdentityBytes, Index, Label, Milliseconds, Name, Number
from quorumlog.model.messages.base import Request, Response

PARTITIONS_MAX: Final = 1_000
"""Partitions that a consumer group splits a log into."""
EPOCH_MAX: Final = (1 << 31) - 1
JOINING: Final = 0
LEAVING: Final = -1
"""Epochs of a member that joins, and of one that leaves (KIP-848)."""
NO_EPOCH: Final = -1
"""Instead of an epoch: who commits is no member."""

ConsumerGroup: TypeAlias = Annotated[str, Meta(min_length=1, max_length=249)]
MemberId: TypeAlias = Annotated[str, Meta(max_length=249)]
Partitions: TypeAlias = Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
PartitionNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
PartitionNumbers: TypeAlias = Annotated[list[PartitionNumber], Meta(max_length=PARTITIONS_MAX)]
LogPositions: TypeAlias = Annotated[
    list[tuple[PartitionNumber, Index]], Meta(max_length=PARTITIONS_MAX)
]
"""(partition, index of the first entry that is not handled)."""
Epoch: TypeAlias = Annotated[int, Meta(ge=LEAVING, le=EPOCH_MAX)]


class ConsumerRequest(Request, frozen=True, kw_only=True):
    """Base of the requests of consumers."""

    consumer_group: ConsumerGroup
    log: Name
    identity: IdentityBytes
    partitions: Partitions


class ConsumerHeartbeatRequest(ConsumerRequest, frozen=True, kw_only=True):
    """A member is alive, in an epoch, and uses the `owned` partitions; or it joins, or leaves.

    `client_id` is what the member calls itself, for people. `number` rises from one heartbeat of
    the member to the next; a copy that is sent again has the same one. None: earlier versions.
    """

    member_id: MemberId
    epoch: Epoch
    owned: PartitionNumbers = []
    client_id: Label = ""
    number: Number | None = None


class ConsumerHeartbeatResponse(Response, frozen=True, kw_only=True):
    """The epoch of the member and the partitions that it may use; it gives up all others.

    It is removed after `session_ms` without a heartbeat, and shall send one each `interval_ms`. It
    is removed, too, if it has not given up within `rebalance_ms` what it is to give up.
    """

    epoch: Epoch = NO_EPOCH
    assigned: PartitionNumbers = []
    interval_ms: Milliseconds = 0
    session_ms: Milliseconds = 0
    rebalance_ms: Milliseconds = 60_000


class CommitPositionsRequest(ConsumerRequest, frozen=True, kw_only=True):
    """The consumer group goes on at these positions.

    Either a member says so in its epoch, of partitions that it has; or nobody who is a member, with
    an empty `member_id`, as long as the group has none.
    """

    member_id: MemberId = ""
    epoch: Epoch = NO_EPOCH
    positions: LogPositions


class PositionsRequest(ConsumerRequest, frozen=True, kw_only=True):
    """Where does the consumer group go on?"""


class PositionsResponse(Response, frozen=True, kw_only=True):
    """The committed positions: all that was acknowledged before it was asked."""

    positions: LogPositions = []
