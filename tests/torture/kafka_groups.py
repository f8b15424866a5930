"""Consumer groups whose members come, go, die and stall, and whose coordinator is killed.

    python tests/torture/kafka_groups.py --members 10 --events 100 --seed 1

Groups of several kinds are chained: the members of each but the last write what they consume to the
topic of the next one. Kinds are the assignors of the classic protocol (range and roundrobin with
members of librdkafka and aiokafka together, cooperative-sticky, aiokafka's sticky) and the consumer
protocol (uniform and range). Members are processes with librdkafka, some of them static, and tasks
with aiokafka. They join one by one or all at once, leave, are killed, stall beyond
max.poll.interval.ms and come back; the coordinator is killed in each phase of a rebalance.

At no time a partition has two owners in one generation or epoch, nor two that were not told that
they are late; once all is quiet, each has one. Each record is in one acknowledged commit, or at
most one of those whose answer got lost; what is committed never goes back. At the end all is
committed, and the last topic has all records of the first one.
"""

import argparse
import asyncio
import contextlib
import logging
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import count, pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kafka_client import Client
from kafka_load import Job, confluent_producer, ends_of, read_all, reader_of
from quorumlog.kafka.requests import ApiKey
from quorumlog.local import ending_in_order, guarded
from torture.brokers import (
    SETTLE_S,
    Brokers,
    admin_of,
    caught_up,
    check_logs,
    check_stores,
    counted,
    create_topics,
)
from torture.group_history import TOLD_MAX, GroupHistory
from torture.group_members import (
    BY_AIOKAFKA,
    BY_LIBRDKAFKA,
    KINDS,
    QUICK,
    ProcessMember,
    TaskMember,
)

CHAINS = (
    ("range", "cooperative-sticky", "consumer"),
    ("roundrobin", "consumer-range", "sticky"),
    ("sticky", "consumer", "cooperative-sticky"),
)
"""Kinds of groups that are chained, unless others are asked for."""
CLASSIC_PHASES = ("PreparingRebalance", "CompletingRebalance", "Stable")
PROTOCOL_PHASES = ("Assigning", "Reconciling", "Stable")
PHASE_S = 10.0
"""How long a phase of a rebalance is waited for."""
STILL_S = 3.0
"""How long all partitions must have had their owners."""
RECORDS_EACH = 20
RECORDS_EACH_S = 0.1
EVENTS = {
    "join": 4,
    "join_at_once": 1,
    "leave": 3,
    "kill": 3,
    "stall": 2,
    "restart_static": 2,
    "kill_coordinator": 2,
}
"""What happens, and how frequent it is beside the others."""


class Group:
    """One group, its members and what they did."""

    def __init__(self, servers, kind, topic, target, seed):
        self.servers, self.kind, self.topic, self.target = servers, kind, topic, target
        self.name = f"{kind}-of-{topic}"
        self.history, self.faults, self.done = GroupHistory(), [], Counter()
        self.members = []
        self.phases = count()
        self.is_protocol = "consumer" in kind
        self._random = random.Random(f"{seed} {self.name}")
        self._numbers = count()

    def start(self, instance_id=None):
        """Have one more member, of any of the libraries that this kind of group may have."""
        name = f"{self.name}-{next(self._numbers)}"
        libraries = [one for one in (BY_LIBRDKAFKA, BY_AIOKAFKA) if self.kind in one]
        if instance_id is None and self._random.choice(libraries) is BY_AIOKAFKA:
            member = TaskMember(name, self)
        else:
            if instance_id is None and self._random.random() < 0.3:
                instance_id = name
            member = ProcessMember(name, self, instance_id)
        self.members.append(member)

    @property
    def processes(self):
        return [one for one in self.members if isinstance(one, ProcessMember)]

    def check(self):
        """Start members anew that have ended by themselves, as fenced static ones do."""
        for one in list(self.members):
            if one.has_ended:
                self.members.remove(one)
                self.faults.append(f"{one.name} ended by itself")

    def is_owned(self, partitions):
        """Whether each partition has one owner."""
        owners = self.history.owners()
        return len(owners) == partitions and all(len(one) == 1 for one in owners.values())


