"""Checking the CRCs of all entries of a block at once, without a Python step for each.

CRC-32 is linear over XOR, and appending a message's CRC to it leaves a remainder that does not
depend on the message. So instead of one CRC for each body, one CRC over the whole block is compared
with one over a second buffer of the same length, which is zero but for the headers and, behind each
body, the CRC that its header states: they agree exactly when, but for a chance of 2**-32, all
bodies have the CRCs stated. In the same way all chain CRCs are one CRC over short rows.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from quorumlog.model.block import HEADER_SIZE, Block, Int64s, chain_rows, headers

_ONES: Final = 0xFFFFFFFF
_WORD: Final = 4
_CHAIN_SIZE: Final = 32


def all_agree(block: Block, chain_before: int | None) -> bool:
    """Whether all bodies and all chain CRCs fit; see `bodies_agree` and `chain_agrees`."""
    return bodies_agree(block) and chain_agrees(block, chain_before)


def _remainder(data: npt.NDArray[np.uint8] | memoryview) -> int:
    """Return the remainder of a message: a CRC-32 without its inversions at begin and end."""
    return crc32(data, _ONES) ^ _ONES


def bodies_agree(block: Block) -> bool:
    """Whether every body has the CRC that its header states; all must carry CRCs."""
    length = len(block.data)
    expected = np.zeros(length + _WORD, dtype=np.uint8)
    table = headers(block)
    stated = np.ascontiguousarray(table["body_crc"]).astype("<u4") ^ np.uint32(_ONES)
    words = stated.view(np.uint8).reshape(-1, _WORD)
    raw = np.frombuffer(block.data, dtype=np.uint8)
    size = int(block.sizes[0])
    if bool((block.sizes == size).all()) and size >= HEADER_SIZE + _WORD:
        rows = expected[:length].reshape(-1, size)
        rows[:, :HEADER_SIZE] = raw.reshape(-1, size)[:, :HEADER_SIZE]
        rows[:, HEADER_SIZE : HEADER_SIZE + _WORD] = 0xFF
        behind = np.lib.stride_tricks.as_strided(
            expected[size:], shape=(block.count, _WORD), strides=(size, 1)
        )
        behind ^= words
    else:
        _spread(expected, raw, block.offsets, block.sizes, words)
    tail = crc32(b"\0" * _WORD, crc32(block.data, _ONES)) ^ _ONES
    return tail == _remainder(expected)


def _spread(
    expected: npt.NDArray[np.uint8],
    raw: npt.NDArray[np.uint8],
    offsets: Int64s,
    sizes: Int64s,
    words: npt.NDArray[np.uint8],
) -> None:
    """Fill the second buffer for entries of different sizes."""
    header = offsets[:, None] + np.arange(HEADER_SIZE)
    expected[header] = raw[header]
    word = np.arange(_WORD)
    # the inversion at the begin of a CRC, also of a body shorter than it
    expected[(offsets + HEADER_SIZE)[:, None] + word] ^= 0xFF
    expected[(offsets + sizes)[:, None] + word] ^= words


def chain_agrees(block: Block, chain_before: int | None) -> bool:
    """Whether every chain CRC continues the one before; None: the first cannot be judged."""
    table = headers(block)
    chains = np.ascontiguousarray(table["chain_crc"]).astype("<u4")
    start = 0 if chain_before is not None else 1
    count = block.count - start
    if not count:
        return True
    before = np.empty(count, dtype="<u4")
    before[1:] = chains[start:-1]
    before[0] = chain_before if chain_before is not None else chains[0]
    rows = np.zeros((count, _CHAIN_SIZE + _WORD), dtype=np.uint8)
    rows[:, :_CHAIN_SIZE] = chain_rows(block)[start:]
    rows[:, :_WORD] ^= (before ^ np.uint32(_ONES)).view(np.uint8).reshape(-1, _WORD)
    stated: npt.NDArray[Any] = (chains[start:] ^ np.uint32(_ONES)).view(np.uint8)
    rows[:, _CHAIN_SIZE:] = stated.reshape(-1, _WORD)
    return _remainder(rows.reshape(-1)) == 0
