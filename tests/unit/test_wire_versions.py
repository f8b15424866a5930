"""Two sides agree on a version and features by their Hellos alone, or refuse each other."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.client import Client
from quorumlog.errors import UnsupportedError, UnsupportedVersionError, WrongClusterError
from quorumlog.log_events import EVENT_FIELDS
from quorumlog.model import features
from quorumlog.model.codes import ResponseCode
from quorumlog.model.features import names_of
from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.model.messages.base import Hello, Response
from quorumlog.model.messages.client import MetadataRequest, StatusRequest
from quorumlog.model.messages.peer import PeerTurn, ReadIndexRequest, TimeoutNowRequest
from quorumlog.model.release import RELEASE
from quorumlog.transport.connection import Connection
from quorumlog.transport.listener import Listener
from quorumlog.transport.stream import TransportCounters
from quorumlog.wire import versions
from quorumlog.wire.decoder import FrameDecoder
from quorumlog.wire.frame import HEADER, HEADER_SIZE, Frame, encode_frame
from quorumlog.wire.kinds import KIND_OF_MESSAGE
from quorumlog.wire.versions import Agreement, HelloRefusedError, Need, agree, stating_versions
from scripted_cluster import metadata_of, soon

FEATURE = 1 << 5
RANGES = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(sorted)
QUESTION = ReadIndexRequest(group="g", local_id="n0", remote_id="n1", term=1, request_id=7)


def node(name="n1", **stated):
    return Hello(cluster="c", node_id=name, role="node", takes_joined=True, **stated)


def peer(**stated):
    return Hello(cluster="c", node_id="n0", role="control", takes_joined=True, **stated)


# -- what two Hellos mean ---------------------------------------------------------------------


@given(RANGES, RANGES, st.integers(0, 15), st.integers(0, 15))
def test_both_sides_find_the_same(own, other, own_features, other_features):
    left = node("a", wire_min=own[0], wire_max=own[1], features=own_features)
    right = node("b", wire_min=other[0], wire_max=other[1], features=other_features)
    common = set(range(own[0], own[1] + 1)) & set(range(other[0], other[1] + 1))
    if common:
        expected = Agreement(max(common), own_features & other_features)
        assert agree(left, right) == agree(right, left) == expected
        return
    for first, second in ((left, right), (right, left)):
        with pytest.raises(HelloRefusedError) as refused:
            agree(first, second)
        assert refused.value.code == ResponseCode.UNSUPPORTED_VERSION
        older = "a" if own[1] < other[1] else "b"
        assert f"upgrade {older}, release by release" in str(refused.value)


def test_a_range_that_is_none_has_nothing_in_common_with_any():
    with pytest.raises(HelloRefusedError):
        agree(node(wire_min=1, wire_max=9), node(wire_min=5, wire_max=3))


def test_clusters_that_both_state_an_id_must_be_the_same():
    agree(node(cluster_id="K"), node(cluster_id="K"))
    agree(node(cluster_id="K"), node())
    with pytest.raises(HelloRefusedError, match="id K, n1 of that with M") as refused:
        agree(node(cluster_id="K"), node(cluster_id="M"))
    assert refused.value.code == ResponseCode.WRONG_CLUSTER


def test_bits_that_have_no_name_here_are_numbered(monkeypatch):
    monkeypatch.setitem(features.FEATURES, 1 << 2, "login")
    assert names_of(0) == []
    assert names_of(1 << 2 | 1 << 40) == ["login", "bit 40"]


def test_what_this_release_states():
    stated = stating_versions(Hello(cluster="c", node_id="n0", role="node"))
    assert 1 <= stated.wire_min <= stated.wire_max
    assert stated.release == RELEASE


# -- over connections -------------------------------------------------------------------------


class Side:
    """A side of a connection: what came to it."""

    def __init__(self):
        self.came, self.ended = asyncio.Queue(), asyncio.Queue()
        self.opened_as = asyncio.Queue()

    def opened(self, connection, hello):
        self.opened_as.put_nowait(connection)

    def frame_received(self, connection, frame):
        self.came.put_nowait(frame.message)

    def closed(self, connection, reason):
        pass


@pytest.fixture
async def meet():
    """Have a node that states one thing, and a side that states another, connect."""
    listeners, made = [], []

    async def run(listening, dialling, server=None, client=None):
        server, client = server or Side(), client or Side()
        listener = Listener(
            "127.0.0.1",
            0,
            lambda hello: server,
            cluster="c",
            node_id="n1",
            accepts=lambda hello: True,
            limits=DEFAULT_LIMITS,
        )
        listener._hello = listening
        await listener.start()
        listeners.append(listener)
        connection = Connection(
            dialling,
            lambda hello: client,
            DEFAULT_LIMITS,
            TransportCounters(),
            on_lost=client.ended.put_nowait,
        )
        made.append(connection)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: connection, "127.0.0.1", listener.port)
        return connection, server, client

    yield run
    for connection in made:
        connection.abort("the test is over")
    for listener in listeners:
        await listener.stop()


async def opened(side):
    return await soon(side.opened_as.get())


async def test_messages_go_in_the_version_that_was_agreed_on(meet):
    connection, server, client = await meet(
        node(wire_min=2, wire_max=4, features=7), peer(wire_max=3, features=5)
    )
    accepted = await opened(server)
    assert (await opened(client)).agreed == accepted.agreed == Agreement(3, 5)
    connection.send(QUESTION)
    assert await soon(server.came.get()) == QUESTION
    accepted.send(Response(text="an answer"))
    assert (await soon(client.came.get())).text == "an answer"


async def test_a_side_that_states_nothing_gets_the_first_version(meet):
    _, server, client = await meet(node(wire_max=4, features=7), peer())
    assert (await opened(server)).agreed == (await opened(client)).agreed == Agreement(1, 0)


async def test_a_frame_of_another_version_than_agreed_is_refused(meet):
    connection, server, client = await meet(node(wire_max=2), peer(wire_max=2))
    await opened(server)
    await opened(client)
    connection._transport.write(b"".join(encode_frame(QUESTION, correlation_id=5)))
    refusal = await soon(client.came.get())
    assert refusal.code == ResponseCode.UNSUPPORTED_VERSION
    assert "version 1 is not spoken here, only 2" in refusal.text
    assert server.came.empty()


async def test_hello_and_what_refuses_it_are_in_the_first_version():
    decoder = FrameDecoder(DEFAULT_LIMITS)
    decoder.version = 2
    for message in (node(wire_max=2), Response(code=ResponseCode.UNEXPECTED_ARGUMENT)):
        for buffer in encode_frame(message):
            decoder.space()[: len(buffer)] = buffer
            decoder.received(len(buffer))
        assert decoder.next_frame().message == message
    head = encode_frame(QUESTION, version=7)[0][:HEADER_SIZE]
    assert HEADER.unpack(head[: HEADER.size])[1] == 7


async def test_without_a_common_version_both_sides_are_told_why(meet, caplog):
    words = (
        "n1 (quorumlog 3.1.0) speaks versions 3 to 4 of the wire",
        "n0 (an earlier release) speaks version 1 of the wire",
        "upgrade n0, release by release",
    )
    listening = node(wire_min=3, wire_max=4, release="3.1.0")
    connection, server, client = await meet(listening, peer())
    await soon(client.ended.get())
    assert connection.refused_with == ResponseCode.UNSUPPORTED_VERSION
    assert server.opened_as.empty()
    assert client.opened_as.empty()
    refusals = [
        getattr(record, EVENT_FIELDS)["reason"]
        for record in caplog.records
        if record.message == "refusing a connection"
    ]
    assert all(part in text for text in (connection.reason, *refusals) for part in words)


async def test_who_cannot_judge_by_itself_is_told_why(meet):
    """As a stranger that reads bytes: the refusal is a Hello in the first version."""
    connection, _, _ = await meet(node(wire_min=3, wire_max=3), peer())
    listener_port = connection._transport.get_extra_info("peername")[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", listener_port)
    decoder = FrameDecoder(DEFAULT_LIMITS)
    writer.writelines(encode_frame(peer()))
    found = []
    while data := await soon(reader.read(65536)):
        decoder.space()[: len(data)] = data
        decoder.received(len(data))
        while (frame := decoder.next_frame()) is not None:
            assert isinstance(frame, Frame)
            found.append(frame.message)
    writer.close()
    greeting, refusal = found
    assert (greeting.code, greeting.wire_min) == (ResponseCode.SUCCESS, 3)
    assert (refusal.code, refusal.wire_min) == (ResponseCode.UNSUPPORTED_VERSION, 3)
    assert "upgrade n0" in refusal.text


async def test_nodes_of_clusters_with_other_ids_refuse_each_other(meet):
    connection, server, client = await meet(node(cluster_id="K"), peer(cluster_id="M"))
    await soon(client.ended.get())
    assert connection.refused_with == ResponseCode.WRONG_CLUSTER
    assert server.opened_as.empty()


# -- kinds that the other side does not take -----------------------------------------------------


@pytest.mark.parametrize(
    ("need", "stated", "is_taken"),
    [
        (Need("9.0", version=2), {"wire_max": 2}, True),
        (Need("9.0", version=2), {"wire_max": 1}, False),
        (Need("9.0", feature=FEATURE), {"features": FEATURE | 1}, True),
        (Need("9.0", feature=FEATURE), {"features": 1}, False),
    ],
)
async def test_a_kind_goes_only_to_who_takes_it(meet, monkeypatch, need, stated, is_taken):
    monkeypatch.setitem(versions.NEEDS, KIND_OF_MESSAGE[ReadIndexRequest], need)
    own = peer(wire_max=5, features=FEATURE | 2)
    connection, server, client = await meet(node(release="8.2", **stated), own)
    await opened(client)
    body = msgspec.msgpack.encode(QUESTION)
    part = (KIND_OF_MESSAGE[ReadIndexRequest], 0, body, 0)
    turn = PeerTurn(local_id="n0", remote_id="n1", parts=[part])
    for message in (QUESTION, turn):
        if is_taken:
            assert connection.send(message)
            assert await soon(server.came.get()) == message
        else:
            words = "ReadIndexRequest needs quorumlog 9.0 or newer, and n1 runs quorumlog 8.2"
            with pytest.raises(UnsupportedError, match=words):
                connection.send(message)
    other = TimeoutNowRequest(group="g", local_id="n0", remote_id="n1", term=1, end_index=2)
    assert connection.send(other)
    assert await soon(server.came.get()) == other


# -- clients ----------------------------------------------------------------------------------


def state(world, **stated):
    for server in world.servers.values():
        server.listener._hello = msgspec.structs.replace(server.listener._hello, **stated)


async def test_a_client_is_told_at_once_that_there_is_no_common_version(world):
    state(world, wire_min=200, wire_max=201, release="9.0")
    async with Client(world.addresses, "g", timeout_ms=1e9) as client:
        words = r"quorumlog 9.0\) speaks versions 200 to 201 .* upgrade the client"
        for call in (client.metadata, lambda: client.append(b"x")):
            with pytest.raises(UnsupportedVersionError, match=words):
                await soon(call())


async def test_a_server_that_cannot_be_spoken_to_among_others_does_no_harm(world):
    hello = world.servers["n1"].listener._hello
    world.servers["n1"].listener._hello = msgspec.structs.replace(hello, wire_min=9, wire_max=9)
    async with Client(world.addresses, "g", timeout_ms=1e9) as client:
        for _ in range(5):
            metadata_of(client).forget_leader()
            await soon(client.append(b"x"))
    assert len(world.stored) == 5


async def test_a_client_of_another_cluster_id_is_told_at_once(world, monkeypatch):
    state(world, cluster_id="K")
    monkeypatch.setattr(
        "quorumlog.client.connection.stating_versions",
        lambda hello: msgspec.structs.replace(stating_versions(hello), cluster_id="M"),
    )
    async with Client(world.addresses, "g", timeout_ms=1e9) as client:
        with pytest.raises(WrongClusterError, match=r"id M, n\d of that with K"):
            await soon(client.append(b"x"))


async def test_a_request_that_the_server_does_not_take_is_not_sent(world, monkeypatch):
    need = Need("9.0", feature=FEATURE)
    monkeypatch.setitem(versions.NEEDS, KIND_OF_MESSAGE[StatusRequest], need)
    state(world, release="8.2")
    async with Client(world.addresses, "g", timeout_ms=1e9) as client:
        server = await metadata_of(client).leader()
        with pytest.raises(UnsupportedError, match=r"StatusRequest needs quorumlog 9\.0"):
            server.request(StatusRequest(group="g"))
        assert server.unanswered == 0
        await soon(server.request(MetadataRequest(group="g")))  # the connection is as good as ever
