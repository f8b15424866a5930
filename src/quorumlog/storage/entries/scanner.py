"""Reading data files a run of entries at a time, checking all that can be checked."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quorumlog.model.block import (
    ENTRY_MAGICS,
    HEADER_SIZE,
    MAGIC_AND_SIZE,
    Block,
    headers,
)
from quorumlog.model.codes import Magic
from quorumlog.storage.entries.checksums import (
    BODY_CRC,
    CHAIN_CRC,
    all_agree,
    header_words,
    wrong_crcs,
)
from quorumlog.storage.entries.run_scanner import BLANK_SIZE_MIN, RUN_BYTES, walked_sizes
from quorumlog.storage.files.file_sequence import FileSequence

SECTOR = 512
RUN_ENTRIES = 8_192


@dataclass(frozen=True, slots=True)
class ScannedRun:
    """Good entries that lie together in one file from `position` on; consecutive indexes.

    `checked`: all of them carry CRCs (else some were written by DLedger).
    """

    block: Block
    position: int
    first_index: int
    last_term: int
    last_chain_crc: int
    checked: bool

    @property
    def last_index(self) -> int:
        """Index of the last entry."""
        return self.first_index + self.block.count - 1

    @property
    def end(self) -> int:
        """Position after the last entry."""
        return self.position + len(self.block.data)


@dataclass(frozen=True, slots=True)
class Stop:
    """Why reading ended: at the last entry (`reason` empty), or at bytes that are no entry."""

    position: int
    reason: str


class Scanner:
    """Walks entries from a position on and checks everything that can be checked.

    `index`, `term` and `chain_crc` are those of the entry before; they and `position` move on with
    the walk. With an index of None any entry may come first; a chain CRC of None is not known.
    `pos` in the headers is ignored: a follower keeps the leader's (spec 20 section 1).
    """

    def __init__(
        self,
        sequence: FileSequence,
        position: int,
        *,
        index: int | None = None,
        term: int = -1,
        chain_crc: int | None = 0,
    ) -> None:
        self._sequence = sequence
        self.position = position
        self.index = index
        self.term = term
        self.chain_crc = chain_crc
        self.stop: Stop | None = None

    def __iter__(self) -> Iterator[ScannedRun]:
        for start in self._sequence.made_starts:
            if start + self._sequence.file_size <= self.position:
                continue
            if start > self.position:
                self._end("the file that should be here is missing")
                break
            _, view = self._sequence.map_at(start)
            while self.stop is None and self.position < start + len(view):
                run = self._next(view, self.position - start)
                if run is not None:
                    yield run
            if self.stop is not None:
                break
            self.position = start + self._sequence.file_size
        if self.stop is None:
            self.stop = Stop(self.position, "")
        elif not self.stop.reason and self.has_later_entries(self.stop.position):
            # an empty rest with more files after it is only legal if those are empty too
            self.stop = Stop(self.stop.position, "nothing here although later files have entries")

    def has_later_entries(self, position: int) -> bool:
        """Whether a file after the one with this position starts with anything."""
        for start in self._sequence.made_starts:
            if start > position:
                _, view = self._sequence.map_at(start)
                if any(view[:BLANK_SIZE_MIN]):
                    return True
        return False

    def _end(self, reason: str) -> None:
        self.stop = Stop(self.position, reason)

    def _next(self, view: memoryview, offset: int) -> ScannedRun | None:
        """Return the entries from an offset of a file on; None after a blank or at the end."""
        limit = min(len(view), self._sequence.file_size - BLANK_SIZE_MIN)
        sizes = walked_sizes(view, offset, limit, RUN_ENTRIES, RUN_BYTES)
        if len(sizes):
            return self._checked(view, offset, sizes)
        left = self._sequence.file_size - offset
        if len(view) - offset < BLANK_SIZE_MIN:
            self._end("the file ends inside a header" if any(view[offset:]) else "")
            return None
        magic, size = MAGIC_AND_SIZE.unpack_from(view, offset)
        if magic == Magic.BLANK and BLANK_SIZE_MIN <= size <= left:
            self.position += size
        elif magic == 0 and size == 0:
            self._end("no magic" if any(view[offset : offset + HEADER_SIZE]) else "")
        elif magic == Magic.BLANK:
            self._end(f"a blank record of {size} bytes with {left} left")
        elif magic in ENTRY_MAGICS and HEADER_SIZE <= size <= left - BLANK_SIZE_MIN:
            self._end("the file ends inside an entry")
        else:
            self._end(f"magic {magic}, size {size} is no entry")
        return None

    def _checked(
        self, view: memoryview, offset: int, sizes: npt.NDArray[np.int64]
    ) -> ScannedRun | None:
        """Return those entries up to the first that is not good, which ends the walk."""
        ends = np.cumsum(sizes)
        block = Block(view[offset : offset + int(ends[-1])], ends - sizes, sizes)
        table = headers(block)
        count, reason = self._shape(table)
        if count:
            count, reason = self._crcs(block.slice(0, count), table[:count], reason)
        run = None
        if count:
            good = block if count == block.count else block.slice(0, count)
            run = self._taken(good, table, count)
        if reason:
            self._end(reason)
        return run

    def _taken(self, block: Block, table: npt.NDArray[Any], count: int) -> ScannedRun:
        last = table[count - 1]
        first_index, position = int(table["index"][0]), self.position
        self.position += len(block.data)
        self.index, self.term = int(last["index"]), int(last["term"])
        self.chain_crc = int(last["chain_crc"])
        checked = bool(((table["chain_crc"][:count] | table["body_crc"][:count]) != 0).all())
        return ScannedRun(block, position, first_index, self.term, self.chain_crc, checked)

    def _shape(self, table: npt.NDArray[Any]) -> tuple[int, str]:
        """Return how many entries have possible headers, and what is wrong with the next."""
        indexes = table["index"].astype(np.int64)
        terms = table["term"].astype(np.int64)
        first = int(indexes[0]) if self.index is None else self.index + 1
        before = np.concatenate(([self.term], terms[:-1]))
        wrong = (
            (table["body_size"] != table["size"] - HEADER_SIZE, "body size {body_size} of {size}"),
            (indexes != np.arange(first, first + len(table)), "index {index} does not follow"),
            ((terms < before) | (indexes < 0), "term {term} follows a higher one"),
        )
        count, reason = len(table), ""
        for places, text in wrong:
            if places.any() and int(np.argmax(places)) < count:
                count = int(np.argmax(places))
                row = table[count]
                reason = text.format(**{name: int(row[name]) for name in row.dtype.names})
        return count, reason

    def _crcs(self, block: Block, table: npt.NDArray[Any], reason: str) -> tuple[int, str]:
        """Return how many entries have the chain and body CRCs they should, and what is wrong."""
        chain = self.chain_crc
        if self.index is None:
            chain = 0 if int(table["index"][0]) == 0 else None
        words = header_words(block)
        if (words[:, CHAIN_CRC] | words[:, BODY_CRC]).all() and all_agree(block, words, chain):
            return len(table), reason
        return next(wrong_crcs(block, chain), (len(table), reason))


def looks_torn(view: memoryview, offset: int, size: int) -> bool:
    """Whether an unchecked last entry ends in zeros from a sector boundary on.

    DLedger writes no CRC; its files are filled with zeros beforehand, so what a crash kept
    from being written reads as zeros up to the end of the entry.
    """
    last_boundary = (offset + size - 1) // SECTOR * SECTOR
    begin = max(last_boundary, offset + HEADER_SIZE)
    return begin < offset + size and not any(view[begin : offset + size])
