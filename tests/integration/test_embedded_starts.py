"""Starts of a node inside a program that end early, and stops: nothing is left of it then."""

import asyncio
import os
import threading
from contextlib import suppress

import msgspec
import pytest

import quorumlog.errors as qe
from embedding import Program, configs
from quorumlog import GroupConfig, Node, Role
from quorumlog.embedded import node as embedded_node
from quorumlog.embedded import role_changes
from quorumlog.local.ports import free_ports
from quorumlog.machine import StateMachine
from quorumlog.model.config import CLUSTER_GROUP
from quorumlog.node import groups
from quorumlog.service import main, watchdog
from quorumlog.service.outlets import MetricOutlets
from quorumlog.storage.log.group_store import GroupStore
from small_files import SMALL_FILES, SMALL_SETTINGS
from store_access import open_below

WITHIN_S = 60.0


def one_node(directory):
    (config,) = configs(directory, count=1).values()
    return config


def that_serves_all(directory):
    """Return the configuration of a node that is a broker, too, and shows its metrics."""
    config, (kafka, admin) = one_node(directory), free_ports(2)
    peers = config.groups[0].peers
    cluster = GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers=peers, **SMALL_FILES)
    return msgspec.structs.replace(
        config,
        groups=[*config.groups, cluster],
        kafka_listen=f"127.0.0.1:{kafka}",
        admin_listen=f"127.0.0.1:{admin}",
        partition_groups=SMALL_SETTINGS,
    )


def threads_of_nodes():
    return sorted(one.name for one in threading.enumerate() if one.name.startswith("quorumlog"))


def sockets():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # that of the listing itself
            continue
    return {one for one in found if one.startswith("socket:")}


class Steps:
    """Counts how often a task of the loop waits, and calls `happens` when one does for the n-th."""

    def __init__(self, number, happens):
        self.left, self.happens = number, happens

    def made(self, loop, coroutine, **options):
        return asyncio.Task(self._stepped(coroutine), loop=loop, **options)

    async def _stepped(self, coroutine):
        return await _Stepped(coroutine, self._waits)

    def _waits(self):
        self.left -= 1
        if self.left == 0:
            self.happens()


class _Stepped:
    def __init__(self, coroutine, waits):
        self.coroutine, self.waits = coroutine, waits

    def __await__(self):
        raised = None
        while True:
            try:
                found = (
                    self.coroutine.send(None) if raised is None else self.coroutine.throw(raised)
                )
            except StopIteration as end:
                return end.value
            self.waits()
            try:
                yield found
                raised = None
            except BaseException as error:
                raised = error


async def ended_at_step(config, number, how):
    """Start a node, end that when its tasks have waited so often; return whether they had."""
    node, ends = Node(config), []

    def happens():
        if how == "stop":
            ends.append(asyncio.ensure_future(node.stop()))
        else:
            starting.cancel()
            if how == "cancel twice":
                asyncio.get_running_loop().call_soon(starting.cancel)

    loop, steps = asyncio.get_running_loop(), Steps(number, happens)
    starting = asyncio.ensure_future(node.start())
    loop.set_task_factory(steps.made)
    await asyncio.wait([starting], timeout=WITHIN_S)
    loop.set_task_factory(None)
    async with asyncio.timeout(WITHIN_S):
        await node.stop()
        await asyncio.gather(*ends)
    if how == "stop":
        error = starting.exception()  # none: it was just over
        assert error is None or "stopped during its start" in str(error)
    else:
        assert starting.cancelled() == (steps.left <= 0)
    return steps.left <= 0


@pytest.mark.parametrize("how", ["cancel", "cancel twice", "stop"])
async def test_a_start_that_ends_at_any_step_leaves_nothing_of_the_node(memory_path, how):
    config = that_serves_all(memory_path)
    before = sockets()
    number = 1
    while await ended_at_step(config, number, how):
        assert threads_of_nodes() == []
        assert open_below(memory_path) == []
        assert sockets() <= before, f"step {number}"
        number += 1
    assert number > 10, "the steps of a start were not seen"


async def test_a_journal_that_cannot_be_where_it_shall_be_is_said_at_the_start(memory_path):
    (memory_path / "file").touch()
    for path in ("/dev/null", f"{memory_path}/file", f"{memory_path}/file/below"):
        config = msgspec.structs.replace(one_node(memory_path), journal_directory=path)
        with pytest.raises(qe.StorageError, match=r"journalDirectory: .* where a directory must"):
            await Node(config).start()
    assert not open_below(memory_path)
    below = memory_path / "to be" / "made"
    config = msgspec.structs.replace(one_node(memory_path), journal_directory=str(below))
    async with Node(config):
        assert below.is_dir()


