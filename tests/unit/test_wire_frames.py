"""Frames: any split gives the same messages; any bytes parse, are refused, or end it all."""

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from quorumlog.model.codes import PushType, ResponseCode, VoteResult
from quorumlog.model.errors import RemoteProtocolError, UnexpectedArgumentError
from quorumlog.model.group_records import GroupRecord
from quorumlog.model.limits import Limits
from quorumlog.model.messages import (
    admin,
    base,
    client,
    cluster,
    consumers,
    groups,
    login,
    machine,
    peer,
    security,
    transactions,
)
from quorumlog.model.messages.base import Response
from quorumlog.wire.decoder import FrameDecoder
from quorumlog.wire.frame import HEADER, HEADER_SIZE, Frame, RefusedFrame, encode_frame
from quorumlog.wire.kinds import KIND_OF_MESSAGE, MESSAGE_OF_KIND, UNATTACHED_KINDS
from quorumlog.wire.receiver import DIRECT_BYTES_MIN, STAGED_BYTES_MAX

LIMITS = Limits()
PEER = {"group": "g", "local_id": "n0", "remote_id": "n1", "term": 7}
MESSAGES = [
    base.Hello(cluster="c", node_id="n0", role="bulk"),
    base.Response(code=404, text="no", leader_id="n2", term=3),
    peer.VoteRequest(**PEER, ledger_end_index=9, ledger_end_term=6, pre_vote=True),
    peer.VoteResponse(**PEER, vote_result=VoteResult.ACCEPT, request_term=8),
    peer.HeartBeatRequest(**PEER, round=5),
    peer.TimeoutNowRequest(**PEER, end_index=9),
    peer.ReadIndexRequest(**PEER, request_id=3),
    peer.ReadIndexResponse(**PEER, request_id=3, code=ResponseCode.SUCCESS, index=9),
    admin.TransferRequest(group="g", transferee_id="n1", term=7),
    admin.ChangeMembersRequest(
        group="g", action=admin.MemberAction.ADD, node_id="n3", address="h:1"
    ),
    admin.HistoryRequest(group="g"),
    transactions.TransactionalRequest(group="g", transactional_id=b"q" * 16, run_id=b"r" * 16),
    consumers.ConsumerHeartbeatRequest(
        group="__cluster",
        consumer_group="billing",
        log="flights",
        identity=b"i" * 16,
        partitions=3,
        member_id="m",
        epoch=4,
        owned=[0, 2],
        client_id="c",
    ),
    consumers.ConsumerHeartbeatResponse(epoch=5, assigned=[1], interval_ms=5, session_ms=9),
    consumers.CommitPositionsRequest(
        group="__cluster",
        consumer_group="billing",
        log="flights",
        identity=b"",
        partitions=1,
        member_id="m",
        epoch=4,
        positions=[(0, 17)],
    ),
    consumers.PositionsRequest(
        group="__cluster", consumer_group="billing", log="flights", identity=b"", partitions=1
    ),
    consumers.PositionsResponse(positions=[(0, 17), (2, 9)]),
    transactions.TransactionalResponse(epoch=3, is_current=True, last_batch=9, end_index=70),
    admin.HistoryResponse(lines=[(10, "LEADER in term 3")]),
    peer.HeartBeatResponse(**PEER, code=ResponseCode.SUCCESS, round=5, end_index=9),
    peer.PushRequest(
        **PEER,
        type=PushType.APPEND,
        request_id=4,
        prev_index=1,
        prev_term=1,
        commit_index=0,
        first_index=2,
        last_index=3,
        term_runs=[(1, 2), (7, 3)],
    ),
    peer.PushResponse(**PEER, type=PushType.COMPARE, request_id=4, code=ResponseCode.DISK_FULL),
    peer.InstallSnapshotRequest(
        **PEER,
        request_id=5,
        last_included_index=9,
        last_included_term=3,
        chain_crc=77,
        config=(2, b"members"),
        size_bytes=1 << 40,
        sha256=bytes(32),
    ),
    peer.InstallSnapshotResponse(
        **PEER, request_id=5, code=ResponseCode.INSTALL_SNAPSHOT_ERROR, committed_index=9
    ),
    peer.SnapshotChunkRequest(
        **PEER, request_id=5, last_included_index=9, offset=1 << 20, bytes_max=1 << 20
    ),
    peer.SnapshotOfferRequest(**PEER, request_id=5, least_index=9),
    peer.Introduction(
        local_id="n0", remote_id="n1", address="h:1", groups=[("g", bytes(16), 5), ("h", b"", -1)]
    ),
    client.GroupIdentity(group="g", identity=bytes(16)),
    peer.OfferQuery(**PEER, request_id=5, fingerprint=bytes(32)),
    peer.OfferResponse(**PEER, request_id=5, code=ResponseCode.INCONSISTENT_LEADER),
    peer.DigestQuery(**PEER, request_id=5, index=4_095),
    peer.StateDigest(**PEER, index=4_095, digest=bytes(16), is_verdict=True, request_id=5),
    peer.TableDigestQuery(**PEER, request_id=5, index=4_095, table="sessions.1"),
    peer.TableDigest(**PEER, index=4_095, digest=bytes(16), is_majority=True, table="marks.1"),
    peer.SnapshotChunk(**PEER, request_id=5, code=ResponseCode.SUCCESS, offset=1 << 20),
    peer.RepairRequest(**PEER, request_id=5, first_index=6, last_index=9, bytes_max=1_000),
    peer.RepairResponse(**PEER, request_id=5, code=ResponseCode.SUCCESS, first_index=6, count=2),
    client.AppendRequest(group="g", count=2, stream=1, sequence=5),
    client.AppendResponse(first_index=3, last_index=4, positions=[(3, 100)]),
    client.FetchRequest(group="g", begin_index=3),
    machine.QueryRequest(group="g", linearizable=False, after_index=7, wait_ms=100),
    machine.QueryResponse(applied_index=9),
    machine.SnapshotRequest(group="g"),
    machine.SnapshotResponse(last_included_index=9),
    client.FetchResponse(first_index=3, count=1, index_bytes=32),
    client.MetadataRequest(group="g"),
    client.WatchLeaderRequest(group="g", above_term=3, wait_ms=5_000),
    client.MetadataResponse(groups=[client.GroupMetadata("g", {"n0": "h:1"}, "n0", 3)]),
    client.StatusRequest(group="g"),
    peer.NodeHeartBeat(
        local_id="n0",
        remote_id="n1",
        run=7,
        number=3,
        base=4,
        version=6,
        interval_ms=100,
        changes=[("g", 2), ("h", -1)],
        more=True,
    ),
    peer.NodeHeartBeatResponse(
        local_id="n1", remote_id="n0", run=7, number=3, version=6, unconfirmed=["g"]
    ),
    peer.HeartBeats(
        local_id="n0",
        remote_id="n1",
        requests=[peer.HeartBeatRequest(**PEER, round=5), peer.HeartBeatRequest(**PEER, round=6)],
        responses=[
            peer.HeartBeatResponse(**PEER, code=ResponseCode.SUCCESS, round=5, end_index=9),
        ],
    ),
    peer.PeerTurn(local_id="n0", remote_id="n1", parts=[(11, 0, b"vote", 3), (13, 0, b"beat", 0)]),
    base.Responses(parts=[(33, 7, b"answer", 0)]),
    client.StatusResponse(peers=[client.PeerStatus("n1", "APPEND", 1, 2, 0, 0, 0, True)]),
    groups.CreateGroupRequest(
        group="g", identity=b"i" * 16, peers="n0-h:1", settings={"retentionBytes": "9"}
    ),
    groups.DeleteGroupRequest(group="g", identity=b"i" * 16, purge=True),
    groups.AlterGroupRequest(group="g", identity=b"i" * 16, settings={}, revision=1 << 32),
    groups.AlterGroupResponse(after_restart=["flush"]),
    groups.ListGroupsRequest(group="", after="f", wants_deleted=True),
    groups.ListGroupsResponse(
        node_id="n0", settings=[groups.Setting("flush", "sync", "default", "sync", "restart", "")]
    ),
    groups.GroupsQuery(
        local_id="n0",
        remote_id="n1",
        nonce=5,
        groups=[groups.AskedGroup("g", b"i" * 16, 1 << 32, gives_up=True)],
    ),
    groups.GroupsAnswer(
        local_id="n1",
        remote_id="n0",
        nonce=5,
        news=[groups.GroupNews(groups.Knowledge.ABSENT, GroupRecord(group="g"))],
    ),
    groups.GroupInvitation(local_id="n0", remote_id="n1", record=GroupRecord(group="g")),
    security.UsersRequest(group="__cluster", skipped=2),
    security.UsersResponse(version=3, users=[security.UserFields("a", {"SCRAM-SHA-256": 4096})]),
    security.AlterUsersRequest(
        group="__cluster",
        changes=[
            security.UserAlteration(
                "a",
                {"SCRAM-SHA-256": security.VerifierFields(b"s", b"k", b"l", 4096)},
                exists=False,
            )
        ],
    ),
    security.AclsRequest(group="__cluster", filter=security.AclFields("User:a")),
    security.AclsResponse(version=3, acls=[security.AclFields("User:a", "allow")], more=True),
    security.AlterAclsRequest(group="__cluster", added=[security.AclFields("User:a", "allow")]),
    security.CheckAclRequest(
        group="__cluster", principal="User:a", operation="read", resource_type="topic", name="t"
    ),
    security.CheckAclResponse(is_allowed=True, acl=security.AclFields("User:a"), reason="so"),
    security.QuotasRequest(group="__cluster"),
    security.QuotasResponse(quotas=[([("user", None)], {"producer_byte_rate": 1.5})]),
    security.AlterQuotasRequest(
        group="__cluster", changes=[security.QuotaAlteration([("user", "a")], "request_percentage")]
    ),
    security.AlteredResponse(outcomes=[(200, "")]),
    security.CheckSecurityRequest(group="__cluster"),
    security.CheckSecurityResponse(
        node_id="n0",
        findings=[("plain", "it listens without TLS")],
        clients=[security.ClientFields("User:a", "192.0.2.7", "kafka", "app", True, 3)],
        left_out=1,
    ),
    client.Throttled(ms=1_000),
    cluster.Leading(local_id="n0", remote_id="n1", groups=[cluster.LedGroup("pg-0", 3, ["n0"])]),
    cluster.ClusterCommand(local_id="n0", remote_id="n1", number=4, timeout_ms=1_000),
    cluster.ClusterAnswer(
        local_id="n1", remote_id="n0", number=4, code=ResponseCode.SUCCESS, index=9
    ),
    login.Authenticate(mechanism="SCRAM-SHA-256", data=b"n,,n=alice,r=abc"),
    login.Authenticated(data=b"v=abc", principal="User:alice", lifetime_ms=60_000),
]
ATTACHED = [one for one in MESSAGES if KIND_OF_MESSAGE[type(one)] not in UNATTACHED_KINDS]


