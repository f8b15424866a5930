"""Quarantining damaged entries in an open log, and repairing them with another replica's bytes."""

from quorumlog.model.block import INDEX_RECORD_SIZE, Block, first_index_of, header_at
from quorumlog.model.errors import CorruptionError, InvariantViolation, StorageError
from quorumlog.storage.entries.disk_reader import DiskReader
from quorumlog.storage.entries.index_records import Records, records_of
from quorumlog.storage.entries.placement import blank_record
from quorumlog.storage.entries.scanner import Scanner
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.files.write_plans import Action, Step
from quorumlog.storage.metadata.checkpoint import UNKNOWN_CRC, LogPoint
from quorumlog.storage.metadata.damaged_ranges import DamagedRanges
from quorumlog.storage.metadata.store_metadata import StoreMetadata
from quorumlog.storage.recovery.diagnosis import (
    Diagnosis,
    continues,
    diagnose,
    differs_from_index,
    mismatch,
)
from quorumlog.storage.recovery.recovery import derived_records

NEIGHBOURS_MAX = 512
RECORDS_MAX = 65_536
"""Entries are found in the data alone if at most this many index records in a row are damaged."""
NEIGHBOURS_BYTES = 4 * 1024 * 1024
"""At most 512 entries, or 4 MiB, on either side of a damaged one are checked along with it."""


