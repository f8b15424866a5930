"""A group with a state machine on real nodes: commands, questions, snapshots, failures."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import (
    IndexRemovedError,
    InternalError,
    Outcome,
    RequestError,
    UnsupportedError,
)
from quorumlog.model.messages.machine import QueryRequest
from quorumlog.node import groups

COUNTER = {"state_machine": "counting:Counter"}


def machines(cluster):
    return {node_id: cluster.replica(node_id).applier.state.machine for node_id in cluster.nodes}


def totals(cluster):
    return {machine.total for machine in machines(cluster).values()}


def group_directory(cluster, node_id):
    return Path(cluster.configs[node_id].store_base_dir) / "g"


def snapshots_of(cluster, node_id):
    return sorted((group_directory(cluster, node_id) / "snapshot").glob("snapshot_*"))


async def test_137_a_command_is_answered_with_the_machines_result(make_cluster):
    async with make_cluster(**COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            for number in range(20):
                executed = await client.execute(b"1")
                assert executed.result == b"%d" % (number + 1)
            found = await client.machine.execute_batch([b"5", b"7"])
            assert [item.result for item in found] == [b"25", b"32"]
            assert found[1].index == found[0].index + 1
            answered = await client.query(b"")
            assert answered.answer == b"32"
            assert answered.applied_index >= found[1].index


async def test_a_machine_that_takes_long_to_open_keeps_nothing_from_the_loop(
    make_cluster, monkeypatch
):
    """Its files may be large; whatever it does there, signals and other groups are heard."""
    threads, opened = [], groups.open_machine

    def slow(*arguments):
        threads.append(threading.current_thread())
        return opened(*arguments)

    monkeypatch.setattr(groups, "open_machine", slow)
    async with make_cluster(count=1, groups=("g", "h"), **COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            assert (await client.execute(b"1")).result == b"1"
    assert len(threads) == 2
    assert threading.current_thread() not in threads


async def test_commands_of_one_moment_travel_together_and_each_gets_its_own_result(make_cluster):
    async with make_cluster(count=1, **COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.execute(b"0")
            requests = cluster.replica("n0").counters.append_requests
            found = await asyncio.gather(*(client.execute(b"1") for _ in range(50)))
            assert [executed.result for executed in found] == [b"%d" % n for n in range(1, 51)]
            assert len({executed.index for executed in found}) == 50
            assert cluster.replica("n0").counters.append_requests == requests + 1
            large, fine = await asyncio.gather(
                client.execute(b"1" * 300_000), client.execute(b"1"), return_exceptions=True
            )
            assert "largest allowed 262144" in str(large)
            assert fine.result == b"51", "it suffers nothing from the other"
            await cluster.stop("n0")
            refused = await asyncio.gather(
                *(client.execute(b"1", timeout_ms=300) for _ in range(3)), return_exceptions=True
            )
            assert all(isinstance(error, RequestError) for error in refused)
            assert len({id(error) for error in refused}) == 3


async def test_135_every_machine_sees_all_entries_once_in_order_and_no_others(make_cluster, until):
    async with make_cluster(**COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            batches = await asyncio.gather(*(client.append_batch([b"1"] * 40) for _ in range(50)))
            wanted = sorted(
                index
                for batch in batches
                for index in range(batch.first_index, batch.last_index + 1)
            )
            await until(lambda: totals(cluster) == {2_000}, what="all replicas have applied")
            for machine in machines(cluster).values():
                assert machine.applied == wanted


async def test_138_140_questions_see_what_was_acknowledged_also_after_a_change_of_leaders(
    make_cluster, until
):
    async with make_cluster(**COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client, cluster.client() as other:
            assert (await client.query(b"")).answer == b"0"
            for number in range(1, 31):
                await client.execute(b"10")
                assert int((await other.query(b"")).answer) >= number * 10
                if number % 10 == 0:
                    leader = cluster.leader_id()
                    target = next(node for node in cluster.ids if node != leader)
                    await client.admin.transfer(target)


async def test_139_a_stale_question_is_answered_by_any_replica_with_its_applied_index(
    make_cluster, until
):
    async with make_cluster(**COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            executed = await client.execute(b"3")
            await until(lambda: totals(cluster) == {3})
            await cluster.stop(cluster.leader_id(), clean=False)
            answered = await client.query(b"", linearizable=False)
            assert (answered.answer, answered.applied_index >= executed.index) == (b"3", True)
            found = await client.machine.query(
                b"", linearizable=False, after_index=executed.index + 1_000, wait_ms=50
            )
            assert found.answer == b"3", "after the wait it answers in any case"


async def test_a_plain_log_says_that_it_executes_nothing(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            with pytest.raises(UnsupportedError, match="no state machine"):
                await client.execute(b"1")
            with pytest.raises(UnsupportedError, match="no state machine"):
                await client.query(b"")
            with pytest.raises(UnsupportedError, match="no state machine"):
                await client.admin.save_snapshot()


async def test_a_question_that_the_machine_refuses_does_no_harm(make_cluster, monkeypatch):
    async with make_cluster(**COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.execute(b"1")
            for machine in machines(cluster).values():
                monkeypatch.setattr(machine, "query", lambda question: 1 / 0)
            with pytest.raises(InternalError, match="division by zero"):
                await client.query(b"")
            assert (await client.execute(b"1")).result == b"2"


async def test_153_a_machine_that_raises_stops_tells_where_and_leaves_leading_to_others(
    make_cluster, until, monkeypatch
):
    async with make_cluster(**COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            at = (await client.execute(b"1")).index
            leader = cluster.leader_id()
            bad = cluster.replica(leader)
            apply = bad.applier.state.machine.apply

            def fails_at_the_second(entries):
                for entry in entries:
                    if entry.body == b"7":
                        raise RuntimeError("seven")
                return apply(entries)

            monkeypatch.setattr(bad.applier.state.machine, "apply", fails_at_the_second)
            executed = await client.machine.execute_batch([b"1", b"7"])
            assert [found.result for found in executed] == [b"2", b"9"], "another leader's answer"
            assert cluster.leader_id() not in (None, leader)
            await until(
                lambda: {m.total for n, m in machines(cluster).items() if n != leader} == {9}
            )
            assert bad.applier.state.applied_index <= at
            statuses = {status.node_id: status for status in await client.status()}
            assert not statuses[leader].healthy
            assert (
                f"RuntimeError: seven at entry {executed[1].index}" in statuses[leader].health_text
            )
            assert "fails_at_the_second" in statuses[leader].health_text, "the traceback"
            assert (await client.execute(b"1")).result == b"10", "the others go on"
            assert bad.core.role is Role.FOLLOWER
            assert bad.log.end_index > at, "it still keeps the log"


async def test_what_gives_no_bytes_for_an_entry_has_failed(make_cluster, until, monkeypatch):
    async with make_cluster(count=1, **COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.execute(b"1")
            applier = cluster.replica("n0").applier
            monkeypatch.setattr(applier.state.machine, "apply", lambda entries: [])
            with pytest.raises(RequestError):
                await client.execute(b"1", timeout_ms=500)
            await until(lambda: "gave 0 results for 1 entry" in applier.state.failed_text)


async def test_153_a_command_that_ended_the_only_machine_is_said_to_be_committed(
    make_cluster, monkeypatch
):
    async with make_cluster(count=1, max_wait_ack_time_ms=200, **COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.execute(b"1")
            replica = cluster.replica("n0")

            def fails(entries):
                raise RuntimeError("seven")

            monkeypatch.setattr(replica.applier.state.machine, "apply", fails)
            with pytest.raises(RequestError) as caught:
                await client.execute(b"7", timeout_ms=3_000)
            assert "no majority" not in str(caught.value)
            assert "committed, but not executed here" in str(caught.value)
            assert "seven" in str(caught.value)
            assert caught.value.outcome is Outcome.UNKNOWN, "it is executed after a restart"
            assert replica.core.committed_index == replica.log.end_index


# -- snapshots --------------------------------------------------------------------------------

SMALL = {**COUNTER, "snapshot_threshold": 10}
TRIMMED = {**SMALL, "max_snapshot_reserved_num": 1, "follower_retention_bytes": 0}


async def test_142_143_a_restart_goes_on_from_the_snapshot_and_the_log_behind_it(
    make_cluster, until
):
    async with make_cluster(**SMALL) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            for _ in range(99):
                await client.execute(b"1")
            await until(lambda: totals(cluster) == {99})
        for node_id in cluster.ids:
            replica = cluster.replica(node_id)
            await until(lambda r=replica: r.applier.state.newest_index >= 80)
            assert replica.log.before_begin_index <= replica.applier.state.newest_index - 10
            assert replica.log.before_begin_index > 0, "the log was purged behind it"
        await cluster.stop()
        await cluster.start()
        async with cluster.client() as client:
            await until(lambda: totals(cluster) == {99})
            for machine in machines(cluster).values():
                assert len(machine.applied) < 40, "not everything was replayed"
            assert (await client.execute(b"1")).result == b"100"


async def test_146_a_hundred_and_twenty_appends_leave_three_snapshots(make_cluster, until):
    async with make_cluster(count=1, **SMALL) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            for _ in range(120):
                await client.execute(b"1")
            saves = cluster.replica("n0").applier.snapshotter
            # the fourth is there a moment before the oldest is removed
            await until(lambda: not saves.should_save and len(snapshots_of(cluster, "n0")) == 3)


async def test_a_snapshot_on_request_holds_everything_acknowledged_before(make_cluster):
    async with make_cluster(**COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            executed = await client.execute(b"5")
            assert await client.admin.save_snapshot() >= executed.index
            leader = cluster.leader_id()
            (path,) = snapshots_of(cluster, leader)
            assert path.read_bytes().startswith(b"5")
            assert await client.admin.save_snapshot() == int(path.name.removeprefix("snapshot_"))


async def test_147_broken_snapshots_are_reported_and_the_newest_whole_one_is_used(
    make_cluster, until, caplog
):
    options = {**SMALL, "reset_snapshot_entries_but_keep_last_entries_num": 1_000}
    async with make_cluster(count=1, **options) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            for _ in range(50):
                await client.execute(b"1")
            await until(lambda: not cluster.replica("n0").applier.snapshotter.should_save)
        await cluster.stop()
        paths = snapshots_of(cluster, "n0")
        paths[-1].write_bytes(b"")
        raw = bytearray(paths[-2].read_bytes())
        raw[0] ^= 1
        paths[-2].write_bytes(raw)
        await cluster.start()
        await until(lambda: totals(cluster) == {50})
        assert caplog.text.count("is broken and was removed") == 2
        assert not paths[-1].exists() or paths[-1].stat().st_size > 0


async def filled(cluster, count=60):
    async with cluster.client() as client:
        for _ in range(count):
            await client.execute(b"1")


async def test_148_no_usable_snapshot_and_a_trimmed_log_do_not_become_an_empty_machine(
    make_cluster, until
):
    async with make_cluster(count=1, **SMALL) as cluster:
        await cluster.start()
        await filled(cluster)
        await until(lambda: cluster.replica("n0").log.before_begin_index > 0)
        await cluster.stop()
        shutil.rmtree(group_directory(cluster, "n0") / "snapshot")
        await cluster.start()
        applier = cluster.replica("n0").applier
        await until(lambda: applier.state.failed_text)
        assert "no whole snapshot is left, and the log begins at" in applier.state.failed_text
        assert "from a backup" in applier.state.failed_text, "it says what to do"
        assert not applier.is_eligible
        assert applier.state.machine.applied == []


async def test_who_has_no_whole_snapshot_is_given_one_by_its_peers(make_cluster, until):
    async with make_cluster(**TRIMMED) as cluster:
        await cluster.start()
        await filled(cluster)
        await until(lambda: totals(cluster) == {60})
        await until(
            lambda: all(cluster.replica(n).log.before_begin_index > 30 for n in cluster.ids)
        )
        broken = cluster.leader_id()
        await cluster.stop()
        for path in snapshots_of(cluster, broken):
            path.write_bytes(path.read_bytes()[:-1])
        await cluster.start()
        await until(lambda: totals(cluster) == {60}, what="the peers' snapshot was loaded")
        await until(lambda: cluster.replica(broken).applier.is_eligible)
        assert cluster.replica(broken).applier.condition_text == ""
        async with cluster.client() as client:
            assert (await client.execute(b"1")).result == b"61"


@pytest.mark.parametrize("count", [1, 3])
async def test_a_bit_in_the_newest_snapshot_costs_nothing_while_an_older_one_is_there(
    make_cluster, until, count
):
    async with make_cluster(count=count, **SMALL) as cluster:
        await cluster.start()
        await filled(cluster)
        await until(lambda: totals(cluster) == {60})
        await until(lambda: len(snapshots_of(cluster, "n0")) == 3)
        await cluster.stop()
        newest = snapshots_of(cluster, "n0")[-1]
        raw = bytearray(newest.read_bytes())
        raw[0] ^= 1
        newest.write_bytes(raw)
        await cluster.start()
        await until(lambda: totals(cluster) == {60}, what="an older one and the log make it up")
        replica = cluster.replica("n0")
        await until(lambda: replica.applier.is_eligible)
        await filled(cluster, 15)
        await until(lambda: totals(cluster) == {75})


@pytest.mark.parametrize("kept", [0, 10])
async def test_149_a_snapshot_removes_all_before_it_but_so_many_entries(make_cluster, until, kept):
    options = {**COUNTER, "reset_snapshot_entries_but_keep_last_entries_num": kept}
    async with make_cluster(count=1, **options) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            for _ in range(30):
                await client.execute(b"1")
            index = await client.admin.save_snapshot()
            log = cluster.replica("n0").log
            await until(lambda: log.before_begin_index == index - kept)
            assert log.before_begin_term == 1, "of the entry there, not of the snapshot"
            await client.execute(b"1")
            options = {"follow": False, "include_all": True}
            left = [entry.index async for entry in client.read(index - kept + 1, **options)]
            assert left[: kept + 1] == list(range(index - kept + 1, index + 2))
            with pytest.raises(IndexRemovedError):
                _ = [entry async for entry in client.read(index - kept, **options)]


async def filled_without(cluster, client, away, count):
    """Append while a node is away, until what it needs is gone."""
    for start in range(0, count, 50):
        await client.append_batch([b"1"] * min(50, count - start))
    await client.admin.save_snapshot()


@pytest.mark.parametrize("emptied", [False, True])
async def test_144_145_a_follower_that_needs_removed_entries_gets_the_snapshot_then_the_tail(
    make_cluster, until, emptied
):
    async with make_cluster(**TRIMMED) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.execute(b"1")
            await until(lambda: totals(cluster) == {1})
            away = next(node for node in cluster.ids if node != cluster.leader_id())
            await cluster.stop(away)
            await filled_without(cluster, client, away, 199)
            leader = cluster.replica(cluster.leader_id())
            await until(lambda: leader.log.before_begin_index > 100)
            if emptied:
                shutil.rmtree(group_directory(cluster, away))
            await cluster.start(away)
            await until(lambda: totals(cluster) == {200}, what="all have the same total")
            replica = cluster.replica(away)
            assert replica.counters.log_resets == 1
            await until(lambda: replica.applier.is_eligible)
            observed = replica.context.histograms
            assert {"n0", "n1", "n2"} - {away} >= set(observed.installs), "by the member it is from"
            assert sum(sum(one.counts) for one in observed.installs.values()) == 1
            assert sum(observed.snapshot_load_seconds.counts) >= 1
            await client.execute(b"1")
            await until(lambda: totals(cluster) == {201})
        await cluster.stop(away)
        await cluster.start(away)
        await until(lambda: totals(cluster) == {201}, what="and again after a restart")


async def test_152_two_installs_in_a_row_on_one_follower(make_cluster, until):
    async with make_cluster(**TRIMMED) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.execute(b"0")
            away = next(node for node in cluster.ids if node != cluster.leader_id())
            for number in (1, 2):
                await cluster.stop(away)
                await filled_without(cluster, client, away, 100)
                leader = cluster.replica(cluster.leader_id())
                await until(lambda n=number, r=leader: r.log.before_begin_index > n * 100 - 50)
                await cluster.start(away)
                await until(lambda n=number: totals(cluster) == {n * 100})
                assert cluster.replica(away).counters.log_resets == 1


async def test_136_an_unknown_machine_is_refused_at_the_start(make_cluster):
    for name, text in (
        ("nonsense", "neither one of kv"),
        ("counting:Nobody", "cannot be imported"),
    ):
        async with make_cluster(count=1, state_machine=name) as cluster:
            with pytest.raises(Exception, match=text):
                await cluster.start()


async def test_status_tells_of_machine_and_snapshot(make_cluster):
    async with make_cluster(count=1, **COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            index = (await client.execute(b"1")).index
            await client.admin.save_snapshot()
            (status,) = await client.status()
            assert (status.state_machine, status.install_state) == ("counting:Counter", "ready")
            assert status.applied_index >= status.snapshot_index >= index
            assert status.code == ResponseCode.SUCCESS


async def test_165_a_snapshot_is_installed_in_one_of_several_groups_of_a_node(make_cluster, until):
    options = {**TRIMMED, "groups": ("f", "g", "h")}
    async with make_cluster(**options) as cluster:
        await cluster.start()
        async with cluster.client("f") as other, cluster.client() as client:
            await other.execute(b"5")
            await client.execute(b"1")
            away = next(node for node in cluster.ids if node != cluster.leader_id())
            await cluster.stop(away)
            await filled_without(cluster, client, away, 199)
            leader = cluster.replica(cluster.leader_id())
            await until(lambda: leader.log.before_begin_index > 100)
            await cluster.start(away)
            await until(lambda: totals(cluster) == {200})
            assert cluster.replica(away).counters.log_resets == 1
            assert cluster.replica(away, "f").counters.log_resets == 0
            await until(lambda: cluster.replica(away, "f").applier.state.machine.total == 5)


async def test_141_a_follower_answers_a_linearizable_question_with_its_leaders_help(
    make_cluster, until
):
    """The original answers UNKNOWN, and asks for the leader."""
    async with make_cluster(**COUNTER) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.execute(b"4")
            follower = next(node for node in cluster.ids if node != cluster.leader_id())
            answers = []
            request = QueryRequest(group="g")
            cluster.replica(follower).query(request, b"", lambda *told: answers.append(told), None)
            await until(lambda: bool(answers))
            code, _, _, answer = answers[0]
            assert (code, answer) == (ResponseCode.SUCCESS, b"4")
