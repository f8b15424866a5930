"""What surely did not happen: other clusters' servers, refusals, and time that is over."""

import asyncio

import pytest

from quorumlog.client import Client, Producer, connection_pool, leader_discovery
from quorumlog.client.login import LoginOfClient
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import (
    DeadlineExceededError,
    HandshakeError,
    LoginError,
    NetworkError,
    NoLeaderError,
    Outcome,
    RequestError,
    WrongClusterError,
    error_for,
)
from quorumlog.model.messages.base import Hello
from quorumlog.model.messages.login import REFUSED_TEXT, Authenticated
from quorumlog.model.secrets import Secret
from scripted_cluster import address_of, metadata_of, soon

# -- another cluster's addresses ------------------------------------------------------------------


def refusals(caplog):
    return [record for record in caplog.records if record.message == "refusing a connection"]


async def test_servers_of_another_cluster_are_no_reason_to_try_again(world, monkeypatch, caplog):
    monkeypatch.setattr(connection_pool, "REFUSED_S", 1e6)
    async with Client(world.addresses, "g", cluster="wrong", timeout_ms=1e9) as client:
        calls = (
            client.bounds,
            client.metadata,
            metadata_of(client).leader,
            lambda: client.append(b"x"),
        )
        for call in calls:
            with pytest.raises(WrongClusterError, match="of cluster 'c', not 'wrong'") as caught:
                await soon(call())
            assert caught.value.outcome is Outcome.DID_NOT_HAPPEN
            assert any(server.address in str(caught.value) for server in world.servers.values())
        own = [line for line in refusals(caplog) if "of cluster 'c'" in str(vars(line))]
        assert len(own) <= len(world.servers)  # one for each address, however often it was asked


async def test_a_producer_ends_at_servers_of_another_cluster(world):
    async with Client(world.addresses, "g", cluster="wrong") as client:
        producer = Producer(client)
        await producer.send(b"x")
        with pytest.raises(WrongClusterError):
            await soon(producer.flush())
        await producer.close(flush=False)


async def test_a_server_of_another_cluster_among_others_does_no_harm(world):
    async with Client(world.addresses, "g", cluster="c") as client:
        world.servers["n1"].listener._hello = Hello(cluster="other", node_id="n1", role="node")
        for _ in range(5):
            metadata_of(client).forget_leader()
            await soon(client.append(b"x"))
    assert len(world.stored) == 5


# -- logins that are refused, or answered late -----------------------------------------------------


class Alice:
    """What somebody logs in with who mistypes the password."""

    mechanism, user, password, token = "SCRAM-SHA-256", "alice", Secret("wrong"), None


def calls_of(client):
    """Return how a client finds a server: the leader, any, one after the other."""
    return [
        client.bounds,
        client.metadata,
        client.security.users,
        lambda: client.append(b"x"),
        lambda: client.get(0, leader_only=False),
    ]


@pytest.mark.parametrize("number", range(5))
async def test_two_refused_logins_say_what_all_nodes_would_say_late(world, number):
    world.servers["n0"].login_answer = world.servers["n1"].login_answer = Authenticated(
        code=ResponseCode.LOGIN_REFUSED, text=REFUSED_TEXT
    )
    async with Client(world.addresses, "g", timeout_ms=1e9) as client:
        metadata_of(client).connections._login = LoginOfClient(Alice())
        with pytest.raises(LoginError, match=r"login of alice at .*: login refused") as caught:
            await soon(calls_of(client)[number]())
    assert caught.value.outcome is Outcome.DID_NOT_HAPPEN


@pytest.mark.parametrize("number", range(5))
async def test_a_refusal_counts_though_another_node_holds_its_own_back(world, number, monkeypatch):
    monkeypatch.setattr(leader_discovery, "OTHERS_S", 0.05)
    world.servers["n1"].login_answer = Authenticated(
        code=ResponseCode.LOGIN_REFUSED, text=REFUSED_TEXT
    )
    async with Client(world.addresses, "g", timeout_ms=1e9) as client:
        metadata_of(client).connections._login = LoginOfClient(Alice())
        metadata_of(client)._generator.shuffle = list.reverse
        with pytest.raises(LoginError, match="login refused"):
            await soon(calls_of(client)[number]())


async def test_a_refusal_counts_though_another_node_is_away(world):
    world.servers["n1"].login_answer = Authenticated(
        code=ResponseCode.LOGIN_REFUSED, text=REFUSED_TEXT
    )
    await world.servers["n0"].listener.stop()
    async with Client(world.addresses, "g", timeout_ms=1e9) as client:
        metadata_of(client).connections._login = LoginOfClient(Alice())
        for call in calls_of(client):
            with pytest.raises(LoginError, match="login refused"):
                await soon(call())


