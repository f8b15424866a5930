"""Compares an archive of topics with the topics: what is missing, extra or different.

    audit_topics(spark, "/archive/topics", "h:p,h:p,h:p").text()

Only what both still have can be compared: not what retention has removed, nor what is not archived.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from quorumlog.model.wording import counted
from quorumlog.spark.access import AnyAccess
from quorumlog.spark.jobs.audit.report import FINDINGS_KEPT, Finding, Findings, table
from quorumlog.spark.jobs.log_source import TIMEOUT_MS
from quorumlog.spark.jobs.output_files import OutputFileSystem, local_path
from quorumlog.spark.jobs.progress import run_with_progress
from quorumlog.spark.jobs.tasks import PipelineError, Progress, RunTasks, Task, no_progress
from quorumlog.spark.jobs.topics.compare import (
    DIFFERING,
    EXTRA,
    MISSING,
    ArchiveComparison,
    within,
)
from quorumlog.spark.jobs.topics.files import RecordsInOrder
from quorumlog.spark.jobs.topics.identity import made_again
from quorumlog.spark.jobs.topics.manifest import (
    Coverage,
    TopicFile,
    TopicManifest,
    load_topic_manifest,
)
from quorumlog.spark.jobs.topics.source import TopicSource, topic_source
from quorumlog.spark.topics.confirm import OffsetsLostError
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.planning import Bounds, OffsetRange, remaining
from quorumlog.storage.files.os_files import FileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAMAGED: Final = "damaged"
MADE_AGAIN: Final = "made-again"
KINDS: Final = {
    MISSING: "in the topic, and not in the archive",
    EXTRA: "in the archive, and not in the topic",
    DIFFERING: "in the archive otherwise than in the topic",
    MADE_AGAIN: "of a topic that was deleted and made again since; it is not compared",
    DAMAGED: "in files of the archive that are not as its manifest says",
}
SHOWN: Final = 20
"""Findings that the text names."""


@dataclass(slots=True)
class PartitionFacts:
    """What was compared of one partition: offsets first … last (None: none), `records` of them.

    The archive covers `archived_first` … `archived_last`, the topic has `begin` … `end` - 1 (None:
    the cluster has no such partition any more).
    """

    topic: str
    partition: int
    archived_first: int
    archived_last: int
    begin: int | None
    end: int | None
    first: int | None = None
    last: int | None = None
    records: int = 0


@dataclass(slots=True)
class TopicAudit:
    """The result of an audit. `counts` are records by kind of finding; of `findings`, the first."""

    directory: str
    partitions: list[PartitionFacts] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    findings_total: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings_total

    @property
    def records(self) -> int:
        """Records that were compared."""
        return sum(one.records for one in self.partitions)

    def to_object(self) -> dict[str, object]:
        """Return it as `--json` shows it."""
        return asdict(self) | {
            "is_clean": self.is_clean,
            "records": self.records,
            "findings": [
                {"kind": one.kind, "first": one.first, "last": one.last}
                | {"partition": one.replica, "reason": one.reason}
                for one in self.findings
            ],
        }

    def text(self) -> str:
        """Return it for a person to read."""
        rows = [
            (
                str(Part(one.topic, one.partition)),
                _span(one.archived_first, one.archived_last),
                "no such partition" if one.end is None else _span(one.begin, one.end - 1),
                _span(one.first, one.last),
                f"{one.records:,}",
            )
            for one in self.partitions
        ]
        heads = ("PARTITION", ">ARCHIVED", ">IN THE TOPIC", ">COMPARED", ">RECORDS")
        lines = [f"{self.directory}, compared with its topics", "", *table(heads, rows), ""]
        if self.is_clean:
            return "\n".join([*lines, f"{counted(self.records, 'record')} compared: no difference"])
        lines += [
            f"{kind}: {counted(count, 'record')} ({KINDS[kind]})"
            for kind, count in sorted(self.counts.items())
        ]
        lines += [
            f"  {one.replica}, offsets {_span(one.first, one.last)}: {one.kind}, {one.reason}"
            for one in self.findings[:SHOWN]
        ]
        if self.findings_total > SHOWN:
            lines.append(f"  and {counted(self.findings_total - SHOWN, 'finding')} more")
        return "\n".join(lines)


def _span(first: int | None, last: int | None) -> str:
    return "none" if first is None or last is None or last < first else f"{first} to {last}"


def audit_topics(
    spark: "SparkSession",
    directory: str | os.PathLike[str],
    servers: AnyAccess,
    *,
    timeout_ms: int = TIMEOUT_MS,
    progress: Progress = no_progress,
) -> TopicAudit:
    """Compare an archive of topics with what the brokers at `servers` still have of it.

    Raises `PipelineError` when there is no archive, it is of another cluster, or a task fails,
    `NetworkError`.
    """
    files, root = OutputFileSystem(), local_path(directory)
    isolation = load_topic_manifest(files, root).isolation
    source = topic_source(servers, None, isolation=isolation, timeout_ms=timeout_ms)

    def run(tasks: Sequence[Task]) -> list[bytes]:
        return run_with_progress(spark, tasks, progress)

    return audit_archive(source, files, root, run)


def audit_archive(
    source: TopicSource, files: FileSystem, directory: str, run: RunTasks
) -> TopicAudit:
    """Compare an archive with topics, with `run` to carry out the tasks."""
    manifest = load_topic_manifest(files, directory)
    cluster = source.brokers().cluster_id()
    if cluster != manifest.cluster:
        raise PipelineError(
            f"{directory} is an archive of topics of cluster {manifest.cluster}, not of {cluster}"
        )
    again = _topics_made_again(source, manifest)
    archived = {
        part: one.beyond for part, one in manifest.coverage.items() if part.topic not in again
    }
    bounds = source.bounds(archived, archived)
    facts = {one.part: _facts(one, bounds.get(one.part)) for one in manifest.partitions}
    findings = Findings(FINDINGS_KEPT)
    tasks: list[Task] = []
    for part, one in facts.items():
        if part.topic in again and one.archived_first <= one.archived_last:
            findings.add(_made_again(part, one, manifest.topic_ids[part.topic]))
        elif one.end is not None and max(one.end, one.archived_first) <= one.archived_last:
            findings.add(_beyond_the_end(part, one))
        if one.first is not None and one.last is not None:
            whole = OffsetRange(part, one.first, one.last + 1)
            tasks += _tasks(source, files, directory, whole, manifest.files_of(part))
    total = 0
    for raw in run(tasks):
        found = _COMPARED.decode(raw)
        facts[Part(found.topic, found.partition)].records += found.records
        total += found.dropped
        for finding in found.findings:
            findings.add(finding)
    for topic in _topics_made_again(source, manifest) - again:
        raise PipelineError(
            f"topic {topic!r} was deleted and made again while it was compared; run again"
        )
    kept = findings.sorted()
    return TopicAudit(
        directory=directory,
        partitions=list(facts.values()),
        counts=dict(findings.counts),
        findings=kept,
        findings_total=len(kept) + sum(findings.dropped.values()) + total,
    )


def _facts(known: Coverage, bounds: Bounds | None) -> PartitionFacts:
    found = PartitionFacts(
        known.topic,
        known.partition,
        known.first,
        known.beyond - 1,
        None if bounds is None else bounds.begin,
        None if bounds is None else bounds.beyond,
    )
    if bounds is not None:
        first, beyond = max(known.first, bounds.begin), min(known.beyond, bounds.beyond)
        if first < beyond:
            found.first, found.last = first, beyond - 1
    return found


def _topics_made_again(source: TopicSource, manifest: TopicManifest) -> set[str]:
    """Return the archived topics that the cluster has by other ids now."""
    return set(made_again(manifest.topic_ids, source.topic_ids(manifest.topic_ids)))


def _made_again(part: Part, one: PartitionFacts, topic_id: str) -> Finding:
    reason = f"the topic of id {topic_id} was deleted, and another one of its name made"
    return Finding(MADE_AGAIN, one.archived_first, one.archived_last, str(part), reason)


def _beyond_the_end(part: Part, one: PartitionFacts) -> Finding:
    first = max(one.archived_first, one.end or 0)
    reason = "the topic ends before; was it deleted and made again?"
    return Finding(EXTRA, first, one.archived_last, str(part), reason)


def _tasks(
    source: TopicSource,
    files: FileSystem,
    directory: str,
    whole: OffsetRange,
    parts: Sequence[TopicFile],
) -> list[Task]:
    """Return the comparison of a range, cut where a file ends and no other one goes on."""
    edges = [whole.first]
    last = -1
    for file in parts:
        if file.first > last and whole.first < file.first < whole.beyond:
            edges.append(file.first)
        last = max(last, file.last)
    edges.append(whole.beyond)
    return [
        CompareRange(
            source,
            files,
            directory,
            OffsetRange(whole.part, first, beyond),
            tuple(one for one in parts if one.first < beyond and first <= one.last),
        )
        for first, beyond in pairwise(edges)
    ]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What a task found; `dropped` findings are only counted."""

    topic: str
    partition: int
    records: int
    findings: list[Finding]
    dropped: int


