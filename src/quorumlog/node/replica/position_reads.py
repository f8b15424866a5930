"""Reads by physical position: brokers know where an entry lies, not its index (spec 20, 6)."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from quorumlog.log_events import describe_error
from quorumlog.model.block import INDEX_RECORD_DTYPE, decode_entries
from quorumlog.model.codes import ResponseCode
from quorumlog.model.entry import Entry
from quorumlog.model.errors import (
    CorruptionError,
    IndexOutOfRangeError,
    IndexRemovedError,
    RequestError,
    UnexpectedArgumentError,
)
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.storage.log.interface import Log

Done: TypeAlias = Callable[[Entry], None]
Failed: TypeAlias = Callable[[ResponseCode, str], None]

PROBE_BYTES = 32 * 1024
"""Entries that are looked at in each step of the search."""


def read_at(
    context: ReplicaContext, position: int, done: Done, failed: Failed, client: object
) -> None:
    """Read the committed entry that starts at a position; `done` or `failed` is called with it."""
    log, last = context.log, context.core.committed_index

    def fail(error: Exception) -> None:
        if isinstance(error, CorruptionError):
            context.damage_found(error)
            failed(ResponseCode.DISK_ERROR, str(error))
        elif isinstance(error, RequestError):
            failed(error.code, str(error))
        else:
            failed(ResponseCode.INTERNAL_ERROR, describe_error(error))

    # the search may have to look at any part of the log
    context.environment.executor.run(lambda: find_entry(log, position, last), done, fail, client)


def find_entry(log: Log, position: int, last_index: int) -> Entry:
    """Return the entry up to an index that starts at a position.

    Positions rise with indexes, and most entries are of similar size: each second step guesses
    where the position lies, and the others halve what is left. May be called on any thread.
    Raises `IndexRemovedError`, `IndexOutOfRangeError`, `UnexpectedArgumentError`, and what
    `Log.read` raises.
    """
    first = log.before_begin_index + 1
    low, high, guess = first, last_index, last_index
    low_position, is_halving = 0, False
    while low <= high:
        run = log.read(guess, high, PROBE_BYTES)
        records = np.frombuffer(run.records, dtype=INDEX_RECORD_DTYPE)
        starts = records["pos"]
        begin, end = int(starts[0]), int(starts[-1]) + int(records["size"][-1])
        if begin <= position < end:
            ordinal = int(np.searchsorted(starts, position, side="right")) - 1
            if int(starts[ordinal]) != position:
                raise _no_entry(position, f"entry {guess + ordinal} starts at {starts[ordinal]}")
            return _placed_there(log, guess + ordinal, position)
        if position < begin:
            high, high_position = guess - 1, begin
        else:
            low, low_position = run.last_index + 1, end
        guess = (low + high) // 2
        if not is_halving and position < begin:
            share = (position - low_position) / max(1, high_position - low_position)
            guess = min(high, max(low, low + int(share * (high - low + 1))))
        is_halving = not is_halving
    if low > last_index:
        raise IndexOutOfRangeError(
            f"position {position} is beyond the last committed entry, {last_index}"
        )
    if high < first:
        raise IndexRemovedError(f"what was at position {position} is not kept here any more")
    raise _no_entry(position, f"entry {low} starts after it")


def _placed_there(log: Log, index: int, position: int) -> Entry:
    entry = next(decode_entries(log.read(index, index, 1).block()))
    if entry.pos != position:
        raise UnexpectedArgumentError(
            f"entry {index}, at position {position} of this replica, is at {entry.pos} according "
            "to the leader that appended it: this replica once started its log again where others "
            "had removed entries, and its positions differ since; ask for the index"
        )
    return entry


def _no_entry(position: int, text: str) -> UnexpectedArgumentError:
    return UnexpectedArgumentError(f"no entry starts at position {position}: {text}")
