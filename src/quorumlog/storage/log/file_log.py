"""A group's log in files: staged in memory, written by plans, read from memory or by mmap."""

from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import TypeAlias, TypeVar

import numpy as np

from quorumlog.model.block import (
    INDEX_RECORD_SIZE,
    Block,
    Int64s,
    config_block,
    first_index_of,
    index_records,
    last_term_and_chain_of,
    noop_block,
    stamp,
    term_runs_of,
)
from quorumlog.model.errors import (
    CorruptionError,
    InvariantViolation,
    StorageError,
    UnexpectedArgumentError,
    check,
)
from quorumlog.storage.entries.disk_reader import DiskReader
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.entries.placement import PlacedRun, data_steps, index_steps, place
from quorumlog.storage.entries.term_runs import TermRuns
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.files.sequence_file import SequenceFile
from quorumlog.storage.files.write_plans import (
    Appended,
    JournaledGroup,
    Plan,
    Preparable,
    WritePlan,
)
from quorumlog.storage.log.checkpointer import Checkpointer
from quorumlog.storage.log.interface import FreeSpace, Segment, check_holds
from quorumlog.storage.log.pending_writes import PendingWrites
from quorumlog.storage.log.segments import (
    closed_index,
    closed_segments,
    free_space_after,
    upcoming_files,
)
from quorumlog.storage.log.tail_cache import CachedRun, TailCache
from quorumlog.storage.metadata.checkpoint import (
    TERM_RUNS_MAX,
    UNKNOWN_CRC,
    Checkpoint,
    LogPoint,
    LogStart,
)
from quorumlog.storage.metadata.config_entries import ConfigEntries
from quorumlog.storage.metadata.store_metadata import StoreMetadata
from quorumlog.storage.recovery.quarantine import Quarantine
from quorumlog.storage.recovery.recovery import Recovered, write_leading_blank

R = TypeVar("R")
FromDisk: TypeAlias = Callable[[int, int, int], R]


