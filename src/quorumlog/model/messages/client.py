"""Requests of clients and the responses to them."""

import msgspec

from quorumlog.model.bounds import (
    AskedIndex,
    ChannelOrAll,
    Count,
    Crc,
    FileNumber,
    IdentityBytes,
    Index,
    Label,
    Milliseconds,
    Number,
    Position,
    ReleaseText,
    Size,
    Term,
)
from quorumlog.model.codes import WriteLevel
from quorumlog.model.messages.base import Message, Request, Response


class AppendRequest(Request, frozen=True, kw_only=True):
    """Append the attached block of `count` entries, all of it or nothing.

    With `wants_results` the results of the group's state machine are attached to the answer, as
    MessagePack of a list. With `stream` above 0 the blocks of that stream are appended in
    `sequence` order 0, 1, 2 …; once one is refused, later ones are refused too (OUT_OF_ORDER) until
    it is repeated. The answer comes when the block has reached `level`, or the group's least level
    if that is higher; servers of earlier versions answer at REPLICATION.
    """

    count: Count
    stream: Number = 0
    sequence: Number = 0
    wants_results: bool = False
    level: WriteLevel = WriteLevel.REPLICATION


class AppendResponse(Response, frozen=True, kw_only=True):
    """Where a block went: indexes first_index … last_index. `term` is that of its entries.

    For a block that came again, `term` is -1 if its entries have been removed.
    `positions` has (first index, its position) for each run of entries that is contiguous on disk.
    From them and the sizes that it sent, the client derives every entry's position. `level` is what
    a success proves.
    """

    first_index: Index = -1
    last_index: Index = -1
    positions: list[tuple[Index, Position]] = []
    level: WriteLevel = WriteLevel.REPLICATION


class StoreLocation(msgspec.Struct, frozen=True, array_like=True):
    """Where a replica stores a group: its directory, that of index files, those of data files.

    Of each the path and what the kernel of that `machine` (as it runs now) knows it by: device and
    inode.
    """

    machine: str
    directories: list[tuple[str, FileNumber, FileNumber]]


class FetchRequest(Request, frozen=True, kw_only=True):
    """Read committed entries begin_index … end_index (-1: as far as committed).

    The answer has at most `bytes_max` bytes, but always one whole entry. While begin_index is not
    committed it waits up to `wait_ms`. With `index_records` it also carries 32 bytes for each entry
    (spec 20 section 2), before the entries. With `leader_only` a follower refuses. A `linearizable`
    fetch sees everything that was committed before it was sent. `read_committed`: entries only up
    to where every transaction has ended, with the rejected ranges. `headers_only`: the entries
    without their bodies. If `machine` is the replica's own (see `StoreLocation`), the answer says
    where the entries are instead, as far as they are in files. With a `channel` (-1: all entries)
    only users' entries on it are sent; the answer says up to where it has looked.
    """

    begin_index: AskedIndex
    end_index: AskedIndex = -1
    bytes_max: Size = 1024 * 1024
    wait_ms: Milliseconds = 0
    index_records: bool = False
    leader_only: bool = True
    linearizable: bool = False
    read_committed: bool = False
    headers_only: bool = False
    machine: Label = ""
    channel: ChannelOrAll = -1


class FetchResponse(Response, frozen=True, kw_only=True):
    """Entries first_index … first_index + count - 1 in their on-disk form, attached.

    The attachment is `index_bytes` bytes of index records, then the entries. With count 0 nothing
    was committed in time. The replica can serve `begin_index` … `committed_index`. With a
    `location` nothing is attached: the entries are in its files, however many there are.
    """

    begin_index: Index = -1
    committed_index: Index = -1
    first_index: Index = -1
    count: Count = 0
    index_bytes: Size = 0
    rejected: list[tuple[Index, Index]] = []
    """(first, last) of entries among them that belong to transactions and were not accepted."""
    location: StoreLocation | None = None
    looked_until: Index = -1
    """Of a request for one channel: the last entry that was looked at; the `count` attached ones
    are those on the channel up to there. -1: the server knows no channels, and sent all."""


class GroupIdentity(Message, frozen=True, kw_only=True):
    """Sent first to a client that named a group in its Hello: the identity of that group here."""

    group: str
    identity: IdentityBytes


class MetadataRequest(Request, frozen=True, kw_only=True):
    """Who leads this group? An empty group asks for all groups of the node."""


class Throttled(Message, frozen=True, kw_only=True):
    """To a client, unasked: it has used up a quota, and is to send no more requests for `ms`.

    It comes again each second while that lasts, with what is left by then. What the client has sent
    already is served. Requests about who leads a group may be sent all the same.
    """

    ms: Milliseconds


