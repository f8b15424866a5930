"""Followers of a log and of keys: which failures they ride out, and which they raise."""

import asyncio
from types import SimpleNamespace

import pytest

from quorumlog.client import KV, Client, EventsForgottenError, FetchedBlock, Producer
from quorumlog.client import kv as kv_client
from quorumlog.client.reader import BlockReader
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import (
    IndexRemovedError,
    InternalError,
    NoLeaderError,
    RequestError,
    UnexpectedArgumentError,
    UnknownGroupError,
    UnsupportedError,
    error_for,
)
from scripted_cluster import DROP, SOON_S, World, passed, soon

NOTHING = memoryview(b"")
RIDDEN_OUT = [
    ResponseCode.TIMEOUT,
    ResponseCode.METADATA_ERROR,
    ResponseCode.NETWORK_ERROR,
    ResponseCode.NOT_LEADER,
    ResponseCode.DISK_ERROR,
    ResponseCode.DISK_FULL,
    ResponseCode.TERM_CHANGED,
    ResponseCode.WAIT_QUORUM_ACK_TIMEOUT,
    ResponseCode.LEADER_PENDING_FULL,
    ResponseCode.LEADER_NOT_READY,
    ResponseCode.LEADER_TRANSFERRING,
    DROP,
]
TOLD = {
    ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN: IndexRemovedError,
    ResponseCode.UNEXPECTED_ARGUMENT: UnexpectedArgumentError,
    ResponseCode.UNSUPPORTED: UnsupportedError,
    ResponseCode.UNKNOWN_GROUP: UnknownGroupError,
}


@pytest.fixture
async def world():
    made = World("n0", "n1", "n2")
    made.stored = [b"0", b"1"]
    await made.start()
    yield made
    await made.stop()


def refuse(world, *planned):
    for server in world.servers.values():
        server.refusals.extend(planned)


def name_of(planned):
    return planned.name if isinstance(planned, ResponseCode) else planned


async def take(entries, count):
    return [(await soon(anext(entries))) for _ in range(count)]


@pytest.mark.parametrize("leader_only", [True, False])
@pytest.mark.parametrize("planned", RIDDEN_OUT, ids=name_of)
async def test_a_follow_rides_out(world, planned, leader_only):
    async with Client(world.addresses, "g") as client:
        entries = client.read(0, leader_only=leader_only, linearizable=True)
        seen = await take(entries, 2)
        refuse(world, planned, planned)
        world.stored += [b"2", b"3"]
        seen += await take(entries, 2)
        assert [(entry.index, entry.body) for entry in seen] == [
            (0, b"0"),
            (1, b"1"),
            (2, b"2"),
            (3, b"3"),
        ]
        await entries.aclose()


@pytest.mark.parametrize("planned", [*RIDDEN_OUT, ResponseCode.INTERNAL_ERROR], ids=name_of)
async def test_a_watch_rides_out(world, planned):
    async with Client(world.addresses, "g") as client:
        events = KV(client).watch(first_index=0)
        seen = await take(events, 2)
        refuse(world, planned, planned)
        world.stored += [b"2", b"3"]
        seen += await take(events, 2)
        assert [(event.index, event.value) for event in seen] == [
            (0, b"0"),
            (1, b"1"),
            (2, b"2"),
            (3, b"3"),
        ]
        await events.aclose()


@pytest.mark.parametrize("planned", TOLD, ids=name_of)
async def test_a_permanent_failure_is_raised(world, planned):
    async with Client(world.addresses, "g") as client:
        refuse(world, *[planned] * 3)
        with pytest.raises(TOLD[planned]):
            await soon(anext(client.read(1)))
        refuse(world, *[planned] * 3)
        with pytest.raises(TOLD[planned]):
            await soon(anext(KV(client).watch(first_index=1)))


async def test_removed_entries_are_an_error(world):
    async with Client(world.addresses, "g") as client:
        entries, events = client.read(0), KV(client).watch(first_index=0)
        await take(entries, 2)
        await take(events, 2)
        world.stored += [b"2", b"3", b"4"]
        world.first_kept_index = 4
        with pytest.raises(IndexRemovedError, match="index 2 is below 4"):
            await soon(anext(entries))
        with pytest.raises(EventsForgottenError, match="those before 4 are forgotten"):
            await soon(anext(events))
        with pytest.raises(IndexRemovedError, match="index 3 is below 4"):
            await soon(anext(client.read(3)))


# -- replicas that keep a question ----------------------------------------------------------------


async def test_a_watch_moves_to_another_replica_when_one_does_not_answer(world, monkeypatch):
    monkeypatch.setattr(kv_client, "WATCH_WAIT_MS", 50)
    async with Client(world.addresses, "g", timeout_ms=3_000) as client:
        for server in world.servers.values():
            server.keeps_fetches = True
        waiting = asyncio.ensure_future(anext(KV(client).watch(first_index=0)))
        await soon(world.kept.wait())
        for server in world.servers.values():
            server.keeps_fetches = False
        assert (await soon(waiting)).index == 0  # asked again, without an answer to the first


