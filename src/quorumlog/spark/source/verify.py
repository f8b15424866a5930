"""How much of what a server sent is checked before it becomes rows."""

from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from quorumlog.model.block import HEADER_SIZE, Block, first_index_of
from quorumlog.model.codes import Magic
from quorumlog.model.errors import CorruptionError
from quorumlog.storage.entries.checksums import (
    Words,
    bodies_agree,
    chain_agrees,
    first_damaged,
    header_table,
)


class Verify(Enum):
    """What is checked; the first is the default."""

    SCREEN = "screen"
    ALL = "all"
    NONE = "none"


def verify_block(
    block: Block, words: Words, first_index: int, verify: Verify, *, bodies: bool
) -> None:
    """Raise `CorruptionError` naming an entry that is not as it was written.

    ALL and SCREEN check every header: index, size, a known magic, a term not below the one before,
    and the chain CRC, which covers them. With `bodies`, ALL compares each body with its CRC; SCREEN
    compares one CRC over the whole block, which several times faster finds the same but for a
    chance of 2**-32. Entries without CRCs, as DLedger wrote them, pass. `words` are the
    block's `header_words`.
    """
    if verify is Verify.NONE:
        return
    table = header_table(words)
    _check_headers(table, first_index, block.sizes if bodies else table["size"])
    if bool(((table["body_crc"] == 0) & (table["chain_crc"] == 0)).any()):
        if bodies:
            check_bodies(block)
        return
    if not chain_agrees(words, None):
        last = first_index + block.count - 1
        raise CorruptionError(
            f"headers of entries {first_index} to {last} do not fit their chain CRCs",
            "",
            0,
            first_index,
        )
    if bodies and (verify is Verify.ALL or not bodies_agree(block, words)):
        check_bodies(block)


def check_bodies(block: Block) -> None:
    """Raise `CorruptionError` for the first body that does not fit its CRC."""
    damaged = first_damaged(block)
    if damaged is not None:
        index = first_index_of(block) + damaged
        raise CorruptionError(f"entry {index} does not fit its body CRC", "", 0, index)


def _check_headers(table: npt.NDArray[Any], first_index: int, sizes: npt.NDArray[Any]) -> None:
    magic, terms = table["magic"], table["term"]
    fits = (
        (table["index"] == np.arange(first_index, first_index + len(table)))
        & (table["size"] == sizes)
        & (table["body_size"] == sizes - HEADER_SIZE)
        & (magic >= int(Magic.NORMAL))
        & (magic <= int(Magic.CONFIG_CHANGE))
    )
    fits[1:] &= terms[1:] >= terms[:-1]
    if not fits.all():
        index = first_index + int(np.argmin(fits))
        raise CorruptionError(f"entry {index} has a header that is not its own", "", 0, index)
