"""A run of brokers that are hurt under load, from its start to its judgement.

What differs between programs is in a `Plan`. A run that finds something keeps its directory.
Whatever ends the process, its nodes end with it.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kafka_load import (
    PRODUCERS,
    Job,
    Records,
    Seen,
    consume_by_aiokafka,
    consume_by_confluent,
    has_kafkajs,
    produce_by_kafkajs,
    read_all,
)
from kafka_proxy import losing_answers
from quorumlog.local import ending_in_order, guarded
from torture.brokers import (
    DATA_FILE_BYTES,
    SETTLE_S,
    Brokers,
    caught_up,
    check_logs,
    check_stores,
    counted,
    create_topics,
    network_of,
    spread_leaders,
)
from torture.nemesis import USUAL, Nemesis
from torture.topic_jobs import Retained, renew_topic

LOST_EVERY = 50
"""One of so many answers to producers is lost."""
FILES_LEFT = 3
"""Data files that a replica may have beyond what is readable: two, and one that is made ahead."""
RETENTION_S = 10
GROWTH = 1.6
"""How much more memory nodes may have at the end than before the faults, when they were new."""
CONNECTIONS = 40
"""By how many descriptors they may have more, as clients connect and leave."""
TOPIC = "t"


@dataclass(frozen=True)
class Plan:
    """What a run consists of: `partitions` of the topic whose records must all stay (0: none).

    `is_retained`: three topics more are written and given up. `heals_s`: how soon after the last
    fault all must be delivered, and all replicas equal. `quiet_s`: how long all is left alone
    before the faults; what nodes take of the machine is compared with that at the end. `loads`:
    what else goes on, as `GroupLoad`.
    """

    partitions: int = 0
    faults: tuple[str, ...] = USUAL
    kill_pauses: tuple[float, float] = (2, 4)
    is_retained: bool = False
    heals_s: float = SETTLE_S
    quiet_s: float = 0
    settings: tuple[tuple[str, object], ...] = ()
    loads: Callable[[Brokers, argparse.Namespace], list] = lambda brokers, options: []


# -- what is done to topics ----------------------------------------------------------------------


class Load:
    """Producers of a topic whose records must all stay, and consumers that read along."""

    def __init__(self, servers, partitions, options):
        self._servers, self._partitions = servers, partitions
        self.stopping = threading.Event()
        self.records = Records(TOPIC, partitions, options.seed)
        each = options.records // (2 * len(PRODUCERS))
        works = [(name, work, each) for name, work in PRODUCERS.items() for _ in range(2)]
        if has_kafkajs():
            works.append(("kafkajs", produce_by_kafkajs, each // 4))  # it sends one at a time
        self.writing = [
            Job(work, servers, self.records, f"{name}-{number}", count, options.seconds)
            for number, (name, work, count) in enumerate(works)
        ]
        self.seen = [Seen("confluent-kafka", partitions), Seen("aiokafka", partitions)]
        consumers = zip((consume_by_confluent, consume_by_aiokafka), self.seen, strict=True)
        self.reading = [
            Job(work, servers, self.records, seen, self.stopping) for work, seen in consumers
        ]

    def finish(self):
        """Wait until all is delivered."""
        for job in self.writing:
            job.result(SETTLE_S)

    def read(self):
        return read_all(self._servers, TOPIC, self._partitions, SETTLE_S)

    def judge(self, contents):
        """Let consumers read to the end, stop them, and compare all with what is read then."""
        deadline = time.monotonic() + SETTLE_S
        for job, seen in zip(self.reading, self.seen, strict=True):
            while job.is_alive() and not seen.has_all_of(contents):
                if time.monotonic() > deadline:
                    raise AssertionError(f"{seen.name} did not come to the end: {seen.ends()}")
                job.join(0.2)
        self.stopping.set()
        for job in self.reading:
            job.result(SETTLE_S)
        found = self.records.faults_in(contents)
        for seen in self.seen:
            found += seen.faults_in(contents)
        if found:
            more = f"; {len(found)} in all" if len(found) > 20 else ""
            raise AssertionError("\n".join(found[:20]) + more)

    def tell(self):
        sent, acknowledged, failed = self.records.counts()
        if failed:
            print(f"failed: {counted(self.records.failed)}")
        for seen in self.seen:
            if seen.deadlocks:
                print(f"{seen.name} was deadlocked (librdkafka's issue 5476): {seen.deadlocks}")
        print(f"{sent} records sent, {acknowledged} acknowledged", flush=True)


RETAINED = {
    "by-time": {"retention.ms": str(RETENTION_S * 1_000)},
    "by-bytes": {"retention.bytes": "300000"},
    "deleted": {},
}


def retained_topics(servers, seed):
    return [
        Retained(servers, "by-time", retention_s=RETENTION_S, seed=seed),
        Retained(servers, "by-bytes", seed=seed),
        Retained(servers, "deleted", deletes=True, seed=seed),
    ]


def check_starts(brokers, retained):
    """Nothing is lower than it was, whoever leads, and after a start of all nodes."""
    for one in retained:
        deadline = time.monotonic() + SETTLE_S
        while not one.look():
            assert time.monotonic() < deadline, f"nobody tells where {one.name} begins"


def check_space(brokers, stored):
    """What replicas have on disk is hardly more than what can be read."""
    for group, partitions in stored.items():
        readable = sum(one["size_bytes"] for one in partitions)
        for node_id in brokers.members(group):
            files = (brokers.store(node_id, group) / "data").iterdir()
            taken = sum(file.stat().st_size for file in files)
            print(f"{group} of {node_id}: {readable} bytes are readable, {taken} on disk")
            if taken > readable + FILES_LEFT * DATA_FILE_BYTES:
                raise AssertionError(f"{node_id} has {taken} bytes of {group}, not {readable}")


# -- what nodes take of the machine --------------------------------------------------------------


@dataclass(frozen=True)
class Taken:
    """What one node's process has of the machine; `stored` are open files of its store."""

    memory_mib: int
    stored: int
    others: int
    threads: int


