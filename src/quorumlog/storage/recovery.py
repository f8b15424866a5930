"""Opening a log after whatever happened to it (spec 20 section 10, with its requirements).

Reads from the last checkpoint on. What lies behind the last group commit that was reported durable
and is no whole entry is a torn tail and is cut; the same at or below it is corruption, and nothing
is changed. Index records are derived from the entries and mended where they differ.
"""

from dataclasses import dataclass

import numpy as np

from quorumlog.model.block import INDEX_RECORD_DTYPE, INDEX_RECORD_SIZE
from quorumlog.storage.checkpoint import Checkpoint
from quorumlog.storage.file_sequence import FileSequence
from quorumlog.storage.judgement import index_record, judge
from quorumlog.storage.scan import Found, Scanner, Stop, looks_torn

STALE_BYTES_LOOKED_AT = 8 * 1024 * 1024
"""How far behind the end left-over bytes are looked for. It bounds the time of opening, not safety:
left-over entries further on do not continue the chain CRC of what is written before them."""


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening did."""

    scanned_entries: int
    from_checkpoint: bool
    cut_bytes: int
    cut_reason: str
    mended_index_records: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """A log that can be used: its ends, and where its bytes end."""

    before_begin_index: int
    before_begin_term: int
    begin_position: int
    end_index: int
    end_term: int
    end_position: int
    end_chain_crc: int
    report: RecoveryReport


def _used(rest: memoryview) -> int:
    """Return how many bytes of a rest that should be zero lie before its last non-zero byte."""
    looked_at = np.frombuffer(rest[:STALE_BYTES_LOOKED_AT], dtype=np.uint8)
    used = np.flatnonzero(looked_at)
    return int(used[-1]) + 1 if len(used) else 0


@dataclass(slots=True)
class _Scanned:
    found: list[Found]
    stop: Stop


class Recovery:
    """One opening. `durable_index` is the last index once reported durable (-1: not known)."""

    def __init__(
        self,
        data: FileSequence,
        index: FileSequence,
        checkpoint: Checkpoint | None,
        durable_index: int,
    ) -> None:
        self._data = data
        self._index = index
        self._checkpoint = self._usable(checkpoint)
        self._durable_index = durable_index
        if checkpoint is not None:
            self._durable_index = max(durable_index, checkpoint.index)

    def run(self) -> Recovered:
        """Return the usable log; mends and cuts on disk.

        Raises `CorruptionError` (nothing was changed) when durable entries are damaged.
        """
        base = self._checkpoint
        scanned = self._scan(base)
        if base is None and not scanned.found:
            return self._empty(scanned.stop)
        last = scanned.found[-1] if scanned.found else None
        end_index = last.index if last else base.index if base else -1
        position = last.position + last.size if last else base.position if base else 0
        cut = self._cut(position, scanned.stop)
        mended = self._mend_index(scanned.found, end_index)
        first_index, begin_position, before_term = self._begin(scanned.found)
        return Recovered(
            before_begin_index=first_index - 1,
            before_begin_term=before_term,
            begin_position=begin_position,
            end_index=end_index,
            end_term=last.term if last else base.term if base else -1,
            end_position=position,
            end_chain_crc=last.chain_crc if last else base.chain_crc if base else 0,
            report=RecoveryReport(
                len(scanned.found), base is not None, cut, scanned.stop.reason, mended
            ),
        )

    # -- reading ----------------------------------------------------------------------------

    def _usable(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """A checkpoint counts if the entry it names lies where it says."""
        if checkpoint is None or checkpoint.index <= checkpoint.before_begin_index:
            return None
        record = index_record(self._index, checkpoint.index)
        if record is None:
            return None
        fits = (
            int(record["index"]) == checkpoint.index
            and int(record["term"]) == checkpoint.term
            and int(record["pos"]) + int(record["size"]) == checkpoint.position
        )
        return checkpoint if fits else None

    def _scan(self, base: Checkpoint | None) -> _Scanned:
        self._data.settle(base.position if base is not None else 0)
        if base is None:
            first = self._data.starts[0] if len(self._data) else 0
            scanner = Scanner(self._data, first)
        else:
            scanner = Scanner(
                self._data,
                base.position,
                index=base.index,
                term=base.term,
                chain_crc=base.chain_crc,
            )
        found = list(scanner)
        stop = scanner.stop or Stop(scanner.position, "")
        if found and not found[-1].checked:
            start, view = self._data.map_at(found[-1].position)
            if looks_torn(view, found[-1].position - start, found[-1].size):
                torn = found.pop()
                stop = Stop(torn.position, "the last entry ends in zeros", whole_header=True)
        last_good = found[-1].index if found else base.index if base else -1
        judge(self._data, self._index, last_good, stop, self._durable_index)
        return _Scanned(found, stop)

    # -- mending ----------------------------------------------------------------------------

    def _cut(self, position: int, stop: Stop) -> int:
        """Remove what lies behind the last good entry; return how many bytes were not blank."""
        dirty = 0
        for later in self._data.drop_from(position):
            dirty += later.size if stop.reason else 0
            later.remove()
        start, view = self._data.map_at(position)
        left = _used(view[position - start :])
        if left or len(view) != self._data.file_size:
            self._data.drop_from(start)
            self._data.file_starting(start).cut(position)
        return dirty + left

    def _mend_index(self, found: list[Found], end_index: int) -> int:
        """Write the records of scanned entries where they differ; cut what lies behind."""
        mended = 0
        table = np.zeros(len(found), dtype=INDEX_RECORD_DTYPE)
        for name in ("magic", "size", "index", "term"):
            table[name] = [getattr(entry, name) for entry in found]
        table["pos"] = [entry.position for entry in found]
        row = 0
        while row < len(table):
            place = int(table["index"][row]) * INDEX_RECORD_SIZE
            start = self._index.start_of(place)
            count = (start + self._index.file_size - place) // INDEX_RECORD_SIZE
            part = table[row : row + count]
            mended += self._mend_part(start, place, part)
            row += count
        self._cut_index((end_index + 1) * INDEX_RECORD_SIZE)
        return mended

    def _mend_part(self, start: int, place: int, part: np.ndarray) -> int:
        stored = np.zeros(len(part), dtype=INDEX_RECORD_DTYPE)
        if start in self._index.starts:
            _, view = self._index.map_at(place)
            raw = bytes(view[place - start : place - start + part.nbytes])
            stored[: len(raw) // INDEX_RECORD_SIZE] = np.frombuffer(
                raw[: len(raw) // INDEX_RECORD_SIZE * INDEX_RECORD_SIZE], dtype=INDEX_RECORD_DTYPE
            )
            if len(view) != self._index.file_size:
                self._index.drop_from(start)
        differs = np.zeros(len(part), dtype=bool)
        for name in ("pos", "size", "index", "term"):  # the original's magic may say NORMAL
            differs |= stored[name] != part[name]
        file = self._index.file_starting(start).writable()
        if differs.any():
            file.write_at([part.tobytes()], place - start)
        file.sync()
        return int(differs.sum())

    def _cut_index(self, place: int) -> None:
        for file in self._index.drop_from(max(place, 1)):
            file.remove()
        if self._index.start_of(place) in self._index.starts:
            start, view = self._index.map_at(place)
            if _used(view[place - start :]):
                self._index.file_starting(start).cut(place)

    def _empty(self, stop: Stop) -> Recovered:
        """No entry at all: start anew at the beginning of the sequence."""
        dirty = 0
        for file in self._data.drop_from(0):
            dirty += file.size if stop.reason else 0
            file.remove()
        for file in self._index.drop_from(0):
            file.remove()
        report = RecoveryReport(0, False, dirty, stop.reason, 0)
        return Recovered(-1, -1, 0, -1, -1, 0, 0, report)

    def _begin(self, found: list[Found]) -> tuple[int, int, int]:
        """Return first index, its position, and the term before it (-1 if not known)."""
        base = self._checkpoint
        if base is None:
            return found[0].index, found[0].position, -1
        first = base.before_begin_index + 1
        record = index_record(self._index, first)
        position = int(record["pos"]) if record is not None else self._data.starts[0]
        return first, position, base.before_begin_term