async def test_calls_that_are_made_at_once_share_a_refused_login(world):
    """A node answers each one later than the one before."""
    n0 = world.servers["n0"]
    n0.login_answer = Authenticated(code=ResponseCode.LOGIN_REFUSED, text=REFUSED_TEXT)
    async with Client([n0.address], "g", timeout_ms=1e9) as client:
        metadata_of(client).connections._login = LoginOfClient(Alice())
        calls = [client.metadata() for _ in range(8)]
        found = await soon(asyncio.gather(*calls, return_exceptions=True))
    assert {type(one) for one in found} == {LoginError}
    assert n0.logins == 1


class PlainAlice:
    """What somebody logs in with whose password one node does not know yet."""

    mechanism, user, password, token = "PLAIN", "alice", Secret("right"), None


class AsIfEncrypted(LoginOfClient):
    """Sends a password without TLS."""

    async def run(self, ask, *, address, is_encrypted):
        await super().run(ask, address=address, is_encrypted=True)


def behind_and_known(world):
    """Have n1 not know a user that n0 knows; return a client that asks n1 first."""
    n0, n1 = world.servers.values()
    n0.login_answer = Authenticated()
    n1.login_answer = Authenticated(code=ResponseCode.LOGIN_REFUSED, text=REFUSED_TEXT)
    client = Client([n1.address, n0.address], "g", timeout_ms=1e9)
    metadata_of(client).connections._login = AsIfEncrypted(PlainAlice())
    metadata_of(client)._generator.shuffle = lambda addresses: None
    return client


async def test_a_login_is_taken_by_others_than_the_node_that_is_behind(world):
    n0, n1 = world.servers.values()
    async with behind_and_known(world) as client:
        await soon(client.append(b"x"))
        assert (await soon(client._requester.any_server())).address == n0.address
        assert {one.node_id for one in await soon(client.admin.status())} == {"n0", "n1"}
    assert world.stored == [b"x"]
    assert n1.logins == 3, "once a call"


async def test_a_node_that_is_behind_ends_no_call_while_the_others_elect_a_leader(world):
    world.leader_id, n0 = None, world.servers["n0"]
    async with behind_and_known(world) as client:
        waiting = asyncio.ensure_future(client.append(b"x"))
        while n0.asked_count < 3:
            n0.asked.clear()
            await soon(n0.asked.wait())
        world.elect("n0")
        await soon(waiting)
    assert world.stored == [b"x"]


async def test_a_leader_that_is_behind_ends_no_call_until_it_knows_the_user(world):
    n0, n1 = world.servers.values()
    world.elect("n1")
    async with behind_and_known(world) as client:
        waiting = asyncio.ensure_future(client.append(b"x"))
        while n1.logins < 3 and not waiting.done():
            n0.asked.clear()
            await soon(n0.asked.wait())
        assert not waiting.done()
        n1.login_answer = Authenticated()
        await soon(waiting)
    assert world.stored == [b"x"]


async def test_a_leader_that_refuses_who_was_removed_is_believed_once_all_refuse(world):
    n0, n1 = world.servers.values()
    async with behind_and_known(world) as client:
        await soon(client.append(b"x"))
        n0.login_answer = n1.login_answer
        metadata_of(client).connections._shared[n0.address].abort("removed")
        with pytest.raises(LoginError, match="login refused"):
            await soon(client.append(b"y"))


# -- an outage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", ["login", "certificate"])
async def test_while_the_others_are_away_one_that_refuses_ends_no_call(world, problem):
    n0 = world.servers["n0"]
    async with behind_and_known(world) as client:
        await soon(client.append(b"x"))
        await n0.listener.stop()
        metadata = metadata_of(client)
        if problem == "certificate":
            asked = metadata.ask

            async def ask(address, group=""):
                if address == n0.address:
                    return await asked(address, group)
                raise HandshakeError(f"{address}: certificate has expired")

            metadata.ask = ask
        metadata.forget_leader()
        with pytest.raises(NoLeaderError, match=r"expired|login refused") as caught:
            await soon(metadata.leader())
        assert caught.value.retriable


async def test_a_certificate_that_none_of_the_nodes_accepts_ends_a_call(world):
    async with Client(world.addresses, "g", timeout_ms=1e9) as client:
        await soon(client.append(b"x"))

        async def ask(address, group=""):
            raise HandshakeError(f"{address}: certificate has expired")

        metadata_of(client).ask = ask
        metadata_of(client).forget_leader()
        with pytest.raises(HandshakeError, match="expired"):
            await soon(client.append(b"y"))


