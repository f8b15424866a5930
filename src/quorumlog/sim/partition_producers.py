"""Simulated idempotent producers of record batches, as Kafka's clients are.

A producer has up to five batches under way in a partition, over one connection. Once the outcome of
one is unknown it connects again and sends them one after the other, in order, until all are
acknowledged. It may be one of two with the same producer id: whoever starts again gets an epoch
that fences the other. If it writes in transactions, all of its batches are parts of some, each of
which it ends in all partitions by markers, as a coordinator would have them written.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from quorumlog.model.codes import ResponseCode, WriteLevel
from quorumlog.sim.finding import Finding
from quorumlog.sim.partition_batches import SentBatch
from quorumlog.sim.partition_requests import Connection, PartitionRequests

IN_FLIGHT_MAX = 5
PATIENCE_MS = 3_000
"""After this time without an answer a connection is given up."""
RECONNECTS, RESTARTS = 0.03, 0.01
"""Shares of steps in which a producer loses its connection, or starts again with another epoch."""
SIZES = (8, 40, 400)
BURSTS = (1, 1, 3)
"""How many batches a producer sends at a time."""
ENDS, COMMITS = 0.2, 0.6
"""Shares of steps in which a transaction ends, if it can, and of transactions that commit."""
OUT_OF_ORDER = frozenset(
    {
        ResponseCode.SEQUENCE_GAP,
        ResponseCode.SEQUENCE_MISMATCH,
        ResponseCode.UNKNOWN_PRODUCER,
    }
)
ALL = 0.2
"""Share of batches that are to be on all voters before they are answered."""


class Epochs:
    """Who may write with each producer id: a producer that starts gets the next epoch."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}

    def next_of(self, producer_id: int) -> int:
        """Return the epoch of a producer that starts."""
        epoch = self._next.get(producer_id, 0)
        self._next[producer_id] = epoch + 1
        return epoch


@dataclass(slots=True)
class _Stream:
    """What one producer sends to one partition. `waiting` are not acknowledged, in order.

    `under_way` are the numbers of those that were sent over the present connection. Until the
    first batch is acknowledged no other is sent.
    """

    channel: int
    next_sequence: int = 0
    has_begun: bool = False
    repeats: bool = False
    since_ms: int = 0
    connection: Connection | None = None
    waiting: deque[SentBatch] = field(default_factory=deque)
    under_way: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Ending:
    """A marker on its way to a partition, and when it is sent again."""

    marker: SentBatch
    due_ms: int = 0


