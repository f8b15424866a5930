"""Simulated transactional producers, and readers of what they have committed.

Whatever fails finally, a producer starts again: with the same transactional id, which fences
whoever had it. Some of them share an id.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.codes import ResponseCode
from quorumlog.node.replica.partition_reads import PartitionRead, ReadBatches
from quorumlog.records.batch import batch_header
from quorumlog.records.markers import marker_commits
from quorumlog.sim.broker_cluster import BrokerCluster
from quorumlog.sim.broker_node import Answer, BrokerNode, PlaceOfPartition
from quorumlog.sim.broker_requests import AGAIN, BrokerClient, BrokerRequests
from quorumlog.sim.partition_answers import PartitionServed
from quorumlog.sim.partition_batches import SentBatch, encode_batch
from quorumlog.sim.sent_transactions import SentTransaction, SentTransactions

OUTPUT: Final = "out"
OUTPUT_PARTITIONS: Final = 4
TIMEOUT_MS: Final = 5_000
"""How long a transaction may take."""
GIVE_UP_MS: Final = 8_000
"""A producer whose request fails again and again starts anew after this time."""
READ_BYTES: Final = 1 << 16


class Habits(NamedTuple):
    """What a producer does to its transactions, each as a share of them, and when it ends them.

    It commits them rather than aborts them, aborts them while a batch is under way, leaves them as
    they are, or takes long for them. `lingers_ms`: for how long it leaves those alone that it is
    about to end, at least and at most; None: it ends them at once.
    """

    commits: float = 0.7
    abandons: float = 0.05
    dies: float = 0.03
    dawdles: float = 0.06
    lingers_ms: tuple[int, int] | None = None


class Offsets(NamedTuple):
    """Offsets of a consumer group that a transaction commits, and the member whose they are."""

    group: str
    topic: str
    committed: Sequence[Any]
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class TransactionalProducer(BrokerClient):
    """A producer with a transactional id. `who`: producer id and epoch; None: it has none yet."""

    habits = Habits()

    def __init__(
        self, requests: BrokerRequests, name: str, transactional_id: str, sent: SentTransactions
    ) -> None:
        super().__init__(requests, name)
        self.id = transactional_id
        self.who: tuple[int, int] | None = None
        self._sent = sent
        self._sequences: dict[int, int] = {}

    async def _again(self, what: str, ask: Callable[[], Awaitable[int | None]]) -> bool:
        """Ask until it is done, or refused finally; return whether it is done."""
        clock = self.requests.cluster.clock
        end_ms = clock.now_ms + GIVE_UP_MS
        while clock.now_ms < end_ms:
            asked_us = clock.now_us
            error = await ask()
            if error == ErrorCode.NONE:
                if self.who is not None:
                    self._sent.worked(self.id, self.who, asked_us, what)
                return True
            self.look_elsewhere(error)
            if error not in AGAIN:
                return False
            await self.requests.wait_ms(10, 60)
        return False

    async def begin(self) -> bool:
        """Take the transactional id; return whether this has worked."""
        self.who, self._sequences = None, {}
        found: list[Any] = []

        async def ask() -> int | None:
            answer = await self.coordinate(
                ApiKey.INIT_PRODUCER_ID,
                3,
                transactional_id=self.id,
                transaction_timeout_ms=TIMEOUT_MS,
                producer_id=-1,
                producer_epoch=-1,
            )
            found[:] = [answer]
            return None if answer is None else answer["error_code"]

        if not await self._again("InitProducerId", ask):
            return False
        self.who = found[0]["producer_id"], found[0]["producer_epoch"]
        self._sent.given(self.id, self.who, self.requests.cluster.clock.now_us)
        return True

    async def transact(self, offsets: Offsets | None = None) -> bool:
        """Do one transaction; return whether it was committed, as far as is known."""
        random, sent = self.random, self._sent.begin(self.id)
        numbers = random.sample(range(OUTPUT_PARTITIONS), random.randint(1, 3))
        if not await self._add(numbers):
            return await self._failed()
        if random.random() < self.habits.abandons and not self.requests.is_calm:
            return await self._abandon(sent, numbers[0])
        for _ in range(random.choice((1, 2, 4))):
            if not await self._write(sent, random.choice(numbers)):
                return await self._failed()
        if await self._dies_or_dawdles():
            return await self._failed()
        has_offsets = offsets is None or (
            await self._add_offsets(offsets) and not await self._dies_or_dawdles()
        )
        if not has_offsets:
            return await self._failed()
        if self.habits.lingers_ms is not None and not self.requests.is_calm:
            await self.requests.wait_ms(*self.habits.lingers_ms)
        commits = random.random() < self.habits.commits
        sent.may_commit = commits
        if not await self._end(commits=commits):
            return await self._failed()
        sent.told = commits
        return commits

    async def _abandon(self, sent: SentTransaction, number: int) -> bool:
        """Abort while a batch is on its way, which arrives late and must not be taken (KIP-890)."""
        place = await self.place_of(OUTPUT, number)
        if place is not None:
            data = encode_batch(self._made(sent, number, place))
            await self.produce(place, (OUTPUT, number), data, self.id, is_late=True)
        if await self._end(commits=False):
            sent.told = False
        return await self._failed()

    async def _dies_or_dawdles(self) -> bool:
        """Take long, maybe for too long; return True to end in the middle of the transaction."""
        chance = 1.0 if self.requests.is_calm else self.random.random()
        dies = self.habits.dies
        if dies <= chance < dies + self.habits.dawdles:
            await self.requests.wait_ms(TIMEOUT_MS // 5, TIMEOUT_MS + TIMEOUT_MS // 2)
        return chance < dies

    async def _failed(self) -> bool:
        """Start again: the transaction is left as it is, and who takes its id next aborts it."""
        self.who = None
        return False

    @property
    def _names(self) -> dict[str, Any]:
        producer_id, epoch = self.who or (-1, -1)
        return {
            "transactional_id": self.id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }

    async def _add(self, numbers: Sequence[int]) -> bool:
        async def ask() -> int | None:
            topics = [SimpleNamespace(name=OUTPUT, partitions=list(numbers))]
            names = {f"v3_and_below_{key}": value for key, value in self._names.items()}
            answer = await self.coordinate(
                ApiKey.ADD_PARTITIONS_TO_TXN, 2, v3_and_below_topics=topics, **names
            )
            if answer is None:
                return None
            results = answer["results_by_topic_v3_and_below"][0]["results_by_partition"]
            return max(int(one["partition_error_code"]) for one in results)

        return await self._again("AddPartitionsToTxn", ask)

    async def _write(self, sent: SentTransaction, number: int) -> bool:
        """Send a batch until it is stored, or refused finally."""
        batch: SentBatch | None = None

        async def ask() -> int | None:
            nonlocal batch
            place = await self.place_of(OUTPUT, number)
            if place is None:
                return None
            if batch is None:
                batch = self._made(sent, number, place)
            data = encode_batch(batch)
            batch.sends += 1
            error, offset = await self.produce(place, (OUTPUT, number), data, self.id)
            if error == ErrorCode.NONE:
                sent.acknowledged[batch.number] = batch.offset = offset
            return error

        return await self._again("Produce", ask)

    def _made(self, sent: SentTransaction, number: int, place: PlaceOfPartition) -> SentBatch:
        producer_id, epoch = self.who or (-1, -1)
        batches, count = self.requests.cluster.batches, self.random.randint(1, 3)
        batch = SentBatch(
            len(batches) + 1,
            place.channel,
            count,
            self.random.choice((8, 40, 200)),
            -1,
            producer_id=producer_id,
            epoch=epoch,
            sequence=self._sequences.get(number, 0),
            is_transactional=True,
        )
        self._sequences[number] = batch.sequence + count
        batches[batch.number] = batch
        self._sent.add_batch(sent, batch.number)
        return batch

    async def _add_offsets(self, offsets: Offsets) -> bool:
        async def add() -> int | None:
            answer = await self.coordinate(
                ApiKey.ADD_OFFSETS_TO_TXN, 2, group_id=offsets.group, **self._names
            )
            return None if answer is None else answer["error_code"]

        async def commit() -> int | None:
            answer = await self.coordinate(
                ApiKey.TXN_OFFSET_COMMIT,
                3,
                group_id=offsets.group,
                generation_id=offsets.generation,
                member_id=offsets.member_id,
                group_instance_id=offsets.instance_id,
                topics=[SimpleNamespace(name=offsets.topic, partitions=offsets.committed)],
                **self._names,
            )
            if answer is None:
                return None
            return max(int(one["error_code"]) for one in answer["topics"][0]["partitions"])

        added = await self._again("AddOffsetsToTxn", add)
        return added and await self._again("TxnOffsetCommit", commit)

    async def _end(self, *, commits: bool) -> bool:
        async def ask() -> int | None:
            answer = await self.coordinate(ApiKey.END_TXN, 2, committed=commits, **self._names)
            return None if answer is None else answer["error_code"]

        has_ended = await self._again("EndTxn", ask)
        if has_ended:
            who = self.who or (-1, -1)
            self.requests.cluster.coordination.told_end(self.id, who, commits=commits)
        return has_ended

    async def run(self) -> None:
        """Do one transaction after the other, until the network is calm."""
        while not self.requests.is_calm:
            if self.who is None and not await self.begin():
                await self.requests.wait_ms(50, 300)
                continue
            await self.transact()
            await self.requests.wait_ms(1, 60)


class CommittedReader(BrokerClient):
    """Reads committed records, and knows aborted ones as consumers do (KIP-98)."""

    def __init__(self, requests: BrokerRequests, name: str, sent: SentTransactions) -> None:
        super().__init__(requests, name)
        self.reads = 0
        self._sent = sent
        self._positions = [0] * OUTPUT_PARTITIONS

    async def run(self) -> None:
        """Read on anywhere, until the network is calm."""
        while not self.requests.is_calm:
            number = self.random.randrange(OUTPUT_PARTITIONS)
            offset = self._positions[number]
            if self.random.random() < 0.2:
                offset = self.random.randint(0, offset)
            found = await self._read(number, offset)
            if found is not None:
                self.reads += 1
                for batch in _visible(found):
                    self._sent.seen(batch, f"a reader of partition {number}")
                end = _end_of(found, offset)
                self._positions[number] = max(end, self._positions[number])
            await self.requests.wait_ms(1, 60)

    async def read_all(self) -> Counter[int] | None:
        """Return all batches that are visible, and how often each is; None: not all can be read.

        What is not stable yet cannot.
        """
        seen: Counter[int] = Counter()
        for number in range(OUTPUT_PARTITIONS):
            offset, following = -1, 0
            while offset < following:
                offset = following
                found = await self._read(number, offset)
                if found is None or found.stable_offset < found.high_watermark:
                    return None
                seen.update(_visible(found))
                following = _end_of(found, offset)
        return seen

    async def _read(self, number: int, offset: int) -> ReadBatches | None:
        place = await self.place_of(OUTPUT, number)
        if place is None:
            return None
        cluster = self.requests.cluster
        found: ReadBatches | None = await self.requests.ask(
            place.leader, lambda node, answer: _read_at(cluster, node, place, offset, answer)
        )
        if found is None or found.code is not ResponseCode.SUCCESS:
            return None
        return found


def _read_at(
    cluster: BrokerCluster, node: BrokerNode, place: PlaceOfPartition, offset: int, answer: Answer
) -> None:
    """Do what a Fetch does with one partition (`kafka.handlers.fetch`)."""
    replica = node.replicas.get(place.group)
    if replica is None or replica.partition_reads.refusal() is not None:
        answer(None)
        return
    core, asked_us = replica.core, cluster.clock.now_us
    term, committed, as_of = core.term, core.committed_index, replica.tables.as_of
    group = cluster.checks.group_of(replica)

    def answered(results: list[ReadBatches]) -> None:
        (found,) = results
        if found.code is ResponseCode.SUCCESS:
            served = PartitionServed(
                node.node_id,
                term,
                (asked_us, cluster.clock.now_us),
                place.channel,
                offset,
                as_of,
                committed,
                found.high_watermark,
                found.log_start,
                found.stable_offset,
                True,
                found.aborted,
                [batch_header(batch) for batch in found.batches],
            )
            group.check(lambda invariant: invariant.served(served))
        answer(found)

    reads = [PartitionRead(place.channel, offset, READ_BYTES, True)]
    replica.partition_reads.read(reads, READ_BYTES, answered, node)


def _end_of(found: ReadBatches, offset: int) -> int:
    return batch_header(found.batches[-1]).last_offset + 1 if found.batches else offset


def _visible(found: ReadBatches) -> list[int]:
    """Return the numbers of the batches that a consumer gives to its program."""
    aborted, shown = sorted(found.aborted, key=lambda one: one[1]), []
    aborting: set[int] = set()
    for batch in found.batches:
        header = batch_header(batch)
        while aborted and aborted[0][1] <= header.last_offset:
            aborting.add(aborted.pop(0)[0])
        if header.is_control:
            if marker_commits(batch, 0, len(batch)) is False:
                aborting.discard(header.producer_id)
        elif header.producer_id not in aborting:
            shown.append(header.first_timestamp)
    return shown
