"""Auditing a group: the stores of all its replicas, and its archive, compared entry by entry.

Nothing is asked of servers and nothing is changed: tasks read the files of each replica, so every
executor must be able to open every directory (a shared file system, or all on one machine).
"""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from quorumlog.model.errors import CorruptionError
from quorumlog.spark.jobs.audit.archive_check import (
    MISSING,
    ArchiveRange,
    archive_ranges,
    holes_of,
    with_transactions,
)
from quorumlog.spark.jobs.audit.compare import DIFFERING, HIGHER_TERM, LOWER_TERM, TaskResult
from quorumlog.spark.jobs.audit.plan import (
    ALL_FINDINGS_MAX,
    RANGE_BYTES,
    AuditRequest,
    Stores,
    empty_report,
    named_stores,
    read_replicas,
    tasks_of,
)
from quorumlog.spark.jobs.audit.report import (
    ARCHIVE,
    FINDINGS_KEPT,
    NOTES,
    AuditReport,
    Finding,
    Findings,
)
from quorumlog.spark.jobs.output_files import local_path
from quorumlog.spark.jobs.progress import run_with_progress
from quorumlog.spark.jobs.tasks import Progress, RunTasks, no_progress
from quorumlog.storage.files.os_files import FileSystem, OsFileSystem
from quorumlog.storage.offline.replica_files import Replica, StoreDirectory, read_replica
from quorumlog.storage.offline.replica_walk import MISSING as LOST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FINDING_FIELDS = ("first", "last", "replica", "reason", "file", "pos", "detail")
_RESULTS: Final = msgspec.msgpack.Decoder(TaskResult)


def audit(  # noqa: PLR0913  (named options of a public entry point)
    spark: "SparkSession",
    stores: Stores,
    *,
    archive: str | Path | None = None,
    output: str | Path | None = None,
    first_index: int = 0,
    last_index: int | None = None,
    range_bytes: int = RANGE_BYTES,
    progress: Progress = no_progress,
) -> AuditReport:
    """Compare entries first_index … last_index of all replicas of a group; return what was found.

    `stores` are directories of this program or of DLedger, with their nodes running or not;
    `archive` is a directory that the pipeline `archive` made of the group. All findings go to
    `output` as Parquet, replacing what is there; the report names the first 1,000. A task compares
    about `range_bytes` of one replica with the others.

    Raises `StorageError` when a directory is no store, `PipelineError` when the directories are not
    of one group, there is no archive, or a task fails.
    """
    directory = None if archive is None else local_path(archive)
    request = AuditRequest(directory, first_index, last_index, range_bytes)
    report, findings = compare_stores(
        OsFileSystem(), stores, request, lambda tasks: run_with_progress(spark, tasks, progress)
    )
    if output is not None:
        report.output = absolute_path(str(output))
        write_findings(spark, findings, report.output)
    return report


def absolute_path(path: str) -> str:
    """Return a path that means the same to Spark, which may run elsewhere; a URI as it is."""
    return path if "://" in path else os.path.abspath(path)


def write_findings(spark: "SparkSession", findings: Sequence[Finding], output: str) -> None:
    """Write findings as Parquet, replacing what is there."""
    columns = (
        "kind string, is_note boolean, first long, last long, replica string, reason string, "
        "file string, pos long, detail string"
    )
    rows = [
        (one.kind, one.is_note, *(getattr(one, name) for name in _FINDING_FIELDS))
        for one in findings
    ]
    spark.createDataFrame(rows, columns).coalesce(1).write.mode("overwrite").parquet(output)


def compare_stores(
    files: FileSystem, stores: Stores, request: AuditRequest, run: RunTasks
) -> tuple[AuditReport, list[Finding]]:
    """Compare, with `run` to carry out the tasks; return the report, and all findings."""
    started = time.monotonic()
    named = named_stores(files, stores)
    replicas, unreadable = read_replicas(files, named)
    ranges: list[ArchiveRange] = []
    only_accepted = False
    if request.archive is not None:
        ranges, only_accepted = archive_ranges(files, request.archive)
    report = empty_report(replicas, ranges, request)
    tasks = tasks_of(files, named, replicas, ranges, report, request)
    results = [_RESULTS.decode(raw) for raw in run(tasks)]
    found = Findings(ALL_FINDINGS_MAX)
    for finding in (*unreadable, *_tails(replicas), *_extras(replicas, report)):
        found.add(finding)
    _merge(results, replicas, report, found, _current_begins(files, named, results))
    archived = [finding for result in results for finding in result.findings]
    archived = [finding for finding in archived if finding.replica == ARCHIVE]
    archived += _holes(ranges, report)
    transactions = [result.transactions for result in results]
    for finding in with_transactions(archived, transactions, only_accepted=only_accepted):
        found.add(finding)
    _conclude(report, found, results)
    report.tasks = len(tasks)
    report.seconds = time.monotonic() - started
    return report, found.sorted()


# -- what was found -------------------------------------------------------------------------------