class IdempotentProducer:
    """One producer; `is_alone`: no other has its producer id. `is_transactional`: see above."""

    def __init__(
        self,
        name: str,
        producer_id: int,
        epochs: Epochs,
        requests: PartitionRequests,
        *,
        is_alone: bool,
        is_transactional: bool,
    ) -> None:
        self._name = name
        self._id = producer_id
        self._epochs = epochs
        self._requests = requests
        self._random: Random = requests.clock.random
        self._is_alone = is_alone
        self._is_transactional = is_transactional
        self._ending: dict[int, _Ending] = {}
        """By channel: the markers of the transaction that ends."""
        self._start()

    def _start(self) -> None:
        """Start, again maybe: what is not acknowledged is given up."""
        self._epoch = self._epochs.next_of(self._id)
        self._streams: dict[int, _Stream] = {}
        self._written: set[int] = set()
        """Channels with records of the present transaction."""

    def step(self, channels: Sequence[int]) -> None:
        """Send what may be sent now, for the first time or again, or lose the connection."""
        random, now_ms = self._random, self._requests.clock.now_ms
        if random.random() < RESTARTS:
            self._start()
        for channel in [one for one in self._streams if one not in channels]:
            del self._streams[channel]  # it was closed
        if self._is_ending(channels) or not channels:
            return
        channel = random.choice(channels)
        stream = self._streams.setdefault(channel, _Stream(channel))
        is_late = bool(stream.under_way) and now_ms - stream.since_ms > PATIENCE_MS
        if is_late or random.random() < RECONNECTS:
            self._lose_connection(stream)
        if stream.connection is None:
            stream.connection = self._requests.connect()
        for _ in range(random.choice(BURSTS)):
            if stream.connection is not None and self._may_send(stream):
                self._send(stream, stream.connection)

    def _send(self, stream: _Stream, connection: Connection) -> None:
        if not stream.repeats:
            stream.waiting.append(self._made(stream))
        sent = stream.waiting[0] if stream.repeats else stream.waiting[-1]
        stream.under_way.add(sent.number)
        stream.since_ms = self._requests.clock.now_ms
        epoch = self._epoch
        take: Callable[[ResponseCode], None] = lambda code: self._answered(  # noqa: E731
            epoch, stream, connection, sent, code
        )
        self._requests.produce(self._name, connection, sent, take)

    def _may_send(self, stream: _Stream) -> bool:
        if stream.repeats:
            return not stream.under_way
        limit = IN_FLIGHT_MAX if stream.has_begun else 1
        return len(stream.waiting) < limit

    def _made(self, stream: _Stream) -> SentBatch:
        random = self._random
        count = random.randint(1, 4)
        self._written.add(stream.channel)
        sent = self._requests.batch(
            stream.channel,
            count,
            random.choice(SIZES),
            level=WriteLevel.ALL if random.random() < ALL else WriteLevel.REPLICATION,
            producer_id=self._id,
            epoch=self._epoch,
            sequence=stream.next_sequence,
            is_transactional=self._is_transactional,
        )
        stream.next_sequence += count
        return sent

    def _is_ending(self, channels: Sequence[int]) -> bool:
        """Send the markers of a transaction that ends; return whether some are missing yet."""
        random, now_ms = self._random, self._requests.clock.now_ms
        may_end = self._is_transactional and self._written and not self._ending
        has_waiting = any(stream.waiting for stream in self._streams.values())
        if may_end and not has_waiting and random.random() < ENDS:
            commits = random.random() < COMMITS
            self._ending = {one: _Ending(self._marker(one, commits)) for one in self._written}
            self._written = set()
        self._ending = {one: ending for one, ending in self._ending.items() if one in channels}
        for channel, ending in self._ending.items():
            connection = self._requests.connect()
            if now_ms < ending.due_ms or connection is None:
                continue
            ending.due_ms = now_ms + random.randint(100, PATIENCE_MS)
            take = partial(self._marked, channel, ending)
            self._requests.produce(self._name, connection, ending.marker, take)
        return bool(self._ending)

    def _marker(self, channel: int, commits: bool) -> SentBatch:
        return self._requests.batch(
            channel,
            1,
            0,
            producer_id=self._id,
            epoch=self._epoch,
            is_transactional=True,
            commits=commits,
        )

    def _marked(self, channel: int, ending: "_Ending", code: ResponseCode) -> None:
        if code is ResponseCode.SUCCESS and self._ending.get(channel) is ending:
            del self._ending[channel]

    @staticmethod
    def _lose_connection(stream: _Stream) -> None:
        stream.connection = None
        stream.under_way.clear()
        stream.repeats = bool(stream.waiting)

    def _answered(
        self,
        epoch: int,
        stream: _Stream,
        connection: Connection,
        sent: SentBatch,
        code: ResponseCode,
    ) -> None:
        """Take the answer to a batch, unless all that it belongs to was given up."""
        if epoch != self._epoch or self._streams.get(stream.channel) is not stream:
            return
        if code is ResponseCode.SUCCESS:
            self._acknowledged(stream, sent)
        elif connection is stream.connection and sent.number in stream.under_way:
            self._failed(stream, sent, code)

    def _acknowledged(self, stream: _Stream, sent: SentBatch) -> None:
        stream.has_begun = True
        stream.under_way.discard(sent.number)
        while stream.waiting and stream.waiting[0].offset >= 0:
            stream.waiting.popleft()
        stream.repeats = stream.repeats and bool(stream.waiting)

    def _failed(self, stream: _Stream, sent: SentBatch, code: ResponseCode) -> None:
        """Send it again; a sequence that does not go on is wrong only if nothing is before it."""
        if code is ResponseCode.PRODUCER_FENCED and not self._is_alone:
            self._start()
            return
        is_first = stream.waiting[0] is sent
        if code is ResponseCode.PRODUCER_FENCED or (code in OUT_OF_ORDER and is_first):
            text = f"{sent.name} of epoch {sent.epoch} is answered with {code.name}"
            raise Finding("partitions", f"{text}; nobody else has its id")
        self._lose_connection(stream)
