"""Nodes inside a program: what RocketMQ does with DLedger, with real sockets and files."""

import asyncio
import logging
import re
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import msgspec
import pytest

import quorumlog.errors as qe
from embedding import Program, configs, leader_id, program
from quorumlog import Client, EmbeddedGroup, GroupConfig, Node, NodeConfig, Role
from quorumlog.local.ports import free_ports
from quorumlog.machine import StateMachine
from quorumlog.model.config import dump_config
from quorumlog.model.errors import StorageError
from quorumlog.node import groups, hosting
from quorumlog.node.disk import DiskWorker
from quorumlog.node.timers import TimerQueue
from quorumlog.service.outlets import MetricOutlets
from quorumlog.storage.files.os_files import OsFile
from quorumlog.storage.journal import writer
from quorumlog.storage.journal.writer import JournalLimits
from small_files import SMALL_FILES, SMALL_SETTINGS
from store_access import open_below


class Last(StateMachine):
    """Remembers the last command, and answers with it."""

    def __init__(self):
        self.command = b""

    def apply(self, entries):
        self.command = entries[-1].body
        return [entry.body for entry in entries]

    def query(self, query):
        return self.command

    def save_snapshot(self, writer):
        writer.write(self.command)

    def load_snapshot(self, reader):
        self.command = reader.read()


async def test_71_a_hook_writes_where_an_entry_lies_and_every_replica_serves_it(tmp_path):
    def fill(place, body):
        body[:8] = place.index.to_bytes(8, "big")
        body[8:16] = place.position.to_bytes(8, "big")

    async with program(tmp_path, append_hook=lambda _: fill) as embedded:
        leader = await embedded.leader()
        places = [await leader.append(bytes(16) + b"from the program")]
        places += await asyncio.gather(*(leader.append(bytes(16) + b"%d" % n) for n in range(50)))
        async with Client(embedded.servers, "g") as client:
            sent = await client.append_batch([bytes(16) + b"from a client"] * 3)
        for group in embedded.groups.values():
            await group.bounds(linearizable=True)
            for place in places:
                entry = await group.get(place.index)
                stated = [int.from_bytes(entry.body[at : at + 8], "big") for at in (0, 8)]
                assert stated == [place.index, place.pos] == [entry.index, entry.pos]
                assert await group.get_at(place.pos) == entry
            for index, position in enumerate(sent.positions, sent.first_index):
                assert (await group.get_at(position)).index == index


async def test_an_append_that_the_hook_refuses_did_not_happen_and_says_why(tmp_path):
    def refuse(place, body):
        if bytes(body).startswith(b"bad"):
            raise ValueError("not here")

    async with program(tmp_path, append_hook=lambda _: refuse) as embedded:
        leader = await embedded.leader()
        results = await asyncio.gather(
            *(leader.append(body) for body in (b"good", b"bad", b"fine")),
            return_exceptions=True,
        )
        assert isinstance(results[1], qe.HookRefusedError)
        assert results[1].outcome is qe.Outcome.DID_NOT_HAPPEN
        assert "refused entry 0 of the append: ValueError: not here" in str(results[1])
        assert results[2].index == results[0].index + 1
        async with Client(embedded.servers, "g") as client:
            with pytest.raises(qe.HookRefusedError, match="not here"):
                await client.append_batch([b"good too", b"bad"])
            last = await client.append(b"last")
        assert last.index == results[2].index + 1
        for group in embedded.groups.values():
            await group.bounds(linearizable=True)
            bodies = [entry.body async for entry in group.read(follow=False)]
            assert bodies == [b"good", b"fine", b"last"]


async def test_f17_role_changes_are_told_in_order_and_one_after_the_other(tmp_path, caplog):
    told, running = {}, set()

    def handler(node_id):
        async def handle(change):
            assert node_id not in running, "called while it runs"
            running.add(node_id)
            await asyncio.sleep(0)
            told.setdefault(node_id, []).append(change)
            running.discard(node_id)
            if change.role is Role.CANDIDATE:
                raise RuntimeError("I only lead or follow")

        return handle

    async with program(tmp_path, on_role_change=handler) as embedded:
        leader = await embedded.leader()
        first, term = leader_id(leader), leader.term
        assert told[first][-1].role is Role.LEADER
        second = await leader.transfer()
        assert second != first
        assert leader.role is Role.FOLLOWER
        assert embedded.groups[second].role is Role.LEADER
        await leader.bounds(linearizable=True)
        assert told[second][-1].leader_id == told[first][-1].leader_id == second
        for node_id, changes in told.items():
            assert [one.term for one in changes] == sorted(one.term for one in changes)
            assert {one.group for one in changes} == {"g"}
            assert changes[-1].term > term or node_id not in (first, second)
    raised = [record for record in caplog.records if "role changes raised" in record.getMessage()]
    assert raised, "and nothing else happened"