_COMPARED: Final = msgspec.msgpack.Decoder(Compared)


@dataclass(frozen=True, slots=True)
class CompareRange:
    """Compare a range of offsets with the files that have records of it."""

    source: TopicSource
    files: FileSystem
    directory: str
    range: OffsetRange
    parts: tuple[TopicFile, ...]

    def __call__(self) -> bytes:
        """Return `Compared`."""
        findings = Findings(FINDINGS_KEPT)
        one, part = self.range, str(self.range.part)

        def report(kind: str, offset: int, reason: str) -> None:
            findings.add(Finding(kind, offset, offset, part, reason))

        def damaged(file: TopicFile, reason: str) -> None:
            first, last = max(file.first, one.first), min(file.last, one.beyond - 1)
            findings.add(Finding(DAMAGED, first, last, part, reason, file.path))

        in_order = RecordsInOrder(self.files, self.directory, self.parts, damaged)
        comparison = ArchiveComparison(within(iter(in_order), one.first, one.beyond), report)
        self._compare(comparison)
        kept = findings.sorted()
        return msgspec.msgpack.encode(
            Compared(
                topic=one.part.topic,
                partition=one.part.partition,
                records=comparison.records,
                findings=kept,
                dropped=sum(findings.dropped.values()),
            )
        )

    def _compare(self, comparison: ArchiveComparison) -> None:
        left = self.range
        while left.count:
            try:
                for batches, beyond in self.source.records(left):
                    for rows in batches:
                        if rows.num_rows:
                            comparison.take(rows)
                    left = OffsetRange(left.part, beyond, left.beyond)
            except OffsetsLostError as error:
                if error.bounds.beyond <= left.first:  # made again: the topic does not have them
                    break
                left = remaining(left, error.bounds)  # retention removes what is being compared
                comparison.skip(left.first)
        comparison.end()
