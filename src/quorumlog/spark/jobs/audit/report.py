"""What an audit found: findings, what the replicas hold, and a text that a person can read."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

import msgspec

from quorumlog.model.wording import counted

FINDINGS_KEPT = 1_000
"""Findings that a report names; all are written to its Parquet file."""
SHOWN_OF_KIND = 5
"""Findings of one kind that the text names."""
ARCHIVE = "archive"
"""Stands for the archive where a replica is named."""

KINDS = {
    "missing": "not there although the replica has entries after it",
    "differing": "another entry than most replicas have",
    "damaged": "header or body damaged",
    "chain": "the chain CRC does not continue that of the entry before",
    "index-order": "the index does not follow the one before",
    "term-order": "the term is lower than the one before",
    "broken-end": "the replica ends in bytes that are no entry, and the others go on",
    "unreadable": "a replica that cannot be read at all",
    "archive-missing": "in the log, and not in the archive",
    "archive-extra": "in the archive, and not in the log",
    "archive-differing": "in the archive otherwise than in the log",
    "uncommitted": "will be cut: written by a leader that was succeeded, not known as committed",
    "extra": "entries that no other replica has yet",
    "tail": "bytes after the last entry; opening the store cuts them",
}
"""Kinds of findings, in the order of a report."""
NOTES = frozenset({"uncommitted", "extra", "tail"})
"""Kinds that Raft allows: reported, but no fault."""
WITHOUT_ENTRIES = frozenset({"broken-end", "unreadable", "tail"})
"""Kinds that are about a replica, not about entries."""


class Finding(msgspec.Struct, frozen=True, array_like=True):
    """Entries first … last of a replica (or the archive) that are not as they should be.

    `file` and byte `pos` in it are where the first lies, or should (empty and 0: not known). With
    last < first it is about what lies before the first.
    """

    kind: str
    first: int
    last: int
    replica: str
    reason: str
    file: str = ""
    pos: int = 0
    detail: str = ""

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.last - self.first + 1

    @property
    def is_note(self) -> bool:
        """Whether it is information, not a fault."""
        return self.kind in NOTES

    def joined(self, other: "Finding") -> "Finding | None":
        """Return this one and one that follows as one, None if they differ in kind or reason."""
        same = (self.kind, self.replica, self.reason) == (other.kind, other.replica, other.reason)
        if not same or other.first > self.last + 1 or other.last <= self.last:
            return None
        return msgspec.structs.replace(self, last=other.last)


class Findings:
    """Findings in the order of the log, joined where they follow each other; at most `most`.

    More are only counted, in `dropped`. `counts` are entries by kind.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: list[Finding] = []
        self._newest: dict[tuple[str, str, str], int] = {}
        self.counts: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    def add(self, finding: Finding) -> None:
        """Add a finding."""
        self.counts[finding.kind] += finding.entries
        key = (finding.kind, finding.replica, finding.reason)
        number = self._newest.get(key)
        if number is not None:
            both = self._found[number].joined(finding)
            if both is not None:
                self._found[number] = both
                return
        if len(self._found) < self._most:
            self._newest[key] = len(self._found)
            self._found.append(finding)
        else:
            self.dropped[finding.kind] += 1

    def sorted(self) -> list[Finding]:
        """Return those kept, by index."""
        return sorted(self._found, key=lambda one: (one.first, one.last, one.replica, one.kind))


@dataclass(slots=True)
class ReplicaFacts:
    """What one replica holds. `entries` and `bytes` are what the audit could read of it.

    `committed_index` is at least committed, -1 where that is not known; `unchecked_entries` carry
    no CRCs (DLedger writes none). `chain_crc` is that of the last entry that was compared, -1
    if that is damaged: replicas in which it agrees at one index have the same log up to there.
    """

    name: str
    directory: str
    begin_index: int
    end_index: int
    committed_index: int
    entries: int = 0
    bytes: int = 0
    unchecked_entries: int = 0
    chain_crc: int = -1


@dataclass(slots=True)
class ArchiveFacts:
    """What the archive holds: its first and last index, files, and rows that were compared."""

    directory: str
    first_index: int
    last_index: int
    files: int
    rows: int = 0


