"""Reading a range of a data file past its damage, many entries at a time.

The index records say where entries lie, so that no entry is read on its own; where they are
missing or wrong, the entries' own sizes are followed. What is read is checked against everything
there is: header against index record and the header before, the chain of CRCs, and the bodies.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quorumlog.model.block import (
    ENTRY_MAGICS,
    HEADER_DTYPE,
    HEADER_SIZE,
    HEADER_VOID,
    INDEX_RECORD_DTYPE,
    INDEX_RECORD_SIZE,
    Block,
    everywhere,
    header_at,
)
from quorumlog.model.codes import Magic
from quorumlog.storage.entries.checksums import (
    BODY_CRC,
    CHAIN_CRC,
    FOREIGN,
    WRONG_CHAIN,
    Words,
    bodies_agree,
    chain_agrees,
    wrong_crcs,
)
from quorumlog.storage.entries.index_records import Records
from quorumlog.storage.entries.run_scanner import (
    RUN_BYTES,
    HeaderRun,
    entry_header,
    find_run,
    stated_sizes,
)
from quorumlog.storage.files.mapped_files import MappedFiles
from quorumlog.storage.offline.range_planner import FileRange

RUN_ENTRIES = 32_768
FIRST_RUN_ENTRIES = 1_024
"""1,024 entries are tried first, then twice as many as the run before turned out to have."""
INDEXED_MIN = 2
"""Index records that are believed without their headers; one alone may be wrong in its term."""
QUARANTINED = "the replica has quarantined it as damaged"
MISSING = "it is missing"
DISAGREE = "header and index record disagree"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Entries that follow one another, with good headers; the first is at byte `offset`.

    `table` has the headers, back to back. `wrong` has the damaged entries, by their place in the
    block, and what is wrong with each.
    """

    first_index: int
    offset: int
    block: Block
    table: npt.NDArray[Any]
    wrong: dict[int, str]


@dataclass(frozen=True, slots=True)
class IndexedRun:
    """Entries of which there are only index records; the first is, or should be, at byte `offset`.

    A `reason` says that their headers are damaged. A record of size 0 is damaged, too. Without an
    offset nobody knows where the first entry should be.
    """

    first_index: int
    offset: int | None
    records: Records
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Checks:
    """What is checked: `crcs`, and with them the bodies.

    Without `headers`, index records that are in order are believed.
    """

    crcs: bool = True
    bodies: bool = True
    headers: bool = True


