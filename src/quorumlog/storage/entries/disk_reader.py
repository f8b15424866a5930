"""Reading entries from their files by index: checked against everything there is before use."""

import struct

import numpy as np
import numpy.typing as npt

from quorumlog.model.block import (
    HEADER_SIZE,
    INDEX_RECORD_SIZE,
    Block,
    EntryHeader,
    Int64s,
    header_at,
)
from quorumlog.model.errors import CorruptionError, OutOfDescriptorsError, StorageError
from quorumlog.storage.entries.checksums import (
    BODY_CRC,
    BODY_SIZE,
    CHAIN_CRC,
    INDEX,
    SIZE,
    TERM,
    WRONG_CHAIN,
    Words,
    all_agree,
    header_words,
    wrong_crcs,
)
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.entries.index_records import Records, record_at, records_of
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.metadata.advice import REPAIR
from quorumlog.storage.metadata.checkpoint import UNKNOWN_CRC, LogPoint, LogStart

_SAME = ((SIZE, 3), (INDEX, 4), (INDEX + 1, 5), (TERM, 6), (TERM + 1, 7))
"""Columns of `header_words` and of index records that state the same."""
_AT_ONCE = 4_096
"""Entries examined together: what is worked out of them stays in the processor's cache."""
_POS_SIZE = struct.Struct(">qi")
RESIDENT_ENTRIES_MAX = 64
"""Entries that are read at a time at most without a thread; each costs about a microsecond."""
RESIDENT_BYTES_MAX = 64 * 1024
"""Bytes that are read at a time at most without a thread, those of entries before included."""
RESIDENT_BEFORE = 2
"""Entries before the first that `read` may look at, to check that the chain of CRCs continues: the
one before, and the one that it continues."""


