"""One-way messages between the members of a group, and between nodes."""

from typing import Annotated

from msgspec import Meta

from quorumlog.model.bounds import (
    RUNS_MAX,
    AddressText,
    Count,
    Crc,
    IdentityBytes,
    Index,
    Milliseconds,
    Name,
    Number,
    Size,
    Term,
)
from quorumlog.model.codes import PushType, ResponseCode, VoteResult
from quorumlog.model.messages.base import JoinedParts, Message

CHANGES_MAX = 512
"""Groups that one node heartbeat reports on; more go into further ones."""
UNCONFIRMED_MAX = 512
"""Diverged groups named in one answer to a node heartbeat."""
INTRODUCED_MAX = 512
"""Groups in one introduction; more of them go into several."""
HEART_BEATS_MAX = 512
"""Heartbeats and answers in one message; more go into another."""
TABLES_MAX = 64
"""Kinds of tables that are derived from a log."""


class PeerMessage(Message, frozen=True, kw_only=True):
    """Between members of a group: `local_id` sends, `remote_id` is addressed.

    `incarnation` is the sender's (see `Member`). In an answer `remote_incarnation` is that of the
    replica that asked, so that no other replica takes the answer for its own.
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

    `retention_floor`: every member that has answered lately has entries up to here.
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
    restarted and does not know any more what is committed. `lacks_room`: it would refuse appends if
    it led, since its disk is full; earlier versions do not say so.
    """

    code: ResponseCode
    round: Number
    end_index: Index
    committed_index: Index = -1
    lacks_room: bool = False


class PushRequest(PeerMessage, frozen=True, kw_only=True):
    """One step of the leader's dispatcher; local_id is the leader.

    COMPARE: does your log hold (prev_index, prev_term)? TRUNCATE: remove everything from
    prev_index + 1 on unless the entry there has term `next_term` (-1: the leader has none) or the
    leader's own, or is known to equal the leader's.
    APPEND: the attached block holds entries first_index … last_index, whose terms are `term_runs`
    as (term, first index of the run). COMMIT: nothing new but `commit_index`.
    `prev_chain_crc` is the chain CRC of the leader's entry at prev_index; 0: the leader does not
    know it, since its log starts just after that entry.
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
    `end_index`: the follower's last index. On INCONSISTENT_STATE `x_term` is the follower's term at
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
    """The leader confirmed after the request that it leads, and has committed up to `index`."""

    request_id: Number
    code: ResponseCode
    index: Index = -1


class InstallSnapshotRequest(PeerMessage, frozen=True, kw_only=True):
    """The entries you need are gone: start after last_included_index; local_id is the leader.

    `chain_crc` is that of the last one included (-1: not known). `config` is the newest
    CONFIG_CHANGE entry among them as (index, body), where the leader has it. `sha256` is of the
    snapshot's `size_bytes` bytes, to be fetched first; empty: a plain log, there is nothing to
    fetch. `digest` is what the machine says of that state; the last `kept_bytes` are not its own.
    Without `from_leader` it answers a `SnapshotOfferRequest` while there is no leader.
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
    """Did you make me the offer with this fingerprint? Only you can repeat the random `request_id`.

    Taking an offer removes entries, so it is not enough that a message names the leader as sender.
    """

    request_id: Number
    fingerprint: bytes


class OfferResponse(PeerMessage, frozen=True, kw_only=True):
    """Answer to an `OfferQuery`: SUCCESS, or INCONSISTENT_LEADER if I made no such offer."""

    request_id: Number
    code: ResponseCode


class InstallSnapshotResponse(PeerMessage, frozen=True, kw_only=True):
    """Answer to an offer; INSTALL_SNAPSHOT_ERROR: more is committed here.

    With SUCCESS, and with that error, `committed_index` and what was taken are durable here.
    """

    request_id: Number
    code: ResponseCode
    committed_index: Index


class SnapshotChunkRequest(PeerMessage, frozen=True, kw_only=True):
    """Send me a chunk of the snapshot that you offered."""

    request_id: Number
    last_included_index: Index
    offset: Size
    bytes_max: Size


class SnapshotChunk(PeerMessage, frozen=True, kw_only=True):
    """The bytes from offset on are attached; LOAD_SNAPSHOT_ERROR: the snapshot is gone."""

    request_id: Number
    code: ResponseCode
    offset: Size


class RepairRequest(PeerMessage, frozen=True, kw_only=True):
    """Send me entries first_index … last_index, or as many of the first as you can."""

    request_id: Number
    first_index: Index
    last_index: Index
    bytes_max: Size


