"""The same log kept in memory only: for tests and for groups that may lose everything."""

from collections.abc import Callable

from quorumlog.model.block import (
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
from quorumlog.model.errors import check
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.entries.term_runs import TermRuns
from quorumlog.storage.files.write_plans import Plan, Preparable, WritePlan
from quorumlog.storage.log.interface import FreeSpace, Segment, check_holds
from quorumlog.storage.log.segments import SEGMENTS_MAX
from quorumlog.storage.log.tail_cache import CachedRun, TailCache
from quorumlog.storage.metadata.config_entries import ConfigEntries
from quorumlog.storage.metadata.damaged_ranges import DamagedRanges


class MemoryLog:
    """See `Log`; positions count as if everything lay in one endless file."""

    damaged = DamagedRanges()
    file_sizes = (0, 0)

    def __init__(self) -> None:
        self.before_begin_index = -1
        self.before_begin_term = -1
        self._before_chain_crc = 0
        self._position = 0
        self.tail = TailCache(None)
        self._runs = TermRuns()
        self._configs = ConfigEntries()
        self._committed_index = -1
        self.end_index = -1
        self.end_chain_crc = 0
        self._begin_position = 0

    @property
    def size_bytes(self) -> int:
        """See `Log`."""
        return self._position - self._begin_position

    def term_runs(self) -> list[tuple[int, int]]:
        """See `Log`."""
        return self._runs.pairs()

    def append(self, block: Block, term: int) -> tuple[WritePlan, list[tuple[int, int]]]:
        """See `Log`."""
        first_index, position = self.end_index + 1, self._position
        positions = block.offsets + position
        chain_crc = stamp(block, first_index, term, positions, self.end_chain_crc)
        self._runs.append(term, first_index)
        return self._stage(block, chain_crc), [(first_index, position)]

    def positions_of(self, sizes: Int64s) -> Int64s:
        """See `Log`."""
        return sizes.cumsum() - sizes + self._position

    def append_noop(self, term: int, *, compatible: bool = False) -> WritePlan:
        """See `Log`."""
        return self.append(noop_block(compatible=compatible), term)[0]

    def append_config(self, body: bytes, term: int, *, compatible: bool = False) -> WritePlan:
        """See `Log`."""
        block = config_block(body, compatible=compatible)
        plan, _ = self.append(block, term)
        self._configs.append(block)
        return plan

    def config_entries(self) -> list[tuple[int, bytes]]:
        """See `Log`."""
        return list(self._configs.pairs)

    def append_received(self, block: Block) -> WritePlan:
        """See `Log`."""
        check(first_index_of(block) == self.end_index + 1, "entries follow the end")
        for term, first in term_runs_of(block):
            self._runs.append(term, first)
        self._configs.append(block)
        return self._stage(block, last_term_and_chain_of(block)[1])

    def _stage(self, block: Block, chain_crc: int) -> WritePlan:
        records = index_records(block, block.offsets + self._position)
        self.tail.add(CachedRun(self.end_index + 1, block, records))
        self.end_index += block.count
        self.end_chain_crc = chain_crc
        self._position += len(block.data)
        return Plan(self, [], len(block.data))

    def truncate(self, from_index: int) -> WritePlan:
        """See `Log`."""
        check(self.before_begin_index < from_index <= self.end_index, "inside", from_index)
        check(from_index > self._committed_index, "committed entries stay", from_index)
        chain_crc = self.chain_crc_at(from_index - 1) or 0
        self._position = self.tail.run_at(from_index).place_of(from_index)[0]
        self.tail.truncate(from_index)
        self._runs.truncate(from_index)
        self._configs.truncate(from_index)
        self.end_index, self.end_chain_crc = from_index - 1, chain_crc
        return Plan(self, [])

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
        if before_begin_index <= self.end_index:
            before_begin_term = self._runs.term_at(before_begin_index, self.before_begin_term)
            chain_crc = self.chain_crc_at(before_begin_index) or 0
        if before_begin_index >= self.end_index:
            self._runs.clear()
            self._configs.replace(config)
            self._begin_position = self._position
            self.end_index, self.end_chain_crc = before_begin_index, max(0, chain_crc)
        else:
            check(before_begin_index <= self._committed_index, "only committed entries go")
            self._runs.remove_before(before_begin_index + 1)
            first = before_begin_index + 1
            self._begin_position = self.tail.run_at(first).place_of(first)[0]
        self.tail.drop_before(before_begin_index + 1)
        self.before_begin_index, self.before_begin_term = before_begin_index, before_begin_term
        self._before_chain_crc = chain_crc
        return Plan(self, [])

    def chain_crc_at(self, index: int) -> int | None:
        """See `Log`."""
        if index == self.end_index:
            return self.end_chain_crc
        if index <= self.before_begin_index:
            known = self._before_chain_crc if index == self.before_begin_index else -1
            return None if known < 0 else known
        return int.from_bytes(self.read(index, index, 1).data[36:40], "big")

    def segments(self) -> list[Segment]:
        """See `Log`: blocks of entries."""
        return [
            Segment(run.last_index, len(run.block.data), "memory")
            for run in self.tail.oldest(SEGMENTS_MAX)
            if run.last_index < self.end_index
        ]

    def closed_index(self) -> int:
        """See `Log`: there are no files, so nothing grows old."""
        return self.before_begin_index

    def free_space(self) -> FreeSpace:
        """See `Log`."""
        return FreeSpace(1 << 62, 1 << 62)

    def upcoming(self) -> list[Preparable]:
        """See `Log`."""
        return []

    def verify(self, first_index: int, last_index: int, bytes_max: int) -> int:
        """See `Log`: memory is trusted."""
        return last_index

    def quarantine(self, index: int, *, is_readable: bool = True) -> WritePlan:
        """See `Log`: never needed."""
        return Plan(self, [])

    def repair(self, block: Block) -> WritePlan:
        """See `Log`: never needed."""
        return Plan(self, [])

    def is_in_memory(self, first_index: int) -> bool:
        """See `Log`."""
        return first_index > self.before_begin_index

    def read(self, first_index: int, last_index: int, bytes_max: int) -> EntryRun:
        """See `Log`."""
        check_holds(self, first_index)
        return self.tail.run_at(first_index).cut(first_index, last_index, bytes_max)

    def read_resident(self, first_index: int, last_index: int, bytes_max: int) -> EntryRun:
        """See `Log`."""
        return self.read(first_index, last_index, bytes_max)

    def note_committed(self, index: int) -> None:
        """See `Log`."""
        self._committed_index = max(self._committed_index, index)
        self._configs.committed(self._committed_index)

    def keep_tables(self, to_save: Callable[[], bytes | None]) -> None:
        """See `Log`: nothing is kept."""

    def checkpoint(self) -> WritePlan | None:
        """See `Log`."""
        return None

    def settle(self) -> WritePlan:
        """See `Log`."""
        return Plan(self, [])
