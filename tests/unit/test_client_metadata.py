"""Who leads, as a client sees it: silent leaders, frozen candidates, and whom it believes."""

import asyncio

import pytest

from quorumlog.client import Client, Producer, connection_pool, leader_discovery, silence_watch
from quorumlog.client import metadata as clusters
from quorumlog.model.block import encode_block
from quorumlog.model.errors import NetworkError, NoLeaderError, Outcome, UnknownGroupError
from quorumlog.model.messages.client import AppendRequest, GroupMetadata
from scripted_cluster import FREEZE, SILENT, SOON_S, World, address_of, metadata_of, passed, soon


@pytest.fixture
async def world():
    made = World("n0", "n1", "n2")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Often looked at, and given up for nothing but the word of others."""
    monkeypatch.setattr(silence_watch, "CHECK_S", 0.02)
    monkeypatch.setattr(silence_watch, "RECHECK_S", 0.02)
    monkeypatch.setattr(silence_watch, "POLL_CHECK_S", 1_000.0)
    monkeypatch.setattr(silence_watch, "GONE_S", 10_000.0)
    monkeypatch.setattr(connection_pool, "CONNECT_TIMEOUT_S", 1_000.0)
    monkeypatch.setattr(clusters, "METADATA_TIMEOUT_S", 1_000.0)
    monkeypatch.setattr(leader_discovery, "ASK_AGAIN_S", 0.02)


class InOrder:
    """No chance: servers are tried in the order in which they are known."""

    def shuffle(self, items):
        pass

    def uniform(self, low, high):
        return low


def client_of(world, *addresses, timeout_ms=60_000):
    client = Client(list(addresses) or world.addresses, "g", timeout_ms=timeout_ms)
    metadata_of(client)._generator = InOrder()
    return client


async def asked(server, times=1):
    """Wait until a server was asked so often who leads."""
    async with asyncio.timeout(SOON_S):
        until = server.asked_count + times
        while server.asked_count < until:
            server.asked.clear()
            await server.asked.wait()


async def frozen_while_appending(world, client):
    """Freeze n0, which leads; return the append that it does not answer."""
    await client.append(b"before")
    world.servers["n0"].is_frozen = True
    return asyncio.ensure_future(client.append(b"lost"))


# -- a leader that says nothing -------------------------------------------------------------------


async def test_appends_go_on_as_soon_as_another_leader_is_named(world):
    n0, n1, _ = world.servers.values()
    async with client_of(world) as client:
        waiting = await frozen_while_appending(world, client)
        world.elect("n1")
        text = f"{n0.address}: says nothing, and {n1.address} leads now.*may have been executed"
        with pytest.raises(NetworkError, match=text) as caught:
            await soon(waiting)
        assert caught.value.outcome is Outcome.UNKNOWN
        await soon(client.append(b"after"))
    assert world.stored == [b"before", b"after"]


async def test_a_client_waits_for_a_silent_leader_while_nobody_else_leads(world):
    async with client_of(world) as client:
        waiting = await frozen_while_appending(world, client)
        await asked(world.servers["n1"], 5)
        world.leader_id = None
        await asked(world.servers["n1"], 5)
        assert not waiting.done()
        world.elect("n2")
        with pytest.raises(NetworkError):
            await soon(waiting)


async def test_a_leader_of_an_older_term_does_not_replace_a_silent_leader(world):
    async with client_of(world) as client:
        world.term = 5
        waiting = await frozen_while_appending(world, client)
        for node_id in ("n1", "n2"):
            world.servers[node_id].belief = ("n1", 4)
        await asked(world.servers["n1"], 5)
        assert not waiting.done()
        waiting.cancel()


async def test_one_of_the_others_may_be_frozen_as_well(world, monkeypatch):
    monkeypatch.setattr(clusters, "CHECK_S", 1_000.0)
    async with client_of(world) as client:
        waiting = await frozen_while_appending(world, client)
        world.servers["n1"].is_frozen = True
        await asked(world.servers["n2"], 3)  # of one check, which n1 does not let end
        world.elect("n2")
        with pytest.raises(NetworkError):
            await soon(waiting)


async def test_a_check_that_hangs_is_ended_and_started_again(world, monkeypatch):
    monkeypatch.setattr(clusters, "CHECK_S", 0.05)
    async with client_of(world) as client:
        waiting = await frozen_while_appending(world, client)
        for node_id in ("n1", "n2"):
            world.servers[node_id].is_frozen = True
        await passed(lambda: metadata_of(client)._check is not None)
        first = metadata_of(client)._check
        await passed(lambda: metadata_of(client)._check not in (None, first))
        world.servers["n2"].is_frozen = False
        world.elect("n2")
        with pytest.raises(NetworkError):
            await soon(waiting)


async def test_all_requests_at_a_silent_leader_end_once_another_leads(world):
    n0 = world.servers["n0"]
    async with client_of(world) as client:
        await client.append(b"x")
        own = await metadata_of(client).open(n0.address)
        world.servers["n0"].is_frozen = True
        request = AppendRequest(group="g", count=1)
        waiting = [own.request(request, [encode_block([b"y"])])]
        waiting += [asyncio.ensure_future(client.append_batch([b"z"])) for _ in range(3)]
        waiting += [asyncio.ensure_future(client.get(0)) for _ in range(3)]
        await asked(world.servers["n1"])
        world.elect("n1")
        found = await soon(asyncio.gather(*waiting, return_exceptions=True))
        assert [type(error) for error in found[:4]] == [NetworkError] * 4
        assert [entry.body for entry in found[4:]] == [b"x"] * 3  # what only reads is repeated


async def test_a_late_request_to_a_former_leader_does_not_wait(world):
    async with client_of(world) as client:
        waiting = await frozen_while_appending(world, client)
        own = await metadata_of(client).open(world.servers["n0"].address)
        world.elect("n1")
        with pytest.raises(NetworkError):
            await soon(waiting)
        with pytest.raises(NetworkError, match="leads now"):
            await soon(own.request(AppendRequest(group="g", count=1), [encode_block([b"y"])]))


async def test_a_silent_follower_starts_no_search_for_the_leader(world):
    async with client_of(world) as client:
        await client.append(b"x")
        world.servers["n2"].is_frozen = True
        own = await metadata_of(client).open(world.servers["n2"].address)
        notified = asyncio.Event()
        fell_silent = own._on_silent
        own._on_silent = lambda connection: (fell_silent(connection), notified.set())
        waiting = own.request(AppendRequest(group="g", count=1), [encode_block([b"y"])])
        await soon(notified.wait())
        assert metadata_of(client)._check is None
        assert not waiting.done()
        own.close()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_leader_that_answers_again_in_time_keeps_its_requests(world):
    n0, n1, _ = world.servers.values()
    async with client_of(world) as client:
        waiting = await frozen_while_appending(world, client)
        started, go_on = asyncio.Event(), asyncio.Event()

        async def ask_others(silent):
            started.set()
            await go_on.wait()
            return GroupMetadata("g", {"n1": n1.address}, "n1", 2)

        metadata_of(client)._ask_others = ask_others
        await soon(started.wait())
        n0.is_frozen = False
        await client.metadata(n0.address, "g")
        check = metadata_of(client)._check
        go_on.set()
        await soon(check)
        assert metadata_of(client).connections._shared[n0.address].unanswered == 1
        assert (await metadata_of(client).leader()).address == n1.address
        waiting.cancel()


async def test_a_leader_that_does_not_finish_the_handshake_is_abandoned(world, mute):
    world.elsewhere = {"n0": address_of(mute)}
    n1 = world.servers["n1"]
    async with client_of(world, n1.address) as client:
        waiting = asyncio.ensure_future(client.append(b"x"))
        await asked(n1, 3)
        assert not waiting.done()
        world.elect("n1")
        await soon(waiting)  # nothing was sent before, so it is simply sent now
    assert world.stored == [b"x"]


async def test_callers_that_wait_for_a_connection_do_not_try_one_after_the_other(world, mute):
    world.elsewhere = {"n0": address_of(mute)}
    async with client_of(world, world.servers["n1"].address) as client:
        leaders = [asyncio.ensure_future(metadata_of(client).leader()) for _ in range(10)]
        await asked(world.servers["n1"], 3)
        world.elect("n1")
        found = await soon(asyncio.gather(*leaders, return_exceptions=True))
        assert {type(error) for error in found} == {NoLeaderError}
        mute.accept()
        with pytest.raises(BlockingIOError):
            mute.accept()


async def test_a_producer_appends_everything_once_across_a_freeze(world):
    bodies = [f"{number:06d}".encode() for number in range(500)]
    world.script(None, None, None, FREEZE)
    async with client_of(world) as client:
        options = {"batch_bytes": 540, "linger_ms": 1, "idempotent": False}
        async with Producer(client, **options) as producer:
            deliveries = [await producer.send(body) for body in bodies]
            flushing = asyncio.ensure_future(producer.flush())
            await asked(world.servers["n1"], 3)
            world.elect("n1")
            await soon(flushing)
            places = [await delivery for delivery in deliveries]
    assert world.stored == bodies
    assert [place.index for place in places] == list(range(500))
    assert producer.stats.entries_resent_after_unknown > 0


async def test_a_producer_that_cannot_connect_asks_again_who_leads(world, mute, monkeypatch):
    monkeypatch.setattr(connection_pool, "CONNECT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(silence_watch, "CHECK_S", 1_000.0)
    world.elsewhere = {"n0": address_of(mute)}
    n0, n1, _ = world.servers.values()
    async with client_of(world, n1.address) as client:
        # open, idle, and to a process that was frozen since: only a new connection shows it
        known = metadata_of(client).connections._shared[address_of(mute)] = await metadata_of(
            client
        ).open(n0.address)
        known.address = address_of(mute)
        async with Producer(client, linger_ms=1, idempotent=False) as producer:
            delivery = await producer.send(b"x")
            await asked(n1, 2)
            world.elect("n1")
            await soon(delivery)
    assert world.stored == [b"x"]


# -- asking who leads -----------------------------------------------------------------------------


async def test_a_frozen_candidate_does_not_delay_finding_the_leader(world, mute):
    frozen = address_of(mute)
    async with client_of(world, frozen, world.servers["n1"].address) as client:
        await soon(client.append(b"x"))
        taken, _ = mute.accept()
        taken.setblocking(False)
        with taken:  # nothing of the attempt is left
            while await soon(asyncio.get_running_loop().sock_recv(taken, 1_000)):
                pass
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert list(metadata_of(client).connections._shared) != [frozen]


async def test_a_frozen_candidate_does_not_delay_a_leader_that_is_elected_later(world, mute):
    world.leader_id = None
    async with client_of(world, address_of(mute), world.servers["n1"].address) as client:
        waiting = asyncio.ensure_future(client.append(b"x"))
        await asked(world.servers["n1"], 3)
        world.elect("n2")
        await soon(waiting)


async def test_a_healthy_server_is_asked_alone(world, monkeypatch):
    monkeypatch.setattr(clusters, "ASK_NEXT_S", 1_000.0)
    async with client_of(world) as client:
        await client.append(b"x")
    assert [server.asked_count for server in world.servers.values()] == [1, 0, 0]


async def test_many_tasks_ask_once(world, monkeypatch):
    monkeypatch.setattr(clusters, "ASK_NEXT_S", 1_000.0)
    async with client_of(world) as client:
        await soon(asyncio.gather(*(client.append_batch([b"x"]) for _ in range(20))))
    assert [server.asked_count for server in world.servers.values()] == [1, 0, 0]


async def test_many_candidates_are_asked_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(leader_discovery, "ASKED_MAX", 2)
    questions = {}

    async def ask(address):
        questions[address] = asyncio.get_running_loop().create_future()
        return await questions[address]

    inquiry = leader_discovery.LeaderDiscovery(
        ask, lambda found: "" if found.leader_id else "none", list("abc")
    )
    searching = asyncio.ensure_future(inquiry.run(next_s=0.0))
    await passed(lambda: len(questions) == 2)
    for _ in range(10):
        await asyncio.sleep(0)
    assert list(questions) == ["a", "b"]
    questions["a"].set_result(GroupMetadata("g", {}, None, 1))
    await passed(lambda: len(questions) == 3)
    found = GroupMetadata("g", {}, "n1", 1)
    questions["c"].set_result(found)
    assert await soon(searching) is found
    assert questions["b"].cancelled()


async def test_a_server_that_named_no_leader_is_not_asked_again_at_once(world, mute, monkeypatch):
    monkeypatch.setattr(leader_discovery, "ASK_AGAIN_S", 1_000.0)
    world.leader_id, n1 = None, world.servers["n1"]
    async with client_of(world, address_of(mute), n1.address) as client:
        waiting = asyncio.ensure_future(metadata_of(client).leader())
        await asked(n1)
        for _ in range(5):
            await client.metadata(n1.address, "g")
        assert n1.asked_count == 6
        waiting.cancel()


async def test_a_cancelled_search_leaves_no_task(world, mute):
    async with client_of(world, address_of(mute)) as client:
        with pytest.raises(NoLeaderError):
            await client.append(b"x", timeout_ms=50)
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_client_that_is_closed_during_a_check_leaves_no_task(world):
    async with client_of(world) as client:
        waiting = await frozen_while_appending(world, client)
        for node_id in ("n1", "n2"):
            world.servers[node_id].is_frozen = True
        await passed(lambda: metadata_of(client)._check is not None)
        check = metadata_of(client)._check
    assert check.done()
    await asyncio.gather(waiting, return_exceptions=True)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_error_names_every_server_that_was_asked(world, mute, monkeypatch):
    monkeypatch.setattr(connection_pool, "CONNECT_TIMEOUT_S", 0.2)
    n0, n1, _ = world.servers.values()
    world.leader_id = None
    world.servers["n1"].hosts_group = False
    async with client_of(world, address_of(mute), n0.address, n1.address) as client:
        with pytest.raises(NoLeaderError) as caught:
            await metadata_of(client).leader()
    text = str(caught.value)
    assert f"{n0.address}: knows no leader in term 1" in text
    assert f"{address_of(mute)}: cannot connect" in text
    assert f"{n1.address}: node does not host group" in text


async def test_a_group_is_unknown_if_no_server_that_answers_hosts_it(world, mute, monkeypatch):
    monkeypatch.setattr(connection_pool, "CONNECT_TIMEOUT_S", 0.2)
    for server in world.servers.values():
        server.hosts_group = False
    addresses = [server.address for server in world.servers.values()]
    async with client_of(world, address_of(mute), *addresses) as client:
        with pytest.raises(UnknownGroupError):
            await metadata_of(client).leader()


# -- whom to believe ------------------------------------------------------------------------------


async def left_n0(world, client):
    """Have n0 given up as silent, with n1 leading; n2 has not heard of it."""
    waiting = await frozen_while_appending(world, client)
    world.servers["n2"].belief = ("n0", 1)
    world.elect("n1")
    with pytest.raises(NetworkError):
        await soon(waiting)
    metadata_of(client).forget_leader()


async def test_a_stale_follower_is_not_believed(world):
    n0, n1, n2 = world.servers.values()
    async with client_of(world, n2.address, n0.address, n1.address) as client:
        await left_n0(world, client)
        assert (await soon(metadata_of(client).leader())).address == n1.address
        assert n2.asked_count > 0
        metadata_of(client).redirect("n0", away_from=n1.address)
        assert (await soon(metadata_of(client).leader())).address == n1.address
        assert metadata_of(client).candidates()[-1] == n0.address
        await soon(client.append(b"after"))


async def test_an_unresponsive_server_that_says_itself_that_it_leads_is_believed(world):
    n0, n1, _ = world.servers.values()
    async with client_of(world) as client:
        await left_n0(world, client)
        n0.is_frozen = False
        n0.belief = ("n0", 1)
        await soon(client.metadata(n0.address, "g"))
        metadata_of(client).redirect("n0", away_from=n1.address)
        assert (await soon(metadata_of(client).leader())).address == n0.address


async def test_an_unresponsive_server_named_in_a_newer_term_is_believed(world):
    n0, n1, n2 = world.servers.values()
    async with client_of(world, n2.address, n1.address) as client:
        await left_n0(world, client)
        n2.belief = ("n0", 3)
        assert (await soon(metadata_of(client).leader())).address == n0.address


async def test_a_leader_that_cannot_be_reached_is_not_believed_of_others(world, mute):
    n1 = world.servers["n1"]
    dead = address_of(mute)
    mute.close()
    world.elsewhere = {"n0": dead}
    async with client_of(world, n1.address) as client:
        with pytest.raises(NoLeaderError, match=f"{dead}, cannot be reached"):
            await metadata_of(client).leader()
        with pytest.raises(NoLeaderError, match=f"{n1.address}: names .* which does not answer"):
            await metadata_of(client).leader()


async def test_any_answer_makes_a_server_responsive_again(world):
    n0, n1, _ = world.servers.values()
    async with client_of(world) as client:
        await client.append(b"x")
        metadata_of(client).unreachable(n0.address)
        assert (await client._requester.any_server()).address == n1.address
        await client.metadata(n0.address, "g")
        assert (await client._requester.any_server()).address == n0.address


async def test_few_unresponsive_servers_are_remembered(world, monkeypatch):
    monkeypatch.setattr(connection_pool, "UNRESPONSIVE_MAX", 2)
    async with client_of(world) as client:
        for address in ("h:1", "h:2", "h:1", "h:3"):
            metadata_of(client).unreachable(address)
        assert list(metadata_of(client).connections.unresponsive) == ["h:1", "h:3"]


async def test_a_lost_connection_does_not_make_a_client_forget_a_newer_leader(world):
    n0, n1, _ = world.servers.values()
    async with client_of(world) as client:
        await client.append(b"x")
        world.script(SILENT)
        waiting = asyncio.ensure_future(client.append(b"y"))
        await passed(lambda: world.requests == 2)
        world.elect("n1")
        metadata_of(client).redirect("n1", away_from=n0.address)
        (await metadata_of(client).connection(n0.address)).abort("is gone")
        await asyncio.gather(waiting, return_exceptions=True)
        count = n1.asked_count
        await soon(client.append(b"z"))
        assert n1.asked_count == count