class Events:
    """What happens to groups, by a seed."""

    def __init__(self, brokers, groups, options):
        self.done = Counter()
        self._brokers, self._groups = brokers, groups
        self._most = options.members + options.members // 2 + 1
        self._random = random.Random(options.seed)
        self._under_way = set()

    async def begin(self, members):
        """Have all groups their first members: one by one, or all at once."""
        for group in self._groups:
            is_at_once = self._random.random() < 0.5
            self.done["groups that all joined at once"] += is_at_once
            for _ in range(members):
                group.start()
                await asyncio.sleep(0 if is_at_once else self._random.uniform(0.05, 0.5))

    async def run(self, number):
        """Let something happen to one group."""
        group = self._random.choice(self._groups)
        (event,) = self._random.choices(list(EVENTS), list(EVENTS.values()))
        await getattr(self, event)(group)
        group.check()
        await asyncio.sleep(self._random.choice((0, 0.1, 0.5, 1, 2)))
        if number % 10 == 9:
            print(f"{number + 1} events: {self._told()}", flush=True)

    def _told(self):
        return ", ".join(f"{len(one.members)} in {one.name}" for one in self._groups)

    async def end(self):
        """Wait until what was begun is over, and all brokers run."""
        await asyncio.gather(*self._under_way)

    def _later(self, work):
        task = asyncio.ensure_future(work)
        self._under_way.add(task)

    def _one_of(self, members):
        """Return a member that may go: one is left."""
        return self._random.choice(members) if len(members) > 1 else None

    async def join(self, group):
        if len(group.members) < self._most:
            self.done["joined"] += 1
            group.start()

    async def join_at_once(self, group):
        while len(group.members) < self._most:
            self.done["joined with others"] += 1
            group.start()

    async def leave(self, group):
        one = self._one_of(group.members)
        if one is not None:
            self.done["left"] += 1
            group.members.remove(one)
            self._later(one.leave())

    async def kill(self, group):
        one = self._one_of(group.processes)
        if one is not None:
            self.done["killed"] += 1
            group.members.remove(one)
            await one.kill()

    async def stall(self, group):
        if group.members:
            self.done["stalled"] += 1
            await self._random.choice(group.members).stall()

    async def restart_static(self, group):
        """A static member ends, by itself or killed, and comes back: soon, or after its session."""
        static = [one for one in group.processes if one.instance_id is not None]
        if not static:
            return
        one = self._random.choice(static)
        self.done["static members restarted"] += 1
        group.members.remove(one)
        await (one.leave() if self._random.random() < 0.5 else one.kill())
        await asyncio.sleep(self._random.choice((0, 0.5, 10)))
        group.start(one.instance_id)

    async def kill_coordinator(self, group):
        """Kill the coordinator in a phase of a rebalance, each phase in its turn."""
        phases = PROTOCOL_PHASES if group.is_protocol else CLASSIC_PHASES
        phase = phases[next(group.phases) % len(phases)]
        if len(self._brokers.processes) < len(self._brokers.ids):
            return
        victim = None
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(PHASE_S):
                victim = await self._coordinator_in(group, phase)
        if victim is None:
            self.done[f"{phase} not met"] += 1
            return
        self._brokers.kill(victim)
        self.done[f"coordinator killed in {phase}"] += 1
        self._later(self._restart(victim, self._random.uniform(0.5, 3)))

    async def _coordinator_in(self, group, phase):
        """Have a group rebalance; return who coordinates it as soon as it is in a phase of that."""
        node_id = self._random.choice(self._brokers.ids)
        async with coordinator(self._brokers, node_id) as (found_id, client):
            await (self.join if len(group.members) < self._most else self.leave)(group)
            was_busy = False
            while True:
                answer = await client.ask(ApiKey.LIST_GROUPS, 5, states_filter=[], types_filter=[])
                states = {one.group_id: one.group_state for one in answer.groups}
                state = states.get(group.name)
                if state == phase and (was_busy or phase != "Stable"):
                    return found_id
                was_busy = was_busy or state != "Stable"

    async def _restart(self, node_id, seconds):
        await asyncio.sleep(seconds)
        self._brokers.start(node_id)
        while True:
            if not self._brokers.is_up(node_id) or self._brokers.has_started(node_id):
                break
            await asyncio.sleep(0.05)
        self._brokers.check_runs(node_id)


