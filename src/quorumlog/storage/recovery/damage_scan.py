"""Scanning a log past its damage: what is good, what is damaged, and what is only a torn tail."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quorumlog.model.block import (
    HEADER_SIZE,
    INDEX_RECORD_DTYPE,
    INDEX_RECORD_SIZE,
    header_at,
    headers,
)
from quorumlog.model.errors import CorruptionError
from quorumlog.storage.entries.checksums import FOREIGN
from quorumlog.storage.entries.index_records import Records, last_record, record_at, records_of
from quorumlog.storage.entries.run_scanner import blank_length
from quorumlog.storage.entries.scanner import ScannedRun, Scanner, Stop
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.metadata.advice import EMPTYING_IS_SAFE_WHEN, REPAIR
from quorumlog.storage.metadata.checkpoint import UNKNOWN_CRC, LogMetadata, LogPoint

LOOK_AHEAD_ENTRIES = 4
"""Where it is not known what was durable last (stores of DLedger, a damaged hint), a whole
entry within this many after a bad one is the sign of damage: a torn tail has nothing after it."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Entries first_index … last_index cannot be read; where the first lies, and what is wrong.

    `identities` are their index records. No entry is concerned (last_index < first_index) when only
    a blank record is damaged, which reaches from `position` up to `resumed`.
    """

    first_index: int
    last_index: int
    path: str
    position: int
    reason: str
    identities: Records
    resumed: int


class DamageScan:
    """One scan from `start` on; `metadata` decides what is damage and what a torn tail.

    While it yields good runs, `damages` fills; in the end `stop` says why nothing follows and
    `end` where the log ends. With `takes_foreign` entries that DLedger appended are good, although
    they have no CRCs.
    """

    def __init__(
        self,
        data: FileSequence,
        index: FileSequence,
        start: LogPoint | None,
        metadata: LogMetadata,
    ) -> None:
        self._data = data
        self._index = index
        self._durable = metadata.durable
        self._is_recent = metadata.is_recent
        self.drops_foreign = self.takes_foreign = False
        self.damages: list[Damage] = []
        self.end = start or LogPoint()
        self.stop = Stop(self.end.position, "")
        if start is None:
            first = data.starts[0] if len(data) else 0
            self._scanner = self._scanner_from(first)
        else:
            self._scanner = Scanner(
                data,
                start.position,
                index=start.index,
                term=start.term,
                chain_crc=None if start.chain_crc == UNKNOWN_CRC else start.chain_crc,
            )

    def _scanner_from(self, position: int) -> Scanner:
        """Scan a log without metadata; index and header must agree on the first entry.

        The first header alone is not believed, unless there is no index: a flipped bit in it would
        make all that follows look wrong.
        """
        position = self._after_blank(position)
        stated = next(iter(Scanner(self._data, position)), None)
        if stated is not None:
            record = record_at(self._index, stated.first_index)
            if record is not None and int(record["pos"]) == position and stated.block.count > 1:
                return Scanner(self._data, position)
        first = self._first_indexed(position)
        if first is None:
            return Scanner(self._data, position)
        return Scanner(self._data, position, index=first - 1, chain_crc=None if first else 0)

    def _after_blank(self, position: int) -> int:
        """Return where the first entry lies: a reset may have left a blank record before it."""
        if not len(self._data):
            return position
        start, view = self._data.map_at(position)
        length = blank_length(view, 0)
        return start + length if 0 < length < len(view) else position

    def _first_indexed(self, position: int) -> int | None:
        """Return the entry that the index has at a position, or None."""
        for start in self._index.starts[:1]:
            first = start // INDEX_RECORD_SIZE
            last = first + self._index.file_size // INDEX_RECORD_SIZE - 1
            records = records_of(self._index, first, last)
            there = records["index"] == np.arange(first, last + 1)
            there &= (records["size"] >= HEADER_SIZE) & (records["pos"] == position)
            if there.any():
                return first + int(np.argmax(there))
        return None

    def __iter__(self) -> Iterator[ScannedRun]:
        while True:
            is_proven = self._scanner.chain_crc is not None
            for run in self._scanner:
                self.end = self._end_of(run, is_proven=is_proven or run.block.count > 1)
                is_proven = True
                yield run
            scanner = self._scanner
            self.stop = scanner.stop or Stop(scanner.position, "")
            if self.takes_foreign and self.stop.reason == FOREIGN:
                place = (scanner.index, scanner.term)
                self._scanner = Scanner(
                    self._data, self.stop.position, index=place[0], term=place[1], chain_crc=0
                )
                continue
            if not self._is_damage() or not self._resume():
                return

    def _end_of(self, run: ScannedRun, *, is_proven: bool) -> LogPoint:
        """Return the point after a run; where no chain CRC proves it, the recorded one."""
        end = LogPoint(run.last_index, run.end, run.last_chain_crc, run.last_term)
        recorded = self._durable
        if is_proven or recorded is None or recorded.chain_crc == UNKNOWN_CRC:
            return end
        place = (end.index, end.position, end.term)
        return recorded if (recorded.index, recorded.position, recorded.term) == place else end

    # -- torn or damaged ------------------------------------------------------------------------

    @property
    def _next_index(self) -> int:
        return (-1 if self._scanner.index is None else self._scanner.index) + 1

    def _is_damage(self) -> bool:
        if self._durable is not None and self._durable.index >= self._next_index:
            return True
        if self.stop.reason == FOREIGN and not self.drops_foreign and self._is_whole_foreign():
            raise self._error(
                "was written by another program after entries of this one; if it may go: "
                f"quorumlog store truncate DIR --from {self._next_index}"
            )
        if (self._durable is not None and self._is_recent) or not self.stop.reason:
            return False
        return self._scanner.has_later_entries(self.stop.position) or any(
            self._good_at(index) is not None
            for index in range(self._next_index, self._next_index + 1 + LOOK_AHEAD_ENTRIES)
        )

    def _is_whole_foreign(self) -> bool:
        """Whether it is more than the torn header of an entry without a body."""
        start, view = self._data.map_at(self.stop.position)
        size = header_at(view, self.stop.position - start).size
        if size > HEADER_SIZE:
            return True
        after = Scanner(
            self._data, self.stop.position + size, index=self._next_index, chain_crc=None
        )
        return next(iter(after), None) is not None

    def _good_at(self, index: int) -> Scanner | None:
        """Return a scanner in front of an entry after the stop, if it is whole and where its
        index record says.
        """
        record = record_at(self._index, index)
        if record is None or int(record["index"]) != index:
            return None
        position = int(record["pos"])
        # the entry at the stop was found bad; only a later position holds another one
        if position <= self.stop.position or not self._data.has(position):
            return None
        term = self._scanner.term
        probe = Scanner(self._data, position, index=index - 1, term=term, chain_crc=None)
        found = next(iter(probe), None)
        if found is None or found.position != position:
            return None
        # with the chain unknown, header and index record of the first one must agree
        header = headers(found.block)[0]
        if any(int(header[name]) != int(record[name]) for name in ("size", "index", "term")):
            return None
        return Scanner(self._data, position, index=index - 1, term=term, chain_crc=None)

    # -- resuming after damage -----------------------------------------------------------------

    def _resume(self) -> bool:
        """Record what is damaged; return whether good entries follow."""
        first = self._next_index
        limit = LOOK_AHEAD_ENTRIES + self._durable.index if self._durable else -1
        if self._durable is None or not self._is_recent:
            limit = max(limit, last_record(self._index))
        for index in range(first, limit + 1):
            scanner = self._good_at(index)
            if scanner is not None:
                self._add_damage(first, index - 1, scanner.position, self._term_at(index))
                self._scanner = scanner
                return True
        durable = self._durable
        if durable is None or durable.index < first:
            raise self._error(self.stop.reason)
        self._add_damage(first, durable.index, durable.position, durable.term)
        self.end = durable
        self.stop = Stop(durable.position, "the last entries are damaged")
        return False

    def _term_at(self, index: int) -> int:
        record = record_at(self._index, index)
        return self._scanner.term if record is None else int(record["term"])

    def _add_damage(self, first: int, last: int, resumed: int, term: int) -> None:
        identities = self._identities(first, last, resumed, term)
        self.damages.append(
            Damage(
                first,
                last,
                self._data.path_at(self.stop.position),
                self.stop.position,
                self.stop.reason or "entries are missing",
                identities,
                resumed,
            )
        )

    def _identities(self, first: int, last: int, resumed: int, term: int) -> Records:
        """Return the index records of damaged entries, which must be beyond doubt.

        Raises `CorruptionError`, before anything was changed, when they are not.
        """
        records = records_of(self._index, first, last) if last >= first else _no_records()
        if first == last and self._derivable(resumed, term):
            derived = np.zeros(1, dtype=INDEX_RECORD_DTYPE)
            derived[0] = (1, self.stop.position, resumed - self.stop.position, first, term)
            if int(records["size"][0]) != int(derived["size"][0]):
                records = derived
        ends = records["pos"].astype(np.int64) + records["size"]
        before = np.concatenate(([self.stop.position], ends[:-1]))
        terms = np.concatenate(([self._scanner.term], records["term"], [term]))
        known = (
            (records["index"] == np.arange(first, last + 1)).all()
            and (records["size"] >= HEADER_SIZE).all()
            and (records["pos"] >= before).all()
            and (ends <= resumed).all()
            and (terms[1:] >= terms[:-1]).all()
        )
        if not known:
            raise self._error(
                f"{self.stop.reason or 'entries are missing'}; entries {first} to {last} are "
                "damaged, and so are their index records"
            )
        return records

    def _derivable(self, resumed: int, term: int) -> bool:
        """Whether one damaged entry fills the gap between good entries of the same term."""
        same_file = self._data.start_of(resumed) == self._data.start_of(self.stop.position)
        fits = resumed - self.stop.position >= HEADER_SIZE
        return same_file and fits and term == self._scanner.term

    def _error(self, reason: str) -> CorruptionError:
        return self._error_at(self.stop.position, self._next_index, reason)

    def error_of(self, damage: Damage) -> CorruptionError:
        """Return the error that names a damage."""
        return self._error_at(damage.position, damage.first_index, damage.reason)

    def _error_at(self, position: int, entry: int, reason: str) -> CorruptionError:
        path, offset = self._data.path_at(position), position - self._data.start_of(position)
        return CorruptionError(
            f"{path}: byte {offset}, entry {entry}: {reason}. Nothing was changed. {REPAIR}. "
            f"{EMPTYING_IS_SAFE_WHEN}",
            path,
            offset,
            entry,
            reason,
        )


def _no_records() -> Records:
    return np.zeros(0, dtype=INDEX_RECORD_DTYPE)
