"""Transactions under random events: coordinators and leaders change, commands and views come late.

Assertions, over partitions of two groups: readers of committed transactions see all records of a
transaction, or none; all if its producer was told so; each once. Of a batch of a sink they see what
one decision has named, or nothing, whatever else its tasks have written. Once it is quiet, nothing
is ongoing anywhere.
"""

import asyncio
import heapq
import itertools
import random
from types import SimpleNamespace

import pytest

from quorumlog.broker.marker_writer import MarkerWriters
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.transactions.coordinator import Producer, TransactionCoordinator
from quorumlog.kafka.transactions.gate import TransactionGate
from quorumlog.kafka.transactions.sinks import Attempt, SinkBatch, SinkCoordinator
from quorumlog.machine.cluster.answers import command_id
from quorumlog.machine.cluster.commands import (
    Envelope,
    OffsetToCommit,
    decode_envelope,
    decode_result,
    encode,
)
from quorumlog.machine.cluster.machine import execute
from quorumlog.machine.cluster.sinks import attempt_id
from quorumlog.machine.cluster.state import EMPTY_VIEW, ClusterState, PartitionGroup, Topic
from quorumlog.machine.cluster.state import TopicPartition as Partition
from quorumlog.model.block import HEADER, HEADER_SIZE
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import error_for
from quorumlog.records.batch import batch_header, stamp_batch
from quorumlog.topics.entries import PartitionOpened
from quorumlog.topics.partition_table import PartitionTable
from quorumlog.topics.produced_batch import ProducedBatch, block_around
from record_batches import batch_of

SEEDS = range(60)
STEP_MS = 20
STORM_STEPS, QUIET_STEPS = 3_000, 600
TOPIC_ID = bytes(15) + b"\1"
PARTITIONS = 4
GROUPS = ("pg-1", "pg-2")
RETRIED = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}


def group_of(number):
    return GROUPS[number % 2]