def _merge(
    results: Sequence[TaskResult],
    replicas: Sequence[Replica],
    report: AuditReport,
    found: Findings,
    begins: Mapping[str, int],
) -> None:
    """Join what the tasks, in the order of the log, found about replicas, and what they read."""
    joined = Findings(ALL_FINDINGS_MAX)
    facts = {replica.name: replica for replica in report.replicas}
    for result in results:
        for finding in result.findings:
            if finding.replica == ARCHIVE:
                continue
            begin = begins.get(finding.replica, 0)
            if finding.last >= begin:
                joined.add(msgspec.structs.replace(finding, first=max(finding.first, begin)))
        for name, amount in result.amounts.items():
            facts[name].entries += amount.entries
            facts[name].bytes += amount.bytes
            facts[name].unchecked_entries += amount.unchecked_entries
            facts[name].chain_crc = amount.chain_crc
        if report.archive is not None:
            report.archive.rows += result.archive_rows
    by_name = {replica.name: replica for replica in replicas}
    for finding in joined.sorted():
        found.add(_reclassified(finding, by_name))
    found.dropped.update(joined.dropped)


def _current_begins(
    files: FileSystem, named: Mapping[str, StoreDirectory], results: Sequence[TaskResult]
) -> dict[str, int]:
    """Return where replicas with missing entries start now: a node may have removed them."""
    names = {
        finding.replica for result in results for finding in result.findings if finding.kind == LOST
    }
    begins = {}
    for name in names:
        with suppress(CorruptionError):
            begins[name] = read_replica(files, name, named[name]).begin_index
    return begins


def _reclassified(finding: Finding, replicas: Mapping[str, Replica]) -> Finding:
    """Return a finding as `uncommitted` if Raft will cut the entries: a former leader's.

    From the first to the end they have other terms than those of the others, and the replica with
    the lower terms does not know them as committed.
    """
    if finding.kind != DIFFERING or finding.reason not in (LOWER_TERM, HIGHER_TERM):
        return finding
    own = replicas[finding.replica]
    others = [one for one in replicas.values() if one is not own]
    if finding.last < min(own.end_index, max(one.end_index for one in others)):
        return finding
    lower = [own] if finding.reason == LOWER_TERM else others
    if all(one.records_commits and one.committed_index < finding.first for one in lower):
        return msgspec.structs.replace(finding, kind="uncommitted")
    if any(one.committed_index < 0 for one in lower):
        text = "may be a leader's that was succeeded; this store does not say what is committed"
        return msgspec.structs.replace(finding, detail=f"{finding.detail}; {text}")
    return finding


def _tails(replicas: Sequence[Replica]) -> list[Finding]:
    """Return findings about bytes after the last entries of replicas.

    After a crash the end may be torn. But in a store without metadata that looks like damage of
    acknowledged entries, so there it counts as a fault if other replicas have entries in its place.
    """
    longest = max((replica.end_index for replica in replicas), default=-1)
    found = []
    for one in replicas:
        if (tail := one.tail) is not None:
            kind = "tail" if one.records_commits or one.end_index == longest else "broken-end"
            end = one.end_index
            place = (tail.path, tail.offset)
            found.append(Finding(kind, end + 1, end, one.name, tail.reason, *place))
    return found


def _extras(replicas: Sequence[Replica], report: AuditReport) -> list[Finding]:
    """Return the entries that only one replica has, since it is ahead of all others."""
    if len(replicas) < 2:
        return []
    longest = max(replicas, key=lambda one: one.end_index)
    others = max(one.end_index for one in replicas if one is not longest)
    first = max(others + 1, longest.begin_index, report.first_index)
    last = min(longest.end_index, report.last_index)
    if first > last:
        return []
    detail = ""
    if longest.committed_index >= first:
        detail = f"committed up to {longest.committed_index}"
    return [Finding("extra", first, last, longest.name, "the others end before", detail=detail)]


def _holes(ranges: Sequence[ArchiveRange], report: AuditReport) -> list[Finding]:
    """Return what lies between the files of the archive."""
    reason = "no file of the archive covers it"
    return [
        Finding(
            MISSING, max(first, report.first_index), min(last, report.last_index), ARCHIVE, reason
        )
        for first, last in holes_of(ranges)
        if first <= report.last_index and last >= report.first_index
    ]


def _conclude(report: AuditReport, found: Findings, results: Sequence[TaskResult]) -> None:
    """Put all findings and their counts into the report."""
    counts, dropped = Counter(found.counts), Counter(found.dropped)
    for result in results:
        kept: Counter[str] = Counter()
        for finding in result.findings:
            kept[finding.kind] += finding.entries
        counts.update(Counter(result.counts) - kept)  # entries of findings that were dropped
        dropped.update(result.dropped)
    findings = found.sorted()
    report.findings = findings[:FINDINGS_KEPT]
    report.findings_total = len(findings) + sum(dropped.values())
    faults = [finding for finding in findings if not finding.is_note]
    report.faults_total = len(faults) + sum(dropped[kind] for kind in dropped if kind not in NOTES)
    report.counts = dict(counts)
    report.dropped = {kind: count for kind, count in dropped.items() if count}
