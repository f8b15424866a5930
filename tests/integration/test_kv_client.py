"""The key-value machine as clients use it, on real nodes."""

import asyncio
import re
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from quorumlog import KV, Compare, Delete, KeyEvent, KeyItem, Put
from quorumlog.client import kv as client_kv
from quorumlog.machine import kv as machine_kv
from quorumlog.machine import kv_commands
from quorumlog.model.errors import (
    IndexRemovedError,
    InternalError,
    Outcome,
    UnexpectedArgumentError,
    UnsupportedError,
)

COUNTER = {"state_machine": "counting:Counter"}
MACHINES_PAGE = Path(__file__).parents[2] / "docs" / "machines.md"


@pytest.fixture
def started(make_cluster):
    """`async with started() as (cluster, kv)`: a group of keys and values, and a client of it."""

    @asynccontextmanager
    async def start(state_machine="kv", **options):
        async with make_cluster(state_machine=state_machine, **options) as cluster:
            await cluster.start()
            async with cluster.client() as client:
                yield cluster, KV(client)

    return start


async def taken(events, count, seconds=30):
    """Return so many events of a watch."""
    async with asyncio.timeout(seconds):
        return [await anext(events) for _ in range(count)]


async def listed(items):
    return [item async for item in items]


async def keys(items):
    return [item.key for item in await listed(items)]


async def test_a_query_waits_for_as_long_as_it_was_told_whatever_the_server_does(started):
    """A server answers after its fetchWaitMsMax at the latest; the client asks again."""
    async with started(limits={"fetch_wait_ms_max": 10}) as (cluster, kv):
        first = await kv.put("a", "1")
        assert first is None
        async with cluster.client() as client:
            _, committed = await client.bounds()
            question = kv_commands.encode_query(kv_commands.Get(b"a"))
            asked = asyncio.create_task(
                client.machine.query(
                    question, linearizable=False, after_index=committed + 1, wait_ms=60_000
                )
            )
            for _ in range(20):  # several answers without it
                await client.status()
            assert not asked.done()
            await kv.put("a", "2")
            assert (await asked).applied_index > committed


async def test_what_is_put_is_got_until_it_is_deleted(started):
    async with started() as (_, kv):
        assert await kv.get("a") is None
        assert await kv.get_with_index("a") == (None, -1)
        assert await kv.put("a", "ä") is None
        assert await kv.put(b"a", b"\xff\x00") == "ä".encode()
        assert await kv.get("a") == b"\xff\x00"
        value, index = await kv.get_with_index(bytearray(b"a"))
        assert (value, index) == (b"\xff\x00", await kv.applied_index())
        assert await kv.delete("a") == b"\xff\x00"
        assert await kv.delete("a") is None
        assert await kv.get("a") is None
        await kv.put("empty", "")
        assert await kv.get("empty") == b""


async def test_only_one_of_many_sets_what_all_compare(started):
    async with started() as (_, kv):
        assert await kv.compare_and_set("a", None, "0")
        assert not await kv.compare_and_set("a", None, "1"), "it is not absent any more"
        won = await asyncio.gather(*(kv.compare_and_set("a", "0", f"{n}") for n in range(1, 9)))
        assert won.count(True) == 1
        assert await kv.get("a") == b"%d" % (won.index(True) + 1)
        assert not await kv.compare_and_set("a", "nonsense", None)
        assert await kv.compare_and_set("a", await kv.get("a"), None)
        assert await kv.get("a") is None


async def test_an_index_tells_also_changes_back_and_forth(started):
    async with started() as (_, kv):
        assert await kv.compare_index_and_set("a", -1, "x")
        _, index = await kv.get_with_index("a")
        await kv.put("a", "y")
        await kv.put("a", "x")
        assert not await kv.compare_index_and_set("a", index, "z")
        _, index = await kv.get_with_index("a")
        assert await kv.compare_index_and_set("a", index, None)
        assert not await kv.compare_index_and_set("a", index, "again")
        assert await kv.get("a") is None


async def test_a_transaction_changes_several_keys_or_takes_the_other_branch(started):
    async with started() as (_, kv):
        await kv.transaction(then=[Put("from", "10"), Put("to", "0")])
        pay = ([Compare("from", value="10")], [Put("from", "7"), Put("to", "3")], [Delete("to")])
        paid = await kv.transaction(*pay)
        assert (paid.succeeded, paid.previous) == (True, [b"10", b"0"])
        assert (await kv.get_with_index("from"))[1] == paid.index
        again = await kv.transaction(*pay)
        assert (again.succeeded, again.previous) == (False, [b"3"])
        both = Compare("from", value="7", index=paid.index)
        nothing = await kv.transaction([both, Compare("to", value=None)])
        assert (nothing.succeeded, nothing.previous) == (True, [])


# -- scans ------------------------------------------------------------------------------------


