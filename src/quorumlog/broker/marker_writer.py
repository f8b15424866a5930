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
from collections.abc import Callable, Iterable, Mapping
from functools import partial
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

MARKERS_MAX: Final = 1_000
"""Markers of one group that are on their way into its log at a time."""
TOLD_MAX: Final = 5_000
"""Partitions in one command that says that they have their markers."""
TOLD_BYTES_MAX: Final = 128 * 1024
"""Bytes of ids in such a command; a small one if a broker's entries are small."""
ORDER_MS: Final = 10_000
"""How long `__cluster` may take to learn of it; then it is told again."""
RETRY_MS: Final = 200
"""Pause after a marker, or the question how far `__cluster` has come, failed."""
HANGING_MS: Final = 1_000
"""Pause between two looks for transactions that hang: ongoing in a partition, and nowhere else."""


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
        """Has `__cluster` apply a command."""
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
    """One marker: which transaction of an id and a producer it ends, and in which partition."""

    transactional_id: str
    number: int
    producer_id: int
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
        self._hanging: set[tuple[int, int]] = set()
        """Channel and producer of those that are about to be aborted."""
        self._retry_ms = self._hanging_ms = 0

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
                if has_passed:
                    self._term, self._retry_ms = term, 0
                self._look()

        if self._now_ms() >= self._retry_ms:
            self._asked_term, self._retry_ms = term, self._now_ms() + RETRY_MS
            self._appending, self._written, self._hanging = set(), {}, set()
            self._ask(ORDER_MS, done)

    def reconcile(self, view: ClusterView, replica: Replica, missing: Mapping[Marker, int]) -> None:
        """Append the markers that are missing, and tell of those that are not any more.

        `missing`: those that `__cluster` wants in this group, with their channels.
        """
        has_ongoing = replica.tables.partitions.transactions.has_ongoing
        if not (missing or has_ongoing or self._written):
            return
        if not self._is_current(replica):
            return
        self._written = {one: None for one in self._written if one in missing}
        now_ms = self._now_ms()
        if now_ms < self._retry_ms:
            return
        self._tell()
        for marker, channel in missing.items():
            if len(self._appending) >= MARKERS_MAX:
                break
            if marker not in self._appending and marker not in self._written:
                self._append(view, replica, marker, channel)
        if has_ongoing and now_ms >= self._hanging_ms and is_sure(replica):
            self._hanging_ms = now_ms + HANGING_MS
            self._end_hanging(view, replica)

    # -- what the log says --------------------------------------------------------------------

    def _append(self, view: ClusterView, replica: Replica, marker: Marker, channel: int) -> None:
        if channel not in replica.tables.partitions_at_end.partitions:
            return  # it is opened first
        record = view.transactions.records[marker.transactional_id]
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
        producer = channel, record.producer_id, record.epoch
        self._propose(replica, producer, record.decided_term, answered, commits=record.commits)

    def _end_hanging(self, view: ClusterView, replica: Replica) -> None:
        """Abort what is ongoing in partitions although it has ended elsewhere, or never was there.

        A batch is taken only for an ongoing transaction of its partition, and this node's view has
        come further since. So none is known to lead to this; without a marker it would hold up the
        readers of the partition for ever.
        """
        table, term = replica.tables.partitions, replica.core.term
        for key in table.transactions.ongoing():
            channel, producer_id = key
            found = view.assignments.get(self._name, {}).get(channel)
            record = view.transactions.of_producer(producer_id)
            epoch = table.epoch_of(channel, producer_id)
            if found is None or key in self._hanging or len(self._hanging) >= MARKERS_MAX:
                continue
            if _is_in(record, epoch, (found.topic_id, found.number)):
                continue
            log_event(
                logger,
                logging.WARNING,
                "hanging transaction aborted",
                group=self._name,
                topic=found.topic,
                partition=found.number,
                producer_id=producer_id,
            )
            self._hanging.add(key)
            producer = channel, producer_id, epoch
            self._propose(replica, producer, term, partial(self._ended, key), commits=False)

    def _ended(self, key: tuple[int, int], response: AppendResponse, _: object) -> None:
        self._hanging.discard(key)

    def _propose(
        self,
        replica: Replica,
        producer: tuple[int, int, int],
        coordinator_term: int,
        answer: Callable[[AppendResponse, object], None],
        *,
        commits: bool,
    ) -> None:
        """Have the marker of a producer (channel, id, epoch) appended."""
        channel, producer_id, epoch = producer
        time_ms = self._wall_ms()
        data = encode_marker(producer_id, epoch, coordinator_term, time_ms, commits=commits)
        buffer = memoryview(bytearray(HEADER_SIZE) + data)
        block = block_around(buffer, HEADER_SIZE, len(buffer), channel)
        replica.propose(block, answer, ProducedBatch(channel, batch_header(data)))

    # -- what `__cluster` is told -------------------------------------------------------------

    def _tell(self) -> None:
        if self._is_telling or not self._written:
            return
        by_transaction: dict[tuple[str, int, int], list[Partition]] = {}
        size_bytes = 0
        for marker in list(self._written)[:TOLD_MAX]:
            of = marker.transactional_id, marker.number, marker.producer_id
            if of not in by_transaction:
                size_bytes += len(marker.transactional_id.encode())
                if by_transaction and size_bytes > TOLD_BYTES_MAX:
                    break
            by_transaction.setdefault(of, []).append(marker.place)
        self._is_telling = True

        def done(code: ResponseCode, text: str, result: AnyResult | None) -> None:
            self._is_telling = False
            if code is not ResponseCode.SUCCESS:
                self._retry_ms = self._now_ms() + RETRY_MS
            self._look()

        written = [(name, number, at) for (name, number, _), at in by_transaction.items()]
        producer_ids = [producer_id for _, _, producer_id in by_transaction]
        self._order(MarkersWritten(written, producer_ids), ORDER_MS, done)


def _is_in(record: TransactionRecord | None, epoch: int, place: Partition) -> bool:
    """Whether what a producer of an epoch has ongoing in a partition is known to be so."""
    if record is None or place not in record.partitions:
        return False
    return record.is_prepared or (record.state == "Ongoing" and record.epoch == epoch)


def _missing_markers(view: ClusterView) -> dict[str, dict[Marker, int]]:
    """Return the markers that partitions lack, by group, with their channels."""
    found: dict[str, dict[Marker, int]] = {}
    for record in view.transactions.prepared.values():
        for place in record.partitions:
            topic = view.topics_by_id.get(place[0])
            if topic is None or place[1] >= len(topic.partitions):
                continue
            partition = topic.partitions[place[1]]
            marker = Marker(record.transactional_id, record.number, record.producer_id, place)
            found.setdefault(partition.group, {})[marker] = partition.channel
    return found


class MarkerWriters:
    """The writers of one node, one for each group that it leads or has led."""

    def __init__(self, node: MarkingNode) -> None:
        self._node = node
        self._writers: dict[str, MarkerWriter] = {}
        self._is_looking = False
        self._view: ClusterView | None = None
        self._missing: dict[str, dict[Marker, int]] = {}
        """Markers that partitions lack as of this view, by group."""

    def reconcile(self) -> bool:
        """Have markers written that are missing; return whether anything is under way."""
        view, is_busy = self._node.view(), False
        if view is not self._view:
            self._view, self._missing = view, _missing_markers(view)
        for name, replica in self._node.led_replicas():
            writer = self._writers.get(name)
            if writer is None:
                writer = self._writers[name] = MarkerWriter(name, self._node, self._look)
            writer.reconcile(view, replica, self._missing.get(name, {}))
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