class World:
    """The log of `__cluster` and those of two groups, in one time."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.now_ms, self.term, self.numbers = 1_000, 2, 0
        self.state = ClusterState()
        for name in GROUPS:
            self.state.put_group(PartitionGroup(name, (0, 1), "", {}, "led", 0))
        places = [Partition(number, group_of(number), number + 1, True) for number in range(4)]
        self.state.put_topic(Topic("t", TOPIC_ID, tuple(places), {}, 0))
        self.views = [self.state.view(EMPTY_VIEW)]
        self.due, self.steps, self.is_stormy = [], [], True
        self.begins = {self.term: 0}
        """What was committed in `__cluster` when a term began."""
        self.groups = {name: Group(self, name) for name in GROUPS}
        self.nodes = [Node(self, number) for number in range(3)]
        self.sent, self.told, self.has_offsets = {}, {}, set()
        """By transaction: (partition, value) of its records, and whether it is known to commit."""
        self.decisions, self.ended, self.of_tasks = {}, set(), set()
        """By batch of a sink: what each decision has named, as numbers of transactions; and those
        that are known to be committed; and the numbers of all transactions of tasks."""
        self.given = {}
        """Who was given which producer id and epoch."""

    def after(self, delay_ms, call):
        self.numbers += 1
        heapq.heappush(self.due, (self.now_ms + delay_ms, self.numbers, call))

    def delay_ms(self):
        return self.random.choice((0, 0, 20, 60, 400, 2_500) if self.is_stormy else (0, 20))

    async def wait(self, steps=1):
        for _ in range(steps):
            future = asyncio.get_running_loop().create_future()
            self.steps.append(future)
            await future

    def step(self):
        self.now_ms += STEP_MS
        while self.due and self.due[0][0] <= self.now_ms:
            heapq.heappop(self.due)[2]()
        for node in self.nodes:
            node.step()
        steps, self.steps = self.steps, []
        for future in steps:
            if not future.done():
                future.set_result(None)

    def carry_out(self, command):
        """Append a command, whatever node it came from; return its index and its result."""
        self.numbers += 1
        identity = command_id(self.numbers.to_bytes(8), 0)
        envelope = decode_envelope(encode(Envelope(identity, self.now_ms, command)))
        result = decode_result(execute(self.state, envelope, self.term))
        self.views.append(self.state.view_of_commits(self.views[-1]))
        return len(self.views) - 1, result


class Node:
    """A broker: its view of `__cluster` lags, and it may take itself for the coordinator."""

    def __init__(self, world, number):
        self.world, self.number = world, number
        self.applied, self.heard_term, self.late_until_ms = 0, world.term, 0
        self.defaults, self.waiting, self.counters = {}, [], KafkaCounters()
        self.coordinator = TransactionCoordinator(
            self,
            self,
            lambda: world.now_ms,
            lambda: world.now_ms,
            lambda seconds, call: world.after(seconds * 1_000, call),
            self.counters,
        )
        self.sink_coordinator = SinkCoordinator(self, self.counters)
        self.gate = TransactionGate(self)
        self.markers = MarkerWriters(Marking(self))

    def step(self):
        world = self.world
        if world.random.random() < 0.005:
            self.late_until_ms = world.now_ms + world.random.randint(200, 4_000)
        is_late = world.now_ms < self.late_until_ms or world.random.random() < 0.6
        if not (world.is_stormy and is_late):
            self.applied = len(world.views) - 1
        if self.heard_term != world.term and (not world.is_stormy or world.random.random() < 0.1):
            self.heard_term = world.term
        waiting, self.waiting = self.waiting, []
        for index, call in waiting:
            if self.applied >= index:
                call()
            else:
                self.waiting.append((index, call))
        self.coordinator.is_current()
        self.markers.reconcile()

    # -- what a coordinator, a gate and writers of markers need --------------------------------

    @property
    def coordinator_term(self):
        leads = self.heard_term % len(self.world.nodes) == self.number
        has_all = self.applied >= self.world.begins[self.heard_term]
        return self.heard_term if leads and has_all else -1

    @property
    def transactions(self):
        return self.view().transactions

    @property
    def sinks(self):
        return self.view().sinks

    def view(self):
        return self.world.views[self.applied]

    def now_ms(self):
        return self.world.now_ms

    wall_ms = now_ms

    def led_replicas(self):
        for group in self.world.groups.values():
            if group.leader == self.number:
                yield group.name, group.replica

    async def take(self):
        await self.world.wait()
        self.world.numbers += 1
        return self.world.numbers

    def order(self, command, timeout_ms, done):
        world = self.world

        def arrive():
            index, result = world.carry_out(command)
            self.waiting.append((index, lambda: done(ResponseCode.SUCCESS, "", result)))

        if world.is_stormy and world.random.random() < 0.15:
            world.after(200, lambda: done(ResponseCode.TIMEOUT, "it takes too long", None))
            if world.random.random() < 0.7:
                late_ms = world.random.randint(0, 4_000)
                world.after(late_ms, lambda: world.carry_out(command))
        else:
            world.after(world.delay_ms(), arrive)

    async def execute(self, command, timeout_ms):
        answered = asyncio.get_running_loop().create_future()
        self.order(command, timeout_ms, lambda *found: answered.set_result(found))
        code, text, result = await answered
        if result is None:
            raise error_for(code, text)
        return result

    async def until_committed(self, condition, timeout_ms):
        end_ms = self.world.now_ms + timeout_ms
        while not condition() and self.world.now_ms < end_ms:
            await self.world.wait()
        return condition()

    def ask_barrier(self, timeout_ms, done):
        if self.world.is_stormy and self.world.random.random() < 0.1:
            done(False)
        else:
            self.waiting.append((len(self.world.views) - 1, lambda: done(True)))

    async def barrier(self, timeout_ms):
        answered = asyncio.get_running_loop().create_future()
        self.ask_barrier(timeout_ms, answered.set_result)
        return await answered


class Marking:
    """What the writers of markers see of a node: barriers with a function that is called."""

    def __init__(self, node):
        self.barrier = node.ask_barrier
        self.order, self.view, self.led_replicas = node.order, node.view, node.led_replicas
        self.now_ms, self.wall_ms = node.now_ms, node.wall_ms


class Group:
    """The log of a partition group: a new leader may lack what was not committed."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.leader, self.term, self.committed = 0, 1, 0
        self.blocks, self.answers = [], {}
        self.at_end, self.base = PartitionTable(), PartitionTable()
        self.replica = None
        for number in range(PARTITIONS):
            if group_of(number) == name:
                opened = PartitionOpened(number + 1, number, TOPIC_ID, "t")
                for table in (self.at_end, self.base):
                    table.apply(0, opened)
        self.elect(0)

    def elect(self, leader):
        """Another node leads; it has all that is committed, and maybe more."""
        self.leader, self.term = leader, self.term + 1
        kept = self.world.random.randint(self.committed, len(self.blocks))
        del self.blocks[kept:]
        self.at_end = self.base.copy()
        for index in range(self.committed, kept):
            apply(self.at_end, self.blocks[index], index)
        answers, self.answers = self.answers, {}
        for index, answer in answers.items():
            if index >= kept:
                answer(ResponseCode.NOT_LEADER)
            else:
                self.answers[index] = answer
        tables = SimpleNamespace(is_trusted=True, is_incomplete=False)
        tables.partitions, tables.partitions_at_end = self.base, self.at_end
        core = SimpleNamespace(role=Role.LEADER, term=self.term, is_ready=False)
        if self.replica is not None:
            self.replica.core.role = Role.FOLLOWER
        appends = SimpleNamespace(settle=lambda channel, producer_id: None)  # nothing is queued
        self.replica = SimpleNamespace(
            core=core, tables=tables, propose=self.propose, appends=appends
        )
        self.world.after(self.world.delay_ms(), lambda: self.ready(core))

    def ready(self, core):
        if core.term == self.term:
            self.commit(len(self.blocks))
            core.is_ready = True

    def propose(self, block, answer, produced):
        if self.world.is_stormy and self.world.random.random() < 0.03:
            answer(SimpleNamespace(code=ResponseCode.TERM_CHANGED), [])
            return
        found = self.at_end.check(produced)
        if found.appended is not None and found.appended.index >= self.committed:
            answer(SimpleNamespace(code=ResponseCode.TERM_CHANGED), [])  # later, it may be known
            return
        if found.code is not ResponseCode.SUCCESS or found.appended is not None:
            answer(SimpleNamespace(code=found.code), [])
            return
        body = block.data[HEADER_SIZE:]
        offset = self.at_end.partitions[produced.channel].next_offset
        stamp_batch(body, 0, offset, self.term)
        index, term = len(self.blocks), self.term
        self.blocks.append(block)
        apply(self.at_end, block, index)
        self.answers[index] = lambda code: answer(SimpleNamespace(code=code), [])
        self.world.after(
            self.world.delay_ms(), lambda: term == self.term and self.commit(index + 1)
        )

    def commit(self, count):
        while self.committed < count:
            apply(self.base, self.blocks[self.committed], self.committed)
            answer = self.answers.pop(self.committed, None)
            self.committed += 1
            if answer is not None:
                answer(ResponseCode.SUCCESS)

    def visible(self):
        """Yield (partition, value) of all records that readers of committed transactions see."""
        for block in self.blocks[: self.committed]:
            header = batch_header(block.data, HEADER_SIZE)
            channel = HEADER.unpack_from(block.data)[5]
            if header.is_control or header.base_offset >= self.base.stable_offset(channel):
                continue
            aborted = self.base.transactions.aborted_within(
                channel, header.base_offset, header.base_offset + 1
            )
            if header.producer_id not in [one for one, _ in aborted]:
                yield channel - 1, header.first_timestamp


