"""Finding the entries that lie in the bytes of one data file; every reader of a range starts here.

Index records say where entries lie, so that no entry is looked at on its own. Where they are
missing or wrong, the sizes that the headers state are followed. An entry found here has a possible
header in its place; CRCs, terms and index records are compared by the readers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quorumlog.model.block import (
    ENTRY_MAGICS,
    HEADER_SIZE,
    MAGIC_AND_SIZE,
    Block,
    EntryHeader,
    Int64s,
    header_at,
)
from quorumlog.model.codes import Magic
from quorumlog.storage.entries.checksums import Words, header_table, header_words
from quorumlog.storage.entries.index_records import Records

RUN_BYTES = 4 * 1024 * 1024
"""A reader takes about this many bytes of entries at a time."""
BLANK_SIZE_MIN = 8


@dataclass(frozen=True, slots=True)
class HeaderRun:
    """Entries with possible headers that lie together in one file; consecutive indexes.

    `position` is that of the first one in the log, `words` are the headers.
    """

    first_index: int
    position: int
    block: Block
    words: Words

    @property
    def last_index(self) -> int:
        """Index of the last entry."""
        return self.first_index + self.block.count - 1

    @property
    def table(self) -> npt.NDArray[Any]:
        """The headers as a structured array."""
        return header_table(self.words)

    def start(self, count: int) -> "HeaderRun":
        """Return the first `count` entries."""
        if count == self.block.count:
            return self
        block = self.block.slice(0, count)
        return HeaderRun(self.first_index, self.position, block, self.words[:count])


def find_run(
    view: memoryview,
    offset: int,
    limit: int,
    records: Records,
    *,
    first_index: int,
    position: int,
    bytes_max: int,
) -> HeaderRun | None:
    """Return the entries from `first_index` on that lie at an offset; None if that one does not.

    There are at most as many as `records`, which are what the index has of them, and none reaches
    beyond `limit`. `position` is where the offset is in the log.
    """
    room = limit - offset
    sizes = stated_sizes(records, first_index, position, room, bytes_max)
    run = _run_of(view, offset, sizes, first_index, position)
    if run is None:
        sizes = walked_sizes(view, offset, limit, len(records), bytes_max)
        run = _run_of(view, offset, sizes, first_index, position)
    return run


def stated_sizes(
    records: Records, first_index: int, position: int, room: int, bytes_max: int | None = None
) -> Int64s:
    """Return the sizes that index records state, as far as those entries follow one another.

    They are the entries from `first_index` on; the first is at `position`, and all lie within
    `room` bytes. Those that reach beyond `bytes_max` are left out, except for the first.
    """
    sizes = records["size"].astype(np.int64)
    ends = np.cumsum(sizes)
    fits = records["index"] == np.arange(first_index, first_index + len(records))
    fits &= (sizes >= HEADER_SIZE) & (records["pos"] == position + ends - sizes) & (ends <= room)
    count = len(fits) if fits.all() else int(np.argmin(fits))
    if bytes_max is not None and count > 1 and ends[count - 1] > bytes_max:
        count = max(1, int(np.searchsorted(ends[:count], bytes_max, side="right")))
    return sizes[:count]


def walked_sizes(
    view: memoryview, offset: int, limit: int, count_max: int, bytes_max: int
) -> Int64s:
    """Return the sizes that headers state, going from each to the next.

    The walk ends with the entry that reaches `bytes_max`.
    """
    sizes: list[int] = []
    until = min(limit, offset + bytes_max)
    unpack = MAGIC_AND_SIZE.unpack_from
    while offset + HEADER_SIZE <= limit and len(sizes) < count_max:
        magic, size = unpack(view, offset)
        if magic not in ENTRY_MAGICS or size < HEADER_SIZE or offset + size > limit:
            break
        sizes.append(size)
        offset += size
        if offset >= until:
            break
    return np.array(sizes, dtype=np.int64)


def _run_of(
    view: memoryview, offset: int, sizes: Int64s, first_index: int, position: int
) -> HeaderRun | None:
    """Return the entries of these sizes, as far as their headers are possible."""
    if not len(sizes):
        return None
    ends = np.cumsum(sizes)
    block = Block(view[offset : offset + int(ends[-1])], ends - sizes, sizes)
    run = HeaderRun(first_index, position, block, header_words(block))
    table = run.table
    magic = table["magic"]
    good = (magic >= min(ENTRY_MAGICS)) & (magic <= max(ENTRY_MAGICS))
    good &= (table["size"] == sizes) & (table["body_size"] == sizes - HEADER_SIZE)
    good &= table["index"] == np.arange(first_index, first_index + len(sizes))
    good &= table["term"] >= 0
    count = len(sizes) if good.all() else int(np.argmin(good))
    return run.start(count) if count else None


def entry_header(view: memoryview, offset: int, limit: int) -> EntryHeader | None:
    """Return the header of the entry that lies at an offset; None if none is possible there.

    The entry has to end at or before `limit`.
    """
    if not 0 <= offset <= limit - HEADER_SIZE:
        return None
    header = header_at(view, offset)
    is_entry = (
        header.magic in ENTRY_MAGICS
        and header.body_size >= 0
        and header.size == HEADER_SIZE + header.body_size
        and offset + header.size <= limit
        and header.index >= 0
        and header.term >= 0
    )
    return header if is_entry else None


def blank_length(view: memoryview, offset: int) -> int:
    """Return the length that a blank record at an offset states; 0 if there is no such record."""
    if offset + BLANK_SIZE_MIN > len(view):
        return 0
    magic, length = MAGIC_AND_SIZE.unpack_from(view, offset)
    return int(length) if magic == Magic.BLANK and length >= BLANK_SIZE_MIN else 0
