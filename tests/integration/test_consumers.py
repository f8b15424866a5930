"""Consumers of a log: they go on where they had committed, share the log, and lose nothing."""

import asyncio
import json
import signal
import subprocess
import sys
from functools import partial

import confluent_kafka
import pytest

from kafka_nodes import hasten, kafka_nodes
from quorumlog import Client, Consumer, SyncClient, SyncConsumer
from quorumlog.cli.main import main
from quorumlog.errors import QuorumlogError, UnexpectedArgumentError, UnsupportedError
from quorumlog.service.metrics import NodeMetrics

SECONDS = 60
LOG = "flights"
CHILD = """
import sys
from quorumlog import SyncConsumer
from quorumlog.errors import ConsumerFencedError
servers, group = sys.argv[1:]
with SyncConsumer(servers, group=group, log="flights") as consumer:
    for entry in consumer:
        print(entry.body.decode(), flush=True)
        if sys.stdin.readline().strip() == "commit":
            try:
                consumer.commit()
                print("committed", flush=True)
            except ConsumerFencedError:
                print("fenced", flush=True)
"""
"""A consumer in a process of its own, which commits when it is told to."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("consumers"), 3, logs=(LOG,)) as nodes:
        hasten(nodes.servers)
        nodes.settle()
        yield nodes


@pytest.fixture
def filled(cluster, request):
    """The name of a consumer group that begins with five entries of its test, a to e."""
    name = request.node.name
    with (
        SyncClient(cluster.addresses, LOG) as log,
        SyncConsumer(cluster.addresses, group=name, log=LOG) as me,
    ):
        _, last = log.bounds()
        log.append_batch([f"{name}-{letter}".encode() for letter in "abcde"])
        entries = iter(me)
        for entry in entries:
            if entry.index >= last:
                break
        me.seek(last + 1)
        me.commit()
    return name


def process(cluster, group):
    command = [sys.executable, "-c", CHILD, cluster.addresses, group]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def said(child, line=None):
    if line is not None:
        child.stdin.write(f"{line}\n")
    return child.stdout.readline().strip()


async def take(consumer, count, *, commits=True):
    """Return the last letters of entries that a consumer handles."""
    found = []
    async for entry in consumer:
        found.append(entry.body[-1:].decode())
        if commits:
            await consumer.commit()
        if len(found) == count:
            return "".join(found)
    return None


async def test_a_consumer_goes_on_where_it_had_committed(cluster, filled):
    async with asyncio.timeout(SECONDS):
        async with Consumer(cluster.addresses, group=filled, log=LOG) as consumer:
            assert await take(consumer, 2) == "ab"
            assert await take(consumer, 1, commits=False) == "c"
        async with Consumer(cluster.addresses, group=filled, log=LOG) as consumer:
            assert await take(consumer, 3) == "cde"
            (position,) = (await consumer.committed()).values()
            assert {0: position} == consumer.positions


async def test_the_next_one_takes_over_when_the_active_process_is_killed(cluster, filled):
    async with asyncio.timeout(SECONDS):
        with process(cluster, filled) as active:
            assert await asyncio.to_thread(said, active) == f"{filled}-a"
            assert await asyncio.to_thread(said, active, "commit") == "committed"
            assert await asyncio.to_thread(said, active) == f"{filled}-b"
            async with Consumer(cluster.addresses, group=filled, log=LOG) as standby:
                going_on = asyncio.ensure_future(take(standby, 4))
                assert await asyncio.to_thread(said, active, "") == f"{filled}-c"
                assert not standby.positions, "one is active"
                active.kill()
                assert await going_on == "bcde", "b was not committed"


async def test_who_was_silent_for_too_long_cannot_commit_and_joins_again(cluster, filled):
    async with asyncio.timeout(SECONDS):
        with process(cluster, filled) as stopped:
            try:
                assert await asyncio.to_thread(said, stopped) == f"{filled}-a"
                stopped.send_signal(signal.SIGSTOP)
                async with Consumer(cluster.addresses, group=filled, log=LOG) as other:
                    assert await take(other, 2) == "ab"
                    stopped.send_signal(signal.SIGCONT)
                    assert await asyncio.to_thread(said, stopped, "commit") == "fenced"
                assert await asyncio.to_thread(said, stopped) == f"{filled}-c"
            finally:
                stopped.kill()


async def test_members_that_come_and_go_share_a_log_by_channel(cluster, request):
    channels, rounds = 6, 10
    handled, name = [], request.node.name

    async def member(number, count=None):
        async with Consumer(
            cluster.addresses,
            group=name,
            log=LOG,
            partitions=3,
            start=begin,
            client_id=f"m{number}",
        ) as consumer:
            async for entry in consumer:
                handled.append((entry.channel, int(entry.body), number))
                await consumer.commit()
                if len({one[:2] for one in handled}) == channels * rounds:
                    done.set()
                if count == len([one for one in handled if one[2] == number]):
                    break

    async with asyncio.timeout(SECONDS), Client(cluster.addresses, LOG) as log:
        begin, done = (await log.bounds())[1] + 1, asyncio.Event()
        members = [asyncio.ensure_future(member(0)), asyncio.ensure_future(member(1, 8))]
        for number in range(rounds):
            for channel in range(channels):
                await log.append(b"%d" % number, channel=channel)
            if number == rounds // 2:
                members.append(asyncio.ensure_future(member(2)))
        await done.wait()
        for one in members:
            one.cancel()
        await asyncio.gather(*members, return_exceptions=True)
    for channel in range(channels):
        numbers = [number for found, number, _ in handled if found == channel]
        firsts = list(dict.fromkeys(numbers))
        assert firsts == list(range(rounds)), (
            "each entry is handled, and those of a channel in order"
        )
        assert len(numbers) - rounds <= 3, (
            "only what was in work when a partition moved comes twice"
        )
    assert len({member for _, _, member in handled}) > 1


async def lag_of(log, group, position):
    """Return the lag of a group, once the leader of the log knows of its position."""
    while True:
        for status in await log.status():
            found = {one.group: one.index for one in status.consumers}
            if found.get(group) == position:
                return status.stable_index + 1 - position


def metric_of(one, group):
    """Return what a node's metrics say of a group's lag."""
    registry = NodeMetrics(one.node, one.listener.counters, lambda: one.broker.view).registry
    return [
        {
            "topic": sample.labels["topic"],
            "partition": sample.labels["partition"],
            "lag": sample.value,
        }
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "quorumlog_consumer_group_lag_records"
        and sample.labels["consumer_group"] == group
    ]


async def test_operators_see_the_lag_and_may_reset_the_position(cluster, filled, capsys):
    def command(*arguments):
        assert main([*arguments, "--bootstrap-server", cluster.servers, "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    topic = f"log:{LOG}"
    async with asyncio.timeout(SECONDS):
        async with Consumer(cluster.addresses, group=filled, log=LOG) as consumer:
            assert await take(consumer, 2) == "ab"
            (position,) = consumer.positions.values()
            async with Client(cluster.addresses, LOG) as log:
                assert await lag_of(log, filled, position) == 3, "the log has no gaps here"
        lags = [lag for one in cluster.nodes for lag in metric_of(one, filled)]
        assert lags == [{"topic": topic, "partition": "0", "lag": 3}], "of the leader alone"
        (group,) = await asyncio.to_thread(command, "consumer-group", "describe", filled)
        (share,) = group["partitions"]
        assert (share["topic"], share["committed"], share["lag"]) == (topic, position, 3)
        shift = ("consumer-group", "reset", filled, "--shift-by", "-1")
        (moved,) = await asyncio.to_thread(command, *shift)
        assert moved["committed"] == position - 1
        async with Consumer(cluster.addresses, group=filled, log=LOG) as consumer:
            assert await take(consumer, 4) == "bcde"
        await asyncio.to_thread(command, "consumer-group", "delete", filled)
        async with Consumer(cluster.addresses, group=filled, log=LOG) as consumer:
            assert await consumer.committed() == {}


async def test_a_group_is_used_for_one_log_and_one_number_of_partitions(cluster, filled):
    async with asyncio.timeout(SECONDS):
        async with Consumer(cluster.addresses, group=filled, log=LOG, partitions=2) as consumer:
            with pytest.raises(UnexpectedArgumentError, match=r"in 1 partition, not .* 2 part"):
                await take(consumer, 1)


def send_offsets(cluster, group):
    """Return the error of a Kafka producer that commits offsets of a group in a transaction."""
    servers = {"bootstrap.servers": cluster.servers}
    reader = confluent_kafka.Consumer({**servers, "group.id": group})
    producer = confluent_kafka.Producer({**servers, "transactional.id": group})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    places = [confluent_kafka.TopicPartition("orders", 0, 90_000)]
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.send_offsets_to_transaction(places, reader.consumer_group_metadata(), SECONDS)
    reader.close()
    return refused.value.args[0].code()


async def test_a_kafka_producer_commits_no_offsets_for_a_group_that_reads_a_log(cluster, filled):
    async with (
        asyncio.timeout(SECONDS),
        Consumer(cluster.addresses, group=filled, log=LOG) as consumer,
    ):
        assert await take(consumer, 2) == "ab"
        before = await consumer.committed()
        error = await asyncio.to_thread(send_offsets, cluster, filled)
        assert error == confluent_kafka.KafkaError.INCONSISTENT_GROUP_PROTOCOL
        assert await consumer.committed() == before


async def test_without_brokers_the_error_says_what_to_configure(make_cluster):
    async with asyncio.timeout(SECONDS), make_cluster(count=1) as cluster:
        await cluster.start()
        async with Consumer(cluster.servers, group="g", log="g") as consumer:
            with pytest.raises(UnsupportedError, match="kafkaListen"):
                await take(consumer, 1)


async def test_handled_entries_are_committed_by_themselves_if_wished(cluster, filled):
    async with asyncio.timeout(SECONDS):
        async with Consumer(
            cluster.addresses, group=filled, log=LOG, auto_commit_ms=60_000
        ) as consumer:
            assert await take(consumer, 3, commits=False) == "abc"
        async with Consumer(cluster.addresses, group=filled, log=LOG) as consumer:
            assert await take(consumer, 3) == "cde", "c was still in work"


async def test_consumers_go_on_when_the_coordinator_is_gone(cluster, filled):
    async with (
        asyncio.timeout(SECONDS),
        Consumer(cluster.addresses, group=filled, log=LOG) as consumer,
    ):
        assert await take(consumer, 2) == "ab"
        (leading,) = [one for one in cluster.nodes if one.broker.coordinator_term >= 0]
        await asyncio.to_thread(cluster.run, leading.stop())
        assert await take(consumer, 3) == "cde"
        assert await consumer.committed() == consumer.positions


async def test_a_former_loop_ends_when_another_one_begins(cluster, filled):
    async with asyncio.timeout(SECONDS):
        async with Consumer(cluster.addresses, group=filled, log=LOG) as consumer:
            former, found = consumer.read(), consumer.read()
            assert (await anext(former)).body[-1:] == b"a"
            await consumer.commit()
            assert (await anext(found)).body[-1:] == b"b"
            with pytest.raises(StopAsyncIteration):
                await anext(former)
            assert (await anext(found)).body[-1:] == b"c"
            await found.aclose()
            assert await take(consumer, 3) == "cde", "c is not known to be handled"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer.read()), 0.05)
            assert await consumer.committed() == consumer.positions


def test_a_program_that_polls_commits_while_nothing_comes(cluster, filled):
    with SyncConsumer(cluster.addresses, group=filled, log=LOG) as consumer:
        found = []
        while len(found) < 5:
            found += consumer.poll(SECONDS * 1_000)
        assert consumer.poll(20) == []
        consumer.commit()
        assert consumer.committed() == consumer.positions
        (position,) = consumer.positions.values()
        assert position > found[-1].index
    calls = (
        partial(consumer.poll, 20),
        partial(next, consumer.read()),
        partial(next, consumer.read_blocks()),
        consumer.commit,
        consumer.committed,
        partial(consumer.seek, "earliest"),
    )
    for call in calls:
        with pytest.raises(QuorumlogError, match="this consumer is closed; make a new one"):
            call()


async def test_once_it_is_closed_a_consumer_says_so_whatever_is_asked_of_it(cluster, filled):
    async with Consumer(cluster.addresses, group=filled, log=LOG) as consumer:
        pass
    calls = (
        lambda: consumer.poll(20),
        lambda: anext(consumer.read()),
        lambda: anext(consumer.read_blocks()),
        consumer.commit,
        consumer.committed,
        lambda: consumer.seek("earliest"),
    )
    for call in calls:
        with pytest.raises(QuorumlogError, match="this consumer is closed; make a new one"):
            await call()


def test_a_consumer_without_a_loop_commits_as_others_come(cluster, request):
    name, given = request.node.name, []

    def revoked(partitions):
        given.append(partitions)
        me.commit()

    with SyncClient(cluster.addresses, LOG) as log:
        _, last = log.bounds()
        options = {"group": name, "log": LOG, "partitions": 2, "start": last + 1}
        with SyncConsumer(cluster.addresses, on_revoked=revoked, **options) as me:
            log.append(b"0", channel=0)
            log.append(b"1", channel=1)
            found = []
            while len(found) < 2:
                found += me.poll(SECONDS * 1_000)
            with SyncConsumer(cluster.addresses, **options) as other:
                while not other.positions:
                    other.poll(50)
                    assert me.poll(50) == []
                assert other.poll(50) == [], "it was committed before it was given up"
            me.commit()
        assert given in ([{0}], [{1}])