async def test_the_committed_stream_waits_for_whoever_reads_it(tmp_path):
    async with program(tmp_path) as embedded:
        leader, follower = await embedded.leader(), await embedded.follower()
        stream = follower.read()
        seen = []

        async def read(count):
            async for entry in stream:
                seen.append(entry.body)
                if len(seen) == count:
                    return

        bodies = [b"%d" % number * 1_000 for number in range(200)]
        reading = asyncio.create_task(read(100))
        for begin in range(0, 200, 20):
            await leader.append_batch(bodies[begin : begin + 20])
        await reading
        assert seen == bodies[:100], "it has not gone on while nobody took anything"
        await read(200)
        assert seen == bodies
        waiting = asyncio.create_task(read(201))
        await leader.append(b"one more")
        await waiting
        await stream.aclose()
        assert not len(follower._find_replica().fetches._waiters)


async def test_an_append_of_the_program_may_wait_for_less_or_for_more(tmp_path):
    def refuse(place, body):
        if bytes(body) == b"bad":
            raise ValueError

    async with program(tmp_path, append_hook=lambda _: refuse) as embedded:
        leader = await embedded.leader()
        levels = ["one_way", "receive", "persistence", "replication", "all"]
        placed = [await leader.append(b"x", level=level) for level in levels]
        assert [one.index for one in placed] == list(range(placed[0].index, placed[0].index + 5))
        assert placed[2].level in levels[2:4]  # a majority may be faster than the own disk
        assert [one.level for one in placed][3:] == levels[3:]
        assert (await leader.append_batch([b"y", b"z"], level="all")).level == "all"
        for level in levels:
            with pytest.raises(qe.HookRefusedError):
                await leader.append(b"bad", level=level)
        assert (await leader.append(b"last")).index == placed[-1].index + 3


async def test_a_follower_refuses_appends_and_names_the_leader(tmp_path):
    async with program(tmp_path) as embedded:
        leader, follower = await embedded.leader(), await embedded.follower()
        with pytest.raises(qe.NotLeaderError) as refused:
            await follower.append(b"x")
        assert refused.value.leader_id == leader_id(leader)
        with pytest.raises(qe.UnsupportedError):
            await leader.execute(b"x")
        with pytest.raises(qe.UnexpectedArgumentError):
            leader.append("text")
        with pytest.raises(qe.IndexOutOfRangeError):
            await leader.get(10_000)
        with pytest.raises(qe.UnexpectedArgumentError, match="in the event loop"):
            await asyncio.to_thread(asyncio.run, leader.append(b"x"))


async def test_the_process_is_not_touched(tmp_path):
    """Signal handlers, standard streams, log handlers and the switch interval are the program's."""
    before = (
        signal.getsignal(signal.SIGTERM),
        signal.getsignal(signal.SIGINT),
        sys.stdout,
        sys.stderr,
        sys.getswitchinterval(),
        list(logging.getLogger().handlers),
        list(logging.getLogger("quorumlog").handlers),
    )
    async with program(tmp_path) as embedded:
        await (await embedded.leader()).append(b"x")
        during = (
            signal.getsignal(signal.SIGTERM),
            signal.getsignal(signal.SIGINT),
            sys.stdout,
            sys.stderr,
            sys.getswitchinterval(),
            list(logging.getLogger().handlers),
            list(logging.getLogger("quorumlog").handlers),
        )
        assert during == before


async def test_a_failed_node_says_so_and_leaves_the_program_alone(tmp_path):
    async with program(tmp_path) as embedded:
        leader = await embedded.leader()
        node = embedded.nodes[leader_id(leader)]
        told = asyncio.create_task(node.wait_failed())
        await leader.append(b"x")
        waiting = asyncio.gather(*(leader.append(b"y") for _ in range(5)), return_exceptions=True)
        await asyncio.sleep(0)
        node._inside._broken("the disk is gone")
        assert await told == "the disk is gone"
        for error in await waiting:
            assert not isinstance(error, qe.RequestError) or error.outcome is qe.Outcome.UNKNOWN
        with pytest.raises(qe.RequestError, match="has failed: the disk is gone") as refused:
            await leader.append(b"z")
        assert refused.value.outcome is qe.Outcome.DID_NOT_HAPPEN


