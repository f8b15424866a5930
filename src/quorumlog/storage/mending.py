"""Setting damaged entries aside in an open log, and putting another replica's in their place."""

from quorumlog.model.block import INDEX_RECORD_SIZE, Block, first_index_of
from quorumlog.model.errors import CorruptionError, InvariantViolation, StorageError
from quorumlog.storage.checkpoint import UNKNOWN_CRC
from quorumlog.storage.damage import DamagedRanges
from quorumlog.storage.disk_reader import DiskReader
from quorumlog.storage.file_sequence import FileSequence
from quorumlog.storage.index_records import Records, records_of
from quorumlog.storage.notes import Notes
from quorumlog.storage.placement import blank_record
from quorumlog.storage.plans import Do, Step
from quorumlog.storage.repair import Finding, continues, diagnose, mends, misfit

NEIGHBOURS_MAX = 4_096
"""Entries behind a damaged one that are looked at with it."""


class Mending:
    """Of one log; makes the steps of a plan, and leaves carrying them out to it."""

    def __init__(
        self, data: FileSequence, index: FileSequence, reader: DiskReader, notes: Notes
    ) -> None:
        self._data = data
        self._index = index
        self._reader = reader
        self._notes = notes

    def diagnose(self, entry: int, last: int, *, is_readable: bool = True) -> Finding:
        """Find out what is wrong with an entry of a log whose last one on disk is `last`.

        Raises `CorruptionError` when nobody can say any more where it was.
        """
        finding = diagnose(
            self._data, self._index, self._reader, entry, last, is_readable=is_readable
        )
        if finding.record is None:
            place = entry * INDEX_RECORD_SIZE
            reason = "it and its index record are damaged, and its neighbours do not tell of it"
            raise self._reader.damaged(entry, place, reason, index=True)
        return finding

    def place_of(self, entry: int, last: int) -> tuple[int, int]:
        """Return where an entry must lie, and its size, although something about it is damaged."""
        record = self.diagnose(entry, last).record
        if record is None:
            raise InvariantViolation("a diagnosis names a record")
        return int(record["pos"][0]), int(record["size"][0])

    def last_damaged(self, entry: int, last: int) -> int:
        """Return how far damage reaches from an entry on: a bad file is not found entry by entry.

        Only entries up to `last` whose index records fit one another are taken along.
        """
        damaged = entry
        limit = min(last, entry + NEIGHBOURS_MAX)
        while damaged < limit and self._reader.is_plausible(damaged + 1):
            try:
                self._reader.verify(damaged + 1, damaged + 1, 1)
            except StorageError:
                damaged += 1
            else:
                break
        return damaged

    def quarantine(self, entry: int, finding: Finding, damaged: DamagedRanges) -> list[Step]:
        """Return steps that mend the entry's index record or set the entry aside; see `Log`.

        `damaged` is then what is known to be damaged.
        """
        steps: list[Step] = []
        if finding.record is not None and mends(self._index, finding.record):
            steps.append(self._record_step(entry, finding.record))
        steps.append(Do(lambda: self._notes.save_damage(damaged)))
        return steps

    def _record_step(self, entry: int, record: Records) -> Step:
        place = entry * INDEX_RECORD_SIZE
        file = self._index.file_at(place)
        return Do(lambda: file.write_through(record.tobytes(), place))

    def repair(
        self,
        block: Block,
        end_chain: int,
        following: Block | None,
        left: DamagedRanges,
        end_index: int,
    ) -> list[Step]:
        """Return steps that write entries over damaged ones and note what is `left`; see `Log`."""
        first = first_index_of(block)
        records = records_of(self._index, first, first + block.count - 1)
        chain_before = self._reader.chain_before(first)
        reason = misfit(
            block, records, chain_before, None if end_chain == UNKNOWN_CRC else end_chain
        )
        if not reason and following is not None and not continues(block, following):
            if chain_before is not None:
                raise self._damaged_behind(first + block.count)
            reason = "the entry behind does not continue the chain CRC"
        if reason:
            position = int(records["pos"][0])
            raise self._misfit(first, position, reason)
        positions = records["pos"].astype("int64").tolist()
        ends = (block.offsets + block.sizes).tolist()
        parts = [
            (position, bytes(block.data[begin:end]))
            for position, begin, end in zip(positions, block.offsets.tolist(), ends, strict=True)
        ]

        parts += self._blanks(first, first + block.count - 1, end_index)

        placed = [(self._data.file_at(position), position, body) for position, body in parts]

        def write() -> None:
            for file, position, body in placed:
                file.writable().write_at([body], position - file.start)
            for file in {file.start: file for file, _, _ in placed}.values():
                file.writable().sync()
            self._notes.save_damage(left)

        return [Do(write)]

    def _blanks(self, first: int, last: int, end_index: int) -> list[tuple[int, bytes]]:
        """Return the blank records that belong behind entries where a file ends (spec 20 §3.1)."""
        records = records_of(self._index, first, min(last + 1, end_index))
        ends = (records["pos"].astype("int64") + records["size"]).tolist()
        return [
            (end, blank_record(self._data.file_at(end).end - end))
            for end, following in zip(ends, records["pos"].tolist()[1:], strict=False)
            if end != following
        ]

    def _damaged_behind(self, entry: int) -> CorruptionError:
        """The entries before it fit all that comes before them: so what does not fit is this one.

        Its own header fits its index record; only the chain, which began anew behind what was
        damaged, could tell.
        """
        position = int(records_of(self._index, entry, entry)["pos"][0])
        reason = "it does not continue the chain CRC of the entry that belongs before it"
        error = self._reader.damaged(entry, position, reason)
        error.is_readable = False  # looked at by itself, it would be taken for whole
        return error

    def _misfit(self, entry: int, position: int, reason: str) -> CorruptionError:
        path = self._data.path_at(position)
        offset = position - self._data.start_of(position)
        return CorruptionError(
            f"{path}: byte {offset}, entry {entry}: the bytes offered in its place are of another "
            f"entry: {reason}; nothing was changed",
            path,
            offset,
            entry,
        )
