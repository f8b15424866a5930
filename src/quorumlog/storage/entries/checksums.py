"""Checking the CRCs of all entries of a block at once, without a Python step for each.

CRC-32 is linear over XOR, and appending a message's CRC to it leaves a remainder that does not
depend on the message. So instead of one CRC for each body, one CRC over the whole block is compared
with one over a second buffer of the same length, which is zero but for the headers and, after each
body, the CRC that its header states: they agree exactly when, but for a chance of 2**-32, all
bodies have the CRCs stated. In the same way all chain CRCs are one CRC over short rows.
"""

import threading
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from quorumlog.model.block import (
    HEADER_DTYPE,
    HEADER_SIZE,
    HEADER_VOID,
    Block,
    VoidRows,
    chain_crc_rows,
    everywhere,
    headers,
    uniform_size,
)

Words: TypeAlias = npt.NDArray[np.uint32]
"""Rows of 4-byte words."""

_ONES: Final = np.uint32(0xFFFFFFFF)
_WORD: Final = 4
_ROW: Final = np.dtype(f"V{HEADER_SIZE + _WORD}")
_NO_ROW: Final = np.zeros(1, dtype=_ROW)
MAGIC, SIZE, INDEX, TERM, CHANNEL, CHAIN_CRC, BODY_CRC, BODY_SIZE = 0, 1, 2, 4, 8, 9, 10, 11
"""Columns of `header_words`; index and term take two each, the higher half first."""
_INDEX_AND_TERM: Final = np.dtype("V16")
_CHAIN_COLUMNS: Final = 9
"""What a chain CRC covers: magic, index, term, channel, body size, body CRC; then it itself."""

FOREIGN: Final = "an entry without CRCs after one with CRCs"
WRONG_CHAIN: Final = "the chain CRC does not fit"
WRONG_BODY: Final = "the body does not fit its CRC"


class _Scratch(threading.local):
    """A buffer of zeros a thread, so that checking a block does not fault in new pages."""

    def __init__(self) -> None:
        self.zeros: npt.NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)

    def of(self, length: int) -> npt.NDArray[np.uint8]:
        """Return `length` zeros; the caller makes them zeros again after changing them."""
        if len(self.zeros) < length:
            self.zeros = np.zeros(length, dtype=np.uint8)
        return self.zeros[:length]


_scratch = _Scratch()