def apply(table, block, index):
    for _, what in table.found_in(block, index, []):
        table.apply(index, what)


class Client:
    """A program with a transactional producer; two of them may have the same id."""

    def __init__(self, world, name, transactional_id):
        self.world, self.name, self.id = world, name, transactional_id
        self.producer = None

    async def run(self):
        while self.world.is_stormy:
            self.producer = await self.begin()
            self.sequences = dict.fromkeys(range(PARTITIONS), 0)
            while self.world.is_stormy and await self.transact():
                await self.world.wait(self.world.random.randint(0, 5))

    async def ask(self, request, of="coordinator"):
        """Ask the coordinator until it answers something that is not to be tried again."""
        while True:
            node = self.world.nodes[self.world.term % len(self.world.nodes)]
            if self.world.random.random() < 0.1 and self.world.is_stormy:
                node = self.world.random.choice(self.world.nodes)
            found = ErrorCode.NOT_COORDINATOR
            if node.coordinator.is_current():
                found = await request(getattr(node, of))
            error = found if isinstance(found, ErrorCode) else getattr(found, "error", None)
            if error not in RETRIED:
                return found
            await self.world.wait(2)

    async def begin(self):
        """Begin anew, or go on as the producer that this one was, with a higher epoch."""
        nobody = Producer(self.id, -1, -1)
        asked = nobody
        if self.producer is not None and self.world.random.random() < 0.5:
            asked = self.producer
        found = await self.ask(lambda one: one.init(asked, 3_000))
        if found.error is ErrorCode.PRODUCER_FENCED:
            assert asked is not nobody
            found = await self.ask(lambda one: one.init(nobody, 3_000))
        assert found.error is ErrorCode.NONE, found
        owner = self.world.given.setdefault((found.producer_id, found.epoch), self.name)
        assert owner == self.name, "another one has this epoch"
        return Producer(self.id, found.producer_id, found.epoch)

    async def transact(self):
        """Do one transaction; return whether this producer may go on."""
        chance = self.world.random
        self.world.numbers += 1
        number = self.world.numbers
        self.world.sent[number], wanted = [], chance.sample(range(PARTITIONS), chance.randint(1, 3))
        places = [(TOPIC_ID, one) for one in wanted]
        groups = ["g"] if chance.random() < 0.4 else []
        added = await self.ask(lambda one: one.add(self.producer, places, groups))
        if added is not ErrorCode.NONE:
            return False
        if groups:
            offset = OffsetToCommit(TOPIC_ID, 0, number)
            found = await self.ask(lambda one: one.add_offsets(self.producer, "g", [offset]))
            if found != [ErrorCode.NONE]:
                return False
            self.world.has_offsets.add(number)
        for _ in range(chance.choice((0, 1, 3, 10))):
            if not await self.produce(number, chance.choice(wanted)):
                return False
            if chance.random() < 0.02:
                await self.world.wait(300)  # longer than its time-out
        if chance.random() < 0.05 and self.world.is_stormy:
            return False  # the program ends in the middle
        commits = chance.random() < 0.7
        ended = await self.ask(lambda one: one.finish(self.producer, commits=commits))
        if ended is ErrorCode.NONE:
            self.world.told[number] = commits
        return ended is ErrorCode.NONE

    async def produce(self, number, partition):
        """Send a batch until it is stored or refused; sometimes it comes again, late."""
        sequence = self.sequences[partition]
        self.world.numbers += 1
        value = self.world.numbers
        self.world.sent[number].append((partition, value))
        data = batch_of(
            [value],
            producer_id=self.producer.producer_id,
            epoch=self.producer.epoch,
            sequence=sequence,
            is_transactional=True,
        )
        if self.world.random.random() < 0.1:
            late = self.offer(partition, bytes(data))
            self.world.after(1_000, lambda: asyncio.get_running_loop().create_task(late))
        while True:
            code = await self.offer(partition, bytes(data))
            if code is ResponseCode.SUCCESS:
                self.sequences[partition] += 1
                return True
            if code not in (ResponseCode.NOT_LEADER, ResponseCode.TERM_CHANGED, *RETRIED):
                return False
            await self.world.wait(2)

    async def offer(self, partition, data):
        """Do what a Produce does with a transactional batch (`handlers.produce`)."""
        group = self.world.groups[group_of(partition)]
        node, replica, header = self.world.nodes[group.leader], group.replica, batch_header(data)
        place, channel, gate = (TOPIC_ID, partition), partition + 1, node.gate
        if replica.core.role is not Role.LEADER or not replica.core.is_ready:
            return ResponseCode.NOT_LEADER
        refusal, is_known = gate.refusal(replica, channel, place, header), False
        while gate.needs_barrier(replica, group.name) or (refusal is not None and not is_known):
            term = replica.core.term
            if not await node.barrier(0):
                return ErrorCode.NOT_ENOUGH_REPLICAS
            if replica.core.role is not Role.LEADER or replica.core.term != term:
                return ResponseCode.NOT_LEADER
            gate.barrier_passed(group.name, term)
            is_known = True
            refusal = gate.refusal(replica, channel, place, header)
        if refusal is not None:
            return refusal.error
        answered = asyncio.get_running_loop().create_future()
        buffer = memoryview(bytearray(HEADER_SIZE) + data)
        replica.propose(
            block_around(buffer, HEADER_SIZE, len(buffer), channel),
            lambda response, _: answered.set_result(response.code),
            ProducedBatch(channel, header),
        )
        return await answered