def encoded(message, **options):
    return b"".join(encode_frame(message, **options))


def decoded(raw, limits=LIMITS):
    decoder = FrameDecoder(limits)
    decoder.receive_data(raw)
    return decoder.next_frame()


def test_every_message_has_a_kind():
    concrete = {
        value
        for module in (
            admin,
            base,
            client,
            cluster,
            consumers,
            groups,
            login,
            machine,
            peer,
            security,
            transactions,
        )
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base.Message)
    }
    assert set(KIND_OF_MESSAGE) == concrete - {
        base.Message,
        peer.NodeMessage,
        peer.PeerMessage,
        base.Request,
        cluster.ClusterMessage,
        consumers.ConsumerRequest,
        security.SecurityRequest,
        security.ListRequest,
        security.ListResponse,
    }
    assert {type(message) for message in MESSAGES} == set(MESSAGE_OF_KIND.values())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_201_every_message_arrives_as_it_was_sent(message):
    may_attach = KIND_OF_MESSAGE[type(message)] not in UNATTACHED_KINDS
    parts = [b"abc", b"def"] if may_attach else []
    frame = decoded(encoded(message, correlation_id=77, attachments=parts))
    assert isinstance(frame, Frame)
    assert (frame.message, frame.correlation_id) == (message, 77)
    assert bytes(frame.attachment) == b"".join(parts)