async def test_a_scan_goes_over_several_pages(started, monkeypatch):
    monkeypatch.setattr(machine_kv, "SCAN_ITEMS_MAX", 3)
    async with started(count=1) as (_, kv):
        names = [b"a%02d" % number for number in range(10)]
        done = await kv.transaction(then=[Put(name, name[1:]) for name in [*names, b"b", b"\xff"]])
        everything = await listed(kv.scan())
        assert everything[0] == KeyItem(b"a00", b"00", done.index)
        assert [item.key for item in everything] == [*names, b"b", b"\xff"]
        assert await keys(kv.scan(prefix="a")) == names
        assert await keys(kv.scan(prefix="a", reverse=True)) == names[::-1]
        assert await keys(kv.scan("a02", "a09")) == names[2:9]
        assert await keys(kv.scan("a02", "a09", reverse=True, limit=4)) == names[8:4:-1]
        assert await keys(kv.scan("a05", prefix="a", limit=4)) == names[5:9]
        assert await keys(kv.scan("", "a03", prefix="a")) == names[:3]
        assert await keys(kv.scan(prefix=b"\xff", linearizable=False)) == [b"\xff"]
        assert await keys(kv.scan(limit=3)) == names[:3]
        assert await keys(kv.scan("x", "a")) == await keys(kv.scan(end="")) == []


async def test_a_page_ends_where_its_bytes_do_and_goes_on_behind_it(started):
    async with started(count=1) as (_, kv):
        for name in "abcd":
            await kv.put(name, bytes(200_000))
            await kv.put(name * 511, bytes(200_000))
        found = await listed(kv.scan())
        assert [len(item.key) for item in found] == [1, 511] * 4
        assert await listed(kv.scan(reverse=True)) == found[::-1]


# -- watches ----------------------------------------------------------------------------------


async def test_a_watch_sees_every_change_of_its_prefix_once_also_across_leaders(started, until):
    async with started() as (cluster, kv), aclosing(kv.watch("w/")) as events:
        first = asyncio.create_task(anext(events))
        begun = await kv.applied_index()
        while not first.done():
            await kv.put("w/0", "begin")
            await kv.put("other", "never seen")
            await asyncio.sleep(0)
        seen = [await first]
        assert seen[0].index > begun
        for number in range(1, 31):
            await kv.put(f"w/{number}", f"{number}")
            if number % 10 == 0:
                leader = cluster.leader_id()
                target = next(node for node in cluster.ids if node != leader)
                await kv._client.admin.transfer(target)
        last = (await kv.transaction(then=[Delete("w/30")])).index
        while (seen[-1].key, seen[-1].value) != (b"w/30", None):
            seen += await taken(events, 1)
        wanted = [event async for event in up_to(kv.watch("w/", seen[0].index), last)]
        assert seen == wanted
        assert [e.key for e in seen if e.key != b"w/0"] == [b"w/%d" % n for n in range(1, 31)] + [
            b"w/30"
        ]


async def up_to(events, last):
    async with aclosing(events):
        async for event in events:
            yield event
            if event.index == last:
                return


async def test_a_watch_goes_on_when_the_nodes_were_away(started, until):
    async with started() as (cluster, kv):
        index = await kv.applied_index() + 1
        async with aclosing(kv.watch("w", index)) as events:
            put = (await kv.transaction(then=[Put("w1", "before")])).index
            assert await taken(events, 1) == [KeyEvent(put, b"w1", b"before")]
            waiting = asyncio.create_task(taken(events, 1))
            await asyncio.sleep(0)
            await cluster.stop()
            await cluster.start()
            await kv.put("w2", "after")
            (event,) = await waiting
            assert (event.key, event.value) == (b"w2", b"after")


async def test_a_watch_with_nothing_to_tell_waits_instead_of_asking_all_the_time(
    started, monkeypatch
):
    async with started() as (cluster, kv):
        await kv.put("w", "0")
        asked = []
        query = kv._client.machine.query

        async def counted(*arguments, **options):
            asked.append(options["linearizable"])
            return await query(*arguments, **options)

        monkeypatch.setattr(kv._client.machine, "query", counted)
        async with aclosing(kv.watch("w")) as events:
            waiting = asyncio.create_task(taken(events, 1))
            target = next(node for node in cluster.ids if node != cluster.leader_id())
            await kv._client.admin.transfer(target)  # its NOOP is applied, but is no command
            for _ in range(100):
                assert await kv.get("w") == b"0"
            assert asked.count(False) < 10
            await kv.put("w", "1")
            assert (await waiting)[0].value == b"1"


async def test_a_watch_of_what_is_forgotten_says_from_where_on_it_is_kept(started, monkeypatch):
    monkeypatch.setattr(machine_kv, "EVENTS_KEPT", 5)
    async with started(count=1) as (_, kv):
        outcomes = [await kv.transaction(then=[Put("a", f"{number}")]) for number in range(9)]
        with pytest.raises(IndexRemovedError, match="are forgotten") as raised:
            await taken(kv.watch("a", outcomes[0].index), 1)
        kept = raised.value.first_kept_index
        assert kept == outcomes[3].index + 1
        assert str(kept) in str(raised.value)
        events = kv.watch("a", kept)
        assert [event.index for event in await taken(events, 5)] == [o.index for o in outcomes[4:]]


