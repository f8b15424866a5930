"""Reads one replica's entries in order, and goes on after damaged and missing ones."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quorumlog.model.block import HEADER_SIZE, MAGIC_AND_SIZE
from quorumlog.storage.entries.index_records import Records, records_of
from quorumlog.storage.entries.run_scanner import (
    BLANK_SIZE_MIN,
    RUN_BYTES,
    HeaderRun,
    blank_length,
    entry_header,
    find_run,
)
from quorumlog.storage.offline.replica_files import ReplicaPart

RUN_ENTRIES = 16_384
RECORDS_MIN = 256
"""Index records read for one run, at least."""
SEARCHED_BACK_MAX = 65_536
"""Index records searched for an entry to start with, if that of the wanted one is of no use."""
RESYNC_ENTRIES = 4
"""Entries after a damaged one that are searched for byte by byte where the index does not help."""

MISSING = "missing"
DAMAGED = "damaged"
INDEX_ORDER = "index-order"
_INDEX = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class WalkFinding:
    """A fault of entries first … last of one replica, and where the first lies or should lie.

    Faults of one `kind` and `reason` are of one sort; `detail` says more of the first entry.
    """

    kind: str
    reason: str
    first: int
    last: int
    path: str
    offset: int
    detail: str = ""


class ReplicaWalk:
    """A cursor in a part of a replica, at entry `at`; what it cannot read goes into `findings`.

    `chains`: chain CRCs that the entry before may have had (none: it is not known). `term`: that of
    the last good entry before. Both are kept by whoever checks entries.
    """

    def __init__(self, part: ReplicaPart) -> None:
        self.part = part
        self.data, self._index = part.open()
        self.at = part.walk_from
        self.chains: tuple[int, ...] = ()
        self.term = -1
        self.findings: list[WalkFinding] = []
        self._position = -1
        self._likely = RUN_ENTRIES
        self._seek(part.walk_from)
        if self.at == 0:
            self.chains = (0,)

    def close(self) -> None:
        """Close the files."""
        self.data.close()
        self._index.close()

    def take_findings(self) -> list[WalkFinding]:
        """Return the faults found since the last call."""
        found, self.findings = self.findings, []
        return found

    def place_of(self, position: int) -> tuple[str, int]:
        """Return path and offset in it of a position; the path is empty where no file is known."""
        if not len(self.data) or position < 0:
            return "", 0
        return self.data.path_at(position), position - self.data.start_of(position)

    # -- reading ------------------------------------------------------------------------------

    def place(self) -> tuple[memoryview, int, int] | None:
        """Return bytes of the file, offset and limit of the next entry; None: no file has it.

        No entry of the file reaches beyond the limit. Blank records are stepped over.
        """
        while self.data.has(self._position):
            start, view = self.data.map_at(self._position)
            offset, size = self._position - start, self.data.file_size
            limit = min(len(view), size - BLANK_SIZE_MIN)
            if offset + BLANK_SIZE_MIN > size:
                self._position = start + size
                continue
            if offset + BLANK_SIZE_MIN > len(view):
                return None
            length = blank_length(view, offset)
            # a blank record fills a file, or covers what a reset removed before the first entry
            if not length or not (length == size - offset or (not offset and length < size)):
                return view, offset, limit
            self._position += length
        return None

    def run(self, last: int) -> HeaderRun | None:
        """Return the next entries up to `last`, at least one; None: none lies where it should."""
        place = self.place()
        if place is None:
            return None
        view, offset, limit = place
        count = min(last - self.at + 1, self._likely)
        records = records_of(self._index, self.at, self.at + count - 1)
        run = find_run(
            view,
            offset,
            limit,
            records,
            first_index=self.at,
            position=self._position,
            bytes_max=RUN_BYTES,
        )
        if run is not None:  # the next run will have about as many, so read no more records
            self._likely = min(max(RECORDS_MIN, run.block.count * 5 // 4), RUN_ENTRIES)
        return run

    def take(self, count: int, size: int) -> None:
        """Go on after `count` entries of `size` bytes in all, which lie together."""
        self.at += count
        self._position += size

    def runs(self) -> Iterator[HeaderRun]:
        """Yield all entries that can be read."""
        while self.at <= self.part.last:
            run = self.run(self.part.last)
            if run is None:
                self.skip_damage()
                continue
            self.take(run.block.count, len(run.block.data))
            yield run

    # -- seeking ------------------------------------------------------------------------------

    def _seek(self, index: int) -> None:
        """Go to an entry: to the nearest before it that can be found, and on from there."""
        found = self._indexed_before(index) or self._first_of_file(range(index, -1, -1))
        if found is None:
            starts = self.data.starts
            self._position = starts[0] if starts else -1
            return
        self.at, self._position = found
        while self.at < index:
            run = self.run(index - 1)
            if run is None:
                self.skip_damage()
            else:
                self.take(run.block.count, len(run.block.data))
        self.findings = [finding for finding in self.findings if finding.last >= index]

    def _indexed_before(self, index: int) -> tuple[int, int] | None:
        """Return (index, position) of an entry at or before one, as the index has it."""
        for back in (0, SEARCHED_BACK_MAX):
            first = max(0, index - back)
            for found in self._indexed(first, index)[::-1][:RESYNC_ENTRIES]:
                if self._is_entry(*found):
                    return found
        return None

    def _indexed(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return (index, position) of entries whose index records name a file that exists."""
        records: Records = records_of(self._index, first, last)
        positions = records["pos"].astype(np.int64)
        starts = np.array(self.data.starts, dtype=np.int64)
        there = (records["index"] == np.arange(first, last + 1)) & (records["size"] >= HEADER_SIZE)
        if not len(starts):
            return []
        of_file = np.searchsorted(starts, positions, side="right") - 1
        there &= (of_file >= 0) & (positions < starts[of_file] + self.data.file_size)
        rows = np.flatnonzero(there)
        return list(zip((first + rows).tolist(), positions[rows].tolist(), strict=True))

    def _first_of_file(self, wanted: range) -> tuple[int, int] | None:
        """Return (index, position) of the first entry of a file, the one wanted most."""
        firsts = []
        for start in self.data.starts:
            found = self._entry_from(start)
            if found is not None and found[0] in wanted:
                firsts.append(found)
        return min(firsts, key=lambda found: wanted.index(found[0]), default=None)

    def _is_entry(self, index: int, position: int) -> bool:
        start, view = self.data.map_at(position)
        limit = min(len(view), self.data.file_size - BLANK_SIZE_MIN)
        header = entry_header(view, position - start, limit)
        return header is not None and header.index == index

    def _entry_from(self, position: int) -> tuple[int, int] | None:
        """Return (index, position) of the entry at a position or after blank records there."""
        kept, self._position = self._position, position
        place = self.place()
        position, self._position = self._position, kept
        header = entry_header(*place) if place is not None else None
        return (header.index, position) if header is not None else None

    # -- skipping damage ------------------------------------------------------------------------

    def skip_damage(self) -> None:
        """Record what is wrong with the next entry, and go to the next that can be read."""
        place = self.place()
        index, (path, offset) = self.at, self.place_of(self._position)
        if place is not None and self._is_elsewhere(index):
            text = "the blank record before it is damaged"
            self.findings.append(WalkFinding(DAMAGED, text, index, index - 1, path, offset))
            return
        kind, reason, detail = MISSING, "its data file is missing", ""
        if place is None and self.data.has(self._position):
            reason = "its data file is too short"
        elif place is not None:
            header = entry_header(*place)
            if header is not None:
                following = self._entry_from(self._position + header.size)
                if self._is_gap(header.index, following):
                    until = min(header.index - 1, self.part.last)
                    text = f"entry {header.index} follows entry {index - 1}"
                    self._note(MISSING, "no entry is there", until, path, offset, text)
                    return
                kind, reason = INDEX_ORDER, "another index is in its place"
                detail = f"index {header.index}"
                if following is not None and following[0] == index + 1:
                    self._position += header.size
                    self._note(kind, reason, index, path, offset, detail)
                    return
            elif len(place[0]) < self.data.file_size:
                reason = "its data file is too short"
            elif any(place[0][place[1] : place[1] + HEADER_SIZE]):
                kind, reason = DAMAGED, "its header is damaged"
                magic, size = MAGIC_AND_SIZE.unpack_from(place[0], place[1])
                detail = f"magic {magic}, size {size}"
            else:
                reason = "only zeros are in its place"
        found = self._next_after(index)
        if found is not None:
            self._position = found[1]
        self._note(kind, reason, found[0] - 1 if found else self.part.last, path, offset, detail)

    def _is_elsewhere(self, index: int) -> bool:
        """Go to the next file if the next entry is its first; return whether it is."""
        begin = self.data.start_of(self._position) + self.data.file_size
        found = self._entry_from(begin)
        if found is None or found[0] != index:
            return False
        self._position = found[1]
        return True

    def _is_gap(self, index: int, following: tuple[int, int] | None) -> bool:
        """Whether the log just goes on with a later entry."""
        goes_on = following is None or following[0] == index + 1
        return self.at < index <= self.part.end_index and goes_on

    def _note(self, kind: str, reason: str, last: int, path: str, offset: int, detail: str) -> None:
        self.findings.append(WalkFinding(kind, reason, self.at, last, path, offset, detail))
        self.at = last + 1
        self.chains = ()

    def _next_after(self, index: int) -> tuple[int, int] | None:
        """Return (index, position) of the next entry after a bad one."""
        last = self.part.last
        for found in self._indexed(index + 1, last) if index < last else ():
            if found[1] > self._position and self._is_entry(*found):
                return found
        return self._searched(index) or self._first_of_file(range(index + 1, last + 1))

    def _searched(self, index: int) -> tuple[int, int] | None:
        """Search the rest of the file for the index of one of the next entries."""
        place = self.place()
        if place is None:
            return None
        view, offset, limit = place
        start = self._position - offset
        for wanted in range(index + 1, min(index + RESYNC_ENTRIES, self.part.last) + 1):
            pattern = re.compile(re.escape(_INDEX.pack(wanted)))
            for match in pattern.finditer(view, offset + 9, limit):
                at = match.start() - 8
                header = entry_header(view, at, limit)
                if header is not None and header.index == wanted:
                    return wanted, start + at
        return None