def header_words(block: Block) -> Words:
    """Return the headers as rows of twelve words, as they are on disk."""
    stride = uniform_size(block.sizes)
    if stride:
        shape, strides = (block.count,), (stride,)
        gathered = np.ndarray(shape, HEADER_VOID, buffer=block.data, strides=strides).copy()
    else:
        gathered = everywhere(block.data, HEADER_VOID)[block.offsets]
    return gathered.view("<u4").reshape(block.count, HEADER_SIZE // _WORD)


def header_table(words: Words) -> npt.NDArray[Any]:
    """Return rows of `header_words` as a structured array of `HEADER_DTYPE` over the same bytes.

    If several columns are read, this is several times as fast as `headers`, whose rows lie as far
    apart as the entries: there each row costs a cache miss for each column.
    """
    return words.view(HEADER_DTYPE).ravel()


def all_agree(block: Block, words: Words, chain_before: int | None) -> bool:
    """Whether all bodies and all chain CRCs fit; see `bodies_agree` and `chain_agrees`."""
    return chain_agrees(words, chain_before) and bodies_agree(block, words)


def _remainder(data: npt.NDArray[np.uint8] | Words) -> int:
    """Return the remainder of a message: a CRC-32 without its inversions at start and end."""
    return crc32(data, 0xFFFFFFFF) ^ 0xFFFFFFFF


def bodies_agree(block: Block, words: Words) -> bool:
    """Whether every body has the CRC that its header states; all must carry CRCs.

    `words` are the headers of the block.
    """
    length = len(block.data) + _ROW.itemsize
    expected = _scratch.of(length)
    # an entry's row is the CRC of the body before it, its header, and the inversion that the CRC
    # of a body starts with; after the last entry there is a row of only a CRC
    rows = np.zeros((block.count + 1, _ROW.itemsize // _WORD), dtype="<u4")
    _void_rows(rows[:-1], 0, HEADER_VOID)[:] = _void_rows(words, 0, HEADER_VOID)
    rows[:-1, -1] = _ONES
    rows[1:, 0] ^= words[:, BODY_CRC].byteswap() ^ _ONES
    stride = uniform_size(block.sizes)
    if stride >= _ROW.itemsize:
        places = np.ndarray((len(rows),), _ROW, expected, strides=(stride,))
        places[:] = rows.view(_ROW).ravel()
        remainder = _remainder(expected)
        places[:] = _NO_ROW
    else:
        places = everywhere(expected, _ROW)
        offsets = np.append(block.offsets, len(block.data))
        short = np.flatnonzero(block.sizes < _ROW.itemsize)
        # bodies of less than a word: the inversion reaches into the row after
        rows[short + 1, 0] ^= _ONES >> (8 * (block.sizes[short] - HEADER_SIZE)).astype(np.uint32)
        places[offsets] = rows.view(_ROW).ravel()
        everywhere(expected, HEADER_VOID)[offsets[short + 1]] = _void_rows(rows, 0, HEADER_VOID)[
            short + 1
        ]
        remainder = _remainder(expected)
        places[offsets] = _NO_ROW
    found = crc32(_NO_ROW, crc32(block.data, 0xFFFFFFFF)) ^ 0xFFFFFFFF
    return found == remainder


def wrong_crcs(
    block: Block, chain_before: int | None, *, bodies: bool = True
) -> Iterator[tuple[int, str]]:
    """Yield the place in the block of each entry whose CRCs are wrong, and the reason.

    This is for blocks of which `all_agree` is False: it checks entries one by one. `chain_before`
    is the chain CRC of the entry before the block; None: it is not known. After an entry with a
    wrong chain CRC the right one is not known either, so that of the next entry is not judged.
    Entries of DLedger carry no CRCs.
    """
    table, data, chain = headers(block), block.data, chain_before
    chains, body_crcs = table["chain_crc"].tolist(), table["body_crc"].tolist()
    starts = (block.offsets + HEADER_SIZE).tolist()
    ends = (block.offsets + block.sizes).tolist()
    rows = chain_crc_rows(block)
    for ordinal, (stored, body_crc) in enumerate(zip(chains, body_crcs, strict=True)):
        before, chain = chain, stored
        if not stored and not body_crc:
            if before:
                chain = None
                yield ordinal, FOREIGN
        elif before is not None and crc32(rows[ordinal], before) != stored:
            chain = None
            yield ordinal, WRONG_CHAIN
        elif bodies and crc32(data[starts[ordinal] : ends[ordinal]]) != body_crc:
            yield ordinal, WRONG_BODY


def first_damaged(block: Block) -> int | None:
    """Return the ordinal of the first entry whose body does not fit its body CRC, or None.

    Entries with body CRC and chain CRC both 0 were written by DLedger and are not checked.
    """
    data = block.data
    table = headers(block)
    expected = table["body_crc"].tolist()
    starts = (block.offsets + HEADER_SIZE).tolist()
    ends = (block.offsets + block.sizes).tolist()
    for ordinal, (start, end, crc) in enumerate(zip(starts, ends, expected, strict=True)):
        if crc32(data[start:end]) != crc and (crc or int(table["chain_crc"][ordinal])):
            return ordinal
    return None


def chain_agrees(words: Words, chain_before: int | None) -> bool:
    """Whether every chain CRC continues the one before; None: the first cannot be judged.

    `words` are the headers of the entries.
    """
    chains = words[:, CHAIN_CRC].byteswap()
    start = 0 if chain_before is not None else 1
    count = len(words) - start
    if not count:
        return True
    before = chains[start - 1 : -1]
    if chain_before is not None:
        before = np.concatenate((np.array([chain_before], dtype="<u4"), chains[:-1]))
    covered, rows = words[start:], np.empty((count, _CHAIN_COLUMNS), dtype="<u4")
    rows[:, 0] = covered[:, MAGIC] ^ before ^ _ONES
    _void_rows(rows, 1, _INDEX_AND_TERM)[:] = _void_rows(covered, INDEX, _INDEX_AND_TERM)
    for column, of_header in enumerate((CHANNEL, BODY_SIZE, BODY_CRC), 5):
        rows[:, column] = covered[:, of_header]
    rows[:, -1] = chains[start:] ^ _ONES
    return _remainder(rows) == 0


def _void_rows(rows: Words, column: int, item: np.dtype[Any]) -> VoidRows:
    """Return words of each row, from a column on, as one item.

    Assigned so they are copied whole; numpy would go over the words of every row on their own.
    """
    offset = column * _WORD
    return np.ndarray((len(rows),), item, rows, offset, (rows.strides[0],))