class DiskReader:
    """Reads what is on disk; from any thread. `log_start` is where the log starts."""

    def __init__(self, data: FileSequence, index: FileSequence, log_start: LogStart) -> None:
        self._data = data
        self._index = index
        self.log_start = log_start

    def read(self, first_index: int, last_index: int, bytes_max: int) -> EntryRun:
        """Return entries from first_index on that lie together in one file and fit; at least one.

        Raises `CorruptionError` naming the first damaged entry among them.
        """
        index_position = first_index * INDEX_RECORD_SIZE
        start, view = self._index.map_at(index_position)
        count = min(
            last_index - first_index + 1,
            (start + self._index.file_size - index_position) // INDEX_RECORD_SIZE,
            max(1, bytes_max // HEADER_SIZE),
        )
        offset = index_position - start
        count = _fitting(view, offset, count, bytes_max)
        table = _words_of(view[offset : offset + count * INDEX_RECORD_SIZE])
        positions, sizes = _places(table)
        position = int(positions[0])
        stated = int.from_bytes(view[offset + 16 : offset + 24], "big")
        if stated != first_index or not self._data.has(position):
            raise self.damaged(
                first_index, index_position, "the index record is damaged", index=True
            )
        file_start, data = self._data.map_at(position)
        ends = positions + sizes
        fits = (ends - position <= bytes_max) & (ends <= file_start + len(data))
        fits[1:] &= positions[1:] == ends[:-1]
        fits[0] = ends[0] <= file_start + len(data) and sizes[0] >= HEADER_SIZE
        count = count if fits.all() else int(np.argmin(fits))
        if not count:
            raise self.damaged(
                first_index, index_position, "the index record is damaged", index=True
            )
        begin = position - file_start
        block = Block(
            data[begin : int(ends[count - 1]) - file_start],
            positions[:count] - position,
            sizes[:count],
        )
        wrong = self._examine(block, table[:count], first_index)
        if wrong is not None:
            ordinal, reason = wrong
            at = position + int(block.offsets[ordinal])
            raise self.damaged(first_index + ordinal, at, reason)
        records = view[index_position - start : index_position - start + count * INDEX_RECORD_SIZE]
        self._data.was_read(len(block.data))
        self._index.was_read(len(records))
        return EntryRun(first_index, count, block.data, records, False)

    def read_resident(self, first_index: int, last_index: int, bytes_max: int) -> EntryRun | None:
        """Return what `read` does if that is little and waits for no disk; else None.

        `read` looks at the entries and at up to `RESIDENT_BEFORE` entries before them, and at the
        index records of all these.
        """
        index_position = first_index * INDEX_RECORD_SIZE
        start = self._index.start_of(index_position)
        before = min(RESIDENT_BEFORE, first_index - 1 - self.log_start.before_begin_index)
        begin = index_position - before * INDEX_RECORD_SIZE
        wanted = min(last_index - first_index + 1, RESIDENT_ENTRIES_MAX + 1)
        end = min(index_position + wanted * INDEX_RECORD_SIZE, start + self._index.file_size)
        view = self._index.resident_at(begin, end)
        if view is None:
            return None
        unpack, offset = _POS_SIZE.unpack_from, index_position - start
        count = _fitting(view, offset, (end - index_position) // INDEX_RECORD_SIZE, bytes_max)
        first_position = unpack(view, begin - start + 4)[0]
        position, size = unpack(view, offset + (count - 1) * INDEX_RECORD_SIZE + 4)
        length = position + size - first_position
        is_little = count <= RESIDENT_ENTRIES_MAX and HEADER_SIZE <= length <= RESIDENT_BYTES_MAX
        if not is_little or first_position < 0:
            return None
        if self._data.resident_at(first_position, first_position + length) is None:
            return None
        return self.read(first_index, first_index + count - 1, bytes_max)

    def _examine(self, block: Block, records: Words, first_index: int) -> tuple[int, str] | None:
        """Return the first entry whose header, index record or CRCs do not agree, and how."""
        is_continued, chain = self.continues(
            first_index, header_at(block.data, int(block.offsets[0]))
        )
        if is_continued and _are_sound(block, records, first_index, chain):
            return None
        words = header_words(block)
        agrees = _headers_agree(block, words, records, first_index)
        count = block.count if agrees.all() else int(np.argmin(agrees))
        if count and not is_continued:
            return 0, WRONG_CHAIN
        wrong = next(wrong_crcs(block.slice(0, count), chain), None) if count else None
        if wrong is None and count < block.count:
            return count, "header and index record disagree"
        return wrong

    def continues(self, index: int, header: EntryHeader) -> tuple[bool, int | None]:
        """Whether an entry with this header may follow, and which chain CRC proves it.

        The entry before may be damaged, in its chain CRC or elsewhere. An entry that continues the
        chain CRC that the one before states, or should state, is proven (but for a chance of
        2**-32). One that continues neither is not served, since nothing else would show that its
        channel or chain CRC is wrong. An entry without CRC cannot be proven, nor can one before
        which no chain CRC is known.
        """
        before, stored = index - 1, header.chain_crc
        if _keeps_no_crc(header):
            known = self.chain_before(index)
            return not (self._stated_before(before) if known is None else known), None
        if before <= self.log_start.before_begin_index:
            chain = self._stated_before(index)
            if chain is None:
                return True, None
            fits = header.chain_crc_after(chain) == stored
            return fits, chain if fits else None
        earlier = self._header_in_place(before)
        if earlier is None:
            return False, None
        if header.chain_crc_after(earlier.chain_crc) == stored:
            return True, earlier.chain_crc
        expected = self._expected_chain(before, earlier)
        if expected is not None and header.chain_crc_after(expected) == stored:
            return True, expected
        return False, None

    def follows(self, index: int) -> bool:
        """Whether an entry may follow what lies before it; see `continues`."""
        header = self._header_in_place(index)
        return header is not None and self.continues(index, header)[0]

    def chain_before(self, index: int) -> int | None:
        """Return the chain CRC of the entry before `index`; None if it cannot be relied on.

        It can be relied on if it follows from the one before it: else either may be damaged.
        """
        before = index - 1
        if before <= self.log_start.before_begin_index:
            return self._stated_before(index)
        header = self._header(before)
        if header is None:
            return None
        chain = header.chain_crc
        if _keeps_no_crc(header):  # the chain starts again after it
            return None if self._stated_before(before) else 0
        expected = self._expected_chain(before, header)
        return chain if expected == chain else None

    def _expected_chain(self, index: int, header: EntryHeader) -> int | None:
        before = self._stated_before(index)
        return None if before is None else header.chain_crc_after(before)

    def _stated_before(self, index: int) -> int | None:
        """Return the chain CRC that the entry before one states, right or not."""
        if index - 1 <= self.log_start.before_begin_index:
            chain = self.log_start.chain_crc
            return None if chain == UNKNOWN_CRC else chain
        earlier = self._header(index - 1)
        return None if earlier is None else earlier.chain_crc

    def _header(self, index: int) -> EntryHeader | None:
        """Return the header of an entry if it is where the index says and says so itself."""
        record = record_at(self._index, index)
        if record is None or int(record["index"]) != index:
            return None
        header = self._header_at(int(record["pos"]))
        return header if header is not None and header.index == index else None

    def _header_in_place(self, index: int) -> EntryHeader | None:
        """Return the bytes where the header of an entry belongs, without checking them.

        Its index record and the one before it both say where that is; either may be damaged.
        """
        header = self._header(index)
        if header is not None:
            return header
        record, before = record_at(self._index, index), record_at(self._index, index - 1)
        positions = [] if record is None else [int(record["pos"])]
        if index - 1 <= self.log_start.before_begin_index:
            positions.append(self.log_start.position)
        elif before is not None:
            positions += self._data.positions_after(int(before["pos"]) + int(before["size"]))
        there = [found for found in map(self._header_at, positions) if found is not None]
        stated = [found for found in there if found.index == index]
        return next(iter(stated + there), None)

    def _header_at(self, position: int) -> EntryHeader | None:
        if position < 0 or not self._data.has(position):
            return None
        start, view = self._data.map_at(position)
        if position - start + HEADER_SIZE > len(view):
            return None
        return header_at(view, position - start)

    def is_plausible(self, index: int) -> bool:
        """Whether the index record of an entry continues the one before it."""
        before, record = record_at(self._index, index - 1), record_at(self._index, index)
        if before is None or record is None:
            return False
        end = int(before["pos"]) + int(before["size"])
        follows = self._data.positions_after(end)
        numbered = (int(before["index"]), int(record["index"])) == (index - 1, index)
        placed = int(record["pos"]) in follows and int(record["size"]) >= HEADER_SIZE
        return numbered and placed and int(record["term"]) >= int(before["term"])

    def point_after(self, index: int) -> LogPoint | None:
        """Return the point after an entry whose header and index record agree; else None."""
        header, record = self._header(index), record_at(self._index, index)
        if header is None or record is None or not self.is_where_stated(index):
            return None
        return LogPoint(
            index, int(record["pos"]) + int(record["size"]), header.chain_crc, header.term
        )

    def is_where_stated(self, index: int) -> bool:
        """Whether header and index record of an entry agree."""
        header, record = self._header(index), record_at(self._index, index)
        if header is None or record is None:
            return False
        return (header.size, header.term) == (int(record["size"]), int(record["term"]))

    def unchecked(self, index: int) -> Block:
        """Return an entry unchecked. Raises `CorruptionError` if its place is not known."""
        position, size = self.place_of(index)
        header = self._header_at(position)
        start, view = self._data.map_at(position) if header is not None else (0, memoryview(b""))
        if header is None or position - start + size > len(view):
            raise self.damaged(index, position, "the file ends inside an entry")
        begin = position - start
        return Block(view[begin : begin + size], np.zeros(1, np.int64), np.array([size], np.int64))

    def place_of(self, index: int) -> tuple[int, int]:
        """Return where an entry starts and its size. Raises `CorruptionError`."""
        record = record_at(self._index, index)
        if record is None or int(record["index"]) != index or int(record["size"]) < HEADER_SIZE:
            index_position = index * INDEX_RECORD_SIZE
            raise self.damaged(index, index_position, "the index record is damaged", index=True)
        return int(record["pos"]), int(record["size"])

    def term_at(self, index: int) -> int:
        """Return the term of an entry; where header and index differ, of the one that is right.

        Raises `CorruptionError` when neither can be relied on.
        """
        header, record = self._header(index), record_at(self._index, index)
        stated = record is not None and int(record["index"]) == index
        if header is not None and record is not None and stated:
            if int(record["term"]) == header.term:
                return header.term
            if header.chain_crc and self._expected_chain(index, header) == header.chain_crc:
                return header.term
        if record is None or not stated:
            index_position = index * INDEX_RECORD_SIZE
            raise self.damaged(index, index_position, "the index record is damaged", index=True)
        return int(record["term"])

    def verify(self, first_index: int, last_index: int, bytes_max: int) -> int:
        """Read entries from the disk rather than from the page cache; return the last one checked.

        Raises `CorruptionError` naming the first damaged one.
        """
        count = min(last_index - first_index + 1, max(1, bytes_max // HEADER_SIZE))
        found = records_of(self._index, first_index, first_index + count - 1)
        count = _fitting(memoryview(found.tobytes()), 0, count, bytes_max)
        found = found[:count]
        records = _words_of(found)
        positions, sizes = _places(records)
        position = int(positions[0])
        known = int(found["index"][0]) == first_index and sizes[0] >= HEADER_SIZE
        if not known or not self._data.has(position):
            index_position = first_index * INDEX_RECORD_SIZE
            raise self.damaged(
                first_index, index_position, "the index record is damaged", index=True
            )
        file = self._data.file_at(position)
        ends = positions + sizes
        fits = (ends - position <= bytes_max) & (ends <= file.end)
        fits[1:] &= positions[1:] == ends[:-1]
        fits[0] = ends[0] <= file.end
        count = count if fits.all() else max(1, int(np.argmin(fits)))
        length = min(int(ends[count - 1]), file.end) - position
        try:
            data = memoryview(file.read(length, position))
        except OutOfDescriptorsError:
            raise  # it was not read at all
        except StorageError as error:
            if count == 1:
                wrong_read = self.damaged(first_index, position, f"it cannot be read: {error}")
                wrong_read.is_readable = False
                raise wrong_read from error
            return self.verify(first_index, first_index, 1)  # which of them is it?
        if len(data) < int(sizes[:count].sum()):
            raise self.damaged(first_index, position, "the file ends inside an entry")
        block = Block(data, positions[:count] - position, sizes[:count])
        wrong = self._examine(block, records[:count], first_index)
        self._data.was_read(length)  # it looked at the header before, in a mapped file
        if wrong is not None:
            ordinal, reason = wrong
            at = position + int(block.offsets[ordinal])
            raise self.damaged(first_index + ordinal, at, reason)
        return first_index + count - 1

    def damaged(
        self, entry: int, position: int, reason: str, *, index: bool = False
    ) -> CorruptionError:
        """Return the error that names a damaged entry, its file and the byte in it."""
        sequence = self._index if index else self._data
        path, offset = sequence.path_at(position), position - sequence.start_of(position)
        return CorruptionError(
            f"{path}: byte {offset}, entry {entry}: {reason}; it is not served. {REPAIR}",
            path,
            offset,
            entry,
            reason,
        )


def _keeps_no_crc(header: EntryHeader) -> bool:
    """Whether DLedger wrote an entry; one of ours lacks CRCs only if its chain CRC is damaged.

    The chain CRC before it decides: after an entry with CRCs there is none without.
    """
    return not header.chain_crc and not header.body_crc


def _are_sound(block: Block, records: Words, first_index: int, chain: int | None) -> bool:
    """Whether all is as it should be; False when in doubt."""
    for start in range(0, block.count, _AT_ONCE):
        stop = min(start + _AT_ONCE, block.count)
        is_sound, chain = _is_sound(
            block.slice(start, stop), records[start:stop], first_index + start, chain
        )
        if not is_sound:
            return False
    return True


def _is_sound(
    block: Block, records: Words, first_index: int, chain: int | None
) -> tuple[bool, int | None]:
    """Whether all entries are good, checked together; and the last chain CRC.

    False when in doubt: where entries with and without CRCs are mixed.
    """
    words = header_words(block)
    checked = words[:, CHAIN_CRC] | words[:, BODY_CRC]
    last = int(words[-1, CHAIN_CRC].byteswap())
    if not _headers_agree(block, words, records, first_index).all():
        return False, last
    if not checked.any():
        return True, last  # written by DLedger, which keeps no CRC
    return bool(checked.all()) and all_agree(block, words, chain), last


def _headers_agree(
    block: Block, words: Words, records: Words, first_index: int
) -> npt.NDArray[np.bool_]:
    """Whether each header states the index, term and size that it should."""
    indexes = np.arange(first_index, first_index + block.count).astype(">u4").view("<u4")
    body_sizes = (block.sizes - HEADER_SIZE).astype(">u4").view("<u4")
    agrees: npt.NDArray[np.bool_] = words[:, INDEX + 1] == indexes
    agrees &= words[:, BODY_SIZE] == body_sizes
    for ours, theirs in _SAME:
        agrees &= words[:, ours] == records[:, theirs]
    return agrees


def _fitting(view: memoryview, offset: int, count: int, bytes_max: int) -> int:
    """Return how many of `count` index records from an offset on lie within this many bytes.

    At least one fits. It halves the range, so that not every record of small entries is read.
    """
    unpack = _POS_SIZE.unpack_from
    limit = unpack(view, offset + 4)[0] + bytes_max
    low, high = 1, count
    while low < high:
        middle = (low + high + 1) // 2
        position, size = unpack(view, offset + (middle - 1) * INDEX_RECORD_SIZE + 4)
        if position + size <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _words_of(records: Records | memoryview) -> Words:
    """Return index records as rows of eight words, as they are on disk."""
    return np.frombuffer(records, dtype="<u4").reshape(-1, INDEX_RECORD_SIZE // 4)


def _places(words: Words) -> tuple[Int64s, Int64s]:
    """Return positions and sizes that index records state."""
    high, low, sizes = (words[:, column].byteswap().astype(np.int64) for column in (1, 2, 3))
    return (high << 32) | low, sizes
