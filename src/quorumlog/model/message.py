"""The messages of the protocol: what a frame carries besides its block of entries.

Peers exchange one-way messages (`Vote*`, `HeartBeat*`, `Push*`); clients send requests and get
responses paired by the frame's correlation id. Index and term are -1 where there is none.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from quorumlog.model.bounds import (
    RUNS_MAX,
    AddressText,
    AskedIndex,
    Code,
    Count,
    Crc,
    FileNumber,
    IdentityBytes,
    Index,
    Label,
    Milliseconds,
    Name,
    Number,
    Position,
    Size,
    Term,
    Text,
)
from quorumlog.model.codes import PushType, ResponseCode, VoteResult

CHANGES_MAX = 512
"""Groups of which one beat says something; more go into further ones."""
STRAYS_MAX = 512
"""Groups named in one answer to a beat."""
INTRODUCED_MAX = 512
"""Groups in one introduction; more of them go into several."""
HEART_BEATS_MAX = 512
"""Heartbeats and answers in one message; more go into another."""


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Base of everything on the wire; encoded as an array, so field order is the format."""


class Hello(Message, frozen=True, kw_only=True):
    """First message on a connection, in both directions.

    `role` is "client", or the channel a peer will use: "control" (votes, heartbeats, replies) or
    "bulk" (pushes). Clients leave `node_id` empty. `address` is where a peer listens. A client that
    knows the `identity` of the `group` that it uses names both: requests to another are refused.
    """

    cluster: Name
    node_id: Name
    role: Name
    code: Code = ResponseCode.SUCCESS
    text: Text = ""
    address: AddressText = ""
    group: Name = ""
    identity: IdentityBytes = b""


class PeerMessage(Message, frozen=True, kw_only=True):
    """Between members of a group: `local_id` sends, `remote_id` is addressed.

    `incarnation` is the sender's (see `Member`). In an answer `remote_incarnation` is that of the
    asker, so that nobody takes an answer for another's.
    """

    group: Name
    local_id: Name
    remote_id: Name
    term: Term
    incarnation: Number = 0
    remote_incarnation: Number = 0


class VoteRequest(PeerMessage, frozen=True, kw_only=True):
    """Ask for a vote, or (`pre_vote`) whether a vote would be given; local_id is the candidate.

    `membership_index`: of the candidate's membership. `transfer`: the leader itself asked the
    candidate to take over.
    """

    ledger_end_index: Index
    ledger_end_term: Term
    pre_vote: bool = False
    membership_index: Index = -1
    transfer: bool = False


class VoteResponse(PeerMessage, frozen=True, kw_only=True):
    """Answer to a vote request; `request_term` is the term asked for, `term` the voter's own."""

    vote_result: VoteResult
    request_term: Term
    pre_vote: bool = False


class HeartBeatRequest(PeerMessage, frozen=True, kw_only=True):
    """The leader is alive; local_id is the leader. `round` pairs answers with rounds.

    `retention_floor`: every member that was heard of lately has entries up to here.
    `committed_chain_crc` is the chain CRC at the leader's `committed_index`, if it has one there.
    """

    round: Number
    retention_floor: Index = -1
    membership_index: Index = -1
    committed_index: Index = -1
    committed_chain_crc: Crc = 0


class HeartBeatResponse(PeerMessage, frozen=True, kw_only=True):
    """Answer to a heartbeat.

    `end_index` lets an idle leader notice a follower that lost data, `committed_index` one that was
    restarted and does not know any more what is committed.
    """

    code: ResponseCode
    round: Number
    end_index: Index
    committed_index: Index = -1


class PushRequest(PeerMessage, frozen=True, kw_only=True):
    """One step of the leader's dispatcher; local_id is the leader.

    COMPARE: does your log hold (prev_index, prev_term)? TRUNCATE: remove everything from
    prev_index + 1 on unless the entry there has term `next_term` (-1: the leader has none).
    APPEND: the attached block holds entries first_index … last_index, whose terms are `term_runs`
    as (term, first index of the run). COMMIT: nothing new but `commit_index`.
    `prev_chain_crc` is the chain CRC of the leader's entry at prev_index.
    """

    type: PushType
    request_id: Number
    prev_index: Index
    prev_term: Term
    commit_index: Index
    prev_chain_crc: Crc = 0
    next_term: Term = -1
    first_index: Index = -1
    last_index: Index = -1
    term_runs: Annotated[list[tuple[Term, Index]], Meta(max_length=RUNS_MAX)] = []
    membership_index: Index = -1