async def test_a_repeated_query_waits_for_the_remaining_time(world):
    async with Client(world.addresses, "g", timeout_ms=60_000) as client:
        refuse(world, *[ResponseCode.TIMEOUT] * 2)
        world.stored = [b"%d" % number for number in range(6)]
        loop = asyncio.get_running_loop()
        started = loop.time()
        kv = KV(client)
        query = kv_client.kv_commands.Events(b"", 5, 1)
        await soon(kv._await(query, 5))
        ((_, request),) = world.queries
        assert request.after_index == 5
        elapsed_ms = (loop.time() - started) * 1_000
        assert kv_client.WATCH_WAIT_MS - elapsed_ms - 1 <= request.wait_ms
        assert request.wait_ms < kv_client.WATCH_WAIT_MS


async def test_a_machine_that_fails_after_a_long_wait_is_not_the_end(world, monkeypatch):
    """The time-out counts from the first refusal, not from when the wait began."""
    seconds = 0.0

    async def sleep(pause_s):
        nonlocal seconds
        seconds += pause_s

    async with Client(world.addresses, "g", timeout_ms=200) as client:
        answers = [InternalError("the machine failed"), "answer"]

        async def ask(*_, **__):
            nonlocal seconds
            if len(answers) == 2:
                seconds += 60
            found = answers.pop(0)
            if isinstance(found, RequestError):
                raise found
            return found, None

        kv = KV(client)
        monkeypatch.setattr(kv, "_ask", ask)
        loop = SimpleNamespace(time=lambda: seconds)
        scripted = SimpleNamespace(get_running_loop=lambda: loop, sleep=sleep)
        monkeypatch.setattr(kv_client, "asyncio", scripted)
        assert await soon(kv._await(kv_client.kv_commands.Events(b"", 5, 1), 5)) == ("answer", None)
        assert (answers, seconds) == ([], 60 + kv_client.PAUSE_S)


# -- read ahead -----------------------------------------------------------------------------------


class Blocks:
    """Answers fetches as the script says."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def fetch(self, begin, last, wait_ms):
        self.asked.append(begin)
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return FetchedBlock(begin, answer, NOTHING, NOTHING, 0, begin + answer - 1)


async def turn_until(condition):
    async with asyncio.timeout(SOON_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
    for _ in range(10):  # and whoever waited for it has noticed
        await asyncio.sleep(0)


@pytest.mark.parametrize("code", [ResponseCode.TIMEOUT, ResponseCode.METADATA_ERROR])
async def test_an_outage_that_is_over_before_it_is_noticed_is_none(code):
    served = Blocks(2, error_for(code, "an outage while the reader was busy"), 3)
    found = BlockReader(served.fetch, 0, None, follow=True).blocks()
    assert (await anext(found)).count == 2
    await turn_until(lambda: len(served.asked) == 2 and len(served.answers) == 1)
    assert ((await anext(found)).first_index, served.asked) == (2, [0, 2, 2])
    await found.aclose()


async def test_a_lasting_outage_is_raised_by_the_second_attempt():
    served = Blocks(2, NoLeaderError("first"), NoLeaderError("second"))
    found = BlockReader(served.fetch, 0, None, follow=True).blocks()
    await anext(found)
    await turn_until(lambda: len(served.asked) == 2 and len(served.answers) == 1)
    with pytest.raises(NoLeaderError, match="second"):
        await anext(found)


async def test_an_outage_while_the_reader_waits_is_raised_at_once():
    served = Blocks(2, NoLeaderError("first"), 1)
    found = BlockReader(served.fetch, 0, None, follow=True).blocks()
    await anext(found)
    with pytest.raises(NoLeaderError, match="first"):
        await anext(found)


# -- servers that do not host the group -----------------------------------------------------------


async def outage_of_those_that_host_it(world):
    """n2 never hosted the group and is all that answers."""
    for node_id in ("n0", "n1"):
        await world.servers[node_id].listener.stop()


async def test_a_group_that_was_found_once_is_not_unknown_in_an_outage(world):
    world.servers["n2"].hosts_group = False
    async with Client(world.addresses, "g", timeout_ms=400) as client:
        assert [entry.index async for entry in client.read(0, follow=False)] == [0, 1]
        producer = Producer(world.addresses, "g", delivery_timeout_ms=60_000)
        async with producer:
            await producer.send(b"2")
            await soon(producer.flush())
            await outage_of_those_that_host_it(world)
            with pytest.raises(NoLeaderError, match="does not host"):
                await soon(client.bounds())
            pending = await producer.send(b"3")
            searched = world.servers["n2"].asked_count
            await passed(lambda: world.servers["n2"].asked_count > searched + 2)
            assert not pending.done()
            await producer.close(flush=False)


async def test_a_group_that_no_server_hosts_is_an_error_at_once(world):
    for server in world.servers.values():
        server.hosts_group = False
    async with Client(world.addresses, "g", timeout_ms=60_000) as client:
        with pytest.raises(UnknownGroupError):
            await soon(client.bounds())