class WatchLeaderRequest(Request, frozen=True, kw_only=True):
    """Answer once a leader of a term above `above_term` is known, or after `wait_ms`.

    The answer is a `MetadataResponse` with the group as it is then.
    """

    above_term: Term = -1
    wait_ms: Milliseconds = 0


class GroupMetadata(msgspec.Struct, frozen=True, array_like=True):
    """Members (id → address) and leader of one group as a node sees them.

    `identity` was made when the group was founded; empty: not known here.
    """

    group: str
    peers: dict[str, str]
    leader_id: str | None
    term: Term
    identity: IdentityBytes = b""


class MetadataResponse(Response, frozen=True, kw_only=True):
    """The node and the groups asked for."""

    cluster: str = ""
    node_id: str = ""
    groups: list[GroupMetadata] = []


class ConsumerPosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a consumer group has come in a partition of a log, and when it committed that.

    It has handled everything before `index`.
    """

    group: str
    index: Index
    ago_ms: Milliseconds
    partition: Count = 0


class StatusRequest(Request, frozen=True, kw_only=True):
    """How is this replica doing?"""


class PeerStatus(msgspec.Struct, frozen=True, array_like=True):
    """A leader's view of one peer. `lag` in entries, -1 when not known."""

    peer_id: str
    dispatcher: str
    match_index: Index
    write_index: Index
    lag: Index
    in_flight_requests: Count
    in_flight_bytes: Size
    live: bool


class StatusResponse(Response, frozen=True, kw_only=True):
    """A replica's state in full.

    For a replica that it cannot reach, a client makes one whose code is not SUCCESS.
    """

    group: str = ""
    address: str = ""
    node_id: str = ""
    role: str = ""
    vote: str | None = None
    begin_index: Index = -1
    end_index: Index = -1
    end_term: Term = -1
    durable_index: Index = -1
    committed_index: Index = -1
    applied_index: Index = -1
    end_chain_crc: Crc = 0
    committed_chain_crc: Crc = 0
    flush: str = "sync"
    healthy: bool = True
    health_text: str = ""
    last_vote_result: str = ""
    pending_requests: Count = 0
    pending_bytes: Size = 0
    store_bytes: Size = 0
    peers: list[PeerStatus] = []
    damaged_entries: Count = 0
    damaged_ranges: list[tuple[Index, Index]] = []
    disk_text: str = ""
    """Why appends are refused for want of room; empty if they are not."""
    scrub_passes: Count = 0
    scrub_last_pass_ms: Milliseconds = 0
    """Wall clock at the end of the last whole pass, 0 before the first."""
    scrub_checked_index: Index = -1
    """How far the present pass has come."""
    scrub_found: Count = 0
    voters: list[str] = []
    outgoing: list[str] = []
    """Voters of before, while the voters change."""
    learners: list[str] = []
    membership_index: Index = -1
    is_transferring: bool = False
    disk_stalled: bool = False
    state_machine: str = ""
    snapshot_index: Index = -1
    """Last included index of the newest snapshot."""
    install_state: str = ""
    """installing, verifying, loading or ready; empty: there is no state machine."""
    stable_index: Index = -1
    """Up to here every transaction has ended: the end of the log for read_committed."""
    open_transactions: Count = 0
    consumers: list[ConsumerPosition] = []
    """Positions of consumer groups of this log, as far as its leader knows."""
    retention_text: str = ""
    """Why nothing is removed by age at present; empty if it may be."""
    machine_text: str = ""
    """What the state machine is about, unless it works: recovering, rebuilding, waiting."""
    machine_rebuilds: Count = 0
    """How often it was found damaged, or different from a majority, and was rebuilt."""
    machine_compared_index: Index = -1
    """Last entry after which its state was that of a majority."""
    machine_checked_ms: Milliseconds = 0
    """Wall clock when its state and snapshots were last read and verified; 0: not yet."""
    connections: Count = 0
    """Accepted by the node, of all groups."""
    connections_max: Count = 0
    """As many clients as its file descriptors, and connectionsMax, allow."""
    loop_lag_ms: Milliseconds = 0
    """By how much the node's event loop was late at most in the last minute."""
    identity: str = ""
    """Identity of the group, made when it started; empty: not started, or by an earlier version."""
    address_text: str = ""
    """Where the log and `peers` disagree about addresses, and what to do."""
    tables_compared_index: Index = -1
    """Last entry after which a table derived from the log was that of a majority."""
    tables_rebuilt: Count = 0
    """How often they differed from a majority's, and a peer's took their place."""
    original_compatible: bool = False
    """Whether the group's own entries are written so that DLedger 0.2.7 to 0.4.0 reads the log."""
    release: ReleaseText = ""
    """What the node runs; empty: an earlier release, which does not say so."""
