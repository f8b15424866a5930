"""What a replica must do, in the order in which `RaftCore.step` returns it.

Tokens number the writes of a replica and rise by one; a `Send` with `after=t` may leave only when
the write with token t, and so every earlier one, is durable (persist before promise).
"""

from typing import TypeAlias

import msgspec

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.hard_state import HardState
from quorumlog.model.membership import Membership
from quorumlog.model.messages.peer import InstallSnapshotRequest, PeerMessage, PushRequest


class SaveHardState(msgspec.Struct, frozen=True):
    """Write term and vote."""

    hard_state: HardState
    token: int


class AppendProposal(msgspec.Struct, frozen=True):
    """Stamp the proposal's block with these indexes and this term, and write it."""

    proposal_id: int
    first_index: int
    last_index: int
    term: int
    token: int


class AppendNoop(msgspec.Struct, frozen=True):
    """Write one NOOP entry: the first of a leader's term (Raft thesis section 6.4)."""

    index: int
    term: int
    token: int


class AppendMembership(msgspec.Struct, frozen=True):
    """Write one CONFIG_CHANGE entry that names this membership."""

    index: int
    term: int
    membership: Membership
    token: int


class AppendReceived(msgspec.Struct, frozen=True):
    """Write entries first_index … last_index of the block that came with the message just stepped.

    first_index may lie inside that block when its first entries are already appended.
    """

    first_index: int
    last_index: int
    token: int


class TruncateLog(msgspec.Struct, frozen=True):
    """Remove from_index and everything after it; never at or below the committed index."""

    from_index: int
    token: int


class ResetLog(msgspec.Struct, frozen=True):
    """Start the log after before_begin_index, whose term and chain CRC (-1: unknown) are given.

    Entries from `truncate_from` on (-1: none) are removed first; entries that are then left after
    before_begin_index stay. `config` is the newest CONFIG_CHANGE entry up to there, if known.
    """

    before_begin_index: int
    before_begin_term: int
    chain_crc: int
    truncate_from: int
    config: tuple[int, bytes] | None
    token: int


class Send(msgspec.Struct, frozen=True):
    """Send a message to its remote_id, once the write `after` is durable (None: at once)."""

    message: PeerMessage
    after: int | None = None


class ReadEntries(msgspec.Struct, frozen=True):
    """Find entries from first_index on, at most bytes_max (but at least a block), for a peer.

    The event `EntriesRead` or `EntriesUnreadable` with the same request_id follows, at once or
    later; none follows if the replica stops.
    """

    peer_id: str
    request_id: int
    first_index: int
    last_index: int
    bytes_max: int


class MeasureLag(msgspec.Struct, frozen=True):
    """Find out how many bytes a peer lags by that has all entries up to match_index.

    The event `LagMeasured` follows, unless it cannot be found out.
    """

    peer_id: str
    match_index: int


class PushEntries(msgspec.Struct, frozen=True):
    """Send this APPEND with its entries: those that `EntriesRead` named, or were just appended."""

    message: PushRequest


class OfferSnapshot(msgspec.Struct, frozen=True):
    """Offer a snapshot to a peer that needs removed entries (`InstallSnapshotRequest`).

    If there is none, the event `EntriesUnreadable` with the same request_id says so. The effect is
    repeated until the peer has answered.
    """

    peer_id: str
    request_id: int


class ConfirmOffer(msgspec.Struct, frozen=True):
    """Ask the leader, over a connection made to its own address, whether it made this offer.

    To take it removes entries, or leaves them out. If the leader made it, the event
    `OfferConfirmed` follows. The effect comes again with the next offer.
    """

    offer: InstallSnapshotRequest


class FetchSnapshot(msgspec.Struct, frozen=True):
    """Fetch the snapshot that the leader offers; the event `SnapshotFetched` follows at some time.

    The effect comes again while the snapshot is being fetched; another offer takes its place.
    """

    offer: InstallSnapshotRequest


class RefuseProposal(msgspec.Struct, frozen=True):
    """The proposal was not appended and never will be; answer it with code."""

    proposal_id: int
    code: ResponseCode


class Committed(msgspec.Struct, frozen=True):
    """Everything up to index is committed."""

    index: int


class FailPending(msgspec.Struct, frozen=True):
    """Leadership ended: answer uncommitted appends with code; their outcome is unknown."""

    code: ResponseCode


class RoleChanged(msgspec.Struct, frozen=True):
    """Role, term or known leader changed (for logs, metrics and redirects)."""

    role: Role
    term: int
    leader_id: str | None


class MembershipChanged(msgspec.Struct, frozen=True):
    """Another membership counts from now on: the entry at index names it (-1: no entry does)."""

    index: int
    membership: Membership


class ReadReady(msgspec.Struct, frozen=True):
    """The read may be answered with everything up to index."""

    request_id: int
    index: int


class Finished(msgspec.Struct, frozen=True):
    """A transfer, a change of members or a read ended like this; `text` says why it failed."""

    request_id: int
    code: ResponseCode
    text: str


class Alarm(msgspec.Struct, frozen=True):
    """Something happened that never must (divergence below committed …); operators must look."""

    text: str


Effect: TypeAlias = (
    SaveHardState
    | AppendProposal
    | AppendNoop
    | AppendMembership
    | AppendReceived
    | TruncateLog
    | ResetLog
    | Send
    | ReadEntries
    | MeasureLag
    | PushEntries
    | OfferSnapshot
    | ConfirmOffer
    | FetchSnapshot
    | RefuseProposal
    | Committed
    | FailPending
    | RoleChanged
    | MembershipChanged
    | ReadReady
    | Finished
    | Alarm
)
