"""Simulated clients of a group that holds partitions: producers, a consumer, an administrator."""

from collections.abc import Callable
from functools import partial
from random import Random

from quorumlog.model.codes import ResponseCode, WriteLevel
from quorumlog.model.errors import Outcome, error_for
from quorumlog.node.replica.partition_reads import ReadBatches
from quorumlog.records.batch import batch_header
from quorumlog.sim.client_connections import ClientConnections
from quorumlog.sim.operations import Operation
from quorumlog.sim.partition_batches import SentBatch
from quorumlog.sim.partition_producers import BURSTS, SIZES, Epochs, IdempotentProducer
from quorumlog.sim.partition_requests import Connection, PartitionRequests
from quorumlog.topics.entries import LogStartsMoved, PartitionClosed, PartitionOpened

OPEN_MIN, OPEN_MAX = 2, 4
"""How many partitions are open at the same time."""
TWINS = 0.4
"""Share of runs in which two producers have the same id."""
REPEATED = 0.1
"""Share of batches that a plain producer sends again though it has an answer."""
LEVELS = (WriteLevel.RECEIVE, WriteLevel.PERSISTENCE, WriteLevel.REPLICATION, WriteLevel.ALL)
ADMIN_PAUSES = 12
"""An administrator acts this much less often than other clients."""
PATIENCE_MS = 4_000
READS_COMMITTED = 0.5
"""Share of reads that are of committed transactions only."""
TRANSACTIONAL = 0.5
"""Share of idempotent producers that write in transactions."""
TOPIC = "t"