async def test_calls_that_wait_when_a_node_stops_get_an_answer(tmp_path):
    async with program(tmp_path) as embedded:
        follower = await embedded.follower()
        stream = follower.read("latest")
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.05)
        node = embedded.nodes[leader_id(follower)]
        await node.stop()
        with pytest.raises(qe.RequestError, match="was stopped"):
            await waiting
        await node.stop()
        with pytest.raises(qe.ConfigError, match="started once"):
            await node.start()


async def test_a_start_that_is_cancelled_leaves_nothing_running(tmp_path, monkeypatch):
    (config,) = configs(tmp_path, count=1).values()
    begun, go_on = threading.Event(), threading.Event()

    def start(self, *whose):
        begun.set()
        go_on.wait(30)

    with monkeypatch.context() as patched:
        patched.setattr(MetricOutlets, "start", start)
        starting = asyncio.create_task(Node(config).start())
        assert await asyncio.to_thread(begun.wait, 30)
        starting.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
    async with Node(config):  # neither its directory nor its port is in use
        pass


@pytest.mark.parametrize("step", ["settle_node", "open_group"])
async def test_a_start_that_is_cancelled_while_groups_are_opened_leaves_no_file_open(
    tmp_path, monkeypatch, step
):
    (config,) = configs(tmp_path, count=1).values()
    begun, go_on, opens = threading.Event(), threading.Event(), getattr(groups, step)

    def waits(*arguments, **named):
        begun.set()
        assert go_on.wait(30)
        return opens(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(groups, step, waits)
        starting = asyncio.create_task(Node(config).start())
        assert await asyncio.to_thread(begun.wait, 30)
        starting.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
    await everything_else()
    assert open_below(tmp_path) == []
    async with Node(config) as node:
        await Program({"n0": node}, "g").leader()


async def everything_else():
    """Wait for what nobody waits for: at the end of a node there must be no such task."""
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)


def once_nobody_waits(patched, happens):
    """A node that stops has waited for what is being opened and closed, and goes on."""
    stop = TimerQueue.stop

    def stops(self):
        stop(self)
        happens()

    patched.setattr(TimerQueue, "stop", stops)


class Held:
    """The threads that write what belongs to a group: their work is done once it is let go."""

    def __init__(self, *_, **__):
        self.waiting = []
        self.is_stopped = False

    def run(self, work, done, failed, client=None):
        if not self.is_stopped:
            self.waiting.append((work, done))

    def let_go(self):
        waiting, self.waiting = self.waiting, []
        for work, done in waiting:
            result = work()
            if not self.is_stopped:
                done(result)

    def stop(self):
        self.is_stopped = True
        self.let_go()

    def join(self):
        pass


async def test_a_group_that_is_made_while_its_node_stops_is_there_at_the_next_start(
    tmp_path, monkeypatch, until
):
    (config,) = configs(tmp_path, count=1).values()
    held = Held()
    with monkeypatch.context() as patched:
        patched.setattr(hosting, "ThreadExecutor", lambda *_, **__: held)
        # the record is written when nobody waits for openings any more
        once_nobody_waits(patched, held.let_go)
        node = Node(config)
        await node.start()
        embedded = Program({"n0": node}, "g")
        await embedded.leader()
        async with Client(embedded.servers, "g", timeout_ms=60_000) as client:
            making = asyncio.create_task(
                client.admin.groups.create("later", replicas=1, settings=SMALL_SETTINGS)
            )
            await until(lambda: held.waiting)
            await node.stop()
            making.cancel()
    await everything_else()
    assert open_below(tmp_path) == []
    async with Node(config) as node:
        later = await Program({"n0": node}, "later").leader()
        await later.append(b"x")