class PushResponse(PeerMessage, frozen=True, kw_only=True):
    """Answer to a push.

    `match_index`: on SUCCESS, the follower's log is durable and equal to the leader's up to here.
    `end_index`: the follower's last index. On a failed COMPARE `x_term` is the follower's term at
    prev_index and `x_index` the first index of that term (spec 30 section 5.4).
    """

    type: PushType
    request_id: Number
    code: ResponseCode
    match_index: Index = -1
    end_index: Index = -1
    x_term: Term = -1
    x_index: Index = -1


class TimeoutNowRequest(PeerMessage, frozen=True, kw_only=True):
    """Take over: campaign at once. local_id is the leader; you have all it has, to `end_index`."""

    end_index: Index


class ReadIndexRequest(PeerMessage, frozen=True, kw_only=True):
    """Which index must be committed here before a linearizable read may be answered?"""

    request_id: Number


class ReadIndexResponse(PeerMessage, frozen=True, kw_only=True):
    """Answer to that: the leader proved after the request that it leads, and committed `index`."""

    request_id: Number
    code: ResponseCode
    index: Index = -1


class InstallSnapshotRequest(PeerMessage, frozen=True, kw_only=True):
    """The entries you need are gone: begin behind last_included_index; local_id is the leader.

    `chain_crc` is that of the last one included (-1: not known). `config` is the newest
    CONFIG_CHANGE entry among them as (index, body), where the leader has it. `sha256` is of the
    snapshot's `size_bytes` bytes, to be fetched first; empty: a plain log, there is nothing to
    fetch. `digest` is what the machine says of that state; the last `kept_bytes` are not its own.
    Not `from_leader`: nobody leads, and your machine cannot go on without a snapshot.
    """

    request_id: Number
    last_included_index: Index
    last_included_term: Term
    chain_crc: Crc = -1
    membership_index: Index = -1
    config: tuple[Index, bytes] | None = None
    size_bytes: Size = 0
    sha256: bytes = b""
    digest: bytes = b""
    kept_bytes: Size = 0
    from_leader: bool = True


class OfferQuery(PeerMessage, frozen=True, kw_only=True):
    """Did you make me the offer with this fingerprint? Nobody else sees `request_id` (by chance).

    Taking an offer removes entries, so it is not enough that a message names the leader.
    """

    request_id: Number
    fingerprint: bytes


class OfferResponse(PeerMessage, frozen=True, kw_only=True):
    """Answer to that: SUCCESS, or INCONSISTENT_LEADER: no such offer is mine."""

    request_id: Number
    code: ResponseCode


class InstallSnapshotResponse(PeerMessage, frozen=True, kw_only=True):
    """Answer to that, once it is durable; INSTALL_SNAPSHOT_ERROR: more is committed here already.

    `committed_index` is durable here, too.
    """

    request_id: Number
    code: ResponseCode
    committed_index: Index


class SnapshotChunkRequest(PeerMessage, frozen=True, kw_only=True):
    """Send me a piece of the data of the snapshot that you offered."""

    request_id: Number
    last_included_index: Index
    offset: Size
    bytes_max: Size


class SnapshotChunk(PeerMessage, frozen=True, kw_only=True):
    """Answer to that: the bytes from offset on are attached; LOAD_SNAPSHOT_ERROR: it is gone."""

    request_id: Number
    code: ResponseCode
    offset: Size


class RepairRequest(PeerMessage, frozen=True, kw_only=True):
    """Send me entries first_index … last_index, or as many of the first as you have and fit."""

    request_id: Number
    first_index: Index
    last_index: Index
    bytes_max: Size