@dataclass(slots=True)
class AuditReport:
    """What an audit of entries first_index … last_index found.

    `findings` are the first of `findings_total`; `counts` are the entries of all findings, by kind;
    `dropped` findings (by kind) were too many to be listed one by one. `faults_total` counts
    findings of kinds that Raft does not allow.
    """

    group: str
    replicas: list[ReplicaFacts]
    archive: ArchiveFacts | None
    first_index: int
    last_index: int
    findings: list[Finding] = field(default_factory=list)
    findings_total: int = 0
    faults_total: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    tasks: int = 0
    seconds: float = 0.0
    output: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found but what Raft allows."""
        return not self.faults_total

    def to_object(self) -> dict[str, object]:
        """Return it as `--json` shows it."""
        fields = asdict(self)
        fields["findings"] = [msgspec.structs.asdict(finding) for finding in self.findings]
        return {"clean": self.is_clean, **fields}

    def text(self) -> str:
        """Return it for a person to read."""
        lines = [self._title(), ""]
        lines += table(
            (
                "REPLICA",
                ">BEGINS",
                ">ENDS",
                ">COMMITTED",
                ">ENTRIES",
                ">BYTES",
                "CHAIN CRC",
                "DIRECTORY",
            ),
            [_replica_row(replica) for replica in self.replicas],
        )
        without = sum(replica.unchecked_entries for replica in self.replicas)
        if without:
            lines += ["", f"{without:,} of these entries carry no CRCs: only compared, not checked"]
        if (archive := self.archive) is not None:
            held = f"entries {archive.first_index} to {archive.last_index}"
            compared = f"{counted(archive.files, 'file')}, {counted(archive.rows, 'row')} compared"
            lines += ["", f"archive {archive.directory}: {held} in {compared}"]
        for kind in sorted({*self.counts, *self.dropped}, key=list(KINDS).index):
            lines += ["", *self._of_kind(kind)]
        lines += ["", self._summary()]
        return "\n".join(lines)

    def _title(self) -> str:
        group = f" of group {self.group}" if self.group else ""
        count = len(self.replicas)
        noun = "replica" if count == 1 else "replicas"
        return f"{count} {noun}{group}, entries {self.first_index} to {self.last_index}"

    def _of_kind(self, kind: str) -> list[str]:
        found = [finding for finding in self.findings if finding.kind == kind]
        count = self.counts.get(kind, 0)
        note = " (no fault)" if kind in NOTES else ""
        lines = [f"{kind}, {counted(count, 'entry', 'entries')}{note}: {KINDS[kind]}"]
        if kind in WITHOUT_ENTRIES:
            lines = [f"{kind}{note}: {KINDS[kind]}"]
        lines += [f"  {line_of(finding)}" for finding in found[:SHOWN_OF_KIND]]
        more = len(found) - SHOWN_OF_KIND
        if more > 0:
            lines.append(f"  and {more:,} more")
        if self.dropped.get(kind):
            lines.append(f"  and {self.dropped[kind]:,} more that were only counted")
        return lines

    def _summary(self) -> str:
        size = sum(replica.bytes for replica in self.replicas)
        rate = f"{size_text(size)} read in {self.seconds:.1f} s by {counted(self.tasks, 'task')}"
        if self.is_clean:
            return f"no fault found; {rate}"
        entries = sum(count for kind, count in self.counts.items() if kind not in NOTES)
        found = f"{counted(self.faults_total, 'fault')} in {counted(entries, 'entry', 'entries')}"
        where = f"; all findings are in {self.output}" if self.output else ""
        return f"{found}; {rate}{where}"


def _replica_row(replica: ReplicaFacts) -> tuple[str, ...]:
    committed = str(replica.committed_index) if replica.committed_index >= 0 else "not known"
    return (
        replica.name,
        str(replica.begin_index),
        str(replica.end_index) if replica.end_index >= replica.begin_index else "empty",
        committed,
        f"{replica.entries:,}",
        size_text(replica.bytes),
        f"{replica.chain_crc:08x}" if replica.chain_crc > 0 else "none",
        replica.directory,
    )


def line_of(finding: Finding) -> str:
    """Return a finding as one line."""
    if finding.last > finding.first:
        entries = f"entries {finding.first} to {finding.last}: "
    else:
        entries = f"entry {finding.first}: "
    if finding.kind in WITHOUT_ENTRIES:
        entries = ""
    detail = f" ({finding.detail})" if finding.detail else ""
    place = f"; {finding.file}: byte {finding.pos}" if finding.file else ""
    return f"{finding.replica}: {entries}{finding.reason}{detail}{place}"


def size_text(size: float) -> str:
    """Return bytes in the unit that suits them."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return lines of columns under their names; a name with `>` is a column of numbers."""
    kept = [tuple(name.lstrip(">") for name in columns), *rows]
    widths = [max(len(row[number]) for row in kept) for number in range(len(columns))]
    lines = []
    for row in kept:
        cells = [
            cell.rjust(width) if name.startswith(">") else cell.ljust(width)
            for name, cell, width in zip(columns, row, widths, strict=True)
        ]
        lines.append("   ".join(cells).rstrip())
    return lines
