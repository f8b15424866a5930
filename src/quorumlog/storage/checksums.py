"""Checking the CRCs of all entries of a block at once, without a Python step for each.

CRC-32 is linear over XOR, and appending a message's CRC to it leaves a remainder that does not
depend on the message. So instead of one CRC for each body, one CRC over the whole block is compared
with one over a second buffer of the same length, which is zero but for the headers and, behind each
body, the CRC that its header states: they agree exactly when, but for a chance of 2**-32, all
bodies have the CRCs stated. In the same way all chain CRCs are one CRC over short rows.
"""

import threading
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from quorumlog.model.block import HEADER_SIZE, Block

Words: TypeAlias = npt.NDArray[np.uint32]
"""Rows of 4-byte words."""

_ONES: Final = np.uint32(0xFFFFFFFF)
_WORD: Final = 4
_HEADER: Final = np.dtype(f"V{HEADER_SIZE}")
MAGIC, SIZE, INDEX, TERM, CHANNEL, CHAIN_CRC, BODY_CRC, BODY_SIZE = 0, 1, 2, 4, 8, 9, 10, 11
"""Columns of `header_words`; index and term take two each, the higher half first."""
_CHAIN_ROW: Final = np.array([0, 2, 3, 4, 5, 8, 11, 10])
"""What a chain CRC covers: magic, index, term, channel, body size, body CRC."""


class _Scratch(threading.local):
    """A buffer of zeros a thread, so that checking a block does not fault in new pages."""

    def __init__(self) -> None:
        self.zeros: npt.NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)

    def of(self, length: int) -> npt.NDArray[np.uint8]:
        """Return so many zeros; whoever changes them makes them zeros again."""
        if len(self.zeros) < length:
            self.zeros = np.zeros(length, dtype=np.uint8)
        return self.zeros[:length]


_scratch = _Scratch()


def _everywhere(buffer: memoryview | npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    """Return a buffer as one header at every byte: numpy then copies each of them whole."""
    return np.ndarray((len(buffer) - HEADER_SIZE + 1,), _HEADER, buffer=buffer, strides=(1,))


def _stride(block: Block) -> int:
    """Return the size of all entries if it is one, and no word put behind a body meets another."""
    size = int(block.sizes[0])
    same = size >= HEADER_SIZE + _WORD and bool((block.sizes == size).all())
    return size if same else 0


def header_words(block: Block) -> Words:
    """Return the headers as rows of twelve words, as they are on disk."""
    stride = _stride(block)
    if stride:
        shape, strides = (block.count,), (stride,)
        gathered = np.ndarray(shape, _HEADER, buffer=block.data, strides=strides).copy()
    else:
        gathered = _everywhere(block.data)[block.offsets]
    return gathered.view("<u4").reshape(block.count, HEADER_SIZE // _WORD)


def all_agree(block: Block, words: Words, chain_before: int | None) -> bool:
    """Whether all bodies and all chain CRCs fit; see `bodies_agree` and `chain_agrees`."""
    return chain_agrees(words, chain_before) and bodies_agree(block, words)


def _remainder(data: npt.NDArray[np.uint8] | Words) -> int:
    """Return the remainder of a message: a CRC-32 without its inversions at begin and end."""
    return crc32(data, 0xFFFFFFFF) ^ 0xFFFFFFFF


def bodies_agree(block: Block, words: Words) -> bool:
    """Whether every body has the CRC that its header states; all must carry CRCs.

    `words` are the headers of the block.
    """
    length = len(block.data) + HEADER_SIZE
    expected = _scratch.of(length)
    stated = words[:, BODY_CRC].byteswap() ^ _ONES
    stride = _stride(block)
    if stride:
        count = block.count
        headers = np.ndarray((count,), _HEADER, buffer=expected, strides=(stride,))
        bodies = np.ndarray((count,), "<u4", expected, HEADER_SIZE, (stride,))
        behind = np.ndarray((count,), "<u4", expected, stride, (stride,))
        headers[:] = words.view(_HEADER).ravel()
        bodies[:] = _ONES
        behind ^= stated
        remainder = _remainder(expected)
        headers[:] = np.zeros(1, dtype=_HEADER)
        bodies[:] = behind[:] = 0
    else:
        headers, anywhere = _everywhere(expected), _anywhere(expected)
        starts, ends = block.offsets + HEADER_SIZE, block.offsets + block.sizes
        headers[block.offsets] = words.view(_HEADER).ravel()
        # the inversion at the begin of a CRC, also of a body shorter than it
        anywhere[starts] ^= _ONES
        anywhere[ends] ^= stated
        remainder = _remainder(expected)
        headers[block.offsets] = np.zeros(1, dtype=_HEADER)
        anywhere[starts] = anywhere[ends] = 0
    found = crc32(b"\0" * HEADER_SIZE, crc32(block.data, 0xFFFFFFFF)) ^ 0xFFFFFFFF
    return found == remainder


def _anywhere(buffer: npt.NDArray[np.uint8]) -> Words:
    """Return a buffer as one word at every byte."""
    return np.ndarray((len(buffer) - _WORD + 1,), "<u4", buffer=buffer, strides=(1,))


def chain_agrees(words: Words, chain_before: int | None) -> bool:
    """Whether every chain CRC continues the one before; None: the first cannot be judged.

    `words` are the headers of the entries.
    """
    chains = words[:, CHAIN_CRC].byteswap()
    start = 0 if chain_before is not None else 1
    count = len(words) - start
    if not count:
        return True
    rows = np.empty((count, len(_CHAIN_ROW) + 1), dtype="<u4")
    rows[:, :-1] = words[start:, _CHAIN_ROW]
    before = (
        chains[start - 1 : -1]
        if start
        else np.concatenate((np.array([chain_before], dtype="<u4"), chains[:-1]))
    )
    rows[:, 0] ^= before ^ _ONES
    rows[:, -1] = chains[start:] ^ _ONES
    return _remainder(rows) == 0
