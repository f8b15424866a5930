"""Brokers in processes and networks of their own, hurt while clients of Kafka produce and consume.

    python tests/torture/kafka_records.py --seconds 300 --records 100000 --seed 1

Idempotent producers of librdkafka, aiokafka and kafka-python write numbered records; consumers read
along; topics are made, written, read and deleted. Meanwhile nodes are killed every 2 to 4 s,
seldom a majority (half of them lose power: what was not fsynced is undone at random); links are
cut, nodes frozen, wall clocks stepped, and leadership is transferred. At the end all is read from
the beginning: each acknowledged record is there once, at its offset and in order, each other one at
most once, and nothing that a consumer saw is otherwise. All stores verify, and have the same
partitions.
As root nodes are in network namespaces; others run without cut links. A run that finds something
keeps its directory. Whatever ends this process, its nodes end with it.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from confluent_kafka import KafkaError, KafkaException  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from integration.network import PORT, PREFIX, Network, NotPermittedError  # noqa: E402
from kafka_load import (  # noqa: E402
    PRODUCERS,
    Job,
    Records,
    Seen,
    confluent_producer,
    consume_by_aiokafka,
    consume_by_confluent,
    read_all,
)
from quorumlog import Client  # noqa: E402
from quorumlog.local import ending_in_order, guarded  # noqa: E402
from quorumlog.local.guard import SERVICE  # noqa: E402
from quorumlog.local.ports import free_ports  # noqa: E402
from quorumlog.model.config import (  # noqa: E402
    CLUSTER_GROUP,
    GroupConfig,
    NodeConfig,
    dump_config,
)
from quorumlog.model.errors import QuorumlogError  # noqa: E402
from quorumlog.model.limits import Limits  # noqa: E402
from small_files import SMALL_FILES, SMALL_SETTINGS  # noqa: E402
from torture.lossy_files import lose_power  # noqa: E402

PARTITIONS = 6
SETTLE_S = 120.0
KAFKA_PORT = 9_092
HOUR_S = 3_600
ENTRY_BYTES_MAX = 512 << 10
TINY = {**SMALL_SETTINGS, "mappedFileSizeForEntryData": 1 << 20}
KNOWN = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


class Brokers:
    """Node processes whose disks can lose power and whose clocks can be wrong."""

    def __init__(self, directory, count, network):
        self.directory = directory
        self.network = network
        self.ids = [f"n{number}" for number in range(count)]
        if network is None:
            ports = free_ports(2 * count)
            places = [f"127.0.0.1:{port}" for port in ports]
        else:
            hosts = [network.address(node_id) for node_id in self.ids]
            places = [f"{host}:{port}" for port in (PORT, KAFKA_PORT) for host in hosts]
        self.addresses = dict(zip(self.ids, places[:count], strict=True))
        self.kafka = dict(zip(self.ids, places[count:], strict=True))
        self.processes = {}
        self.log_sizes = {}
        peers = ";".join(f"{node_id}-{place}" for node_id, place in self.addresses.items())
        group = GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers=peers, **SMALL_FILES)
        for node_id in self.ids:
            config = NodeConfig(
                self_id=node_id,
                store_base_dir=str(directory / node_id),
                cluster=PREFIX,
                groups=[group],
                kafka_listen=self.kafka[node_id],
                partition_groups=TINY,
                insecure=network is not None,
                limits=Limits(entry_bytes_max=ENTRY_BYTES_MAX),
            )
            (directory / f"{node_id}.toml").write_bytes(dump_config(config))
            self.wrong_by(node_id, 0)

    @property
    def servers(self):
        return ",".join(self.addresses.values())

    @property
    def bootstrap_servers(self):
        return ",".join(self.kafka.values())

    @property
    def groups(self):
        return [CLUSTER_GROUP, *(f"pg-{number}" for number in range(len(self.ids)))]

    def log(self, node_id):
        return (self.directory / f"{node_id}.log").read_text()

    def start(self, node_id):
        where = self.directory
        program = [sys.executable, "-m", "torture.node", where / f"{node_id}.journal"]
        serve = [where / f"{node_id}.clock", SERVICE, where / f"{node_id}.toml"]
        space = [] if self.network is None else ["ip", "netns", "exec"]
        space += [] if self.network is None else [self.network.namespace(node_id)]
        paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with (where / f"{node_id}.log").open("ab") as log:
            self.log_sizes[node_id] = log.tell()
            command = [*space, *program, *serve]
            self.processes[node_id] = subprocess.Popen(command, stderr=log, env=env)

    def has_started(self, node_id):
        """Whether the node's process runs and has said that it is up."""
        if not self.is_up(node_id):
            return False
        return '"node started"' in self.log(node_id)[self.log_sizes[node_id] :]

    def is_up(self, node_id):
        process = self.processes.get(node_id)
        return process is not None and process.poll() is None

    def check_runs(self, node_id):
        if self.processes[node_id].poll() is not None:
            raise AssertionError(f"{node_id} ended by itself: {self.log(node_id)[-1000:]}")

    def kill(self, node_id):
        self.check_runs(node_id)
        process = self.processes.pop(node_id)
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()

    def lose_power(self, node_id, generator):
        """Undo some of what a killed node had not made durable."""
        return lose_power(self.directory / f"{node_id}.journal", generator)

    def signal(self, node_id, number):
        if self.is_up(node_id):
            self.processes[node_id].send_signal(number)

    def wrong_by(self, node_id, seconds):
        (self.directory / f"{node_id}.clock").write_text(str(seconds))

    def stop(self):
        """Stop all cleanly."""
        for process in self.processes.values():
            process.terminate()
        for node_id, process in self.processes.items():
            if process.wait(SETTLE_S):
                raise AssertionError(f"{node_id} stopped with status {process.returncode}")
        self.processes.clear()