class RepairResponse(PeerMessage, frozen=True, kw_only=True):
    """Answer to a repair request: entries first_index … first_index + count - 1, attached.

    `begin_index` is the first that the sender keeps; if what was asked for is before it, the
    sender's producer sessions are attached.
    """

    request_id: Number
    code: ResponseCode
    first_index: Index = -1
    count: Count = 0
    begin_index: Index = -1


class SnapshotOfferRequest(PeerMessage, frozen=True, kw_only=True):
    """Offer me your snapshot: my machine cannot go on with what I have.

    The offer repeats `request_id`. It must include the entry `least_index`: my log begins there.
    """

    request_id: Number = 0
    least_index: Index = -1


class DigestQuery(PeerMessage, frozen=True, kw_only=True):
    """What is the digest after the entry `index`? A follower tells its own, a leader a majority's.

    Nobody else sees `request_id` (by chance). Who differs from a majority gives up its state, so it
    is not enough that a message names its sender.
    """

    request_id: Number
    index: Index


class StateDigest(PeerMessage, frozen=True, kw_only=True):
    """Answer to that: what a state machine's digest is after the entry `index`.

    From a follower it is its own. From the leader (`is_verdict`) it is that of a majority; without
    `is_majority` only another than the receiver's, which is to check its state, and another answer
    may follow. Earlier builds tell it unasked, without a `request_id`: they are not believed.
    """

    index: Index
    digest: bytes
    is_verdict: bool = False
    is_majority: bool = False
    request_id: Number = 0


class NodeMessage(Message, frozen=True, kw_only=True):
    """Between nodes, for all groups they share: `local_id` sends, `remote_id` is addressed."""

    local_id: Name
    remote_id: Name


class Introduction(NodeMessage, frozen=True, kw_only=True):
    """First on a connection to a peer, and again when something of it changes.

    `groups` are groups that it hosts as (group, identity, index of its membership): identity empty
    where it knows none. `address` is the sender's own in these: as its log of them has it, if that
    is the same place as in its configuration, else as there.
    """

    address: AddressText
    groups: Annotated[list[tuple[Name, IdentityBytes, Index]], Meta(max_length=INTRODUCED_MAX)]


class NodeHeartBeat(NodeMessage, frozen=True, kw_only=True):
    """The sender is alive, and leads the groups of a set that both know, each in one term.

    `run` numbers the process, `number` its beats to this node, `version` that set. `changes` are
    all groups whose term (-1: not led any more) changed after the version `base`; they can be
    applied to any version from `base` on. `more`: further changes follow at once; only with them
    the set is whole. `interval_ms`: pause between beats.
    """

    run: Number
    number: Number
    base: Number
    version: Number
    interval_ms: Milliseconds
    changes: Annotated[list[tuple[Name, Term]], Meta(max_length=CHANGES_MAX)] = []
    more: bool = False


class NodeHeartBeatResponse(NodeMessage, frozen=True, kw_only=True):
    """Answer to a beat, whose `run` and `number` it repeats: the version known, 0 if none is.

    `strays` are groups of the set that do not follow the sender of the beat in their term (any
    more), at most `STRAYS_MAX`; of so many nothing is said for the others.
    """

    run: Number
    number: Number
    version: Number
    strays: Annotated[list[Name], Meta(max_length=STRAYS_MAX)] = []


class HeartBeats(NodeMessage, frozen=True, kw_only=True):
    """Heartbeats of several groups, and answers to some, as if each had come by itself."""

    requests: Annotated[list[HeartBeatRequest], Meta(max_length=HEART_BEATS_MAX)]
    responses: Annotated[list[HeartBeatResponse], Meta(max_length=HEART_BEATS_MAX)]


class Request(Message, frozen=True, kw_only=True):
    """From a client. Nothing in one is longer than its answer needs: it may be kept for long."""

    group: Name


class Response(Message, frozen=True, kw_only=True):
    """To a client; `leader_id` and `term` are the replica's present belief.

    One that answers no request (correlation id 0) with NODE_STOPPING: the node takes no more of
    them; those that are under way are answered, and then the client ends the connection.
    """

    code: Code = ResponseCode.SUCCESS
    text: str = ""
    leader_id: str | None = None
    term: Term = -1