async def test_a_node_is_started_and_stopped_any_number_of_times_in_one_program(memory_path):
    config = that_serves_all(memory_path)
    descriptors = []
    for _ in range(5):
        async with Node(config) as node:
            await Program({"n0": node}, "g").leader()
        assert threads_of_nodes() == []
        descriptors.append(len(os.listdir("/proc/self/fd")))
    assert max(descriptors[1:]) <= descriptors[0]


async def test_a_stop_during_the_start_ends_it(memory_path, monkeypatch):
    config = one_node(memory_path)
    begun, go_on, opened = threading.Event(), threading.Event(), []

    def settles(*arguments):
        begun.set()
        assert go_on.wait(WITHIN_S)
        return settle_node(*arguments)

    def opens(*arguments, **named):
        opened.append(arguments)
        return open_group(*arguments, **named)

    settle_node, open_group = groups.settle_node, groups.open_group
    monkeypatch.setattr(groups, "settle_node", settles)
    monkeypatch.setattr(groups, "open_group", opens)
    node = Node(config)
    starting = asyncio.ensure_future(node.start())
    assert await asyncio.to_thread(begun.wait, WITHIN_S)
    stopping = asyncio.ensure_future(node.stop())
    await asyncio.sleep(0)
    assert not stopping.done(), "it waits for the thread that brings files up to date"
    go_on.set()
    with pytest.raises(qe.QuorumlogError, match="node n0 was stopped during its start"):
        await starting
    await stopping
    assert opened == [], "nothing more was begun"
    assert open_below(memory_path) == []
    with pytest.raises(qe.RequestError, match="could not start"):
        await node.create_group("other", replicas=1)


async def test_an_error_of_the_outlets_stops_what_was_started(memory_path, monkeypatch):
    def fails(*_):
        raise RuntimeError("no more threads")

    config = that_serves_all(memory_path)
    with monkeypatch.context() as patched:
        patched.delenv(watchdog.VARIABLE, raising=False)
        patched.setattr(MetricOutlets, "start", fails)
        with pytest.raises(RuntimeError, match="no more threads"):
            await main._serve(config)
    for number in main.STOP_SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)
    assert threads_of_nodes() == []
    async with Node(config):  # neither its directory nor its ports are in use
        pass


class Held(StateMachine):
    """A machine of which `close` waits for the event loop."""

    def __init__(self, waits):
        self.close = waits

    def apply(self, entries):
        return [b""] * len(entries)

    def query(self, query):
        return b""

    def save_snapshot(self, writer):
        pass

    def load_snapshot(self, reader):
        pass


async def test_a_stop_that_waits_for_threads_leaves_the_loop_to_others(memory_path, monkeypatch):
    loop, others_ran = asyncio.get_running_loop(), []

    def waits(*_):
        runs = threading.Event()
        loop.call_soon_threadsafe(runs.set)
        others_ran.append(runs.wait(5))

    node = Node(one_node(memory_path))
    node.add_group("g", machine=Held(waits))
    await node.start()
    await Program({"n0": node}, "g").leader()
    close = GroupStore.close

    def closes(self):
        waits()
        close(self)

    monkeypatch.setattr(GroupStore, "close", closes)
    await node.stop()
    assert others_ran == [True, True]


async def test_who_waits_for_a_failure_learns_that_the_node_was_stopped(memory_path):
    async with Node(one_node(memory_path)) as node:
        told = asyncio.ensure_future(node.wait_failed())
        given_up = asyncio.ensure_future(node.wait_failed())
        await asyncio.sleep(0)
        given_up.cancel()
    async with asyncio.timeout(WITHIN_S):
        assert await told == ""
        assert await node.wait_failed() == ""


async def test_a_handler_of_role_changes_that_stops_its_node_is_not_waited_for(
    memory_path, monkeypatch
):
    monkeypatch.setattr(role_changes, "END_S", WITHIN_S)
    stopped = asyncio.Event()

    async def handle(change):
        if change.role is Role.LEADER:
            await node.stop()
            stopped.set()

    node = Node(one_node(memory_path))
    node.add_group("g", on_role_change=handle)
    with suppress(qe.QuorumlogError):  # it was elected before its start was over
        await node.start()
    async with asyncio.timeout(WITHIN_S / 2):
        await stopped.wait()