def taken(brokers):
    """Return what each node takes."""
    found = {}
    for node_id, process in brokers.processes.items():
        where = Path(f"/proc/{process.pid}")
        memory = int((where / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
        opened = open_files(where)
        stored = sum(name.startswith(f"{brokers.directory}/{node_id}/") for name in opened)
        threads = len(list((where / "task").iterdir()))
        found[node_id] = Taken(memory, stored, len(opened) - stored, threads)
    return found


def open_files(process):
    """Return what the descriptors of a process in /proc are of."""
    found = []
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found.append(os.readlink(descriptor))
    return found


def check_taken(brokers, before, after):
    """Compare what nodes take at the end with the quiet time before.

    Each file of a store is open once or twice, and there are more of them than before.
    """
    for node_id, first in before.items():
        last = after[node_id]
        print(f"{node_id}: {first} before, {last} after")
        files = sum(one.is_file() for one in (brokers.directory / node_id).rglob("*"))
        is_more = last.others > first.others + CONNECTIONS or last.stored > 2 * files
        if last.memory_mib > GROWTH * first.memory_mib or is_more:
            raise AssertionError(f"{node_id} takes {last}, and before the faults {first}")


# -- a run ---------------------------------------------------------------------------------------


async def run(directory, network, options, plan):
    """Start nodes, hurt them under load, and judge what became of it."""
    brokers = Brokers(directory, options.nodes, network, settings=dict(plan.settings))
    places = {brokers.advertised[one]: brokers.kafka[one] for one in brokers.ids}
    loads = plan.loads(brokers, options)
    try:
        with losing_answers(places, LOST_EVERY) as loss:
            for node_id in brokers.ids:
                brokers.start(node_id)
            await _run(brokers, options, plan, loss, loads)
    finally:
        for one in loads:
            one.end()
        brokers.end()


async def _run(brokers, options, plan, loss, loads):
    servers = brokers.bootstrap_servers
    topics = [(TOPIC, plan.partitions, {})] if plan.partitions else []
    topics += [(name, 1, configs) for name, configs in RETAINED.items() if plan.is_retained]
    topics += [topic for one in loads for topic in one.topics]
    await asyncio.to_thread(create_topics, brokers, topics)
    load = Load(servers, plan.partitions, options) if plan.partitions else None
    retained = retained_topics(servers, options.seed) if plan.is_retained else []
    stopping, done = threading.Event(), Counter()
    jobs = [Job(renew_topic, servers, stopping, done)]
    jobs += [Job(one.work, stopping) for one in retained]
    others = load.reading if load else []
    for one in loads:
        await one.begin()
    await watch(brokers, [*jobs, *others], plan.quiet_s, load, loads=loads)
    before = taken(brokers) if plan.quiet_s else {}
    nemesis = Nemesis(brokers, options.seed, plan.faults, plan.kill_pauses)
    hurting = asyncio.ensure_future(nemesis.run())
    seconds = options.seconds - plan.quiet_s
    await watch(brokers, [*jobs, *others], seconds, load, hurting, loads)
    nemesis.stopping.set()
    await hurting
    ended_s = time.monotonic()
    print(f"seed {options.seed}: {counted(nemesis.done + done + loss.done)}", flush=True)
    stopping.set()
    for job in jobs:
        await asyncio.to_thread(job.result, SETTLE_S)
    if load is not None:
        await asyncio.to_thread(load.finish)
    delivered_s = time.monotonic() - ended_s
    await caught_up(brokers, plan.heals_s)
    healed_s = time.monotonic() - ended_s
    print(f"delivered {delivered_s:.1f} s after the last fault, all equal {healed_s:.1f} s")
    if healed_s > plan.heals_s:
        raise AssertionError(f"it took {healed_s:.1f} s to heal")
    for one in loads:
        await one.calm()
    for one in loads:
        await one.judge()
        one.tell()
    for one in retained:
        print(f"{one.name}: {one.start} to {one.end}; {counted(one.done)}")
    await _judge(brokers, load, retained, before)
    if load is not None:
        load.tell()
    print("nothing found", flush=True)


async def _judge(brokers, load, retained, before):
    """Read all through whichever nodes lead, before and after transfers; then look at the files."""
    contents = await asyncio.to_thread(load.read) if load else {}
    if load is not None:
        await asyncio.to_thread(load.judge, contents)
    for shift in range(1, 3):
        await spread_leaders(brokers, shift)
        again = await asyncio.to_thread(load.read) if load else {}
        if again != contents:
            raise AssertionError("other leaders have other records")
        await asyncio.to_thread(check_starts, brokers, retained)
    await caught_up(brokers)
    if before:
        check_taken(brokers, before, taken(brokers))
    if retained:
        await asyncio.to_thread(brokers.stop)
        for node_id in brokers.ids:
            brokers.start(node_id)
        await asyncio.to_thread(check_starts, brokers, retained)
        await caught_up(brokers)
    await asyncio.to_thread(brokers.stop)
    stored = check_stores(brokers)
    if retained and load is None:
        check_space(brokers, stored)
    check_logs(brokers)


async def watch(brokers, jobs, seconds, load=None, hurting=None, loads=()):
    """Let things happen for some time; whoever fails ends the run at once."""
    for second in range(int(seconds)):
        await asyncio.sleep(1)
        for job in jobs:
            if job.error is not None:
                raise job.error
        for one in loads:
            one.check()
        if hurting is not None and hurting.done():
            hurting.result()
        for node_id in list(brokers.processes):
            brokers.check_runs(node_id)
        if load is not None and second % 10 == 9:
            print(f"{second + 1} s: {load.records.counts()[1]} acknowledged", flush=True)


def main(text, plan, *, seconds=60, records=20_000, nodes=3):
    """Run the program that a text describes, by its command line."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=seconds)
    if plan.partitions:
        parser.add_argument("--records", type=int, default=records)
    parser.add_argument("--nodes", type=int, default=nodes)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--quiet", type=float, default=plan.quiet_s, metavar="SECONDS")
    options = parser.parse_args()
    plan = replace(plan, quiet_s=options.quiet)
    directory = (options.dir or Path(tempfile.mkdtemp(prefix="torture-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    for library in ("aiokafka", "kafka", "asyncio"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # each outage has many lines
    print(f"seed {options.seed}, in {directory}", flush=True)
    with ending_in_order(), guarded(directory), network_of(options.nodes) as network:
        asyncio.run(run(directory, network, options, plan))
    shutil.rmtree(directory, ignore_errors=True)
