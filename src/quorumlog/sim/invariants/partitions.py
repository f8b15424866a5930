"""Partitions of topics: dense offsets, each batch once, reads of what is committed and no other."""

from bisect import bisect_left
from collections.abc import Callable, Mapping

from quorumlog.model.block import HEADER, HEADER_SIZE, Block
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import StorageError
from quorumlog.records.batch import BatchHeader, batch_header
from quorumlog.records.markers import marker_commits
from quorumlog.sessions.entries import decode_system_entry
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.invariants.committed import READ_BYTES
from quorumlog.sim.partition_answers import BatchAcknowledged, PartitionServed
from quorumlog.sim.partition_batches import SentBatch
from quorumlog.sim.partition_history import PartitionHistory, PartitionPast
from quorumlog.sim.views import ClusterView, NodeView
from quorumlog.storage.log.interface import Log
from quorumlog.topics.entries import LogStartsMoved, PartitionClosed, PartitionOpened


class Partitions(Invariant):
    """Reads the committed log once, whoever has it first, and compares all else with that.

    The index of batches of a replica is compared with its log whenever more than appends has
    happened to the log.
    """

    name = "partitions"

    def __init__(self) -> None:
        self.history = PartitionHistory()
        self._seen: dict[str, tuple[int, int]] = {}
        self._logs: dict[str, tuple[int, int, int]] = {}
        self._answers: list[tuple[int, Callable[[], None]]] = []
        self._watermarks: dict[int, dict[int, list[tuple[int, int]]]] = {}
        """By channel and term: (when it was answered, the highest one until then)."""
        self.heard_marker: Callable[[int, BatchHeader, bool], None] | None = None
        """Hears of each committed marker that ends a transaction, if brokers write the markers; a
        client that writes them has made each of them a batch of its own."""

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        batches = node.cluster.clients.batches
        if batches is None:
            return
        if node.core.committed_index > self.history.index:
            self._read_on(node, batches)
        if self._answers:
            self._check_answers()
        tables, log = node.running.tables, node.log
        now = node.life, tables.as_of
        if self._seen.get(node.node_id) != now:
            self._seen[node.node_id] = now
            self._compare_table(node)
        life, begin, end = self._logs.get(node.node_id, (-1, -1, -1))
        is_other = (life, begin) != (node.life, log.before_begin_index) or log.end_index < end
        self._logs[node.node_id] = node.life, log.before_begin_index, log.end_index
        if is_other:
            self._compare_index(node)

    def ended(self, cluster: ClusterView) -> None:
        """See `Invariant`: all members are equal now."""
        if cluster.clients.batches is None:
            return
        for node in cluster.members():
            self._read_on(node, cluster.clients.batches)
            last = node.core.committed_index
            self.require(self.history.index >= last, f"{last} of {node.node_id} cannot be read")
            self._compare_table(node)
            self._compare_index(node)
        self._check_answers()
        for sent in cluster.clients.batches.values():
            is_stored = sent.number in self.history.stored
            self.require(
                not (sent.is_refused and sent.sends == 1 and is_stored),
                f"{sent.name} is stored; its client was told that it did not happen",
            )

    # -- the committed log ------------------------------------------------------------------------

    def _read_on(self, node: NodeView, batches: Mapping[int, SentBatch]) -> None:
        """Take what was committed since, as far as this node can read it."""
        history, log = self.history, node.log
        while log.before_begin_index <= history.index < node.core.committed_index:
            try:
                run = log.read(history.index + 1, node.core.committed_index, READ_BYTES)
            except StorageError:
                return  # another node can, or this one later
            self._take(run.block(), run.first_index, batches)
            history.index = run.last_index

    def _take(self, block: Block, first_index: int, batches: Mapping[int, SentBatch]) -> None:
        data = block.data
        for index, offset in enumerate(block.offsets.tolist(), first_index):
            header, start = HEADER.unpack_from(data, offset), offset + HEADER_SIZE
            channel = header[5]
            if channel == SYSTEM_CHANNEL:
                self._take_system(index, bytes(data[start : start + header[8]]))
            elif channel:
                whole = memoryview(data)[start : start + header[8]]
                self._take_batch(index, channel, whole, batches)

    def _take_batch(
        self, index: int, channel: int, data: memoryview, batches: Mapping[int, SentBatch]
    ) -> None:
        history, header = self.history, batch_header(data)
        if header.is_control and self.heard_marker is not None:
            self._take_marker(index, channel, data)
            return
        sent = batches.get(header.first_timestamp)
        commits = None if sent is None else sent.commits
        wrong = history.appended(index, channel, header, commits=commits)
        if sent is None or sent.channel != channel:
            self.require(False, f"nobody sent the batch at {index} to channel {channel}")
            return
        where = f"{sent.name} is at {index} on channel {channel}"
        self.require(not wrong, f"{where}: {wrong}")
        before, most = history.copies[sent.number] - 1, 1 if sent.is_idempotent else sent.sends
        self.require(before < most, f"{where}, and is stored {before} times before")

    def _take_marker(self, index: int, channel: int, data: memoryview) -> None:
        """Take a marker that a broker has written, whose number means nothing."""
        header, commits = batch_header(data), marker_commits(data, 0, len(data))
        past = self.history.past.get(channel)
        ends = past is not None and header.producer_id in past.ongoing
        wrong = self.history.appended(index, channel, header, commits=commits)
        self.require(not wrong, f"the marker at {index} of channel {channel}: {wrong}")
        self.require(commits is not None, f"the marker at {index} of channel {channel} is none")
        if ends and self.heard_marker is not None:
            self.heard_marker(channel, header, bool(commits))

    def _take_system(self, index: int, body: bytes) -> None:
        entry, history = decode_system_entry(body), self.history
        if isinstance(entry, PartitionOpened):
            history.opened(index, entry.channel)
        elif isinstance(entry, PartitionClosed):
            history.closed(index, entry.channel)
        elif isinstance(entry, LogStartsMoved):
            for channel, offset in entry.starts:
                history.starts_moved(index, channel, offset)

    # -- what replicas derive ---------------------------------------------------------------------

    def _compare_table(self, node: NodeView) -> None:
        """Compare the committed table of a replica with what the log says up to there."""
        tables = node.running.tables
        index = tables.as_of
        if tables.is_incomplete or not tables.is_trusted or index > self.history.index:
            return
        table = tables.partitions
        found = {
            channel: (partition.log_start, partition.next_offset, table.stable_offset(channel))
            for channel, partition in table.partitions.items()
        }
        expected = {
            channel: (past.start(index), past.end(index), past.stable(index))
            for channel, past in self.history.past.items()
            if past.is_open(index)
        }
        self.require(
            found == expected,
            f"{node.node_id} has the partitions {found} after the entry {index}, not {expected}",
        )

    def _compare_index(self, node: NodeView) -> None:
        """Compare a replica's index of batches with its log."""
        tables, log = node.running.tables, node.log
        if tables.is_incomplete or not tables.is_trusted or log.damaged:
            return
        try:
            expected = _batches_in(log)
        except StorageError:
            return  # it has found its damage just now
        for channel in tables.partitions_at_end.partitions:
            found = [
                (batch.index, batch.base_offset)
                for batch in tables.batches.batches_from(channel, 0)
                if batch.index > log.before_begin_index
            ]
            there = expected.get(channel, [])
            self.require(
                found == there,
                f"{node.node_id} has {found[-3:]} in its index of channel {channel}, and "
                f"{there[-3:]} in its log (batches: {len(found)} and {len(there)})",
            )

    # -- what clients are told --------------------------------------------------------------------

    def acknowledged_batch(self, answer: BatchAcknowledged) -> None:
        """See `Invariant`."""
        self._answers.append((answer.index, lambda: self._check_acknowledged(answer)))

    def served(self, answer: PartitionServed) -> None:
        """See `Invariant`."""
        self._answers.append((answer.as_of, lambda: self._check_served(answer)))
        self._answers.append((-1, lambda: self._check_watermark(answer)))

    def _check_answers(self) -> None:
        """Check what nodes have answered, as far as the committed log is known here."""
        answers, self._answers = self._answers, []
        for index, check in answers:
            if index <= self.history.index:
                check()
            else:
                self._answers.append((index, check))

    def _check_acknowledged(self, answer: BatchAcknowledged) -> None:
        sent = answer.sent
        self.require(
            answer.committed_index >= answer.index,
            f"{answer.node_id} acknowledged {sent.name} at {answer.index} when "
            f"{answer.committed_index} was committed",
        )
        past = self.history.past.get(sent.channel)
        stored = None if past is None else past.batch_at(answer.offset)
        found = (sent.number, answer.index)
        self.require(
            stored is not None and (stored.number, stored.index) == found,
            f"{sent.name} was acknowledged at {answer.index}, offset {answer.offset} of channel "
            f"{sent.channel}, where {stored} is",
        )

    def _check_watermark(self, answer: PartitionServed) -> None:
        """A leader serves at least what was served before, by itself or by leaders before it."""
        self.require(
            answer.as_of <= answer.committed_index,
            f"{answer.what} as of {answer.as_of}; committed was {answer.committed_index}",
        )
        asked_us, answered_us = answer.times_us
        by_term, known = self._watermarks.setdefault(answer.channel, {}), 0
        for term, marks in by_term.items():
            if term <= answer.term:
                # a node that was suspended has many requests in one moment: none is before another
                place = bisect_left(marks, asked_us, key=lambda pair: pair[0])
                known = max(known, marks[place - 1][1] if place else 0)
        self.require(
            answer.high_watermark >= known,
            f"{answer.what} up to {answer.high_watermark}, after {known} had been served",
        )
        marks = by_term.setdefault(answer.term, [])
        marks.append((answered_us, max(answer.high_watermark, marks[-1][1] if marks else 0)))

    def _check_served(self, answer: PartitionServed) -> None:
        past, index = self.history.past.get(answer.channel), answer.as_of
        if past is None or not past.is_open(index):
            self.require(False, f"{answer.what}, which is not open after the entry {index}")
            return
        bounds = past.start(index), past.end(index)
        self._check_transactions(answer, past)
        self.require(
            (answer.log_start, answer.high_watermark) == bounds
            and bounds[0] <= answer.offset <= bounds[1],
            f"{answer.what}, {answer.log_start} to {answer.high_watermark}, after the entry "
            f"{index}, where the partition is {bounds[0]} to {bounds[1]}",
        )
        following = answer.headers[0].base_offset if answer.headers else answer.offset
        self.require(following <= answer.offset, f"{answer.what} with what begins at {following}")
        for header in answer.headers:
            stored = past.batch_at(header.base_offset)
            self.require(
                stored is not None
                and (stored.number, stored.count) == (header.first_timestamp, header.count)
                and stored.index <= index
                and header.base_offset == following,
                f"{answer.what} with the batch {header.first_timestamp} at {header.base_offset}, "
                f"after {following} and the entry {index}, where {stored} is",
            )
            following = header.last_offset + 1

    def _check_transactions(self, answer: PartitionServed, past: PartitionPast) -> None:
        """Readers of committed transactions see what has ended, and know what was aborted."""
        stable = past.stable(answer.as_of)
        self.require(
            answer.stable_offset == stable,
            f"{answer.what}: the last stable offset {answer.stable_offset} is {stable} in truth",
        )
        if not answer.reads_committed or not answer.headers:
            return
        end = answer.headers[-1].last_offset + 1
        aborted = past.aborted_within(answer.offset, end, answer.as_of)
        self.require(
            end <= stable and answer.aborted == aborted,
            f"{answer.what} to {end}, with {answer.aborted} as aborted; stable is {stable}, and "
            f"{aborted} were aborted",
        )


def _batches_in(log: Log) -> dict[int, list[tuple[int, int]]]:
    """Return (index, base offset) of all batches in a log, by channel. Raises `StorageError`."""
    found: dict[int, list[tuple[int, int]]] = {}
    first = log.before_begin_index + 1
    while first <= log.end_index:
        run = log.read(first, log.end_index, READ_BYTES)
        block = run.block()
        for index, offset in enumerate(block.offsets.tolist(), run.first_index):
            channel = HEADER.unpack_from(block.data, offset)[5]
            if channel not in (0, SYSTEM_CHANNEL):
                header = batch_header(block.data, offset + HEADER_SIZE)
                found.setdefault(channel, []).append((index, header.base_offset))
        first = run.last_index + 1
    return found