class Task(Client):
    """A task of a sink, which leaves its transaction ongoing; it may go on late."""

    def __init__(self, world, batch, name):
        super().__init__(world, (batch, name, object()), attempt_id(batch.sink, name))
        self.batch, self.attempt = batch, name

    async def join(self):
        """Return who has the id of this task; None: its batch is not to be written."""
        found = await self.ask(lambda one: one.join(self.batch, self.id), of="sink_coordinator")
        if found.error is not ErrorCode.NONE or found.last_batch >= self.batch.batch_id:
            return None
        return found

    async def write(self):
        """Return the number of the transaction, and what the driver is told; None: it failed."""
        if await self.join() is None:
            return None
        self.producer = await self.begin()
        await self.world.wait(self.world.random.choice((0, 0, 1, 30)))
        found = await self.join()
        if found is None:
            return None
        chance = self.world.random
        self.world.numbers += 1
        number = self.world.numbers
        self.world.of_tasks.add(number)
        self.world.sent[number], self.sequences = [], dict.fromkeys(range(PARTITIONS), 0)
        wanted = chance.sample(range(PARTITIONS), 2)
        places = [(TOPIC_ID, one) for one in wanted]
        if await self.ask(lambda one: one.add(self.producer, places)) is not ErrorCode.NONE:
            return None
        for _ in range(chance.choice((1, 2, 4))):
            if not await self.produce(number, chance.choice(wanted)):
                return None
        return number, Attempt(self.attempt, found.producer_id, found.epoch)


