"""Writes the markers of transactions to the partitions of the groups that this node leads.

`__cluster` says which transactions are decided, and which of their partitions lack markers. The
leader of a partition appends its marker, and says so once that is committed. Both are compared
again and again, so it does not matter where an earlier leader stopped: a marker that comes twice
has no further effect.

A leader looks only once its view of `__cluster` has all that was committed when it became one. Else
it might take an earlier transaction of a producer, whose markers were written, for undecided ones
of the transaction that is ongoing now.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from quorumlog.broker.partition_keeper import Order, is_sure
from quorumlog.log_events import log_event
from quorumlog.machine.cluster.commands import AnyResult, MarkersWritten
from quorumlog.machine.cluster.consumer_groups import Partition
from quorumlog.machine.cluster.state import ClusterView
from quorumlog.machine.cluster.transactions import TransactionRecord
from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.client import AppendResponse
from quorumlog.node.replica.replica import Replica
from quorumlog.records.batch import batch_header
from quorumlog.records.markers import encode_marker
from quorumlog.topics.produced_batch import ProducedBatch, block_around

logger = logging.getLogger(__name__)

MARKERS_PER_TURN: Final = 1_000
"""Markers that are appended in one turn of the loop."""
TOLD_MAX: Final = 5_000
"""Partitions in one command that says that they have their markers."""
ORDER_MS: Final = 10_000
"""How long `__cluster` may take to learn of it; then it is told again."""
RETRY_MS: Final = 200
"""Pause after a marker, or the question how far `__cluster` has come, failed."""
STRAY_MS: Final = 1_000
"""Pause between two looks for transactions that go on in a partition, and have ended elsewhere."""


class MarkingNode(Protocol):
    """What the writers of one node need; `now_ms` reads a monotonic clock, `wall_ms` Unix time."""

    def view(self) -> ClusterView:
        """Return what `__cluster` holds, as far as is known here."""
        ...

    def led_replicas(self) -> Iterable[tuple[str, Replica]]:
        """Return the partition groups that are led here, with their replicas."""
        ...

    @property
    def order(self) -> Order:
        """Has `__cluster` carry out a command."""
        ...

    def barrier(self, timeout_ms: int, done: Callable[[bool], None]) -> None:
        """Call `done` once the view has all that is committed now, or with False."""
        ...

    def now_ms(self) -> int:
        """Return the time."""
        ...

    def wall_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        ...


class Marker(NamedTuple):
    """One marker: which transaction of an id it ends, and in which partition."""

    transactional_id: str
    number: int
    place: Partition


class MarkerWriter:
    """The markers of one group, while this node leads it.

    All methods run on the event loop's thread. `look` has `reconcile` called again.
    """

    def __init__(self, name: str, node: MarkingNode, look: Callable[[], None]) -> None:
        self._name = name
        self._order = node.order
        self._ask = node.barrier
        self._look = look
        self._now_ms = node.now_ms
        self._wall_ms = node.wall_ms
        self._term = -1
        """In which the view has all that earlier leaders knew."""
        self._asked_term = -1
        self._appending: set[Marker] = set()
        self._written: dict[Marker, None] = {}
        """Those that are committed, and that `__cluster` may not know of yet."""
        self._is_telling = False
        self._retry_ms = self._stray_ms = 0

    @property
    def is_busy(self) -> bool:
        """Whether something is under way, or is to be tried again."""
        return bool(self._appending or self._written) or self._retry_ms > self._now_ms()

    def _is_current(self, replica: Replica) -> bool:
        """Whether this node leads the group, and its view is as new as its leadership at least."""
        core = replica.core
        if core.role is not Role.LEADER or not core.is_ready:
            return False
        if core.term not in (self._term, self._asked_term):
            self._ask_for(core.term)
        return core.term == self._term

    def _ask_for(self, term: int) -> None:
        def done(has_passed: bool) -> None:
            if self._asked_term == term:
                self._asked_term = -1
                self._term = term if has_passed else self._term
                self._look()

        if self._now_ms() >= self._retry_ms:
            self._asked_term, self._retry_ms = term, self._now_ms() + RETRY_MS
            self._appending, self._written = set(), {}
            self._ask(ORDER_MS, done)

    def reconcile(self, view: ClusterView, replica: Replica) -> None:
        """Append the markers that are missing, and tell of those that are not any more."""
        has_ongoing = replica.tables.partitions.transactions.has_ongoing
        if not (view.transactions.prepared or has_ongoing or self._written):
            return
        if not self._is_current(replica):
            return
        missing = dict.fromkeys(self._missing(view))
        self._written = {one: None for one in self._written if one in missing}
        self._tell()
        now_ms = self._now_ms()
        if now_ms < self._retry_ms:
            return
        for marker in missing:
            if len(self._appending) >= MARKERS_PER_TURN:
                break
            if marker not in self._appending and marker not in self._written:
                self._append(view, replica, marker)
        if has_ongoing and now_ms >= self._stray_ms and is_sure(replica):
            self._stray_ms = now_ms + STRAY_MS
            self._end_strays(view, replica)

    def _missing(self, view: ClusterView) -> Iterator[Marker]:
        """Yield the markers that `__cluster` wants in partitions of this group."""
        for record in view.transactions.prepared.values():
            for place in record.partitions:
                found = _channel_of(view, place, self._name)
                if found is not None:
                    yield Marker(record.transactional_id, record.number, place)

    # -- what the log says --------------------------------------------------------------------

    def _append(self, view: ClusterView, replica: Replica, marker: Marker) -> None:
        record = view.transactions.records[marker.transactional_id]
        channel = _channel_of(view, marker.place, self._name)
        if channel is None or channel not in replica.tables.partitions_at_end.partitions:
            return  # it is opened first
        term = replica.core.term

        def answered(response: AppendResponse, _: object) -> None:
            if term != self._term:
                return
            self._appending.discard(marker)
            if response.code == ResponseCode.SUCCESS:
                self._written[marker] = None
            else:
                self._retry_ms = self._now_ms() + RETRY_MS
            self._look()

        self._appending.add(marker)
        data = encode_marker(
            record.producer_id,
            record.epoch,
            record.decided_term,
            self._wall_ms(),
            commits=record.commits,
        )
        _propose(replica, channel, data, answered)

    def _end_strays(self, view: ClusterView, replica: Replica) -> None:
        """Abort what goes on in partitions although the transaction has ended, or never was.

        A batch is taken only for an ongoing transaction of its partition, and this node's view has
        come further since. So none is known to lead to this; without a marker it would hold up the
        readers of the partition for ever.
        """
        table = replica.tables.partitions
        for channel, producer_id in table.transactions.ongoing():
            found = view.assignments.get(self._name, {}).get(channel)
            record = view.transactions.of_producer(producer_id)
            if found is None or _is_in(record, (found.topic_id, found.number)):
                continue
            log_event(
                logger,
                logging.WARNING,
                "transaction without an end aborted",
                group=self._name,
                topic=found.topic,
                partition=found.number,
                producer_id=producer_id,
            )
            epoch, term = table.epoch_of(channel, producer_id), replica.core.term
            data = encode_marker(producer_id, epoch, term, self._wall_ms(), commits=False)
            _propose(replica, channel, data, lambda response, _: None)

    # -- what `__cluster` is told -------------------------------------------------------------

    def _tell(self) -> None:
        if self._is_telling or not self._written:
            return
        by_transaction: dict[tuple[str, int], list[Partition]] = {}
        for marker in list(self._written)[:TOLD_MAX]:
            of = marker.transactional_id, marker.number
            by_transaction.setdefault(of, []).append(marker.place)
        self._is_telling = True

        def done(code: ResponseCode, text: str, result: AnyResult | None) -> None:
            self._is_telling = False
            self._look()

        written = [(*of, places) for of, places in by_transaction.items()]
        self._order(MarkersWritten(written), ORDER_MS, done)


class MarkerWriters:
    """The writers of one node, one for each group that it leads or has led."""

    def __init__(self, node: MarkingNode) -> None:
        self._node = node
        self._writers: dict[str, MarkerWriter] = {}
        self._is_looking = False

    def reconcile(self) -> bool:
        """Have markers written that are missing; return whether anything is under way."""
        view, is_busy = self._node.view(), False
        for name, replica in self._node.led_replicas():
            writer = self._writers.get(name)
            if writer is None:
                writer = self._writers[name] = MarkerWriter(name, self._node, self._look)
            writer.reconcile(view, replica)
            is_busy = is_busy or writer.is_busy
        for name in self._writers.keys() - view.groups.keys():
            del self._writers[name]
        return is_busy

    def _look(self) -> None:
        """Look again once the present turn of the loop is over, in which more may happen."""
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._look_now)

    def _look_now(self) -> None:
        self._is_looking = False
        self.reconcile()


def _is_in(record: TransactionRecord | None, place: Partition) -> bool:
    return record is not None and record.is_open and place in record.partitions


def _channel_of(view: ClusterView, place: Partition, group: str) -> int | None:
    """Return the channel of a partition if it is in a group; None: it is elsewhere, or gone."""
    topic = view.topics_by_id.get(place[0])
    if topic is None or place[1] >= len(topic.partitions):
        return None
    found = topic.partitions[place[1]]
    return found.channel if found.group == group else None


def _propose(
    replica: Replica,
    channel: int,
    data: bytes,
    answer: Callable[[AppendResponse, object], None],
) -> None:
    buffer = memoryview(bytearray(HEADER_SIZE) + data)
    block = block_around(buffer, HEADER_SIZE, len(buffer), channel)
    replica.propose(block, answer, ProducedBatch(channel, batch_header(data)))