@contextlib.asynccontextmanager
async def coordinator(brokers, node_id):
    """Ask a broker who coordinates; yield its node and a client that is connected to it."""
    host, _, port = brokers.kafka[node_id].rpartition(":")
    async with _connected(host, port) as client:
        asked = {"key_type": 0, "coordinator_keys": ["any"]}
        (found,) = (await client.ask(ApiKey.FIND_COORDINATOR, 4, **asked)).coordinators
    if found.error_code:
        raise ConnectionError(f"{node_id} knows no coordinator")
    async with _connected(found.host, found.port) as client:
        yield brokers.ids[found.node_id], client


@contextlib.asynccontextmanager
async def _connected(host, port):
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


# -- what goes on beside ---------------------------------------------------------------------------


def fill(servers, topic, partitions, stopping):
    """Write numbered records until told to stop; all of them are delivered then."""
    producer, failed = confluent_producer(servers), []
    for number in count():
        if stopping.is_set():
            break
        for one in range(RECORDS_EACH):
            value = b"%d" % (number * RECORDS_EACH + one)
            producer.produce(
                topic,
                value,
                partition=one % partitions,
                on_delivery=lambda error, _: error and failed.append(error),
            )
        producer.poll(0)
        stopping.wait(RECORDS_EACH_S)
    assert producer.flush(SETTLE_S) == 0
    assert not failed, failed[0]


async def look(brokers, groups, stopping, pause_s=0.2):
    """Ask again and again what is committed, until told to stop.

    By requests of our own: librdkafka's admin client may crash when coordinators change.
    """
    for number in count():
        if stopping.is_set():
            break
        node_id = brokers.ids[number % len(brokers.ids)]
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(10), coordinator(brokers, node_id) as (_, client):
                for _ in range(20):
                    await _look(client, groups)
                    await asyncio.sleep(pause_s)


async def _look(client, groups):
    asked_s = time.monotonic()
    asked = [{"group_id": one.name, "topics": None} for one in groups]
    answer = await client.ask(ApiKey.OFFSET_FETCH, 8, groups=asked, require_stable=False)
    for group, told in zip(groups, answer.groups, strict=True):
        if not told.error_code and told.topics:
            (topic,) = told.topics
            offsets = {one.partition_index: one.committed_offset for one in topic.partitions}
            group.history.looked(asked_s, offsets)


def alter(servers, configs):
    """Set configs of the cluster."""
    entries = [
        ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=entries)
    admin = admin_of(servers)
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(SETTLE_S)


# -- judgement -------------------------------------------------------------------------------------


async def until_owned(groups, partitions):
    """Wait until each partition has had one owner for some time; return how long that took."""
    begun_s = since_s = time.monotonic()
    while time.monotonic() - since_s < STILL_S:
        await asyncio.sleep(0.05)
        for group in groups:
            group.check()
        if not all(group.is_owned(partitions) for group in groups):
            since_s = time.monotonic()
        if since_s - begun_s > SETTLE_S:
            owners = {group.name: group.history.owners() for group in groups}
            raise AssertionError(f"partitions without one owner each: {owners}")
    return since_s - begun_s


def ends_at(servers, topic, partitions):
    """Return where each partition ends."""
    deadline, client = time.monotonic() + SETTLE_S, reader_of(servers)
    ends = {one: ends_of(client.consumer, topic, one, deadline)[1] for one in range(partitions)}
    client.close()
    return ends


def until_committed(group, partitions):
    """Wait until a group has committed the whole of its topic; return where that ends."""
    ends, deadline = ends_at(group.servers, group.topic, partitions), time.monotonic() + SETTLE_S
    while True:
        looks = group.history.looks
        if looks and looks[-1].offsets == {one: end for one, end in ends.items() if end}:
            return ends
        if time.monotonic() > deadline:
            told = looks[-1].offsets if looks else None
            owners = f"{group.history.owners()}; {counted(group.done)}"
            raise AssertionError(f"{group.name} has committed {told} of {ends}: {owners}")
        time.sleep(0.1)