class Nemesis:
    """Kills and, beside that, other faults; all of them end when `stopping` is set."""

    def __init__(self, brokers, seed):
        self.brokers = brokers
        self.stopping = asyncio.Event()
        self.done = Counter()
        self._kills, self._others = (random.Random(f"{seed} {kind}") for kind in ("kills", "rest"))

    async def run(self):
        await asyncio.gather(self._kill_often(), self._hurt_otherwise())
        if self.brokers.network is not None:
            self.brokers.network.heal()

    async def pause(self, seconds):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)

    async def _kill_often(self):
        generator, restarts = self._kills, set()
        while not self.stopping.is_set():
            await self.pause(generator.uniform(2, 4))
            up = [node_id for node_id in self.brokers.ids if self.brokers.has_started(node_id)]
            victim, down_s = generator.choice(self.brokers.ids), generator.uniform(1, 5)
            loses_power, loses_majority = (generator.random() < share for share in (0.5, 0.1))
            is_kept = 2 * (len(up) - 1) > len(self.brokers.ids)
            if victim not in up or not (is_kept or loses_majority) or self.stopping.is_set():
                continue
            self.done["power lost" if loses_power else "killed"] += 1
            self.brokers.kill(victim)
            if loses_power:
                await asyncio.to_thread(self.brokers.lose_power, victim, generator)
            restart = asyncio.ensure_future(self._restart(victim, down_s))
            restarts.add(restart)
        await asyncio.gather(*restarts)

    async def _restart(self, node_id, seconds):
        await self.pause(seconds)
        self.brokers.start(node_id)

    async def _hurt_otherwise(self):
        generator = self._others
        faults = [self.freeze, self.transfer, self.transfer, self.clocks]
        if self.brokers.network is not None:
            faults += [self.cut, self.cut]
        while not self.stopping.is_set():
            await self.pause(generator.uniform(0.5, 3))
            fault = generator.choice(faults)
            self.done[fault.__name__] += 1
            await fault(generator)

    async def freeze(self, generator):
        victim = generator.choice(self.brokers.ids)
        self.brokers.signal(victim, signal.SIGSTOP)
        await self.pause(3)
        self.brokers.signal(victim, signal.SIGCONT)

    async def cut(self, generator):
        network = self.brokers.network
        first, second = generator.sample(self.brokers.ids, 2)
        network.cut(first, second)
        if generator.random() < 0.7:
            network.cut(second, first)
        await self.pause(3)
        network.heal()

    async def clocks(self, generator):
        victim = generator.choice(self.brokers.ids)
        self.brokers.wrong_by(victim, generator.choice((-HOUR_S, -5, 0, 5, HOUR_S)))

    async def transfer(self, generator):
        group, target = generator.choice(self.brokers.groups), generator.choice(self.brokers.ids)
        async with Client(self.brokers.servers, group, timeout_ms=3_000) as client:
            with contextlib.suppress(QuorumlogError):
                await client.admin.transfer(target)
                self.done["leaders transferred"] += 1