class AppendRequest(Request, frozen=True, kw_only=True):
    """Append the attached block, all of it or nothing.

    `count` entries. With `wants_results` the answer carries those of the group's state machine,
    MessagePack of a list, attached. With `stream` above 0 the blocks of that stream are stored in
    `sequence` order 0, 1, 2 …; once one is refused, later ones are refused too (OUT_OF_ORDER)
    until it is repeated.
    """

    count: Count
    stream: Number = 0
    sequence: Number = 0
    wants_results: bool = False


class AppendResponse(Response, frozen=True, kw_only=True):
    """Where a block went: indexes first_index … last_index. `term` is that of its entries.

    For a block that came again `term` is -1 if its entries are removed by now.
    `spans` lists (first index, position of it) for each stretch that is contiguous on disk, from
    which, with the sizes it sent, the client derives every entry's position.
    """

    first_index: Index = -1
    last_index: Index = -1
    spans: list[tuple[Index, Position]] = []


class StoreLocation(msgspec.Struct, frozen=True, array_like=True):
    """Where a replica keeps a group: its directory, that of index files, those of data files.

    Of each the path and what the kernel of that `machine` (as it runs now) knows it by: device and
    inode.
    """

    machine: str
    directories: list[tuple[str, FileNumber, FileNumber]]


class FetchRequest(Request, frozen=True, kw_only=True):
    """Read committed entries begin_index … end_index (-1: as far as committed).

    At most `bytes_max` bytes, but always one whole entry. When begin_index is not committed yet the
    answer waits up to `wait_ms`. With `index_records` the answer also carries 32 bytes an entry
    (spec 20 section 2) in front of the entries. `leader_only` refuses on a follower. A
    `linearizable` one sees everything that was committed before it was sent. `read_committed`: only
    as far as every transaction has ended, and with what was rejected. `headers_only`: the
    entries without their bodies. If `machine` is the replica's own (see `StoreLocation`), it says
    where the entries are stored instead, as far as they are in files.
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


class FetchResponse(Response, frozen=True, kw_only=True):
    """Entries first_index … first_index + count - 1 as stored, attached.

    The attachment is `index_bytes` bytes of index records, then the entries. With count 0 nothing
    was committed in time. `begin_index` … `committed_index` is what the replica can serve. With a
    `location` nothing is attached: the entries are in its files, however many they are.
    """

    begin_index: Index = -1
    committed_index: Index = -1
    first_index: Index = -1
    count: Count = 0
    index_bytes: Size = 0
    rejected: list[tuple[Index, Index]] = []
    """(first, last) of entries among them that belong to transactions and were not accepted."""
    location: StoreLocation | None = None


class GroupIdentity(Message, frozen=True, kw_only=True):
    """First to a client that named a group in its Hello: which founding of it is here."""

    group: str
    identity: IdentityBytes


class MetadataRequest(Request, frozen=True, kw_only=True):
    """Who leads this group? An empty group asks for all groups of the node."""


class GroupMetadata(msgspec.Struct, frozen=True, array_like=True):
    """Members (id → address) and leader of one group as a node sees them.

    `identity` was made when the group began; empty: not known here.
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
    """What a reader reported: it has done with everything before `index`, so long ago."""

    reader: str
    index: Index
    ago_ms: Milliseconds


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

    A client puts one with another code than SUCCESS in the place of a replica it cannot reach.
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
    readers: list[ConsumerPosition] = []
    """Positions that readers reported to this replica while it led."""
    retention_text: str = ""
    """Why nothing is removed by age at present; empty if it may be."""
    machine_text: str = ""
    """What the state machine is about, unless it works: recovering, rebuilding, waiting."""
    machine_rebuilds: Count = 0
    """Times that it was found damaged, or unlike those of a majority, and began again."""
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
    """Of the group, made when it began; empty: not begun, or begun by an earlier version."""
    address_text: str = ""
    """Where the log and `peers` disagree about addresses, and what to do."""