class PartitionClients:
    """All clients of a cluster that holds partitions; see `Clients`, whose place they take."""

    def __init__(self, connections: ClientConnections, seed: int) -> None:
        self._connections = connections
        self._clock = connections.clock
        self._requests = requests = PartitionRequests(connections)
        chance = Random(f"partitions {seed}")  # noqa: S311  (nothing secret)
        has_twins, epochs = chance.random() < TWINS, Epochs()
        self._producers = [
            IdempotentProducer(
                f"producer {number}",
                1 if has_twins else number,
                epochs,
                requests,
                is_alone=not has_twins,
                is_transactional=chance.random() < TRANSACTIONAL,
            )
            for number in (1, 2)
        ]
        self._open: list[int] = []
        self._last_channel = 0
        self._ends: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._paused_until_ms = 0
        self.reads = 0
        self.is_running = self._is_started = False
        self.pause_ms = (1, 100)

    # -- what invariants read ---------------------------------------------------------------------

    @property
    def batches(self) -> dict[int, SentBatch] | None:
        """See `ClientsView`; None also if these clients were never started."""
        return self._requests.batches if self._is_started else None

    @property
    def starts_asked(self) -> set[tuple[int, int]]:
        """See `ClientsView`."""
        return self._requests.starts_asked

    @property
    def asked(self) -> set[bytes]:
        """See `ClientsView`: no entries but batches."""
        return self._connections.asked

    @property
    def refused(self) -> set[bytes]:
        """See `ClientsView`."""
        return self._connections.refused

    @property
    def operations(self) -> list[Operation]:
        """See `ClientsView`."""
        return []

    @property
    def attempts(self) -> None:
        """See `ClientsView`."""

    @property
    def floor(self) -> int:
        """The highest index acknowledged so far."""
        return self._connections.floor

    @property
    def appended(self) -> int:
        """How many records were acknowledged."""
        return self._connections.appended

    # -- what happens -----------------------------------------------------------------------------

    def start(self, _: int) -> None:
        """Start all clients, whose number is fixed."""
        self.is_running = self._is_started = True
        for number, producer in enumerate(self._producers):
            self._again(lambda one=producer: one.step(self._open), number)  # type: ignore[misc]
        self._again(lambda: self._produce("plain"), 2)
        self._again(lambda: self._consume("consumer"), 3)
        self._again(lambda: self._administer("admin"), 4, ADMIN_PAUSES)

    def pause_until(self, time_ms: int) -> None:
        """Send nothing new before a time."""
        self._paused_until_ms = max(self._paused_until_ms, time_ms)

    def _again(self, act: Callable[[], None], delay_ms: float, times: int = 1) -> None:
        """Do something after a delay, and again and again."""

        def happen() -> None:
            if not self.is_running:
                return
            pause_ms = times * self._clock.random.uniform(*self.pause_ms)
            if self._paused_until_ms > self._clock.now_ms:
                pause_ms = self._paused_until_ms - self._clock.now_ms
            else:
                act()
            self._again(act, pause_ms, times)

        self._clock.after_ms(delay_ms, happen)

    def append(self, count: int, size: int, name: str = "client") -> None:
        """Send one batch, or open a partition if there is none."""
        if not self._open:
            self._open_next(name)
            return
        self._send(name, self._requests.batch(self._open[0], count, size))

    def _produce(self, name: str) -> None:
        """Send batches of a producer that is not idempotent, and some of them twice."""
        random, connection = self._clock.random, self._requests.connect()
        if not self._open or connection is None:
            return
        channel = random.choice(self._open)
        for _ in range(random.choice(BURSTS)):
            sent = self._requests.batch(
                channel,
                random.randint(1, 4),
                random.choice(SIZES),
                level=random.choice(LEVELS),
                gets_append_time=random.random() < 0.3,
            )
            self._send(name, sent, connection)
            if random.random() < REPEATED:
                again = partial(self._send, name, sent)
                self._clock.after_ms(random.uniform(1, 500), again)

    def _send(self, name: str, sent: SentBatch, connection: Connection | None = None) -> None:
        connection = connection or self._requests.connect()

        def take(code: ResponseCode) -> None:
            if code is ResponseCode.SUCCESS:
                if sent.offset >= 0:
                    end = max(self._ends.get(sent.channel, 0), sent.offset + sent.count)
                    self._ends[sent.channel] = end
            elif error_for(code, "").outcome is Outcome.DID_NOT_HAPPEN and sent.sends == 1:
                sent.is_refused = True

        if connection is not None:
            self._requests.produce(name, connection, sent, take)

    def _consume(self, name: str) -> None:
        """Read on from where the last read ended, or from anywhere."""
        random = self._clock.random
        if not self._open:
            return
        channel = random.choice(self._open)
        offset = self._positions.get(channel, 0)
        if random.random() < 0.2:
            offset = random.randint(0, self._ends.get(channel, 0) + 2)

        def take(found: ReadBatches) -> None:
            if found.code is ResponseCode.SUCCESS:
                self.reads += 1
                if found.batches:
                    last = batch_header(found.batches[-1]).last_offset
                    self._positions[channel] = last + 1
            elif found.high_watermark >= 0:  # it is outside of what there is
                self._positions[channel] = random.choice((found.log_start, found.high_watermark))

        committed = random.random() < READS_COMMITTED
        self._requests.read(name, channel, offset, take, reads_committed=committed)

    # -- administration ---------------------------------------------------------------------------

    def _administer(self, name: str) -> None:
        random = self._clock.random
        chance = random.random()
        if len(self._open) < OPEN_MIN or (chance < 0.1 and len(self._open) < OPEN_MAX):
            self._open_next(name)
        elif chance < 0.2 and len(self._open) > OPEN_MIN:
            channel = self._open.pop(random.randrange(len(self._open)))
            self._requests.write(name, PartitionClosed(channel), lambda code: None)
        elif chance < 0.4:  # a request that comes late: the channel was used
            self._opening(name, random.randint(1, self._last_channel))
        else:
            channel = random.choice(self._open)
            offset = random.randint(0, self._ends.get(channel, 0))
            self._requests.write(name, LogStartsMoved(((channel, offset),)), lambda code: None)

    def _open_next(self, name: str) -> None:
        """Open a partition on the next channel."""
        self._last_channel += 1
        channel = self._last_channel

        def take(code: ResponseCode) -> None:
            if code is ResponseCode.SUCCESS and channel not in self._open:
                self._open.append(channel)

        self._opening(name, channel, take)

    def _opening(
        self, name: str, channel: int, take: Callable[[ResponseCode], None] = lambda code: None
    ) -> None:
        self._requests.write(name, PartitionOpened(channel, channel, bytes(16), TOPIC), take)