class RangeReader:
    """One walk over a range; yields all its entries, in order."""

    def __init__(self, part: FileRange, maps: MappedFiles, checks: Checks) -> None:
        self._part = part
        self._checks = checks
        self._view = memoryview(b"") if part.is_missing else maps.view(part.path)
        self._index_views = [(start, maps.view(path)) for start, path in part.index_files]
        self._limit = min(part.end, len(self._view))
        self._offset = part.begin
        self._index = part.first
        self._expected = min(RUN_ENTRIES, FIRST_RUN_ENTRIES)
        self._believes_index = not checks.headers and not part.damaged
        self._term = -1
        self._chain = part.chain_before

    def __iter__(self) -> Iterator[StoredRun | IndexedRun]:
        while self._index <= self._part.last:
            left = self._part.last - self._index + 1
            if self._believes_index:
                records = self._records(self._index, min(RUN_ENTRIES, left))
                records = records[: self._count_in_order(records)]
                if self._is_in_order(records):
                    yield self._indexed_run(records)
                    continue
            count = min(self._expected, left)
            records = self._records(self._index, count)
            run = self._stored_run(records)
            if run is not None:
                yield run
            else:
                yield from self._lost()

    # -- where entries lie ------------------------------------------------------------------------

    def _records(self, first: int, count: int) -> Records:
        """Return index records; zeros where no file has them."""
        place = first * INDEX_RECORD_SIZE
        for start, view in self._index_views:
            if start <= place and place + count * INDEX_RECORD_SIZE <= start + len(view):
                return np.frombuffer(view, INDEX_RECORD_DTYPE, count, place - start)
        found = np.zeros(count, dtype=INDEX_RECORD_DTYPE)
        for start, view in self._index_views:
            low = max(place, start)
            held = min(place + count * INDEX_RECORD_SIZE, start + len(view)) - low
            if held >= INDEX_RECORD_SIZE:
                rows = held // INDEX_RECORD_SIZE
                row = (low - place) // INDEX_RECORD_SIZE
                found[row : row + rows] = np.frombuffer(view, INDEX_RECORD_DTYPE, rows, low - start)
        return found

    def _are_there(self, records: Records, first: int) -> npt.NDArray[np.bool_]:
        """Return which records are those of the entries from `first` on, and lie in the range."""
        positions, sizes = records["pos"], records["size"].astype(np.int64)
        begin, end = self._part.start + self._part.begin, self._part.start + self._part.end
        there: npt.NDArray[np.bool_] = records["index"] == np.arange(first, first + len(records))
        there &= (sizes >= HEADER_SIZE) & (positions >= begin) & (positions <= end - sizes)
        return there

    def _count_in_order(self, records: Records) -> int:
        """Return how many of the next entries lie one after the other as index records have it."""
        position, room = self._part.start + self._offset, self._limit - self._offset
        return len(stated_sizes(records, self._index, position, room))

    # -- good entries -----------------------------------------------------------------------------

    def _is_in_order(self, records: Records) -> bool:
        """Whether a flipped bit in these records would have been noticed.

        The caller knows that their indexes and positions follow one another. What is left to check:
        they have one term, and the next entry starts where the last of them ends.
        """
        if len(records) < INDEXED_MIN or (records["term"] != records["term"][0]).any():
            return False
        end = int(records["pos"][-1]) + int(records["size"][-1])
        following = int(records["index"][-1]) + 1
        if following > self._part.last:
            return end == self._part.start + self._part.end
        record = self._records(following, 1)[0]
        return int(record["index"]) == following and int(record["pos"]) == end

    def _indexed_run(self, records: Records) -> IndexedRun:
        run = IndexedRun(self._index, self._offset, records)
        self._index += len(records)
        self._offset += int(records["size"].sum(dtype=np.int64))
        self._term, self._chain = int(records["term"][-1]), None
        return run

    def _stored_run(self, records: Records) -> StoredRun | None:
        """Return the next entries up to the first without a good header, if any."""
        found = find_run(
            self._view,
            self._offset,
            self._limit,
            records,
            first_index=self._index,
            position=self._part.start + self._offset,
            bytes_max=RUN_BYTES,
        )
        if found is None:
            return None
        good = self._good_headers(found, records[: found.block.count])
        count = found.block.count if good.all() else int(np.argmin(good))
        if not count:
            return None
        found = found.start(count)
        block, table = found.block, found.table
        wrong = self._wrong(block, found.words)
        self._add_quarantined(wrong, count)
        run = StoredRun(self._index, self._offset, block, table, wrong)
        self._index += count
        self._offset += len(block.data)
        sound = next((row for row in reversed(range(count)) if row not in wrong), None)
        if sound is not None:  # the term of a damaged one may be too high for those after it
            self._term = int(table["term"][sound])
        self._expected = min(RUN_ENTRIES, 2 * count)  # more would be read in vain
        return run

    def _good_headers(self, run: HeaderRun, records: Records) -> npt.NDArray[np.bool_]:
        """Return which headers follow the one before, and do not differ from the index.

        Where no CRC decides, an entry must agree with its index record, if that is there, in term
        and magic.
        """
        table = run.table
        magic, terms = table["magic"], table["term"]
        good: npt.NDArray[np.bool_] = np.ones(run.block.count, dtype=bool)
        good[0] = terms[0] >= self._term
        good[1:] = terms[1:] >= terms[:-1]
        # DLedger's index may say NORMAL of a NOOP
        is_noop = (magic == int(Magic.NOOP)) & (records["magic"] == int(Magic.NORMAL))
        agrees = (terms == records["term"]) & ((magic == records["magic"]) | is_noop)
        if not agrees.all():
            positions = run.position + run.block.offsets
            stated = self._are_there(records, self._index) & (records["pos"] == positions)
            decided = (table["chain_crc"] != 0) | (table["body_crc"] != 0)
            decided &= self._checks.crcs
            decided[0] &= self._chain is not None
            good &= agrees | ~stated | decided
        return good

    def _wrong(self, block: Block, words: Words) -> dict[int, str]:
        """Return which entries do not have the CRCs they should; follows the chain."""
        if not self._checks.crcs:
            return {}
        checked = words[:, CHAIN_CRC] | words[:, BODY_CRC]
        if checked.all():
            if chain_agrees(words, self._chain) and (
                not self._checks.bodies or bodies_agree(block, words)
            ):
                self._chain = int(words[-1, CHAIN_CRC].byteswap())
                return {}
        elif not checked.any() and not self._chain:
            self._chain = 0
            return {}
        wrong = dict(wrong_crcs(block, self._chain, bodies=self._checks.bodies))
        if self._part.takes_foreign:
            wrong = {row: reason for row, reason in wrong.items() if reason != FOREIGN}
        last = block.count - 1
        is_known = wrong.get(last) not in (FOREIGN, WRONG_CHAIN)
        self._chain = int(words[last, CHAIN_CRC].byteswap()) if is_known else None
        return wrong

    def _add_quarantined(self, wrong: dict[int, str], count: int) -> None:
        for first, last in self._part.damaged:
            low, high = max(first, self._index), min(last, self._index + count - 1)
            for index in range(low, high + 1):
                wrong.setdefault(index - self._index, QUARANTINED)

    # -- damaged headers --------------------------------------------------------------------------

    def _lost(self) -> Iterator[IndexedRun]:
        """Yield the entries up to the next one with a good header, as the index has them."""
        reason = self._reason()
        offset = None if reason == MISSING else self._offset
        index, resumed, term = self._next_good() or (self._part.last + 1, self._limit, self._term)
        for first in range(self._index, index, RUN_ENTRIES):
            records = self._records(first, min(RUN_ENTRIES, index - first)).copy()
            records[~self._are_there(records, first)] = np.zeros(1, dtype=INDEX_RECORD_DTYPE)
            if records["size"][0]:
                offset = int(records["pos"][0]) - self._part.start
            yield IndexedRun(first, offset, records, reason)
            offset = None
        self._index, self._offset, self._term, self._chain = index, resumed, term, None

    def _reason(self) -> str:
        if self._part.is_missing:
            return "its file is missing"
        if self._offset + HEADER_SIZE > self._limit:
            return MISSING
        header = header_at(self._view, self._offset)
        magic, size = header.magic, header.size
        if magic == Magic.BLANK:
            return MISSING
        if magic not in ENTRY_MAGICS or not HEADER_SIZE <= size <= self._limit - self._offset:
            return f"magic {magic}, size {size} is no entry"
        if size != HEADER_SIZE + header.body_size:
            return f"body size {header.body_size} of {size}"
        if header.index != self._index:
            return f"index {header.index} stands there"
        return f"term {header.term} follows a higher one" if header.term < self._term else DISAGREE

    def _next_good(self) -> tuple[int, int, int] | None:
        """Return index, offset and term of the next entry that is beyond doubt."""
        if self._offset + HEADER_SIZE <= self._limit and self._index < self._part.last:
            header = header_at(self._view, self._offset)
            record = self._records(self._index, 1)[0]
            for length in (header.size, HEADER_SIZE + header.body_size, int(record["size"])):
                term = self._term_at(self._offset + length, self._index + 1)
                if length >= HEADER_SIZE and term is not None:
                    return self._index + 1, self._offset + length, term
        for first in range(self._index + 1, self._part.last + 1, RUN_ENTRIES):
            found = self._first_agreed(first, min(RUN_ENTRIES, self._part.last + 1 - first))
            if found is not None:
                return found
        return None

    def _term_at(self, offset: int, index: int) -> int | None:
        """Return the term of an entry, if its header is at an offset and nothing is wrong in it."""
        header = entry_header(self._view, offset, self._limit)
        if header is None or header.index != index or header.term < self._term:
            return None
        return header.term

    def _first_agreed(self, first: int, count: int) -> tuple[int, int, int] | None:
        """Return the first of some entries whose header and index record agree, as above."""
        records = self._records(first, count)
        offsets = records["pos"].astype(np.int64) - self._part.start
        there = self._are_there(records, first) & (offsets > self._offset)
        rows = np.flatnonzero(there & (offsets <= self._limit - records["size"]))
        if not len(rows):
            return None
        records, offsets = records[rows], offsets[rows]
        table = everywhere(self._view, HEADER_VOID)[offsets].view(HEADER_DTYPE)
        agrees = table["body_size"] == records["size"] - HEADER_SIZE
        for name in ("size", "index", "term"):
            agrees &= table[name] == records[name]
        if not agrees.any():
            return None
        row = int(np.argmax(agrees))
        return int(records["index"][row]), int(offsets[row]), int(records["term"][row])