def judge(groups, ends):
    """Raise `AssertionError` with what was wrong."""
    found = []
    for group in groups:
        told = [*group.faults, *group.history.faults(ends[group.name])]
        found += [f"{group.name}: {one}" for one in told]
    if found:
        raise AssertionError("\n".join([*found[:TOLD_MAX], f"{len(found)} faults in all"]))


def judge_topics(servers, topics, partitions):
    """What one group has written to the next topic is what it has read, maybe more than once."""
    values = [
        {value for part in read_all(servers, one, partitions, SETTLE_S).values() for value in part}
        for one in topics
    ]
    for (topic, before), (following, after) in pairwise(zip(topics, values, strict=True)):
        if before != after:
            lost, new = sorted(before - after)[:9], sorted(after - before)[:9]
            raise AssertionError(f"{following} lacks {lost} of {topic}, and has {new} besides")
    return len(values[0])


async def run(directory, options):
    brokers = Brokers(directory, options.nodes, None, has_proxies=False)
    groups, partitions = [], options.partitions
    try:
        for node_id in brokers.ids:
            brokers.start(node_id)
        topics = [f"topic-{number}" for number in range(len(options.kinds))]
        made = [(name, partitions, {}) for name in topics]
        await asyncio.to_thread(create_topics, brokers, made)
        servers = brokers.bootstrap_servers
        await asyncio.to_thread(alter, servers, QUICK)
        groups += [
            Group(servers, kind, topic, target, options.seed)
            for kind, topic, target in zip(options.kinds, topics, [*topics[1:], None], strict=True)
        ]
        await _run(brokers, groups, topics, options)
        await asyncio.to_thread(brokers.stop)
        check_stores(brokers)
        check_logs(brokers)
        print("nothing found", flush=True)
    finally:
        for group in groups:
            for one in group.members:
                one.end()
        brokers.end()


async def _run(brokers, groups, topics, options):
    servers, partitions = brokers.bootstrap_servers, options.partitions
    filled, looked = threading.Event(), asyncio.Event()
    filling = Job(fill, servers, topics[0], partitions, filled)
    looking = asyncio.ensure_future(look(brokers, groups, looked))
    events = Events(brokers, groups, options)
    begun_s = time.monotonic()
    await events.begin(options.members)
    for number in range(options.events):
        if options.seconds and time.monotonic() - begun_s > options.seconds:
            break
        await events.run(number)
    await events.end()
    print(f"seed {options.seed}: {counted(events.done)}", flush=True)
    lost = sum(group.history.lost for group in groups)
    owned_s = await until_owned(groups, partitions)
    lost = sum(group.history.lost for group in groups) - lost
    print(f"all owned {owned_s:.1f} s after the last event; {lost} were late meanwhile")
    filled.set()
    await asyncio.to_thread(filling.result, 2 * SETTLE_S)
    ends = {}
    for group in groups:
        ends[group.name] = await asyncio.to_thread(until_committed, group, partitions)
    for group in groups:
        await asyncio.gather(*(one.leave() for one in group.members))
        group.members.clear()
    looked.set()
    await looking
    await caught_up(brokers)
    for group in groups:
        print(f"{group.name}: {counted(group.history.counts() | dict(group.done))}", flush=True)
    judge(groups, ends)
    records = await asyncio.to_thread(judge_topics, servers, topics, partitions)
    print(f"{records} records went through {len(groups)} groups", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=5, help="of each group at first")
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--seconds", type=float, help="no event begins later")
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="default: three, by the seed")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    options.kinds = options.kinds or list(CHAINS[options.seed % len(CHAINS)])
    directory = (options.dir or Path(tempfile.mkdtemp(prefix="torture-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    for library in ("aiokafka", "kafka", "asyncio"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    print(f"seed {options.seed}, {' → '.join(options.kinds)}, in {directory}", flush=True)
    with ending_in_order(), guarded(directory):
        asyncio.run(run(directory, options))
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