def test_an_attachment_keeps_no_long_message_in_memory():
    """Fields that nobody knows could be as long as a message may be, for as long as it waits."""
    for length in (10, 100_000):
        body = msgspec.msgpack.encode(["g", True, -1, 0, bytes(length)])
        kind = KIND_OF_MESSAGE[machine.QueryRequest]
        frame = decoded(with_header(body, bytes(4_000), kind=kind))
        assert frame.message == machine.QueryRequest(group="g")
        assert len(frame.attachment) == 4_000
        assert len(frame.attachment.obj) < 6_000


def test_the_attachment_is_writable_memory_of_its_own():
    raw = bytearray(encoded(MESSAGES[0], attachments=[b"abc"]))
    frame = decoded(raw)
    frame.attachment[0:1] = b"X"
    assert bytes(frame.attachment) == b"Xbc"
    assert raw.endswith(b"abc")


@given(
    st.lists(st.tuples(st.sampled_from(ATTACHED), st.binary(max_size=3_000)), max_size=8),
    st.lists(st.integers(1, 2_000), min_size=1, max_size=60),
)
def test_any_split_gives_the_same_frames(sent, cuts):
    raw = b"".join(
        encoded(message, correlation_id=i, attachments=[body])
        for i, (message, body) in enumerate(sent)
    )
    decoder = FrameDecoder(LIMITS)
    found, position, turn = [], 0, 0
    while position < len(raw):
        step = cuts[turn % len(cuts)]
        decoder.receive_data(raw[position : position + step])
        position, turn = position + step, turn + 1
        while (frame := decoder.next_frame()) is not None:
            found.append((frame.correlation_id, frame.message, bytes(frame.attachment)))
    assert found == [(i, message, body) for i, (message, body) in enumerate(sent)]


