"""What the entries of a log say, and blocks of which a crash kept only the first part.

A producer's blocks are pushed, written and acknowledged as a whole
(`node/replica/pushes.py`), so nobody was ever promised a part of one. Opening removes such a
part: else the producer, which sends the whole block again, would append those entries twice.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from quorumlog.model.block import Block
from quorumlog.model.errors import CorruptionError
from quorumlog.sessions.entries import system_entries_in
from quorumlog.storage.log.interface import Log

SCAN_BYTES = 1024 * 1024

Found = TypeVar("Found")


def scan_entries(
    log: Log, first_index: int, find: Callable[[Block, int], Iterable[Found]]
) -> tuple[list[Found], int | None]:
    """Return what `find` says of all blocks from first_index on, and the first unreadable index.

    `find` gets blocks and the index of their first entry.
    """
    found: list[Found] = []
    unread: int | None = None
    index = max(first_index, log.before_begin_index + 1)
    while index <= log.end_index:
        try:
            run = log.read(index, log.end_index, SCAN_BYTES)
        except CorruptionError as error:
            damaged = max(index, -1 if error.index is None else error.index)
            unread = damaged if unread is None else unread
            index = damaged + 1
            continue
        found += find(run.block(), index)
        index = run.last_index + 1
    return found, unread


def torn_block(log: Log, first_index: int) -> int | None:
    """Return where a block starts that does not end in the log; None if there is no such block.

    The search starts at first_index: what is before it was durable as a whole.
    """
    found, _ = scan_entries(log, first_index, system_entries_in)
    if not found:
        return None
    begin, entry = found[-1]
    return begin if begin + entry.count > log.end_index else None