async def test_a_group_that_is_deleted_while_its_node_stops_is_gone_at_the_next_start(
    tmp_path, monkeypatch, caplog, until
):
    (config,) = configs(tmp_path, count=1).values()
    reports, end = [], DiskWorker.end

    def ends(self, owners, last, done):
        end(self, owners, last, lambda: reports.append(done))

    def report():
        reports.pop()()

    with monkeypatch.context() as patched:
        patched.setattr(DiskWorker, "end", ends)
        # its last write is reported when nobody waits for closings any more
        once_nobody_waits(patched, report)
        node = Node(config)
        await node.start()
        embedded = Program({"n0": node}, "g")
        await embedded.leader()
        async with Client(embedded.servers, "g", timeout_ms=60_000) as client:
            await client.admin.groups.create("later", replicas=1, settings=SMALL_SETTINGS)
            await (await Program({"n0": node}, "later").leader()).append(b"x")
            deleting = asyncio.create_task(client.admin.groups.delete("later"))
            await until(lambda: reports)
            await node.stop()
            deleting.cancel()
    await everything_else()
    assert open_below(tmp_path) == []
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
    async with Node(config) as node:
        with pytest.raises(qe.UnknownGroupError):
            node.group("later")


async def test_a_machine_that_raises_when_it_is_closed_keeps_nothing_open(tmp_path, caplog):
    class Raises(Last):
        def close(self):
            raise RuntimeError("not now")

    (config,) = configs(tmp_path, count=1).values()
    node = Node(config)
    node.add_group("g", machine=Raises())
    async with node:
        await Program({"n0": node}, "g").leader()
    assert open_below(tmp_path) == []
    assert "group not closed" in caplog.messages


async def fail_its_disk(config, monkeypatch, path):
    """Run a node until a file that it uses cannot be made durable any more, and stop it.

    Returns what was acknowledged in both of its groups.
    """
    acknowledged, sync, segment = [], OsFile.sync, Path(config.journal_path) / "segment.0"

    def failing(self):
        if self.path.endswith(path):
            raise StorageError(f"{self.path}: fdatasync: no more")
        sync(self)

    def is_in_use():
        return segment.exists() and segment.read_bytes()[4_096:4_100] == b"QLJR"

    node = Node(config)
    await node.start()
    hosted = [await Program({"n0": node}, name).leader() for name in ("g", "h")]
    with monkeypatch.context() as patched:
        while True:
            body = b"%d" % len(acknowledged)
            try:
                await asyncio.gather(*(group.append(body) for group in hosted))
            except qe.RequestError:
                break
            acknowledged.append(body)
            if is_in_use():
                patched.setattr(OsFile, "sync", failing)
        assert "no more" in await node.wait_failed()
        await node.stop()
    return acknowledged


@pytest.mark.parametrize("path", ["segment.0", "h/data/" + "0" * 20])
async def test_a_node_whose_disk_failed_is_started_again_in_the_same_program(
    tmp_path, monkeypatch, path
):
    limits = partial(JournalLimits, segment_bytes=16_384, group_wanted_min=1, wanted_min=1)
    monkeypatch.setattr(writer, "JournalLimits", limits)
    (config,) = configs(tmp_path, count=1).values()
    other = msgspec.structs.replace(config.groups[0], group="h")
    config = msgspec.structs.replace(config, groups=[*config.groups, other])
    acknowledged = await fail_its_disk(config, monkeypatch, path)
    assert open_below(tmp_path) == []
    async with Node(config) as node:
        for name in ("g", "h"):
            group = await Program({"n0": node}, name).leader()
            found = [entry.body async for entry in group.read(follow=False)]
            assert found[: len(acknowledged)] == acknowledged


async def test_a_stop_that_nobody_waits_for_any_more_goes_on(tmp_path, monkeypatch):
    (config,) = configs(tmp_path, count=1).values()
    begun, go_on = threading.Event(), threading.Event()

    def stop(self):
        begun.set()
        go_on.wait(30)

    node = Node(config)
    await node.start()
    monkeypatch.setattr(MetricOutlets, "stop", stop)
    stopping = asyncio.create_task(node.stop())
    assert await asyncio.to_thread(begun.wait, 30)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    go_on.set()
    await node.stop()
    async with Node(config):  # it had closed its files when the second call returned
        pass