class Socket:
    """Fills what it is given as far as it can, as an operating system does."""

    def __init__(self, raw):
        self.raw = memoryview(raw)
        self.largest = 0

    def receive(self, decoder, most=1 << 40):
        space = decoder.space()
        self.largest = max(self.largest, len(space))
        count = min(len(space), len(self.raw), most)
        space[:count] = self.raw[:count]
        self.raw = self.raw[count:]
        decoder.received(count)


@pytest.mark.parametrize("most", [7_001, DIRECT_BYTES_MIN, 1 << 40])
def test_large_frames_between_small_ones_arrive_as_they_were_sent(most):
    sizes = [3, 4 * DIRECT_BYTES_MIN, 0, DIRECT_BYTES_MIN - 1, 10 * DIRECT_BYTES_MIN + 1, 5, 70_000]
    bodies = [bytes([number]) * size for number, size in enumerate(sizes, 1)]
    decoder = FrameDecoder(LIMITS)
    socket = Socket(b"".join(encoded(MESSAGES[0], attachments=[body]) for body in bodies))
    found = []
    while socket.raw:
        socket.receive(decoder, most)
        while (frame := decoder.next_frame()) is not None:
            found.append(frame)
    assert [bytes(frame.attachment) for frame in found] == bodies
    for frame in found:
        frame.attachment[:] = bytes(len(frame.attachment))  # its own: no other one changes
    assert not any(bytes(frame.attachment).strip(b"\0") for frame in found)


def test_room_for_small_frames_grows_with_what_comes_and_has_a_bound():
    decoder = FrameDecoder(LIMITS)
    quiet = len(decoder.space())
    socket = Socket(encoded(MESSAGES[0], attachments=[b"x" * 900]) * 2_000)
    count = 0
    while socket.raw:
        socket.receive(decoder)
        while decoder.next_frame() is not None:
            count += 1
    assert count == 2_000
    assert quiet < socket.largest <= STAGED_BYTES_MAX


@given(st.binary(min_size=1, max_size=500))
def test_garbage_parses_or_ends_the_connection(garbage):
    decoder = FrameDecoder(LIMITS)
    decoder.receive_data(garbage)
    try:
        frame = decoder.next_frame()
    except RemoteProtocolError:
        return
    assert frame is None
    assert garbage.startswith(b"QLOG"[: len(garbage)])


@given(st.sampled_from(MESSAGES), st.binary(max_size=50), st.data())
def test_a_flipped_bit_anywhere_is_never_taken_for_a_message(message, body, data):
    raw = bytearray(encoded(message, attachments=[body]))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(RemoteProtocolError):
        decoded(bytes(raw))


def with_header(body=b"\x90", attachment=b"", **changes):
    values = {"version": 1, "kind": 1, "length": len(body), "attached": len(attachment), **changes}
    header = HEADER.pack(
        b"QLOG",
        values["version"],
        values["kind"],
        0,
        values["length"],
        values["attached"],
        5,
        crc32(body + attachment),
    )
    return header + crc32(header).to_bytes(4, "big") + body + attachment


def test_167_unknown_kind_or_version_is_answered_not_dropped():
    refused = decoded(with_header(kind=200))
    assert isinstance(refused, RefusedFrame)
    assert (refused.code, refused.correlation_id) == (ResponseCode.UNSUPPORTED, 5)
    assert decoded(with_header(version=9)).code == ResponseCode.UNSUPPORTED_VERSION
    malformed = decoded(with_header(kind=1))
    assert malformed.code == ResponseCode.UNEXPECTED_ARGUMENT


def test_after_a_refused_frame_the_next_one_is_read():
    decoder = FrameDecoder(LIMITS)
    decoder.receive_data(with_header(kind=200) + encoded(MESSAGES[0]))
    assert isinstance(decoder.next_frame(), RefusedFrame)
    assert decoder.next_frame().message == MESSAGES[0]


@pytest.mark.parametrize("field", ["length", "attached"])
def test_168_a_length_above_the_limit_is_refused_before_memory_is_taken(field):
    raw = with_header(**{field: 0xFFFF_FF00})
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="above the limit"):
            decoded(raw)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_frame_above_the_limit_is_not_sent():
    with pytest.raises(UnexpectedArgumentError, match="AppendRequest of"):
        encode_frame(
            client.AppendRequest(group="g", count=1), attachments=[bytes(LIMITS.frame_bytes_max)]
        )


def test_a_text_that_is_not_valid_unicode_is_refused_and_not_sent():
    with pytest.raises(UnexpectedArgumentError, match="Response has a text that is not valid"):
        encode_frame(Response(text="\ud800"))


def test_header_size_is_32():
    assert HEADER_SIZE == 32
    assert encoded(MESSAGES[0])[:4] == b"QLOG"