class RepairResponse(PeerMessage, frozen=True, kw_only=True):
    """Answer to a repair request: entries first_index … first_index + count - 1, attached.

    `begin_index` is the first entry that the sender keeps; if the requested ones lie before it, the
    sender's derived tables are attached. `agreed` says of each by name after which entry it
    equalled a majority's last (-1: not since the start).
    """

    request_id: Number
    code: ResponseCode
    first_index: Index = -1
    count: Count = 0
    begin_index: Index = -1
    agreed: Annotated[list[tuple[Name, Index]], Meta(max_length=TABLES_MAX)] = []


class SnapshotOfferRequest(PeerMessage, frozen=True, kw_only=True):
    """Offer me your snapshot: my machine cannot go on with my entries and snapshots.

    The offer repeats `request_id`. It must include the entry `least_index`: my log starts there.
    """

    request_id: Number = 0
    least_index: Index = -1


class DigestQuery(PeerMessage, frozen=True, kw_only=True):
    """What is the digest after the entry `index`? A follower sends its own, a leader a majority's.

    Only the receiver can repeat the random `request_id`. A replica that differs from a majority
    discards its state, so it is not enough that a message names its sender.
    """

    request_id: Number
    index: Index


class StateDigest(PeerMessage, frozen=True, kw_only=True):
    """Answer to a `DigestQuery`: a state machine's digest after the entry `index`.

    A follower sends its own. The leader (`is_verdict`) sends a majority's. Without `is_majority` it
    is merely one that differs from the receiver's: the receiver must check its state, and another
    answer may follow. Earlier builds send it unasked, without a `request_id`, and are not believed.
    """

    index: Index
    digest: bytes
    is_verdict: bool = False
    is_majority: bool = False
    request_id: Number = 0


class TableDigestQuery(DigestQuery, frozen=True, kw_only=True):
    """The same of a table that is derived from the log; `table` names it and the rule it follows.

    A replica that does not know the name does not answer.
    """

    table: Name = ""


class TableDigest(StateDigest, frozen=True, kw_only=True):
    """Answer to a `TableDigestQuery`, as a `StateDigest` answers a `DigestQuery`."""

    table: Name = ""


class NodeMessage(Message, frozen=True, kw_only=True):
    """Between nodes, for all groups they share: `local_id` sends, `remote_id` is addressed."""

    local_id: Name
    remote_id: Name


class Introduction(NodeMessage, frozen=True, kw_only=True):
    """Sent first on a connection to a peer, and again when its content changes.

    `groups` lists groups of the sender as (group, identity, index of its membership), the identity
    empty if it knows none. `address` is the sender's own in these groups: as their logs write it if
    that is the same place as in its configuration, else as the configuration writes it.
    """

    address: AddressText
    groups: Annotated[list[tuple[Name, IdentityBytes, Index]], Meta(max_length=INTRODUCED_MAX)]


class NodeHeartBeat(NodeMessage, frozen=True, kw_only=True):
    """The sender is alive, and leads the groups of a set that both know, each in one term.

    `run` numbers the process, `number` its heartbeats to this node, `version` that set. `changes`
    are all groups whose term (-1: not led any more) changed after the version `base`; they can be
    applied to any version from `base` on. `more`: further changes follow at once, and only with
    them the set is whole. `interval_ms`: pause between heartbeats.
    """

    run: Number
    number: Number
    base: Number
    version: Number
    interval_ms: Milliseconds
    changes: Annotated[list[tuple[Name, Term]], Meta(max_length=CHANGES_MAX)] = []
    more: bool = False


class NodeHeartBeatResponse(NodeMessage, frozen=True, kw_only=True):
    """Answer to a node heartbeat with the same `run` and `number`; `version`: the one known, or 0.

    `unconfirmed` are groups of the set whose replica here does not rely on these heartbeats (any
    more), at most `UNCONFIRMED_MAX`; at that number, there may be more.
    """

    run: Number
    number: Number
    version: Number
    unconfirmed: Annotated[list[Name], Meta(max_length=UNCONFIRMED_MAX)] = []


class HeartBeats(NodeMessage, frozen=True, kw_only=True):
    """Heartbeats of several groups, and answers to some, as if each had arrived by itself."""

    requests: Annotated[list[HeartBeatRequest], Meta(max_length=HEART_BEATS_MAX)]
    responses: Annotated[list[HeartBeatResponse], Meta(max_length=HEART_BEATS_MAX)]


class PeerTurn(NodeMessage, frozen=True, kw_only=True):
    """Messages of one or several groups to one node, as if each had arrived by itself.

    The attachment holds those of the parts, in their order.
    """

    parts: JoinedParts
