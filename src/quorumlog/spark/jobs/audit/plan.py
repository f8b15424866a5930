"""Planning an audit: which directories are replicas of what, and how their entries are cut up."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from quorumlog.model.errors import CorruptionError
from quorumlog.spark.jobs.audit.archive_check import ArchiveRange
from quorumlog.spark.jobs.audit.compare import RangeTask
from quorumlog.spark.jobs.audit.report import (
    ARCHIVE,
    ArchiveFacts,
    AuditReport,
    Finding,
    ReplicaFacts,
)
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.log.layout import Identity, has_identity, read_identity
from quorumlog.storage.offline.replica_ends import indexed_entry, last_indexed
from quorumlog.storage.offline.replica_files import (
    Replica,
    StoreDirectory,
    cuts_of,
    opened_store,
    read_replica,
)

RANGE_BYTES = 64 * 1024 * 1024
"""Bytes of one replica that a task compares."""
TASKS_MAX = 4_096
"""Tasks of an audit; a larger log is cut into larger ranges."""
TASK_FINDINGS_MAX = 1_000
ALL_FINDINGS_MAX = 1_000_000
"""Findings of an audit reported one by one; more are only counted."""

Store: TypeAlias = str | Path | StoreDirectory
Stores: TypeAlias = Mapping[str, Store] | Sequence[Store]
"""Group directories of the replicas, by name; without names, by what they say or are called."""


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """What is to be compared."""

    archive: str | None = None
    first_index: int = 0
    last_index: int | None = None
    range_bytes: int = RANGE_BYTES


def named_stores(files: FileSystem, stores: Stores) -> dict[str, StoreDirectory]:
    """Return the directories by name.

    Raises `PipelineError` when there are none, one is given twice, or two are of different groups.
    """
    given = stores.items() if isinstance(stores, Mapping) else (("", store) for store in stores)
    pairs = [(name, absolute(store)) for name, store in given]
    if not pairs:
        raise PipelineError("no store is given; name the group directories of all replicas")
    paths = [os.path.realpath(store.directory) for _, store in pairs]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise PipelineError(f"{twice} is given twice; name each replica once")
    owners = [_identity(files, store.directory) for _, store in pairs]
    groups = {owner.group: path for owner, path in zip(owners, paths, strict=True) if owner}
    if len(groups) > 1:
        text = ", ".join(f"{path} holds group {group!r}" for group, path in groups.items())
        raise PipelineError(f"these are not replicas of one group: {text}")
    names = [
        name or (owner.self_id if owner else "")
        for (name, _), owner in zip(pairs, owners, strict=True)
    ]
    directories = [store.directory for _, store in pairs]
    for fallback in (os.path.basename, str):
        taken = Counter([*names, "", "", ARCHIVE, ARCHIVE])
        names = [
            fallback(directory) if taken[name] > 1 else name
            for name, directory in zip(names, directories, strict=True)
        ]
    return {name: store for name, (_, store) in zip(names, pairs, strict=True)}


def absolute(store: Store) -> StoreDirectory:
    """Return a store as tasks can open it, wherever they run."""
    given = store if isinstance(store, StoreDirectory) else StoreDirectory(str(store))
    elsewhere = tuple(os.path.abspath(path) for path in given.data_directories)
    return StoreDirectory(os.path.abspath(given.directory), elsewhere)


def _identity(files: FileSystem, directory: str) -> Identity | None:
    try:
        if has_identity(files, directory):
            return read_identity(files, directory)
    except CorruptionError:
        pass  # reported when the replica itself is audited
    return None


def read_replicas(
    files: FileSystem, named: Mapping[str, StoreDirectory]
) -> tuple[list[Replica], list[Finding]]:
    """Return the replicas that can be read, and findings about the others."""
    replicas, unreadable = [], []
    for name, store in named.items():
        try:
            replicas.append(read_replica(files, name, store))
        except CorruptionError as error:
            unreadable.append(
                Finding("unreadable", 0, -1, name, error.reason, error.file, error.position)
            )
    return [_with_all_entries(files, one, replicas, named) for one in replicas], unreadable


def _with_all_entries(
    files: FileSystem,
    replica: Replica,
    replicas: Sequence[Replica],
    named: Mapping[str, StoreDirectory],
) -> Replica:
    """Return the replica as ending where its index says, if another one has that entry as well.

    In a store without metadata, a damaged entry near the end looks like the end.
    """
    others = [one for one in replicas if one.end_index > replica.end_index]
    if replica.tail is None or replica.records_commits or not others:
        return replica
    longest = max(others, key=lambda one: one.end_index)
    with ExitStack() as stack:
        own, other = (
            stack.enter_context(opened_store(files, named[one.name])) for one in (replica, longest)
        )
        last = last_indexed(own)
        if last.index > longest.end_index:
            last = indexed_entry(own, longest.end_index) or last
        same = indexed_entry(other, last.index)
    if last.index <= replica.end_index or same is None or same.term != last.term:
        return replica
    return replace(replica, end_index=last.index, end_position=last.position, tail=None)


def empty_report(
    replicas: Sequence[Replica], ranges: Sequence[ArchiveRange], request: AuditRequest
) -> AuditReport:
    """Return the report as it is before anything was compared."""
    ends = [replica.end_index for replica in replicas] + [one.last for one in ranges]
    first = max(request.first_index, min((one.begin_index for one in replicas), default=0))
    last = max(ends, default=-1)
    if request.last_index is not None:
        last = min(last, request.last_index)
    facts = None
    if request.archive is not None:
        known = (ranges[0].first, ranges[-1].last) if ranges else (0, -1)
        facts = ArchiveFacts(request.archive, *known, sum(bool(one.path) for one in ranges))
    group = next((replica.group for replica in replicas if replica.group), "")
    held = [
        ReplicaFacts(one.name, one.directory, one.begin_index, one.end_index, one.committed_index)
        for one in replicas
    ]
    return AuditReport(group, held, facts, first, last)


def tasks_of(
    files: FileSystem,
    named: Mapping[str, StoreDirectory],
    replicas: Sequence[Replica],
    ranges: Sequence[ArchiveRange],
    report: AuditReport,
    request: AuditRequest,
) -> list[RangeTask]:
    """Cut the entries that the report is about into ranges, and say which files hold each."""
    first, last = report.first_index, report.last_index
    largest = max((one.end_position - one.marks()[0][1] for one in replicas), default=0)
    size = max(request.range_bytes, largest // TASKS_MAX)
    cuts: list[int] = []
    for replica in sorted(replicas, key=lambda one: (one.begin_index, -one.end_index)):
        covered = cuts[-1] if cuts else -1
        made = cuts_of(files, replica, named[replica.name], size)
        cuts += [cut for cut in made if cut > covered]
    edges = [first, *(cut for cut in cuts if first < cut <= last), last + 1]
    count = len(edges) - 1
    most = max(1, min(TASK_FINDINGS_MAX, ALL_FINDINGS_MAX // max(1, count)))
    ends = max((replica.end_index for replica in replicas), default=-1)
    tasks = []
    for begin, stop in pairwise(edges):
        parts = (replica.part(begin, stop - 1) for replica in replicas)
        of_archive = tuple(one for one in ranges if one.first < stop and begin <= one.last)
        task = RangeTask(
            begin,
            stop - 1,
            ends,
            tuple(part for part in parts if part is not None),
            of_archive,
            most,
        )
        if begin < stop and (task.parts or of_archive):
            tasks.append(task)
    return tasks