class Quarantine:
    """The part of a log that quarantines and repairs entries.

    It makes the steps of write plans, which the disk thread carries out.
    """

    def __init__(
        self, data: FileSequence, index: FileSequence, reader: DiskReader, metadata: StoreMetadata
    ) -> None:
        self._data = data
        self._index = index
        self._reader = reader
        self._metadata = metadata

    def diagnose(self, entry: int, last: int, *, is_readable: bool = True) -> Diagnosis:
        """Find out what is wrong with an entry of a log whose last one on disk is `last`.

        Raises `CorruptionError` when nobody can say any more where it was.
        """
        diagnosis = diagnose(
            self._data, self._index, self._reader, entry, last, is_readable=is_readable
        )
        if diagnosis.record is None and is_readable:
            found = self._derived_again(entry, last)
            if found is not None:
                diagnosis = Diagnosis(found, is_whole=True)
        if diagnosis.record is None:
            index_position = entry * INDEX_RECORD_SIZE
            reason = (
                "it and its index record are damaged, and its neighbours do not prove where it was"
            )
            raise self._reader.damaged(entry, index_position, reason, index=True)
        return diagnosis

    def _derived_again(self, entry: int, last: int) -> Records | None:
        """Return the index record of an entry among many whose records are damaged, by its data.

        Reading starts at the last entry before them whose header and record agree, and goes on
        while every CRC fits. None if it does not get as far as the entry.
        """
        log_start = self._reader.log_start
        point = log_start.point
        for before in range(entry - 1, max(point.index, entry - 1 - RECORDS_MAX), -1):
            known = self._reader.point_after(before)
            if known is not None:
                point = known
                break
        else:
            if entry - 1 - RECORDS_MAX > point.index:
                return None
        chain = None if point.chain_crc == UNKNOWN_CRC else point.chain_crc
        scanner = Scanner(
            self._data, point.position, index=point.index, term=point.term, chain_crc=chain
        )
        for run in scanner:
            if run.last_index >= entry:
                row = entry - run.first_index
                return derived_records(run)[row : row + 1] if entry <= last else None
        return None

    def place_of(self, entry: int, last: int) -> tuple[int, int]:
        """Return where an entry must lie, and its size, although something about it is damaged."""
        record = self.diagnose(entry, last).record
        if record is None:
            raise InvariantViolation("a diagnosis names a record")
        return int(record["pos"][0]), int(record["size"][0])

    def damaged_around(self, entry: int, last: int, known: DamagedRanges) -> tuple[int, int]:
        """Return how far damage reaches around an entry: a bad file is not found entry by entry.

        Only entries up to `last` whose index records fit one another are included; `known` are
        those quarantined already. The first entry of the log is included, too, where nothing but
        the one after it could prove it.
        """
        log_start = self._reader.log_start
        begin = log_start.before_begin_index + 1
        first = self._reach(entry, begin, -1, known)
        final = self._reach(entry, last, 1, known)
        is_unproven = first == begin + 1 and log_start.chain_crc == UNKNOWN_CRC
        if is_unproven and not self._reader.follows(first):
            first = begin
        return first, final

    def _reach(self, entry: int, last: int, step: int, known: DamagedRanges) -> int:
        """Return the last damaged entry in one direction, at most `last`."""
        checks, room = NEIGHBOURS_MAX, NEIGHBOURS_BYTES
        while (last - entry) * step > 0 and checks and room > 0:
            quarantined = known.range_at(entry + step)
            if quarantined is not None:
                entry = quarantined[step > 0]
                continue
            if not self._is_damaged_too(entry + step):
                break
            entry += step
            checks -= 1
            room -= self._reader.place_of(entry)[1]
        return entry

    def _is_damaged_too(self, entry: int) -> bool:
        if not self._reader.is_plausible(entry):
            return False
        try:
            self._reader.verify(entry, entry, 1)
        except StorageError:
            return True
        return False

    def quarantine(self, entry: int, diagnosis: Diagnosis, damaged: DamagedRanges) -> list[Step]:
        """Return steps that repair the entry's index record or quarantine the entry; see `Log`.

        `damaged` is then what is known to be damaged.
        """
        steps: list[Step] = []
        if diagnosis.record is not None and differs_from_index(self._index, diagnosis.record):
            steps.append(self._record_step(entry, diagnosis.record))
        steps.append(Action(lambda: self._metadata.save_damage(damaged)))
        return steps

    def _record_step(self, entry: int, record: Records) -> Step:
        index_position = entry * INDEX_RECORD_SIZE
        file = self._index.file_at(index_position)
        return Action(lambda: file.write_through(record.tobytes(), index_position))

    def repair(
        self, block: Block, following: Block | None, left: DamagedRanges, end: LogPoint
    ) -> list[Step]:
        """Return steps that write entries over damaged ones; see `Log`.

        `left` is recorded as the damage that is left; `following` is the entry after them, `end`
        where the log ends.
        """
        first = first_index_of(block)
        last = first + block.count - 1
        records = records_of(self._index, first, last)
        chain_before = self._reader.chain_before(first)
        is_end_known = last == end.index and end.chain_crc != UNKNOWN_CRC
        reason = mismatch(block, records, chain_before, end.chain_crc if is_end_known else None)
        if not reason and not self._is_in_place(first, records):
            reason = "its index record is not that of the place after the entry before it"
        if not reason and following is not None and not continues(block, following):
            is_proven = (
                self._reader.continues(first, header_at(block.data, int(block.offsets[0])))[1]
                is not None
            )
            if chain_before is not None or is_proven:
                raise self._damaged_after(last + 1)
            reason = "the entry after it does not continue the chain CRC"
        if reason:
            position = int(records["pos"][0])
            raise self._mismatch_error(first, position, reason)
        positions = records["pos"].astype("int64").tolist()
        ends = (block.offsets + block.sizes).tolist()
        parts = [
            (position, bytes(block.data[begin:stop]))
            for position, begin, stop in zip(positions, block.offsets.tolist(), ends, strict=True)
        ]
        parts += self._blanks(first, last, end.index)
        placed = [(self._data.file_at(position), position, body) for position, body in parts]

        def write() -> None:
            for file, position, body in placed:
                file.writable().write_at([body], position - file.start)
            for file in {file.start: file for file, _, _ in placed}.values():
                file.writable().sync()
            self._metadata.save_damage(left)

        return [Action(write)]

    def _is_in_place(self, first: int, records: Records) -> bool:
        """Whether entries from `first` on lie where those before them end, by the index."""
        log_start = self._reader.log_start
        end = log_start.position
        if first - 1 > log_start.before_begin_index:
            end = int(sum(records_of(self._index, first - 1, first - 1)[["pos", "size"]][0]))
        for pos, size in zip(records["pos"].tolist(), records["size"].tolist(), strict=True):
            if pos not in self._data.positions_after(end):
                return False
            end = pos + size
        return True

    def _blanks(self, first: int, last: int, end_index: int) -> list[tuple[int, bytes]]:
        """Return the blanks that belong after entries where a file ends (spec 20 section 3.1)."""
        records = records_of(self._index, first, min(last + 1, end_index))
        ends = (records["pos"].astype("int64") + records["size"]).tolist()
        return [
            (end, blank_record(self._data.file_at(end).end - end))
            for end, following in zip(ends, records["pos"].tolist()[1:], strict=False)
            if end != following
        ]

    def _damaged_after(self, entry: int) -> CorruptionError:
        """The entries before this one continue the chain, so the one that does not fit is this one.

        Its own header fits its index record. Only the chain, which started again after the damage,
        could show that it is wrong.
        """
        position = int(records_of(self._index, entry, entry)["pos"][0])
        reason = "it does not continue the chain CRC of the entry that belongs before it"
        error = self._reader.damaged(entry, position, reason)
        # read by itself, it would seem whole, unless it is not there at all
        error.is_readable = not self._reader.is_where_stated(entry)
        return error

    def _mismatch_error(self, entry: int, position: int, reason: str) -> CorruptionError:
        path = self._data.path_at(position)
        offset = position - self._data.start_of(position)
        return CorruptionError(
            f"{path}: byte {offset}, entry {entry}: the bytes offered in its place are of another "
            f"entry: {reason}; nothing was changed",
            path,
            offset,
            entry,
        )