async def test_136_groups_are_added_before_the_start_and_checked(tmp_path):
    (config,) = configs(tmp_path, count=1).values()
    node = Node(config)
    with pytest.raises(qe.QuorumlogError, match="not started"):
        node.group("g")
    for arguments, said in (
        (("nothing",), "has the groups"),
        ((config.groups[0],), "already"),
    ):
        with pytest.raises(qe.ConfigError, match=said):
            node.add_group(*arguments)

    async def slow(place, body):
        pass

    for options, said in (
        ({"append_hook": slow}, "no coroutine function"),
        ({"append_hook": 7}, "is a function"),
        ({"on_role_change": "x"}, "is a function"),
        ({"machine": object()}, "is a StateMachine"),
    ):
        with pytest.raises(qe.ConfigError, match=said):
            node.add_group("g", **options)
    node.add_group("g")
    with pytest.raises(qe.ConfigError, match="has been added"):
        node.add_group("g")
    other = GroupConfig(group="h", peers=config.groups[0].peers, **SMALL_FILES)
    node.add_group(other)
    async with node:
        with pytest.raises(qe.ConfigError, match="before the node is started"):
            node.add_group("g")
        assert isinstance(node.group("h"), EmbeddedGroup)
        with pytest.raises(qe.UnknownGroupError):
            node.group("i")
        embedded = Program({"n0": node}, "h")
        await (await embedded.leader()).append(b"x")


async def test_a_group_that_is_made_while_nodes_run_gets_what_its_programs_expect(tmp_path):
    """135, from inside a program: with a machine object, a hook and a handler of role changes."""
    told, made = [], configs(tmp_path)

    def stamp(place, body):
        body[:8] = place.index.to_bytes(8, "big")

    def expect(node):
        node.expect_group("later", machine=Last(), append_hook=stamp, on_role_change=told.append)

    async with program(tmp_path, made) as embedded:
        for node in embedded.nodes.values():
            expect(node)
            with pytest.raises(qe.ConfigError, match="add it"):
                node.expect_group("g")
            for name in (None, 5, b"x"):
                with pytest.raises(qe.ConfigError, match="group is a str, not"):
                    node.expect_group(name)
            with pytest.raises(qe.ConfigError, match="__cluster is that of brokers"):
                node.expect_group("__cluster")
            with pytest.raises(qe.UnknownGroupError):
                node.group("later")
        async with Client(embedded.servers, "g") as client:
            await client.admin.groups.create("later", settings=SMALL_SETTINGS)
        later = Program(embedded.nodes, "later")
        leader = await later.leader()
        done = await leader.execute(bytes(8) + b"command")
        assert done.result == done.index.to_bytes(8, "big") + b"command"
        assert {change.group for change in told} == {"later"}
        with pytest.raises(qe.ConfigError, match="hosts group later already"):
            embedded.nodes["n0"].expect_group("later")
        stream, idle = leader.read("latest"), leader.read()
        assert (await anext(idle)).index == done.index
        following = asyncio.create_task(anext(stream))
        async with Client(embedded.servers, "g") as client:
            await client.admin.groups.delete("later", purge=True)
        with pytest.raises(qe.UnknownGroupError):
            await leader.append(b"x")
        with pytest.raises(qe.UnknownGroupError):
            await following
        await idle.aclose()
        for node in embedded.nodes.values():
            expect(node)
            with pytest.raises(qe.ConfigError, match="append_hook"):
                node.expect_group("later", append_hook=7)  # what was expected before still is
        async with Client(embedded.servers, "g") as client:
            await client.admin.groups.create("later", settings=SMALL_SETTINGS)
        done = await (await Program(embedded.nodes, "later").leader()).execute(bytes(8))
    nodes = {name: Node(config) for name, config in made.items()}
    for node in nodes.values():
        expect(node)
        await node.start()
    try:
        leader = await Program(nodes, "later").leader()
        assert (await leader.query(b"")).answer == done.result, "it is there again after a restart"
    finally:
        for node in nodes.values():
            await node.stop()


async def test_a_program_makes_and_deletes_groups_while_its_node_runs(tmp_path):
    def stamp(place, body):
        body[:8] = place.index.to_bytes(8, "big")

    async with program(tmp_path) as embedded:
        first = embedded.nodes["n0"]
        for body in (b"command", b"of another group of that name"):
            for node in embedded.nodes.values():
                node.expect_group("later", machine=Last(), append_hook=stamp)
            made = await first.create_group("later", settings=SMALL_SETTINGS)
            assert set(made.members) == set(embedded.nodes)
            leader = await Program(embedded.nodes, "later").leader()
            done = await leader.execute(bytes(8) + body)
            assert done.result == done.index.to_bytes(8, "big") + body
            with pytest.raises(qe.RequestError, match="exists"):
                await first.create_group("later")
            deleted = await embedded.nodes["n1"].delete_group("later", purge=True)
            assert set(deleted.nodes) == set(embedded.nodes)
            with pytest.raises(qe.UnknownGroupError):
                first.group("later")
        with pytest.raises(qe.UnknownGroupError):
            await first.delete_group("later")
        with pytest.raises(qe.UnexpectedArgumentError, match="replicas is 4"):
            await first.create_group("more", replicas=4)
        with pytest.raises(qe.UnexpectedArgumentError, match="either members or replicas"):
            await first.create_group("more", members=["n0"], replicas=1)
        await first.create_group("elsewhere", members=["n1", "n2"], settings=SMALL_SETTINGS)
        assert set((await first.delete_group("elsewhere")).nodes) == {"n1", "n2"}
    with pytest.raises(qe.RequestError, match="was stopped"):
        await first.create_group("late")