class FileLog:
    """See `Log`. Staging methods are called on one thread; `read` and `verify` on any."""

    def __init__(
        self,
        data: FileSequence,
        index: FileSequence,
        recovered: Recovered,
        metadata: StoreMetadata,
        tail_cache_bytes: int,
        journaled: JournaledGroup,
    ) -> None:
        self._data, self._index = data, index
        self.file_sizes = data.file_size, index.file_size
        self._metadata = metadata
        self._reader = DiskReader(data, index, recovered.log_start)
        self._quarantine = Quarantine(data, index, self._reader, metadata)
        self.end_point = recovered.end
        """Where the log ends."""
        # these two are asked for all the time, so they are no properties
        self.before_begin_index = recovered.log_start.before_begin_index
        """See `Log`."""
        self.end_index = recovered.end.index
        """See `Log`; always that of `end_point`."""
        self._journaled = journaled
        self._newest_durable = PendingWrites(self.end_point)
        self._staged: deque[PendingWrites] = deque()
        self._committed_index = -1
        self.tail, self._lock = TailCache(tail_cache_bytes, self.end_point), Lock()
        self.damaged = self._noted_damage = recovered.damaged
        self._runs = _found_runs(metadata, recovered, self._reader)
        configs = self._configs = ConfigEntries(recovered.config_entries)
        self.checkpointer = Checkpointer(self, data, index, metadata, configs, recovered.end)

    def noted_runs(self) -> list[tuple[int, int]]:
        """Return the newest runs of terms, as many as a checkpoint names."""
        return self._runs.pairs()[-TERM_RUNS_MAX:]

    # -- ends -------------------------------------------------------------------------------

    @property
    def _log_start(self) -> LogStart:
        return self._reader.log_start

    @property
    def _durable(self) -> LogPoint:
        return self._newest_durable.point

    @property
    def before_begin_term(self) -> int:
        """See `Log`."""
        return self._log_start.before_begin_term

    @property
    def end_chain_crc(self) -> int:
        """See `Log`."""
        return max(0, self.end_point.chain_crc)

    @property
    def size_bytes(self) -> int:
        """See `Log`."""
        return self.end_point.position - self._log_start.position

    def term_runs(self) -> list[tuple[int, int]]:
        """See `Log`."""
        return self._runs.pairs()

    def config_entries(self) -> list[tuple[int, bytes]]:
        """See `Log`."""
        return list(self._configs.pairs)

    def segments(self) -> list[Segment]:
        """See `Log`."""
        return closed_segments(self._data, self._index, self._log_start, self._durable)

    def closed_index(self) -> int:
        """See `Log`."""
        return closed_index(self._data, self._index, self._log_start, self._durable)

    def free_space(self) -> FreeSpace:
        """See `Log`."""
        return free_space_after(self._data, self._index, self.end_point)

    def upcoming(self) -> list[Preparable]:
        """See `Log`."""
        return upcoming_files(self._data, self._index, self.end_point)

    # -- staging ----------------------------------------------------------------------------

    def append(self, block: Block, term: int) -> tuple[WritePlan, list[tuple[int, int]]]:
        """See `Log`."""
        first_index = self.end_index + 1
        runs, positions = place(self._data, self.end_point.position, block.sizes)
        chain_crc = stamp(block, first_index, term, positions, self.end_chain_crc)
        self._runs.append(term, first_index)
        plan = self._stage(block, runs, positions, chain_crc, term)
        return plan, [(first_index + run.start, run.position) for run in runs]

    def positions_of(self, sizes: Int64s) -> Int64s:
        """See `Log`."""
        return place(self._data, self.end_point.position, sizes)[1]

    def append_noop(self, term: int, *, compatible: bool = False) -> WritePlan:
        """See `Log`."""
        return self.append(noop_block(compatible=compatible), term)[0]

    def append_config(self, body: bytes, term: int, *, compatible: bool = False) -> WritePlan:
        """See `Log`."""
        block = config_block(body, compatible=compatible)
        plan, _ = self.append(block, term)
        self._configs.append(block)
        return plan

    def append_received(self, block: Block) -> WritePlan:
        """See `Log`."""
        if first_index_of(block) != self.end_index + 1:
            raise InvariantViolation(f"entries follow the end: {self.end_point}")
        runs, positions = place(self._data, self.end_point.position, block.sizes)
        for term, first in term_runs_of(block):
            self._runs.append(term, first)
        self._configs.append(block)
        term, chain_crc = last_term_and_chain_of(block)
        return self._stage(block, runs, positions, chain_crc, term)

    def _stage(
        self, block: Block, runs: list[PlacedRun], positions: np.ndarray, chain_crc: int, term: int
    ) -> WritePlan:
        """Take stamped entries into the log and return the write."""
        first_index = self.end_index + 1
        records = index_records(block, positions)
        parts = [block] if len(runs) == 1 else [block.slice(run.start, run.stop) for run in runs]
        steps = data_steps(self._data, runs, parts, self.end_point.position)
        steps += index_steps(self._index, first_index, memoryview(records))
        with self._lock:
            for run, part in zip(runs, parts, strict=True):
                of_run = records[run.start * INDEX_RECORD_SIZE : run.stop * INDEX_RECORD_SIZE]
                self.tail.add(CachedRun(first_index + run.start, part, of_run))
        end_position = runs[-1].position + len(parts[-1].data)
        last_index = first_index + len(block.sizes) - 1
        self.end_point = LogPoint(last_index, end_position, chain_crc, term)
        self.end_index = last_index
        staged = PendingWrites(self.end_point)
        self._staged.append(staged)
        return Plan(
            self,
            steps,
            len(block.data),
            done=self._completed,
            synced=lambda: staged.note_durable(self._metadata, self._reader.log_start),
            appended=Appended(self._journaled, last_index, end_position, chain_crc, term),
        )

    def _completed(self) -> None:
        self._newest_durable = self._staged.popleft()
        with self._lock:
            self.tail.evict(self._durable.index)
        self._configs.committed(min(self._committed_index, self._durable.index))

    # -- removing ---------------------------------------------------------------------------

    def truncate(self, from_index: int) -> WritePlan:
        """See `Log`."""
        check(self.before_begin_index < from_index <= self.end_point.index, "inside", from_index)
        check(from_index > self._committed_index, "committed entries stay", from_index)
        old_end, end = self.end_point, self._point_before(from_index)
        # Memory shows the truncated log at once: the entries that replace the removed ones are
        # staged before the disk thread has carried out the cut below.
        with self._lock:
            self.tail.truncate(from_index)
        self._runs.truncate(from_index)
        self._configs.truncate(from_index)
        self.damaged = self.damaged.within(self.before_begin_index + 1, end.index)
        # Appends that are still waiting are carried out before the truncation. What they report as
        # durable must not reach beyond it: the removed entries would be missed as damage.
        for item in (self._newest_durable, *self._staged):
            item.point = min(item.point, end, key=lambda point: point.index)
        self.end_point, self.end_index = end, end.index
        containing = self._data.file_at(end.position)
        index_position = from_index * INDEX_RECORD_SIZE
        index_file = self._index.file_at(index_position)
        later = self._data.drop_from(end.position + 1)
        later_index = self._index.drop_from(index_position + 1)
        old_position = (old_end.index + 1) * INDEX_RECORD_SIZE

        def cut() -> None:
            self._remove(later, later_index)
            # Readers may have the file mapped, so it is zeroed in place and never shrinks.
            containing.zero(end.position, old_end.position)
            index_file.zero(index_position, old_position)

        return self._plan_removal(cut)

    def reset(
        self,
        before_begin_index: int,
        before_begin_term: int = -1,
        chain_crc: int = -1,
        config: tuple[int, bytes] | None = None,
    ) -> WritePlan:
        """See `Log`."""
        if before_begin_index <= self.before_begin_index:
            return Plan(self, [])
        if before_begin_index <= self.end_point.index:
            before_begin_term = self._runs.term_at(before_begin_index, self.before_begin_term)
            known = self.chain_crc_at(before_begin_index)
            chain_crc = UNKNOWN_CRC if known is None else known
        emptied = before_begin_index >= self.end_point.index
        if emptied:
            # The log goes on in a new file. In the old one, bytes of removed entries would lie
            # after the new end, and opening after a crash might take them for entries.
            position = self._data.start_of(self.end_point.position) + self._data.file_size
            end = LogPoint(before_begin_index, position, chain_crc, before_begin_term)
        else:
            check(before_begin_index <= self._committed_index, "only committed entries go")
            position, end = self._place_of(before_begin_index + 1)[0], self.end_point
        log_start = LogStart(before_begin_index, before_begin_term, position, chain_crc)
        with self._lock:
            self.tail.drop_before(before_begin_index + 1)
        if emptied:
            self._runs.clear()
            self._configs.replace(config)
            self.end_point, self.end_index = end, end.index
            # These writes hold removed entries: none may note its old end as durable.
            for item in (self._newest_durable, *self._staged):
                item.supersede(end)
        else:
            self._runs.remove_before(before_begin_index + 1)
        self._reader.log_start = log_start
        self.before_begin_index = before_begin_index
        self.damaged = self.damaged.within(before_begin_index + 1, end.index)
        earlier = self._data.drop_before(position)
        earlier_index = self._index.drop_before((before_begin_index + 1) * INDEX_RECORD_SIZE)
        if not len(self._data):
            self._data.set_origin(position)
        first_file = None if emptied else self._data.file_at(position)

        def cut() -> None:
            self._remove(earlier, earlier_index)
            if first_file is not None:  # it starts with removed entries, which a blank covers
                write_leading_blank(first_file, position)

        return self._plan_removal(cut)

    def _remove(self, files: list[SequenceFile], index_files: list[SequenceFile]) -> None:
        for file in (*files, *index_files):
            file.remove()
        self._data.forget_maps(files)
        self._index.forget_maps(index_files)

    def _plan_removal(self, cut: Callable[[], None]) -> WritePlan:
        """Return the write that makes the log's new ends durable, then removes the rest."""
        end, begin = self.end_point, self.before_begin_index + 1
        self._noted_damage = self._noted_damage.within(begin, end.index)
        self._staged.append(PendingWrites(end))
        return self.checkpointer.plan_removal(
            self._checkpoint_of(end), self._noted_damage, cut, self._completed
        )

    def _point_before(self, from_index: int) -> LogPoint:
        """Return the end of the log without from_index and what follows."""
        index = from_index - 1
        if index <= self.before_begin_index:
            return self._log_start.point
        begin, size = self._place_of(index)
        chain, term = self.chain_crc_at(index), self._runs.term_at(index, self.before_begin_term)
        return LogPoint(index, begin + size, UNKNOWN_CRC if chain is None else chain, term)

    def _place_of(self, index: int) -> tuple[int, int]:
        """Return where an entry starts, and its size."""
        with self._lock:
            cached = self.tail.find(index)
        if cached is not None:
            return cached.place_of(index)
        if self.damaged.range_at(index) is None and not self._reader.is_where_stated(index):
            # one of header and index record is damaged, and much would go with a wrong place
            return self._quarantine.place_of(index, self._durable.index)
        return self._reader.place_of(index)

    # -- reading ----------------------------------------------------------------------------

    def is_in_memory(self, first_index: int) -> bool:
        """See `Log`."""
        return first_index > self.before_begin_index and self.tail.find(first_index) is not None

    def read(self, first_index: int, last_index: int, bytes_max: int) -> EntryRun:
        """See `Log`."""
        return self._read(self._reader.read, first_index, last_index, bytes_max)

    def read_resident(self, first_index: int, last_index: int, bytes_max: int) -> EntryRun | None:
        """See `Log`."""
        return self._read(self._reader.read_resident, first_index, last_index, bytes_max)

    def _read(self, from_disk: FromDisk[R], first: int, last: int, most: int) -> EntryRun | R:
        check_holds(self, first)
        with self._lock:
            cached = self.tail.find(first)
            if cached is not None:
                return cached.cut(first, last, most)
            # what is in the tail may not be on disk yet, or something older may be there
            last_on_disk = self.tail.before_first(self.end_index)
        damaged = self.damaged.next_from(first)
        if damaged == first:
            position = self._reader.place_of(first)[0]
            raise self._reader.damaged(first, position, "it is damaged")
        if damaged is not None:
            last_on_disk = min(last_on_disk, damaged - 1)
        try:
            return from_disk(first, min(last, last_on_disk), most)
        except StorageError:
            check_holds(self, first)  # it may have been removed since
            raise

    def chain_crc_at(self, index: int) -> int | None:
        """See `Log`."""
        known = None if self.damaged else self.tail.opened_chain(index)
        if index == self.end_index:
            known = self.end_point.chain_crc
        elif index <= self.before_begin_index:
            known = self._log_start.chain_crc if index == self.before_begin_index else UNKNOWN_CRC
        elif known is None:
            try:
                known = int.from_bytes(self.read(index, index, 1).data[36:40], "big")
            except CorruptionError:
                return None
        return None if known == UNKNOWN_CRC else known

    # -- damage -----------------------------------------------------------------------------

    def verify(self, first_index: int, last_index: int, bytes_max: int) -> int:
        """See `Log`."""
        check_holds(self, first_index)
        if (damaged := self.damaged.range_at(first_index)) is not None:
            return min(damaged[1], last_index)
        limit = self.damaged.next_from(first_index)
        last = min(last_index, self._durable.index, last_index if limit is None else limit - 1)
        return self._reader.verify(first_index, max(first_index, last), bytes_max)

    def quarantine(self, index: int, *, is_readable: bool = True) -> WritePlan:
        """See `Log`."""
        if not self.before_begin_index < index <= self._durable.index:
            return Plan(self, [])  # what was found there has been replaced or removed since
        diagnosis = self._quarantine.diagnose(index, self._durable.index, is_readable=is_readable)
        if not diagnosis.is_whole:
            first, last = self._quarantine.damaged_around(index, self._durable.index, self.damaged)
            self.damaged = self.damaged.plus(first, last)
            self._noted_damage = self._noted_damage.plus(first, last)
        else:  # if it was quarantined: it is whole now
            self._noted_damage = self._noted_damage.minus(index, index)
        steps = self._quarantine.quarantine(index, diagnosis, self._noted_damage)
        done = partial(self._is_whole_again, index, index)
        return Plan(self, steps, done=done) if diagnosis.is_whole else Plan(self, steps)

    def repair(self, block: Block) -> WritePlan:
        """See `Log`."""
        first = first_index_of(block)
        last = first + block.count - 1
        if self.damaged.within(first, last).count != block.count:
            raise UnexpectedArgumentError(f"entries {first} to {last} are not damaged")
        following = None
        if self.tail.find(last + 1) is not None:
            following = self.read(last + 1, last + 1, 1).block()
        elif last < self.end_point.index and self.damaged.range_at(last + 1) is None:
            following = self._reader.unchecked(last + 1)
        left = self._noted_damage.minus(first, last)
        steps = self._quarantine.repair(block, following, left, self.end_point)
        self._noted_damage = left
        return Plan(self, steps, len(block.data), done=partial(self._is_whole_again, first, last))

    def _is_whole_again(self, first: int, last: int) -> None:
        if not self._noted_damage.within(first, last):
            self.damaged = self.damaged.minus(first, last)

    # -- checkpoints ------------------------------------------------------------------------

    def note_committed(self, index: int) -> None:
        """See `Log`."""
        self._committed_index = max(self._committed_index, index)
        self._configs.committed(min(self._committed_index, self._durable.index))

    def _checkpoint_of(self, point: LogPoint) -> Checkpoint:
        runs = [run for run in self.noted_runs() if run[1] <= point.index]
        return Checkpoint(self._log_start, point, min(self._committed_index, point.index), runs)

    def keep_tables(self, to_save: Callable[[], bytes | None]) -> None:
        """See `Log`."""
        self.checkpointer.keep_tables(to_save)

    def checkpoint(self) -> WritePlan | None:
        """See `Log`: names only what was reported durable before."""
        return self.checkpointer.plan(self._checkpoint_of(self._durable))

    def settle(self) -> WritePlan:
        """See `Log`."""
        return self.checkpointer.plan_settling(self._journaled)

    def close(self) -> None:
        """Give all files back."""
        self._data.close()
        self._index.close()
        self._metadata.close()


def _found_runs(metadata: StoreMetadata, recovered: Recovered, reader: DiskReader) -> TermRuns:
    """Return the runs of terms: those that were noted, the others by search."""
    noted = metadata.checkpoint
    known, until = ((), -1) if noted is None else (noted.term_runs, noted.point.index)
    first, last = recovered.log_start.before_begin_index + 1, recovered.end.index
    return TermRuns.joined(known, until, first, last, reader.term_at)
