"""What can happen to a replica, as told to `RaftCore.step`."""

from typing import TypeAlias

import msgspec

from quorumlog.model.membership import Member, Membership
from quorumlog.model.messages.peer import InstallSnapshotRequest, PeerMessage


class Ticked(msgspec.Struct, frozen=True):
    """Time has passed; sent when `next_deadline_ms` is reached (earlier or later does no harm).

    Without `may_campaign` a campaign that is due is put off a little.
    """

    may_campaign: bool = True


class Received(msgspec.Struct, frozen=True):
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


class Proposed(msgspec.Struct, frozen=True):
    """A client wants `count` entries appended; `proposal_id` names them in the effects."""

    proposal_id: int
    count: int


class EntriesRead(msgspec.Struct, frozen=True):
    """The answer to `ReadEntries`: entries up to last_index, `size_bytes` long, can be pushed.

    Not `from_memory`: the peer is being caught up with what lies on disk.
    """

    peer_id: str
    request_id: int
    last_index: int
    size_bytes: int
    from_memory: bool = True


class EntriesUnreadable(msgspec.Struct, frozen=True):
    """The answer to `ReadEntries` when entries are gone or damaged; the core paces retries.

    To `OfferSnapshot`: there is none.
    """

    peer_id: str
    request_id: int
    reason: str


class OfferConfirmed(msgspec.Struct, frozen=True):
    """The answer to `ConfirmOffer`: the leader itself says that it made this offer."""

    offer: InstallSnapshotRequest


class SnapshotFetched(msgspec.Struct, frozen=True):
    """An offered snapshot is here, whole, verified and durable."""

    offer: InstallSnapshotRequest


class Stored(msgspec.Struct, frozen=True):
    """Every write up to and including this token is durable."""

    token: int


class StorageFailed(msgspec.Struct, frozen=True):
    """A write or fsync failed: this replica may promise nothing any more."""

    reason: str


class EligibilityChanged(msgspec.Struct, frozen=True):
    """Whether this replica may lead.

    Not with damaged entries (RELIABILITY 2.3), nor with a state machine that failed or is not there
    yet.
    """

    is_eligible: bool


class LogCompacted(msgspec.Struct, frozen=True):
    """Committed entries up to before_begin_index were removed, that one had before_begin_term."""

    before_begin_index: int
    before_begin_term: int


class PeerConnected(msgspec.Struct, frozen=True):
    """The bulk link to a peer was (re-)established; whatever was in flight may be lost."""

    peer_id: str


class PeerLost(msgspec.Struct, frozen=True):
    """A peer's process has ended, it seems: its connection closed, and nobody listens there."""

    peer_id: str


class TransferRequested(msgspec.Struct, frozen=True):
    """Hand leadership over to transferee_id; with `term` (not -1) only in that term."""

    request_id: int
    transferee_id: str
    term: int = -1


class Leaving(msgspec.Struct, frozen=True):
    """This replica's node is about to stop: it leads no more if another can, and seeks not to."""


class AddMember(msgspec.Struct, frozen=True):
    """A learner more; with `joining` it becomes a voter once it has caught up."""

    member: Member


class PromoteMember(msgspec.Struct, frozen=True):
    """A learner becomes a voter."""

    node_id: str


class RemoveMember(msgspec.Struct, frozen=True):
    """A member leaves the group."""

    node_id: str


class ChangeRequested(msgspec.Struct, frozen=True):
    """Change who belongs to the group; answered by `Finished` once committed, or refused."""

    request_id: int
    change: AddMember | PromoteMember | RemoveMember


class ReadRequested(msgspec.Struct, frozen=True):
    """Answered by `ReadReady` once leadership is proved, or by `Finished` with an error."""

    request_id: int


class Quiesced(msgspec.Struct, frozen=True):
    """The beats between nodes vouch for leader_id in this term, until `Unquiesced`.

    A follower then waits for no heartbeats. A leader sends next to none: the answers to the beats
    vouch for its live peers, who all follow it.
    """

    leader_id: str
    term: int


class Unquiesced(msgspec.Struct, frozen=True):
    """They vouch no more; `last_contact_ms`: when the leader's node was last heard of."""

    last_contact_ms: int


Event: TypeAlias = (
    Ticked
    | Received
    | Proposed
    | EntriesRead
    | EntriesUnreadable
    | OfferConfirmed
    | SnapshotFetched
    | Stored
    | StorageFailed
    | EligibilityChanged
    | LogCompacted
    | PeerConnected
    | PeerLost
    | TransferRequested
    | Leaving
    | ChangeRequested
    | ReadRequested
    | Quiesced
    | Unquiesced
)