async def test_what_is_expected_of_a_group_that_is_being_opened_is_refused(
    memory_path, monkeypatch, until
):
    begun, go_on, open_group = threading.Event(), threading.Event(), groups.open_group

    def opens(files, directory, group, *arguments, **named):
        if group.group == "later":
            begun.set()
            assert go_on.wait(WITHIN_S)
        return open_group(files, directory, group, *arguments, **named)

    def stamp(place, body):
        body[:1] = b"1"

    def other_stamp(place, body):
        body[:1] = b"2"

    monkeypatch.setattr(groups, "open_group", opens)
    async with Node(one_node(memory_path)) as node:
        node.expect_group("later", append_hook=stamp)
        making = asyncio.ensure_future(
            node.create_group("later", replicas=1, settings=SMALL_SETTINGS)
        )
        assert await asyncio.to_thread(begun.wait, WITHIN_S)
        with pytest.raises(qe.ConfigError, match="is opening group later, with what was expected"):
            node.expect_group("later", append_hook=other_stamp)
        go_on.set()
        await making
        later = await Program({"n0": node}, "later").leader()
        at = await later.append(b"x")
        assert (await later.get(at.index)).body == b"1"


async def test_groups_that_only_brokers_make_cannot_be_expected(memory_path):
    node = Node(one_node(memory_path))
    with pytest.raises(qe.ConfigError, match="group pg-7 is the brokers' own"):
        node.expect_group("pg-7")
    node.expect_group("pg-seven")


async def test_the_journal_leaves_free_what_the_groups_of_now_reserve(memory_path):
    reserve = 40 << 20
    async with Node(one_node(memory_path)) as node:
        assert node._inside._free_bytes_min() < reserve
        wanted = {**SMALL_SETTINGS, "diskReserveBytes": reserve}
        await node.create_group("later", replicas=1, settings=wanted)
        assert node._inside._free_bytes_min() == reserve
        await node.delete_group("later")
        assert node._inside._free_bytes_min() < reserve


async def test_what_is_expected_has_a_bound_and_deleted_groups_make_room(memory_path, monkeypatch):
    monkeypatch.setattr(embedded_node, "EXPECTED_MAX", 2)
    async with Node(one_node(memory_path)) as node:
        node.expect_group("one", on_role_change=lambda change: None)
        node.expect_group("two")
        with pytest.raises(qe.ConfigError, match="2 groups are added or expected already"):
            node.expect_group("three")
        for _ in range(2):  # what is expected is for a successor of that name, too
            await node.create_group("one", replicas=1, settings=SMALL_SETTINGS)
            with pytest.raises(qe.ConfigError, match="2 groups are added or expected already"):
                node.expect_group("three")
            await node.delete_group("one", purge=True)
        node.expect_group("one")  # for a successor, which is still to come
        with pytest.raises(qe.ConfigError, match="2 groups are added or expected already"):
            node.expect_group("three")
        await node.create_group("one", replicas=1, settings=SMALL_SETTINGS)
        await node.delete_group("one", purge=True)
        node.expect_group("three")
        assert node._attachments.keys() == {"two", "three"}
        assert not node._role_changes


async def test_a_handler_of_a_deleted_group_ends_with_its_node(memory_path, monkeypatch):
    monkeypatch.setattr(role_changes, "END_S", 0.05)
    told, never = asyncio.Event(), asyncio.Event()

    async def hang(change):
        told.set()
        await never.wait()

    async with Node(one_node(memory_path)) as node:
        node.expect_group("later", on_role_change=hang)
        await node.create_group("later", replicas=1, settings=SMALL_SETTINGS)
        await told.wait()
        (hanging,) = (one._task for one in node._role_changes.values())
        await node.delete_group("later", purge=True)
        node.expect_group("later", on_role_change=lambda change: None)
    async with asyncio.timeout(WITHIN_S):
        await asyncio.wait([hanging])
    assert hanging.cancelled()


async def test_who_waits_for_a_failure_hears_of_a_stop_that_raises(memory_path, monkeypatch):
    node = Node(one_node(memory_path))
    await node.start()
    stop = node._served.stop

    async def stops():
        await stop()
        raise RuntimeError("of the outlets")

    monkeypatch.setattr(node._served, "stop", stops)
    waiting = asyncio.ensure_future(node.wait_failed())
    with pytest.raises(RuntimeError, match="of the outlets"):
        await node.stop()
    async with asyncio.timeout(WITHIN_S):
        assert await waiting == ""
