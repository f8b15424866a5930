"""Garbage, half frames and strangers on a node's port: refused, counted; nobody else notices."""

import pytest

from integration.stranger import Stranger
from quorumlog.model.codes import PushType, ResponseCode
from quorumlog.model.messages.base import Hello, Response
from quorumlog.model.messages.client import AppendRequest, FetchRequest
from quorumlog.model.messages.peer import HeartBeatRequest, PushRequest, VoteRequest
from quorumlog.wire.frame import encode_frame

CLIENT = Hello(cluster="", node_id="", role="client")
PEER = Hello(cluster="quorumlog", node_id="n1", role="bulk")


@pytest.fixture
async def cluster(make_cluster):
    async with make_cluster(count=1, limits={"handshake_ms": 300}) as made:
        await made.start()
        yield made


@pytest.fixture
async def stranger(cluster):
    made = await Stranger.at(cluster.addresses["n0"])
    assert isinstance(await made.hear(), Hello)
    yield made
    made.close()


async def still_serves(cluster):
    async with cluster.client() as client:
        place = await client.append(b"still here")
        assert (await client.get(place.index)).body == b"still here"


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 64,
        b"QLOG" + b"\xff" * 60,
        bytes(range(256)) * 300,
    ],
)
async def test_garbage_closes_the_connection_and_is_counted(cluster, stranger, raw):
    before = cluster.nodes["n0"].listener.counters.garbage
    stranger.shout(raw)
    assert await stranger.hear_until_end() == []
    assert cluster.nodes["n0"].listener.counters.garbage == before + 1
    await still_serves(cluster)


async def test_who_says_nothing_is_let_go(cluster, stranger):
    assert await stranger.hear_until_end() == []
    await still_serves(cluster)


async def test_half_a_frame_is_let_go_in_time(cluster, stranger):
    raw = b"".join(encode_frame(CLIENT))
    stranger.shout(raw[: len(raw) - 3])
    assert await stranger.hear_until_end() == []
    await still_serves(cluster)


async def test_another_cluster_is_told_so(stranger):
    stranger.log_event(Hello(cluster="elsewhere", node_id="n1", role="bulk"))
    (refusal,) = await stranger.hear_until_end()
    assert refusal.code != ResponseCode.SUCCESS
    assert "not 'elsewhere'" in refusal.text


async def test_a_member_nobody_knows_is_refused(stranger):
    stranger.log_event(Hello(cluster="quorumlog", node_id="n9", role="control"))
    (refusal,) = await stranger.hear_until_end()
    assert "'n9' is no member" in refusal.text


async def test_requests_before_hello_end_the_connection(cluster, stranger):
    stranger.log_event(AppendRequest(group="g", count=1))
    assert await stranger.hear_until_end() == []
    await still_serves(cluster)


async def test_a_large_frame_before_hello_is_refused(cluster, stranger):
    stranger.log_event(Hello(cluster="x" * 100, node_id="", role="client"), [bytes(70_000)])
    assert await stranger.hear_until_end() == []
    await still_serves(cluster)


async def test_a_client_cannot_speak_as_a_peer(cluster, stranger):
    stranger.log_event(CLIENT)
    term = cluster.replica("n0").core.term
    stranger.log_event(
        HeartBeatRequest(group="g", local_id="n1", remote_id="n0", term=99, round=1),
        correlation_id=5,
    )
    answer = await stranger.hear()
    assert isinstance(answer, Response)
    assert answer.code == ResponseCode.UNSUPPORTED
    assert cluster.replica("n0").core.term == term


@pytest.mark.parametrize(
    ("count", "attachment", "code"),
    [
        (0, b"", ResponseCode.REQUEST_WITH_EMPTY_BODYS),
        (1, b"", ResponseCode.UNEXPECTED_ARGUMENT),
        (1, b"x" * 47, ResponseCode.UNEXPECTED_ARGUMENT),
        (1, b"\xff" * 100, ResponseCode.UNEXPECTED_ARGUMENT),
        (1_000_000, b"\x00" * 100, ResponseCode.UNEXPECTED_ARGUMENT),
        (-5, b"\x00" * 100, ResponseCode.UNEXPECTED_ARGUMENT),
    ],
)
async def test_malformed_appends_are_refused_and_store_nothing(
    cluster, stranger, count, attachment, code
):
    await still_serves(cluster)
    end = cluster.replica("n0").log.end_index
    stranger.log_event(CLIENT)
    stranger.log_event(AppendRequest(group="g", count=count), [attachment], correlation_id=1)
    answer = await stranger.hear()
    assert answer.code == code
    assert answer.text
    assert cluster.replica("n0").log.end_index == end


@pytest.mark.parametrize("fields", [{"begin_index": -5}, {"bytes_max": 0}, {"wait_ms": -1}])
async def test_malformed_fetches_are_refused(stranger, fields):
    stranger.log_event(CLIENT)
    request = {"group": "g", "begin_index": 0, **fields}
    stranger.log_event(FetchRequest(**request), correlation_id=1)
    assert (await stranger.hear()).code == ResponseCode.UNEXPECTED_ARGUMENT


async def test_a_group_name_is_never_a_path(stranger):
    stranger.log_event(CLIENT)
    stranger.log_event(FetchRequest(group="../../etc", begin_index=0), correlation_id=1)
    assert (await stranger.hear()).code == ResponseCode.UNKNOWN_GROUP


async def test_10_26_messages_of_peers_to_the_wrong_member_or_group_are_refused(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start("n0")
        stranger = await Stranger.at(cluster.addresses["n0"])
        await stranger.hear()
        stranger.log_event(PEER)
        vote = {"term": 5, "ledger_end_index": 9, "ledger_end_term": 4}
        for group, local_id, remote_id, code in (
            ("nope", "n1", "n0", ResponseCode.UNKNOWN_GROUP),
            ("g", "n1", "n2", ResponseCode.UNKNOWN_MEMBER),
            ("g", "n2", "n0", ResponseCode.UNKNOWN_MEMBER),
        ):
            stranger.log_event(
                VoteRequest(group=group, local_id=local_id, remote_id=remote_id, **vote),
                correlation_id=3,
            )
            assert (await stranger.hear()).code == code
        stranger.close()


async def test_a_push_whose_block_is_not_what_it_says_is_dropped_and_counted(make_cluster, until):
    async with make_cluster() as cluster:
        await cluster.start("n0")
        stranger = await Stranger.at(cluster.addresses["n0"])
        await stranger.hear()
        stranger.log_event(PEER)
        push = PushRequest(
            group="g",
            local_id="n1",
            remote_id="n0",
            term=9,
            type=PushType.APPEND,
            request_id=1,
            prev_index=-1,
            prev_term=-1,
            commit_index=-1,
            first_index=0,
            last_index=0,
            term_runs=[(9, 0)],
        )
        stranger.log_event(push, [b"\x01" * 100])
        counters = cluster.replica("n0").counters
        await until(lambda: counters.malformed_pushes == 1)
        assert cluster.replica("n0").log.end_index == -1
        stranger.close()