async def test_a_watch_asks_another_replica_when_one_has_lost_its_machine(started, monkeypatch):
    async with started() as (cluster, kv):
        index = (await kv.transaction(then=[Put("a", "1")])).index
        monkeypatch.setattr(client_kv, "WATCH_WAIT_MS", 50)
        follower = next(node for node in cluster.ids if node != cluster.leader_id())
        monkeypatch.setattr(
            cluster.replica(follower).applier.state.machine, "query", lambda asked: 1 / 0
        )
        for _ in range(10):
            async with aclosing(kv.watch("a", index)) as events:
                assert await taken(events, 1) == [KeyEvent(index, b"a", b"1")]


async def test_a_watch_ends_when_no_replica_can_answer(started, monkeypatch):
    async with started(count=1) as (cluster, kv):
        await kv.put("a", "1")
        machine = cluster.replica("n0").applier.state.machine
        monkeypatch.setattr(machine, "query", lambda asked: 1 / 0)
        kv._client._requester.timeout_ms = 300
        with pytest.raises(InternalError, match="division"):
            await taken(kv.watch("a", 0), 1)


# -- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda kv: kv.put("", "x"), "a key has 1 to 511 bytes"),
        (lambda kv: kv.put("k" * 512, "x"), "not 512"),
        (lambda kv: kv.put("k", bytes((1 << 20) + 1)), "a value has at most"),
        (lambda kv: kv.put(7, "x"), "a key is bytes or str, not int"),
        (lambda kv: kv.put("k", None), "a value is bytes or str, not NoneType"),
        (lambda kv: kv.put("\udc80", "x"), "cannot be written as UTF-8"),
        (lambda kv: kv.get(""), "a key has 1 to 511 bytes"),
        (lambda kv: kv.transaction([Compare("k")]), "needs a value or an index"),
        (lambda kv: kv.transaction(then=[Delete("k")] * 1_025), "at most 1024"),
        (lambda kv: listed(kv.scan(limit=0)), "limit is a whole number from 1 to"),
        (lambda kv: taken(kv.watch("k", -2), 1), "first_index is a whole number from 0 to"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_sent(make_cluster, ask, said):
    async with make_cluster() as cluster, cluster.client() as client:
        with pytest.raises(UnexpectedArgumentError, match=said):
            await ask(KV(client))  # nothing runs that could answer


async def test_a_command_that_only_the_machine_finds_wrong_changes_nothing(started, monkeypatch):
    async with started(count=1) as (_, kv):
        await kv.put("a", "1")
        monkeypatch.setattr(kv_commands, "_check_command", lambda command: None)
        raw = kv_commands.encode_command(kv_commands.Transaction())
        monkeypatch.setattr(kv_commands, "encode_command", lambda command: raw + b"more")
        with pytest.raises(UnexpectedArgumentError, match="not a key-value command") as raised:
            await kv.put("a", "2")
        assert raised.value.outcome is Outcome.DID_NOT_HAPPEN
        assert await kv.get("a") == b"1"


async def test_nothing_is_put_into_the_log_of_another_machine(started):
    async with started(count=1, **COUNTER) as (cluster, kv):
        await kv._client.append(b"1")
        before = cluster.replica("n0").log.end_index
        with pytest.raises(UnexpectedArgumentError, match="as the key-value machine does") as found:
            await kv.put("a", "1")
        assert found.value.outcome is Outcome.DID_NOT_HAPPEN
        assert cluster.replica("n0").log.end_index == before


async def test_nothing_is_put_into_a_plain_log(started):
    async with started("", count=1) as (cluster, kv):
        await kv._client.append(b"1")
        before = cluster.replica("n0").log.end_index
        with pytest.raises(UnsupportedError, match="no state machine"):
            await kv.put("a", "1")
        assert cluster.replica("n0").log.end_index == before


async def test_the_example_of_the_documentation_does_what_it_says(started, until):
    blocks = re.findall(r"```python\n(.*?)```", MACHINES_PAGE.read_text(), re.DOTALL)
    imports, _, used = next(b for b in blocks if "import KV" in b).partition("\n\n")
    async with started() as (cluster, kv):
        await kv.put("from", "10")
        await kv.put("colour", "grey")
        shown = []
        names = {"servers": cluster.addresses["n0"], "print": shown.append}
        body = used.replace("Client(servers)", 'Client(servers, "g")').splitlines()
        exec("\n".join([imports, "async def use():", *(f"    {line}" for line in body)]), names)
        using = asyncio.create_task(names["use"]())
        await until(lambda: shown or using.done())
        assert (shown[0].key, shown[0].value) == (b"colour", b"red")
        assert await kv.get("to") == b"3"
        while len(shown) < 2:
            await kv.delete("colour")
            await kv.put("colour", "pink")
        assert shown[1].key == b"colour"
        using.cancel()
        await asyncio.gather(using, return_exceptions=True)
