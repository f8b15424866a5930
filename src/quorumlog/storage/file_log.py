"""A group's log in files: staged in memory, written by plans, read from memory or by mmap."""

from collections import deque
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np

from quorumlog.model.block import (
    HEADER_SIZE,
    INDEX_RECORD_DTYPE,
    INDEX_RECORD_SIZE,
    Block,
    Buffer,
    Int64s,
    encode_entry,
    first_damaged,
    first_index_of,
    headers,
    index_records,
    stamp,
    term_runs_of,
)
from quorumlog.model.codes import Magic
from quorumlog.model.errors import (
    CorruptionError,
    IndexOutOfRangeError,
    IndexRemovedError,
    check,
)
from quorumlog.storage.advice import EMPTYING_IS_SAFE_WHEN
from quorumlog.storage.base import Span, WritePlan
from quorumlog.storage.checkpoint import Checkpoint, CheckpointFile, DurableHint
from quorumlog.storage.file_sequence import FileSequence, SequenceFile
from quorumlog.storage.plans import Do, Plan, Step, Write
from quorumlog.storage.recovery import Recovered
from quorumlog.storage.tail import Piece, TailCache
from quorumlog.storage.term_runs import TermRuns

BLANK_RESERVE = 8
"""Bytes that stay free behind the last entry of a data file, for a blank record."""


