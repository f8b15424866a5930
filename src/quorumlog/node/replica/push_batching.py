"""Pushes end where blocks of producers end, so that no replica is promised a part of one."""

from quorumlog.node.replica.fetches import gather
from quorumlog.sessions.entries import system_entries_in
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.log.interface import Log


def gather_whole(log: Log, first_index: int, last_index: int, bytes_max: int) -> list[EntryRun]:
    """Return consecutive runs from first_index on, at most bytes_max (but at least one block).

    last_index ends one, as it ends a log; so only where the bytes did not suffice is it looked at.
    """
    runs = gather(log, first_index, last_index, bytes_max)
    end = runs[-1].last_index
    begun = None if end == last_index else _last_session(runs)
    if begun is None or begun[1] <= end:
        return runs
    begin, end = begun
    if begin > first_index:
        return gather(log, first_index, begin - 1, bytes_max)
    while runs[-1].last_index < min(end, last_index):
        index = runs[-1].last_index + 1
        runs += gather(log, index, min(end, last_index), bytes_max)
    return runs


def _last_session(runs: list[EntryRun]) -> tuple[int, int] | None:
    """Return first and last index of the last block with a session entry that begins here."""
    for run in reversed(runs):
        found = system_entries_in(run.block(), run.first_index)
        if found:
            index, entry = found[-1]
            return index, index + entry.count
    return None