async def test_a_node_without_groups_makes_the_first_one_of_its_cluster(tmp_path):
    nodes = {}
    for node_id, port in zip(("n0", "n1"), free_ports(2), strict=True):
        nodes[node_id] = Node(
            NodeConfig(
                self_id=node_id,
                store_base_dir=str(tmp_path / node_id),
                listen=f"127.0.0.1:{port}",
            )
        )
    with pytest.raises(qe.QuorumlogError, match="not started"):
        await nodes["n0"].create_group("first")
    async with nodes["n0"], nodes["n1"]:
        members = {node_id: node.config.listen_address for node_id, node in nodes.items()}
        with pytest.raises(qe.UnexpectedArgumentError, match="knows no other node: give members="):
            await nodes["n0"].create_group("first")
        with pytest.raises(qe.UnexpectedArgumentError, match=r"group '\.\./x' is not usable"):
            await nodes["n0"].create_group("../x")
        await nodes["n0"].create_group("first", members=members, settings=SMALL_SETTINGS)
        leader = await Program(nodes, "first").leader()
        assert (await leader.append(b"x")).index >= 0
        # they know each other from now on
        made = await nodes["n1"].create_group("second", replicas=2, settings=SMALL_SETTINGS)
        assert set(made.members) == set(nodes)


async def test_a_node_is_not_stopped_from_another_loop_and_goes_on(tmp_path):
    (config,) = configs(tmp_path, count=1).values()

    def elsewhere():
        for call in (node.stop, node.wait_failed):
            with pytest.raises(qe.UnexpectedArgumentError, match="run_coroutine_threadsafe"):
                asyncio.run(call())

    async with Node(config) as node:
        await asyncio.to_thread(elsewhere)
        assert (await (await Program({"n0": node}, "g").leader()).append(b"x")).index >= 0
    async with Node(config):  # its directory was given back
        pass


async def test_a_node_reads_its_configuration_from_a_file(tmp_path):
    (config,) = configs(tmp_path, count=1).values()
    path = tmp_path / "n0.toml"
    path.write_bytes(dump_config(config))
    async with Node(path) as node:
        assert isinstance(node.config, NodeConfig)
        assert node.failed_groups == {}
        assert (await (await Program({"n0": node}, "g").leader()).append(b"x")).index >= 0
    with pytest.raises(qe.ConfigError):
        Node(tmp_path / "none.toml")


async def test_a_program_waits_until_somebody_leads(tmp_path):
    async with program(tmp_path) as embedded:
        leaders = await asyncio.gather(*(one.wait_leader() for one in embedded.groups.values()))
        assert len(set(leaders)) == 1
        place = await embedded.groups[leaders[0]].append(b"at once")
        assert place.index >= 0
    alone = next(iter(configs(tmp_path / "alone").values()))
    node = Node(alone)
    node.add_group("g")
    async with node:
        with pytest.raises(qe.NoLeaderError, match="group g has no leader after 0"):
            await node.group("g").wait_leader(timeout_s=0.05)
        with pytest.raises(qe.NotLeaderError, match="not the leader of g; no leader is known here"):
            await node.group("g").append(b"x")


def test_the_example_of_the_page_on_embedding_runs_as_printed(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs/howto/embedding.md").read_text()
    example, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (config,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    assert "127.0.0.1:7101" in config
    small = "mappedFileSizeForEntryData = 8388608\nmappedFileSizeForEntryIndex = 1048576\n"
    config = config.replace("127.0.0.1:7101", f"127.0.0.1:{free_ports(1)[0]}")
    Path("n0.toml").write_text(config + small)
    exec(example, {})
    out = capsys.readouterr().out
    assert "leads n0" in out
    assert out.splitlines()[-1].endswith("an order'")
