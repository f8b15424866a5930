"""What can happen to a replica: `RaftCore.step` takes one event at a time."""

from typing import TypeAlias

import msgspec

from quorumlog.model.membership import Member, Membership
from quorumlog.model.messages.peer import InstallSnapshotRequest, PeerMessage
from quorumlog.raft.config import RaftConfig


class Ticked(msgspec.Struct, frozen=True):
    """Time has passed; sent when `next_deadline_ms` is reached (earlier or later does no harm)."""


class Received(msgspec.Struct, frozen=True):
    """A message from a peer.

    For COMPARE, APPEND and heartbeats, `chain_matches` says whether the chain CRC of the log here
    at prev_index (committed_index) equals the one in the message (True where there is nothing to
    compare): the core never sees bytes, so the shell, which holds them, compares. The block that
    came with an APPEND stays outside; `memberships` are those that its entries name, with their
    indexes.
    `disk_full`: there is no room for its entries.
    """

    message: PeerMessage
    chain_matches: bool = True
    disk_full: bool = False
    memberships: tuple[tuple[int, Membership], ...] = ()


class Proposed(msgspec.Struct, frozen=True):
    """A client wants `count` entries appended, which take `size_bytes` in the log.

    `proposal_id` names them in the effects.
    """

    proposal_id: int
    count: int
    size_bytes: int


class EntriesRead(msgspec.Struct, frozen=True):
    """The answer to `ReadEntries`: entries up to last_index, `size_bytes` long, can be pushed.

    Without `from_memory`, they come from disk: the peer lags far.
    """

    peer_id: str
    request_id: int
    last_index: int
    size_bytes: int
    from_memory: bool = True


class EntriesUnreadable(msgspec.Struct, frozen=True):
    """The answer to `ReadEntries` when entries are gone or damaged; the core paces retries.

    As the answer to `OfferSnapshot` it says that there is no snapshot.
    """

    peer_id: str
    request_id: int
    reason: str


class LagMeasured(msgspec.Struct, frozen=True):
    """The answer to `MeasureLag`: the entries that a peer lags by take `size_bytes` in the log."""

    peer_id: str
    size_bytes: int


class OfferConfirmed(msgspec.Struct, frozen=True):
    """The answer to `ConfirmOffer`: the leader itself says that it made this offer."""

    offer: InstallSnapshotRequest


class SnapshotFetched(msgspec.Struct, frozen=True):
    """An offered snapshot is here: complete, verified and durable."""

    offer: InstallSnapshotRequest


class WritesDurable(msgspec.Struct, frozen=True):
    """Every write up to and including this token is durable."""

    token: int


class StorageFailed(msgspec.Struct, frozen=True):
    """A write or fsync failed: this replica may promise nothing any more (R2)."""

    reason: str


class EligibilityChanged(msgspec.Struct, frozen=True):
    """Whether this replica may lead.

    It may not with damaged entries (RELIABILITY 2.3), nor while its state machine has failed or is
    not loaded yet.
    """

    is_eligible: bool


class RoomChanged(msgspec.Struct, frozen=True):
    """Whether this replica would refuse appends if it led, because its disk is full."""

    lacks_room: bool


class LogCompacted(msgspec.Struct, frozen=True):
    """Committed entries up to before_begin_index were removed, that one had before_begin_term."""

    before_begin_index: int
    before_begin_term: int


class PeerConnected(msgspec.Struct, frozen=True):
    """The replication connection to a peer is new; whatever was in flight before may be lost."""

    peer_id: str


class PeerLost(msgspec.Struct, frozen=True):
    """A peer's process seems to have ended: its connection closed, and its port is not open."""

    peer_id: str


class TransferRequested(msgspec.Struct, frozen=True):
    """Transfer leadership to transferee_id; with `term` (not -1) only in that term.

    An empty transferee_id stands for the live voter that has most of the log.
    """

    request_id: int
    transferee_id: str
    term: int = -1


class Stopping(msgspec.Struct, frozen=True):
    """This replica's node is about to stop: it campaigns no more, and transfers leadership."""


class Reconfigured(msgspec.Struct, frozen=True):
    """The timing of this replica, its preferred leaders or its quota have changed.

    Who it is, and what the group was founded with, are as before.
    """

    config: RaftConfig


class AddMember(msgspec.Struct, frozen=True):
    """Add a learner; with `joining` it becomes a voter once it has caught up."""

    member: Member


class PromoteMember(msgspec.Struct, frozen=True):
    """Make a learner a voter."""

    node_id: str


class RemoveMember(msgspec.Struct, frozen=True):
    """Remove a member from the group."""

    node_id: str


class ChangeRequested(msgspec.Struct, frozen=True):
    """Change who belongs to the group; `Finished` follows once that is committed or refused."""

    request_id: int
    change: AddMember | PromoteMember | RemoveMember


class ReadRequested(msgspec.Struct, frozen=True):
    """Prove leadership for a read; `ReadReady` follows, or `Finished` with an error."""

    request_id: int


class Quiesced(msgspec.Struct, frozen=True):
    """Node heartbeats stand for the heartbeats of leader_id in this term, until `Unquiesced`.

    A follower waits for no heartbeats meanwhile. A leader sends hardly any: the answers to the node
    heartbeats confirm that all its live peers follow it.
    """

    leader_id: str
    term: int


class Unquiesced(msgspec.Struct, frozen=True):
    """Node heartbeats no longer do that; the last contact with the leader's node is given."""

    last_contact_ms: int


Event: TypeAlias = (
    Ticked
    | Received
    | Proposed
    | EntriesRead
    | EntriesUnreadable
    | LagMeasured
    | OfferConfirmed
    | SnapshotFetched
    | WritesDurable
    | StorageFailed
    | EligibilityChanged
    | RoomChanged
    | LogCompacted
    | PeerConnected
    | PeerLost
    | TransferRequested
    | Stopping
    | Reconfigured
    | ChangeRequested
    | ReadRequested
    | Quiesced
    | Unquiesced
)
