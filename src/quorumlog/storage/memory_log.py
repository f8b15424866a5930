"""The same log kept in memory only: for tests and for groups that may lose everything."""

import numpy as np

from quorumlog.model.block import (
    HEADER_SIZE,
    INDEX_RECORD_DTYPE,
    Block,
    encode_entry,
    first_index_of,
    headers,
    index_records,
    stamp,
    term_runs_of,
)
from quorumlog.model.codes import Magic
from quorumlog.model.errors import IndexOutOfRangeError, check
from quorumlog.storage.base import Span, WritePlan
from quorumlog.storage.plans import Plan
from quorumlog.storage.tail import Piece, TailCache
from quorumlog.storage.term_runs import TermRuns


class MemoryLog:
    """See `Log`; positions count as if everything lay in one endless file."""

    before_begin_index = -1
    before_begin_term = -1

    def __init__(self) -> None:
        self._tail = TailCache(None)
        self._runs = TermRuns()
        self._committed_index = -1
        self.end_index = -1
        self.end_chain_crc = 0
        self.size_bytes = 0

    def term_runs(self) -> list[tuple[int, int]]:
        """See `Log`."""
        return self._runs.pairs()

    def append(self, block: Block, term: int) -> tuple[WritePlan, list[tuple[int, int]]]:
        """See `Log`."""
        first_index, position = self.end_index + 1, self.size_bytes
        positions = block.offsets + position
        chain_crc = stamp(block, first_index, term, positions, self.end_chain_crc)
        self._runs.append(term, first_index)
        return self._stage(block, chain_crc), [(first_index, position)]

    def append_noop(self, term: int) -> WritePlan:
        """See `Log`."""
        data = memoryview(bytearray(encode_entry(b"", magic=Magic.NOOP)))
        zero = np.zeros(1, dtype=np.int64)
        plan, _ = self.append(Block(data, zero, zero + HEADER_SIZE), term)
        return plan

    def append_received(self, block: Block) -> WritePlan:
        """See `Log`."""
        check(first_index_of(block) == self.end_index + 1, "entries follow the end")
        for term, first in term_runs_of(block):
            self._runs.append(term, first)
        last = headers(block.slice(block.count - 1, block.count))[0]
        return self._stage(block, int(last["chain_crc"]))

    def _stage(self, block: Block, chain_crc: int) -> WritePlan:
        records = memoryview(index_records(block, block.offsets + self.size_bytes))
        self._tail.add(Piece(self.end_index + 1, block, records))
        self.end_index += block.count
        self.end_chain_crc = chain_crc
        self.size_bytes += len(block.data)
        return Plan(self, [], len(block.data))

    def truncate(self, from_index: int) -> WritePlan:
        """See `Log`."""
        check(0 <= from_index <= self.end_index, "inside", from_index)
        check(from_index > self._committed_index, "committed entries stay", from_index)
        chain_crc = self.chain_crc_at(from_index - 1)
        span = self.read(from_index, from_index, 1)
        self.size_bytes = int(np.frombuffer(span.records, INDEX_RECORD_DTYPE, 1)[0]["pos"])
        self._tail.truncate(from_index)
        self._runs.truncate(from_index)
        self.end_index, self.end_chain_crc = from_index - 1, chain_crc
        return Plan(self, [])

    def chain_crc_at(self, index: int) -> int:
        """See `Log`."""
        if index < 0:
            return 0
        return int.from_bytes(self.read(index, index, 1).data[36:40], "big")

    def is_in_memory(self, first_index: int) -> bool:
        """See `Log`."""
        return True

    def read(self, first_index: int, last_index: int, bytes_max: int) -> Span:
        """See `Log`."""
        if not self._tail.holds(first_index):
            raise IndexOutOfRangeError(f"index {first_index} is beyond the end, {self.end_index}")
        return self._tail.piece_at(first_index).cut(first_index, last_index, bytes_max)

    def note_committed(self, index: int) -> None:
        """See `Log`."""
        self._committed_index = max(self._committed_index, index)

    def checkpoint(self) -> WritePlan | None:
        """See `Log`."""
        return None