class Query:
    """A driver that has its batches written by tasks, and starts again where its checkpoint is."""

    def __init__(self, world, sink):
        self.world, self.sink = world, sink
        self.asks = Client(world, sink, sink)
        self.late = []

    async def run(self):
        runs, batch = itertools.count(), 0
        while self.world.is_stormy:
            run = f"run {next(runs)}"
            while self.world.is_stormy:
                asked = SinkBatch(self.sink, run, batch)
                if not await self.write(asked):
                    break
                if self.world.random.random() < 0.1:
                    break  # the driver dies before its checkpoint has the batch
                batch += 1
                await self.world.wait(self.world.random.randint(0, 5))
        for task in self.late:
            await task

    async def write(self, batch):
        """Return whether the batch is committed."""
        chance, written = self.world.random, []
        for part in range(2):
            for attempt in range(3):
                writing = asyncio.create_task(Task(self.world, batch, f"{part}.{attempt}").write())
                if chance.random() < 0.2:
                    self.late.append(writing)  # it is taken for dead
                    continue
                found = await writing
                if found is not None:
                    written.append(found)
                    break
        if chance.random() < 0.05:
            return False  # the driver dies before its decision
        commits = len(written) == 2
        key = batch.sink, batch.batch_id
        if commits:
            numbers = [number for number, _ in written]
            self.world.decisions.setdefault(key, []).append(numbers)
        attempts = [one for _, one in written] if commits else []

        async def end(one):
            return await one.end(batch, attempts, commits=commits, is_last=False)

        ended = await self.asks.ask(end, of="sink_coordinator")
        is_done = ended.error is ErrorCode.NONE and ended.last_batch >= batch.batch_id
        if is_done:
            self.world.ended.add(key)
        return is_done