async def test_a_node_that_takes_no_logins_is_no_reason_not_to_ask_the_others(world):
    refused = Authenticated(code=ResponseCode.LOGIN_REFUSED, text="mechanism X is not offered here")
    world.servers["n0"].login_answer = world.servers["n1"].login_answer = refused
    async with Client(world.addresses, "g", timeout_ms=1e9) as client:
        metadata_of(client).connections._login = LoginOfClient(Alice())
        with pytest.raises(LoginError, match="not offered"):
            await soon(client.metadata())
    assert [server.logins for server in world.servers.values()] == [1, 1]


@pytest.mark.parametrize("number", range(5))
async def test_the_time_that_ends_during_a_login_is_no_missing_leader(world, number):
    async with Client(world.addresses, "g", timeout_ms=300) as client:
        metadata_of(client).connections._login = LoginOfClient(Alice())
        text = "not answered the login of alice within 300 ms: a node that has refused some"
        with pytest.raises(DeadlineExceededError, match=text) as caught:
            await soon(calls_of(client)[number]())
    assert caught.value.outcome is Outcome.DID_NOT_HAPPEN


# -- what surely did not happen -------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.UNKNOWN_MEMBER,
        ResponseCode.REPEATED_REQUEST,
        ResponseCode.INCONSISTENT_TERM,
        ResponseCode.FALL_BEHIND_TOO_MUCH,
        ResponseCode.CHANGE_IN_PROGRESS,
        ResponseCode.MEMBER_NOT_READY,
    ],
)
async def test_what_the_leader_refuses_did_not_happen(world, code):
    world.script(code)
    async with Client(world.addresses, "g") as client:
        with pytest.raises(RequestError) as caught:
            await soon(client.append(b"x"))
    assert (caught.value.code, caught.value.outcome) == (code, Outcome.DID_NOT_HAPPEN)
    unknown = error_for(ResponseCode.TAKE_LEADERSHIP_FAILED, "")
    assert unknown.outcome is Outcome.UNKNOWN


async def test_nothing_is_sent_when_no_time_is_left(world):
    async with Client(world.addresses, "g") as client:
        await client.append(b"first")  # connected
        for call in (client.append, lambda body, **time: client.append_batch([body], **time)):
            with pytest.raises(RequestError) as caught:
                await soon(call(b"x", timeout_ms=0))
            assert caught.value.outcome is Outcome.DID_NOT_HAPPEN
        await client.append(b"last")
    assert world.stored == [b"first", b"last"]


async def test_a_transfer_is_asked_for_again_while_the_leader_does_not_know_the_others_logs(world):
    world.script(ResponseCode.LEADER_NOT_READY, ResponseCode.LEADER_NOT_READY)
    async with Client(world.addresses, "g") as client:
        assert await soon(client.admin.transfer("n1")) == "n1"
    assert world.requests == 3


async def test_an_address_is_named_once_in_what_it_said(mute):
    async with Client(address_of(mute), "g", timeout_ms=100) as client:
        discovery = metadata_of(client)
        discovery.connections._refused[address_of(mute)] = (
            asyncio.get_running_loop().time() + 1e6,
            NetworkError,
            f"{address_of(mute)}: closed",
        )
        with pytest.raises(NoLeaderError) as caught:
            await soon(discovery.leader())
    assert str(caught.value) == f"no leader of g found; {address_of(mute)}: closed"


CLOSED = "127.0.0.1:1"
"""Nobody listens there."""


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.append(b"x"),
        lambda client: client.admin.transfer(),
        lambda client: client.admin.add_member("n9", "127.0.0.1:2"),
        lambda client: client.admin.groups.create("h", members={"n0": "127.0.0.1:2"}),
        lambda client: client.admin.groups.delete("h"),
        lambda client: client.security.add_user("alice", "secret"),
        lambda client: client.security.change_password("alice", "secret"),
        lambda client: client.security.remove_user("alice"),
        lambda client: client.security.alter_quotas([("user", "alice")], {"request_percentage": 5}),
    ],
)
async def test_nothing_is_done_where_no_node_can_be_spoken_to(call):
    async with Client(CLOSED, "g", timeout_ms=200) as client:
        with pytest.raises(RequestError) as caught:
            await soon(call(client))
    assert caught.value.outcome is Outcome.DID_NOT_HAPPEN
