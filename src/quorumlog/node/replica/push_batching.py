"""Pushes end where blocks of producers end, so that no replica is promised a part of one."""

from quorumlog.node.replica.fetches import gather
from quorumlog.sessions.entries import system_entries_in
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.log.interface import Log


def gather_whole(log: Log, first_index: int, last_index: int, bytes_max: int) -> list[EntryRun]:
    """Return consecutive spans from first_index on, at most bytes_max (but at least one block).

    last_index ends one, as it ends a log; so only where the bytes did not suffice is it looked at.
    """
    spans = gather(log, first_index, last_index, bytes_max)
    end = spans[-1].last_index
    begun = None if end == last_index else _last_session(spans)
    if begun is None or begun[1] <= end:
        return spans
    begin, end = begun
    if begin > first_index:
        return gather(log, first_index, begin - 1, bytes_max)
    while spans[-1].last_index < min(end, last_index):
        index = spans[-1].last_index + 1
        spans += gather(log, index, min(end, last_index), bytes_max)
    return spans


def _last_session(spans: list[EntryRun]) -> tuple[int, int] | None:
    """Return first and last index of the last block with a session entry that begins here."""
    for span in reversed(spans):
        found = system_entries_in(span.block(), span.first_index)
        if found:
            index, entry = found[-1]
            return index, index + entry.count
    return None