def disturb(world):
    """Have the coordinator, or the leader of a group, be another node."""
    chance = world.random.random()
    if chance < 0.01:
        world.term += 1
        world.begins[world.term] = len(world.views) - 1
    elif chance < 0.04:
        group = world.groups[world.random.choice(GROUPS)]
        group.elect(world.random.randrange(len(world.nodes)))


async def run(seed):
    world = World(seed)
    clients = [Client(world, number, f"id-{number % 3}") for number in range(4)]
    clients += [Query(world, "query"), Query(world, "query:0")]
    tasks = [asyncio.create_task(client.run()) for client in clients]
    for step in range(STORM_STEPS + QUIET_STEPS):
        world.is_stormy = step < STORM_STEPS
        if world.is_stormy:
            disturb(world)
        world.step()
        for _ in range(12):
            await asyncio.sleep(0)
        for task in tasks:
            if task.done():
                task.result()
    for task in tasks:
        assert task.done()
    return world


def check(world):
    """Assert what holds once it is quiet."""
    seen = [place for group in world.groups.values() for place in group.visible()]
    assert len(seen) == len(set(seen)), "a record is there twice"
    seen = set(seen)
    for number, records in world.sent.items():
        there = [place for place in records if place in seen]
        assert there in ([], records), f"a part of transaction {number}"
        if number in world.told:
            assert (there == records) is (world.told[number] or not records), number
    for batch, decisions in world.decisions.items():
        whole = [all(p in seen for n in one for p in world.sent[n]) for one in decisions]
        some = {n for one in decisions for n in one if set(world.sent[n]) & seen}
        assert sum(whole) == (batch in world.ended or bool(some)), f"batch {batch}: {whole}"
        named = [set(one) for one, is_whole in zip(decisions, whole, strict=True) if is_whole]
        assert some == set().union(*named), f"more than one decision of {batch}"
    named = {n for decisions in world.decisions.values() for one in decisions for n in one}
    for number in world.of_tasks - named:
        assert not set(world.sent[number]) & seen, "what no decision has named"
    assert world.ended, "some batches were committed"
    for group in world.groups.values():
        assert not group.base.transactions.has_ongoing
    assert not world.state.transactions.view().prepared
    groups = world.state.consumer_groups
    assert (groups.reserved_count, groups.reserved_bytes) == (0, 0)
    for record in groups.records.values():
        for number in (one.offset for one in record.offsets.values()):
            assert number in world.has_offsets
            assert world.told.get(number, True), "an offset of what was aborted"
            records = world.sent[number]
            assert all(place in seen for place in records), "an offset without its records"
    assert any(world.told.values()), "some were committed"
    counted = sum(node.counters.transactions_committed for node in world.nodes)
    assert counted > 0, "the metrics say so"


@pytest.mark.parametrize("seed", SEEDS)
def test_b3_b14_a_transaction_counts_everywhere_or_nowhere(seed):
    check(asyncio.run(run(seed)))


async def abandon():
    """Have a batch taken of a transaction that there is not, as if a check had failed."""
    world = World(0)
    world.is_stormy = False
    data = batch_of([1], producer_id=9, epoch=0, sequence=0, is_transactional=True)
    buffer = memoryview(bytearray(HEADER_SIZE) + bytes(data))
    block = block_around(buffer, HEADER_SIZE, len(buffer), 1)
    group = world.groups[GROUPS[0]]
    group.propose(block, lambda response, _: None, ProducedBatch(1, batch_header(data)))
    for _ in range(200):
        world.step()
        await asyncio.sleep(0)
    return group.base


def test_b3_what_goes_on_in_a_partition_and_nowhere_else_is_aborted():
    table = asyncio.run(abandon())
    assert not table.transactions.has_ongoing
    assert table.transactions.aborted_within(1, 0, 9) == [(9, 0)]