@dataclass(slots=True)
class _Mark:
    """The end of the log as a staged write leaves it."""

    index: int
    position: int
    chain_crc: int
    term: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Entries start … stop - 1 of a block that lie together in one file."""

    start: int
    stop: int
    position: int


class FileLog:
    """See `Log`. Staging methods are called on one thread; `read` on any."""

    def __init__(
        self,
        data: FileSequence,
        index: FileSequence,
        recovered: Recovered,
        checkpoints: CheckpointFile,
        checkpoint: Checkpoint | None,
        hint: DurableHint,
        tail_cache_bytes: int,
    ) -> None:
        self._data = data
        self._index = index
        self._checkpoints = checkpoints
        self._hint = hint
        self._begin_position = recovered.begin_position
        self.before_begin_index = recovered.before_begin_index
        self.before_begin_term = recovered.before_begin_term
        self._end = _Mark(
            recovered.end_index,
            recovered.end_position,
            recovered.end_chain_crc,
            recovered.end_term,
        )
        self._durable = self._end
        self._staged: deque[_Mark] = deque()
        self._committed_index = -1
        self._checkpointed = checkpoint
        self._index_synced = max(0, recovered.end_index)
        self._data_synced = recovered.end_position
        self._tail = TailCache(tail_cache_bytes)
        self._lock = Lock()
        self._runs = TermRuns()
        if recovered.end_index > recovered.before_begin_index:
            self._runs = TermRuns.found(
                recovered.before_begin_index + 1, recovered.end_index, self._term_on_disk
            )

    # -- ends -------------------------------------------------------------------------------

    @property
    def end_index(self) -> int:
        """See `Log`."""
        return self._end.index

    @property
    def end_chain_crc(self) -> int:
        """See `Log`."""
        return self._end.chain_crc

    @property
    def size_bytes(self) -> int:
        """See `Log`."""
        return self._end.position - self._begin_position

    def term_runs(self) -> list[tuple[int, int]]:
        """See `Log`."""
        return self._runs.pairs()

    # -- staging ----------------------------------------------------------------------------

    def append(self, block: Block, term: int) -> tuple[WritePlan, list[tuple[int, int]]]:
        """See `Log`."""
        first_index = self._end.index + 1
        runs, positions = self._place(block.sizes)
        chain_crc = stamp(block, first_index, term, positions, self._end.chain_crc)
        self._runs.append(term, first_index)
        plan = self._stage(block, runs, positions, chain_crc, term)
        return plan, [(first_index + run.start, run.position) for run in runs]

    def append_noop(self, term: int) -> WritePlan:
        """See `Log`."""
        data = memoryview(bytearray(encode_entry(b"", magic=Magic.NOOP)))
        zero = np.zeros(1, dtype=np.int64)
        plan, _ = self.append(Block(data, zero, zero + HEADER_SIZE), term)
        return plan

    def append_received(self, block: Block) -> WritePlan:
        """See `Log`."""
        check(first_index_of(block) == self._end.index + 1, "entries follow the end", self._end)
        runs, positions = self._place(block.sizes)
        for term, first in term_runs_of(block):
            self._runs.append(term, first)
        last = headers(block.slice(block.count - 1, block.count))[0]
        return self._stage(block, runs, positions, int(last["chain_crc"]), int(last["term"]))

    def _place(self, sizes: Int64s) -> tuple[list[_Run], Int64s]:
        """Decide where entries of these sizes go: none spans files (spec 20 section 3.1)."""
        ends = np.cumsum(sizes)
        positions = ends - sizes
        runs: list[_Run] = []
        start, position = 0, self._end.position
        while start < len(sizes):
            file_start = self._data.start_of(position)
            room = file_start + self._data.file_size - BLANK_RESERVE - position
            used = int(positions[start])
            stop = int(np.searchsorted(ends, used + room, side="right"))
            if stop > start:
                runs.append(_Run(start, stop, position))
                position += int(ends[stop - 1]) - used
                start = stop
            else:
                check(position > file_start, "an entry fits into a file", int(sizes[start]))
                position = file_start + self._data.file_size
        for run in runs:
            shift = run.position - int(positions[run.start])
            positions[run.start : run.stop] += shift
        return runs, positions

    def _stage(
        self, block: Block, runs: list[_Run], positions: Int64s, chain_crc: int, term: int
    ) -> WritePlan:
        """Take stamped entries into the log and return the write."""
        first_index = self._end.index + 1
        records = memoryview(index_records(block, positions))
        steps: list[Step] = []
        for run in runs:
            steps += self._blank_steps(run.position)
            part = block if len(runs) == 1 else block.slice(run.start, run.stop)
            self._end = _Mark(
                first_index + run.stop - 1, run.position + len(part.data), chain_crc, term
            )
            target = self._data.file_at(run.position)
            offset = run.position - target.start
            buffers: list[Buffer] = [part.data]
            steps.append(Write(target, offset, buffers, durable=True))
            piece_records = records[run.start * INDEX_RECORD_SIZE : run.stop * INDEX_RECORD_SIZE]
            with self._lock:
                self._tail.add(Piece(first_index + run.start, part, piece_records))
        steps += self._index_steps(first_index, records)
        self._staged.append(self._end)
        mark = self._end
        return Plan(
            self,
            steps,
            len(block.data),
            done=self._completed,
            synced=lambda: self._hint.write(mark.index, mark.position),
        )

    def _blank_steps(self, position: int) -> list[Step]:
        """Fill the rest of the file before the one that an entry begins."""
        if position == self._end.position or not len(self._data):
            return []
        target = self._data.file_at(self._end.position)
        left = target.end - self._end.position
        blank = int(Magic.BLANK).to_bytes(4, "big", signed=True) + left.to_bytes(4, "big")
        return [Write(target, self._end.position - target.start, [blank], durable=True)]

    def _index_steps(self, first_index: int, records: memoryview) -> list[Step]:
        """Index records are written but not fsynced: they can be made again from the data."""
        steps: list[Step] = []
        place, done = first_index * INDEX_RECORD_SIZE, 0
        while done < len(records):
            target = self._index.file_at(place + done)
            offset = place + done - target.start
            part = records[done : done + self._index.file_size - offset]
            steps.append(Write(target, offset, [part], durable=False))
            done += len(part)
        return steps

    def _completed(self) -> None:
        self._durable = self._staged.popleft()
        with self._lock:
            self._tail.evict(self._durable.index)

    def truncate(self, from_index: int) -> WritePlan:
        """See `Log`."""
        check(self.before_begin_index < from_index <= self._end.index, "inside", from_index)
        check(from_index > self._committed_index, "committed entries stay", from_index)
        end = self._mark_before(from_index)
        position = end.position
        with self._lock:
            self._tail.truncate(from_index)
        self._runs.truncate(from_index)
        old_end = replace(self._end)  # marks of staged writes are lowered in place below
        self._end = end
        for mark in self._staged:
            if mark.index >= from_index:
                mark.index, mark.position = end.index, end.position
                mark.chain_crc, mark.term = end.chain_crc, end.term
        if self._durable.index >= from_index:
            self._durable = end
        floor = replace(self._durable)  # entries up to `end` may still be waiting in this commit
        containing = self._data.file_at(position)
        later = self._data.drop_from(position + 1)
        place = from_index * INDEX_RECORD_SIZE
        index_file = self._index.file_at(place)
        later_index = self._index.drop_from(place + 1)
        old_place = (old_end.index + 1) * INDEX_RECORD_SIZE
        covered = self._covered_files(floor)
        lowered = self._lowered_checkpoint(floor)

        def cut() -> None:
            for file in covered:
                file.writable().sync()
            if lowered is not None:
                self._checkpoints.write(lowered)
            self._hint.write(floor.index, floor.position, durable=True)
            for file in (*later, *later_index):
                file.remove()
            self._data.forget_maps(later)
            self._index.forget_maps(later_index)
            containing.zero(position, old_end.position)
            index_file.zero(place, old_place)

        self._staged.append(end)
        return Plan(self, [Do(cut)], done=self._completed)

    def _lowered_checkpoint(self, end: _Mark) -> Checkpoint | None:
        """A checkpoint must never name entries that are being removed."""
        if self._checkpointed is None or self._checkpointed.index <= end.index:
            return None
        self._checkpointed = self._checkpoint_of(end)
        return self._checkpointed

    def _mark_before(self, from_index: int) -> _Mark:
        """Return the end of the log without from_index and what follows."""
        index = from_index - 1
        position = self._begin_position
        if index > self.before_begin_index:
            begin, size = self._place_of(index)
            position = begin + size
        return _Mark(
            index,
            position,
            self.chain_crc_at(index),
            self._runs.term_at(index, self.before_begin_term),
        )

    # -- reading ----------------------------------------------------------------------------

    def is_in_memory(self, first_index: int) -> bool:
        """See `Log`."""
        return self._tail.holds(first_index)

    def read(self, first_index: int, last_index: int, bytes_max: int) -> Span:
        """See `Log`."""
        self._check_range(first_index)
        with self._lock:
            piece = self._tail.piece_at(first_index) if self._tail.holds(first_index) else None
            # what is in the tail may not be on disk yet, or something older may be there
            last_on_disk = self._tail.before_first(self._end.index)
        if piece is not None:
            return piece.cut(first_index, last_index, bytes_max)
        return self._read_from_disk(first_index, min(last_index, last_on_disk), bytes_max)

    def _check_range(self, index: int) -> None:
        if index <= self.before_begin_index:
            raise IndexRemovedError(
                f"index {index} is below the first index kept, {self.before_begin_index + 1}"
            )
        if index > self._end.index:
            raise IndexOutOfRangeError(f"index {index} is beyond the end, {self._end.index}")

    def _read_from_disk(self, first_index: int, last_index: int, bytes_max: int) -> Span:
        """Cut one contiguous stretch out of a data file, as many entries as fit."""
        place = first_index * INDEX_RECORD_SIZE
        start, view = self._index.map_at(place)
        count = min(
            last_index - first_index + 1,
            (start + self._index.file_size - place) // INDEX_RECORD_SIZE,
            max(1, bytes_max // HEADER_SIZE),
        )
        table = np.frombuffer(view, INDEX_RECORD_DTYPE, count, place - start)
        positions = table["pos"].astype(np.int64)
        sizes = table["size"].astype(np.int64)
        file_start, data = self._data.map_at(int(positions[0]))
        ends = positions + sizes
        fits = ends - positions[0] <= bytes_max
        fits &= ends <= file_start + len(data)
        fits[1:] &= positions[1:] == ends[:-1]
        fits[0] = ends[0] <= file_start + len(data) and sizes[0] >= HEADER_SIZE
        count = count if fits.all() else int(np.argmin(fits))
        if not count:
            raise self._damaged(first_index, file_start, int(positions[0]) - file_start, "index")
        offsets = positions[:count] - positions[0]
        begin = int(positions[0]) - file_start
        block = Block(data[begin : int(ends[count - 1]) - file_start], offsets, sizes[:count])
        self._verify(block, table[:count], first_index, file_start + begin)
        records = view[place - start : place - start + count * INDEX_RECORD_SIZE]
        return Span(first_index, count, block.data, records, False)

    def _verify(self, block: Block, records: np.ndarray, first_index: int, position: int) -> None:
        """Raise `CorruptionError` unless headers, index records and body CRCs agree."""
        table = headers(block)
        agrees = table["size"] == records["size"]
        agrees &= table["body_size"] == table["size"] - HEADER_SIZE
        agrees &= table["index"] == np.arange(first_index, first_index + block.count)
        agrees &= table["term"] == records["term"]
        wrong = None if agrees.all() else int(np.argmin(agrees))
        reason = "header and index record disagree"
        if wrong is None:
            wrong, reason = first_damaged(block), "the body does not fit its CRC"
        if wrong is not None:
            start = self._data.start_of(position)
            offset = position - start + int(block.offsets[wrong])
            raise self._damaged(first_index + wrong, start, offset, reason)

    def _damaged(self, index: int, start: int, offset: int, reason: str) -> CorruptionError:
        path = f"{self._data.directory}/{start:020d}"
        return CorruptionError(
            f"{path}: byte {offset}, entry {index}: {reason}; it is not served. Restore "
            f"this replica's files. {EMPTYING_IS_SAFE_WHEN}",
            path,
            offset,
            index,
        )

    def chain_crc_at(self, index: int) -> int:
        """See `Log`."""
        if index == self._end.index:
            return self._end.chain_crc
        if index <= self.before_begin_index:
            return 0
        span = self.read(index, index, 1)
        return int.from_bytes(span.data[36:40], "big")

    def _place_of(self, index: int) -> tuple[int, int]:
        """Return where an entry begins on disk, and its size."""
        span = self.read(index, index, 1)
        record = np.frombuffer(span.records, INDEX_RECORD_DTYPE, 1)[0]
        return int(record["pos"]), int(record["size"])

    def _term_on_disk(self, index: int) -> int:
        start, view = self._index.map_at(index * INDEX_RECORD_SIZE)
        place = index * INDEX_RECORD_SIZE - start
        return int(np.frombuffer(view, INDEX_RECORD_DTYPE, 1, place)[0]["term"])

    # -- checkpoints ------------------------------------------------------------------------

    def note_committed(self, index: int) -> None:
        """See `Log`."""
        self._committed_index = max(self._committed_index, index)

    def _checkpoint_of(self, mark: _Mark) -> Checkpoint:
        return Checkpoint(
            index=mark.index,
            position=mark.position,
            chain_crc=mark.chain_crc,
            term=mark.term,
            before_begin_index=self.before_begin_index,
            before_begin_term=self.before_begin_term,
            committed_index=min(self._committed_index, mark.index),
        )

    def checkpoint(self) -> WritePlan | None:
        """See `Log`: names only what was reported durable before."""
        if self._durable.index <= self.before_begin_index:
            return None
        checkpoint = self._checkpoint_of(self._durable)
        if checkpoint == self._checkpointed:
            return None
        self._checkpointed = checkpoint
        covered = self._covered_files(self._durable)

        def write() -> None:
            for file in covered:
                file.writable().sync()
            self._checkpoints.write(checkpoint)

        return Plan(self, [Do(write)])

    def _covered_files(self, mark: _Mark) -> list[SequenceFile]:
        """Return the files to fsync before a checkpoint may name `mark`.

        Index records are never fsynced otherwise, entries not yet with flush=async.
        """
        place = max(0, mark.index) * INDEX_RECORD_SIZE
        synced_place = min(self._index_synced * INDEX_RECORD_SIZE, place)
        synced_position = min(self._data_synced, mark.position)
        self._index_synced, self._data_synced = max(0, mark.index), mark.position
        return [
            *self._index.files_over(synced_place, place),
            *self._data.files_over(synced_position, mark.position),
        ]

    def close(self) -> None:
        """Give all files back."""
        self._data.close()
        self._index.close()
        self._checkpoints.close()
        self._hint.close()