def renew_topic(servers, stopping, done):
    """Make, write, read and delete a topic again and again: it never has earlier records."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    for generation in range(1_000_000):
        if stopping.is_set():
            return
        if not insist(admin.create_topics, [NewTopic("renewed", 2)], stopping):
            return
        written = confluent_producer(servers, **{"message.timeout.ms": 20_000})
        failed = Counter()
        for number in range(50):
            written.produce(
                "renewed",
                b"%d %d" % (generation, number),
                partition=number % 2,
                on_delivery=lambda error, _, to=failed: to.update([error and error.name()]),
            )
        written.flush(60)
        if not stopping.is_set():
            check_generation(servers, generation, failed)
            done["topics renewed"] += 1
        if not insist(admin.delete_topics, ["renewed"], stopping):
            return


def check_generation(servers, generation, failed):
    try:
        contents = read_all(servers, "renewed", 2, 30)
    except KafkaException as error:
        if error.args[0].code() in KNOWN:  # a broker that was just started may not know it yet
            return
        raise
    found = [value.split()[0] for values in contents.values() for value in values]
    if any(int(one) != generation for one in found):
        raise AssertionError(f"generation {generation} has records of {Counter(found)}")
    if len(found) < failed[None]:
        raise AssertionError(f"{len(found)} records of {failed[None]} that were acknowledged")


def insist(change, topics, stopping):
    """Ask for a change until it is so; False: it is time to stop."""
    done = {change.__name__: KNOWN, "create_topics": {KafkaError.TOPIC_ALREADY_EXISTS}}
    while not stopping.is_set():
        (future,) = change(topics, operation_timeout=10).values()
        try:
            future.result(60)
            return True
        except KafkaException as error:
            if error.args[0].code() in done[change.__name__]:
                return True
    return False


# -- judgement -----------------------------------------------------------------------------------


def store_command(*arguments):
    command = [sys.executable, "-m", "quorumlog", "store", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"'store {' '.join(arguments)}': {done.stdout}{done.stderr}")
    return done.stdout


def check_stores(brokers):
    """All stores verify, and the replicas of each group have the same partitions."""
    for group in brokers.groups:
        found = {}
        for node_id in brokers.ids:
            store = str(brokers.directory / node_id / group)
            store_command("verify", store)
            if group != CLUSTER_GROUP:
                found[node_id] = store_command("partitions", "--json", store).replace(store, "")
        if len(set(found.values())) > 1:
            raise AssertionError(f"replicas of {group} differ: {found}")


def check_logs(brokers):
    for node_id in brokers.ids:
        log = brokers.log(node_id)
        if "Traceback" in log:
            at = log.index("Traceback")
            raise AssertionError(f"{node_id} logged {log[max(0, at - 500) : at + 3000]}")


async def caught_up(brokers):
    """Wait until every replica of every group has all that is committed."""
    async with asyncio.timeout(SETTLE_S):
        for group in brokers.groups:
            async with Client(brokers.servers, group, timeout_ms=10_000) as client:
                while True:
                    with contextlib.suppress(QuorumlogError):
                        ends = [(s.end_index, s.committed_index) for s in await client.status()]
                        if len(ends) == len(brokers.ids) and len(set(sum(ends, ()))) == 1:
                            break
                    await asyncio.sleep(0.2)


def check(records, consumers, contents):
    found = records.faults_in(contents)
    for seen in consumers:
        found += seen.faults_in(contents)
    if found:
        more = f"; {len(found)} in all" if len(found) > 20 else ""
        raise AssertionError("\n".join(found[:20]) + more)


def create(brokers):
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers, "log_level": 2})
    deadline = time.monotonic() + SETTLE_S
    while len(admin.list_topics(timeout=SETTLE_S).brokers) < len(brokers.ids):
        assert time.monotonic() < deadline, "not all brokers are known"
        time.sleep(0.1)
    topic = [NewTopic("t", PARTITIONS, len(brokers.ids))]
    admin.create_topics(topic, operation_timeout=SETTLE_S)["t"].result(SETTLE_S)


async def judge(brokers, records, consumers, stopping, reading):
    """Read all through whichever nodes lead, before and after transfers; then look at the files."""
    servers = brokers.bootstrap_servers
    contents = await asyncio.to_thread(read_all, servers, "t", PARTITIONS, SETTLE_S)
    stopping.set()
    for job in reading:
        await asyncio.to_thread(job.result, SETTLE_S)
    check(records, consumers, contents)
    for shift in range(1, len(brokers.ids)):
        for number, group in enumerate(brokers.groups[1:]):
            target = brokers.ids[(number + shift) % len(brokers.ids)]
            async with Client(brokers.servers, group, timeout_ms=10_000) as client:
                with contextlib.suppress(QuorumlogError):
                    await client.admin.transfer(target)
        again = await asyncio.to_thread(read_all, servers, "t", PARTITIONS, SETTLE_S)
        if again != contents:
            raise AssertionError("other leaders have other records")
    await caught_up(brokers)
    await asyncio.to_thread(brokers.stop)
    check_stores(brokers)
    check_logs(brokers)
    return sum(map(len, contents.values()))


async def run(directory, network, options):
    brokers = Brokers(directory, options.nodes, network)
    try:
        for node_id in brokers.ids:
            brokers.start(node_id)
        await asyncio.to_thread(create, brokers)
        servers, nemesis = brokers.bootstrap_servers, Nemesis(brokers, options.seed)
        records, stopping = Records("t", PARTITIONS, options.seed), threading.Event()
        each = options.records // (2 * len(PRODUCERS))
        writing = [
            Job(work, servers, records, f"{client}-{number}", each, options.seconds)
            for client, work in PRODUCERS.items()
            for number in range(2)
        ]
        consumers = [Seen("confluent-kafka", PARTITIONS), Seen("aiokafka", PARTITIONS)]
        reading = [
            Job(work, servers, records, seen, stopping)
            for work, seen in zip(
                (consume_by_confluent, consume_by_aiokafka), consumers, strict=True
            )
        ]
        renewing = Job(renew_topic, servers, stopping, nemesis.done)
        hurting = asyncio.ensure_future(nemesis.run())
        await watch(brokers, records, [*reading, renewing], hurting, options.seconds)
        nemesis.stopping.set()
        await hurting
        begun = time.monotonic()
        for job in writing:
            await asyncio.to_thread(job.result, SETTLE_S)
        print(f"all is delivered {time.monotonic() - begun:.1f} s after the last fault", flush=True)
        total = await judge(brokers, records, consumers, stopping, [*reading, renewing])
        sent, acknowledged, failed = records.counts()
        print(f"seed {options.seed}: {counted(nemesis.done)}")
        if failed:
            print(f"failed: {counted(records.failed)}")
        print(f"{sent} sent, {acknowledged} acknowledged, {total} read: nothing found", flush=True)
    finally:
        for process in brokers.processes.values():
            process.kill()
            process.wait()


async def watch(brokers, records, jobs, hurting, seconds):
    """Let faults happen for some time; whoever fails ends the run at once."""
    for second in range(int(seconds)):
        await asyncio.sleep(1)
        for job in jobs:
            if job.error is not None:
                raise job.error
        if hurting.done():
            hurting.result()
        for node_id in list(brokers.processes):
            brokers.check_runs(node_id)
        if second % 10 == 9:
            print(f"{second + 1} s: {records.counts()[1]} acknowledged", flush=True)


def counted(counts):
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "nothing"


@contextlib.contextmanager
def network_of(count):
    """Make a network of namespaces; None without the right to."""
    network = Network([f"n{number}" for number in range(count)])
    try:
        try:
            network.make()
        except NotPermittedError as error:
            print(f"no links are cut: {error}")
            network.remove()
            yield None
        else:
            yield network
    finally:
        network.remove()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    directory = (options.dir or Path(tempfile.mkdtemp(prefix="torture-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    for library in ("aiokafka", "kafka"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # each outage has many lines
    print(f"seed {options.seed}, in {directory}", flush=True)
    with ending_in_order(), guarded(directory), network_of(options.nodes) as network:
        asyncio.run(run(directory, network, options))
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
