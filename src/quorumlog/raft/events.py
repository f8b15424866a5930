"""What can happen to a replica, as told to `RaftCore.step`."""

from dataclasses import dataclass
from typing import TypeAlias

from quorumlog.model.membership import Member, Membership
from quorumlog.model.message import InstallSnapshotRequest, PeerMessage


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; sent when `next_deadline_ms` is reached (earlier or later does no harm).

    Without `may_campaign` a campaign that is due is put off a little.
    """

    may_campaign: bool = True


@dataclass(frozen=True, slots=True)
class Received:
    """A message from a peer.

    For COMPARE, APPEND and heartbeats, `chain_fits` says whether the chain CRC stored locally at
    prev_index (committed_index) equals the one in the message (True where there is nothing to
    compare): the core never sees bytes, so whoever holds them compares. The block that came with
    an APPEND stays outside; `memberships` are those that its entries name, with their indexes.
    `disk_full`: there is no room for its entries.
    """

    message: PeerMessage
    chain_fits: bool = True
    disk_full: bool = False
    memberships: tuple[tuple[int, Membership], ...] = ()


@dataclass(frozen=True, slots=True)
class Proposed:
    """A client wants `count` entries appended; `proposal_id` names them in the effects."""

    proposal_id: int
    count: int


@dataclass(frozen=True, slots=True)
class EntriesRead:
    """The answer to `ReadEntries`: entries up to last_index, `size_bytes` long, can be pushed.

    Not `from_memory`: the peer is being caught up with what lies on disk.
    """

    peer_id: str
    request_id: int
    last_index: int
    size_bytes: int
    from_memory: bool = True


@dataclass(frozen=True, slots=True)
class EntriesUnreadable:
    """The answer to `ReadEntries` when entries are gone or damaged; the core paces retries.

    To `OfferSnapshot`: there is none.
    """

    peer_id: str
    request_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class SnapshotFetched:
    """An offered snapshot is here, whole, verified and durable."""

    offer: InstallSnapshotRequest


@dataclass(frozen=True, slots=True)
class Stored:
    """Every write up to and including this token is durable."""

    token: int


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """A write or fsync failed: this replica may promise nothing any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class FitnessChanged:
    """Whether this replica may lead.

    Not with damaged entries (RELIABILITY 2.3), nor with a state machine that failed or is not there
    yet.
    """

    is_fit: bool


@dataclass(frozen=True, slots=True)
class BeginMoved:
    """Committed entries up to before_begin_index were removed, that one had before_begin_term."""

    before_begin_index: int
    before_begin_term: int


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """The bulk link to a peer was (re-)established; whatever was in flight may be lost."""

    peer_id: str


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A peer's process has ended, it seems: its connection closed, and nobody listens there."""

    peer_id: str


@dataclass(frozen=True, slots=True)
class TransferRequested:
    """Hand leadership over to transferee_id; with `term` (not -1) only in that term."""

    request_id: int
    transferee_id: str
    term: int = -1


@dataclass(frozen=True, slots=True)
class AddMember:
    """A learner more; with `joining` it becomes a voter once it has caught up."""

    member: Member


@dataclass(frozen=True, slots=True)
class PromoteMember:
    """A learner becomes a voter."""

    node_id: str


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """A member leaves the group."""

    node_id: str


@dataclass(frozen=True, slots=True)
class ChangeRequested:
    """Change who belongs to the group; answered by `Finished` once committed, or refused."""

    request_id: int
    change: AddMember | PromoteMember | RemoveMember


@dataclass(frozen=True, slots=True)
class ReadRequested:
    """Answered by `ReadReady` once leadership is proved, or by `Finished` with an error."""

    request_id: int


@dataclass(frozen=True, slots=True)
class RestBegan:
    """The beats between nodes vouch for leader_id in this term, until `RestEnded`.

    A follower then waits for no heartbeats. A leader sends next to none: the answers to the beats
    vouch for its live peers, who all follow it.
    """

    leader_id: str
    term: int


@dataclass(frozen=True, slots=True)
class RestEnded:
    """They vouch no more; `heard_ms`: when the leader's node was last heard of."""

    heard_ms: int


Event: TypeAlias = (
    Ticked
    | Received
    | Proposed
    | EntriesRead
    | EntriesUnreadable
    | SnapshotFetched
    | Stored
    | StorageFailed
    | FitnessChanged
    | BeginMoved
    | PeerConnected
    | PeerLost
    | TransferRequested
    | ChangeRequested
    | ReadRequested
    | RestBegan
    | RestEnded
)
