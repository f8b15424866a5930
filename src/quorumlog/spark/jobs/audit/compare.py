"""One task of an audit: a range of entries of all replicas, and of the archive, side by side.

As long as the replicas have the same bytes, they are compared a run at a time, and only one of
them is checked against its CRCs. Where they have not, each entry is compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32

from quorumlog.model.block import HEADER_DTYPE, HEADER_SIZE, HEADER_VOID, Block, chain_crc_rows
from quorumlog.spark.jobs.audit.archive_check import ArchiveComparison, ArchiveRange, Transactions
from quorumlog.spark.jobs.audit.report import Finding, Findings
from quorumlog.storage.entries.checksums import BODY_CRC, CHAIN_CRC, Words, all_agree
from quorumlog.storage.entries.run_scanner import HeaderRun
from quorumlog.storage.offline.replica_files import ReplicaPart
from quorumlog.storage.offline.replica_walk import DAMAGED, ReplicaWalk, WalkFinding

CHAIN = "chain"
DIFFERING = "differing"
TERM_ORDER = "term-order"
LOWER_TERM = "it has a lower term"
HIGHER_TERM = "it has a higher term"
ENTRIES_EACH = 1_024
"""Entries compared one by one at a time where none can be read in the first replica."""
CHAINS_MAX = 3
_FIELDS = (
    ("magic", "it is of another kind"),
    ("channel", "it has another channel"),
    ("size", "it has another size"),
    ("body_crc", "it has another body CRC"),
    ("chain_crc", "it has another chain CRC"),
    ("pos", "its header has another position"),
)
Table: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Entries first … last of all replicas; `ends`: the last entry that any replica has."""

    first: int
    last: int
    ends: int
    parts: tuple[ReplicaPart, ...]
    archive: tuple[ArchiveRange, ...]
    findings_max: int

    def __call__(self) -> bytes:
        """Carry it out; return the result, encoded."""
        return msgspec.msgpack.encode(RangeComparison(self).run())


class Amount(msgspec.Struct, array_like=True):
    """What was read of a replica. `chain_crc` of its last entry in the range, -1 if in doubt."""

    entries: int = 0
    bytes: int = 0
    unchecked_entries: int = 0
    chain_crc: int = -1


class TaskResult(msgspec.Struct, array_like=True):
    """What one task found."""

    findings: list[Finding]
    counts: dict[str, int]
    dropped: dict[str, int]
    amounts: dict[str, Amount]
    archive_rows: int
    transactions: Transactions


@dataclass(slots=True)
class Rows:
    """Entries first, +1, … of one replica: headers, places; `good` are those without finding."""

    walk: ReplicaWalk
    first: int
    table: Table
    good: Mask
    runs: list[HeaderRun]
    number: npt.NDArray[np.int64]
    """Which of the runs each entry is in."""

    def body(self, row: int) -> memoryview:
        """Return the body of an entry."""
        run = self.runs[int(self.number[row])]
        ordinal = self.first + row - run.first_index
        begin = int(run.block.offsets[ordinal])
        return run.block.data[begin + HEADER_SIZE : begin + int(run.block.sizes[ordinal])]

    def finding(self, kind: str, reason: str, row: int, detail: str = "") -> WalkFinding:
        """Return what is wrong with an entry, which counts as good no more."""
        self.good[row] = False
        run = self.runs[int(self.number[row])]
        position = run.position + int(run.block.offsets[self.first + row - run.first_index])
        index = self.first + row
        return WalkFinding(kind, reason, index, index, *self.walk.place_of(position), detail)


class RangeComparison:
    """The comparison of one range."""

    def __init__(self, task: RangeTask) -> None:
        self._task = task
        self._findings = Findings(task.findings_max)
        self._amounts = {part.name: Amount() for part in task.parts}
        self._walks = [ReplicaWalk(part) for part in task.parts]
        self._archive: ArchiveComparison | None = None
        if task.archive:
            add = self._findings.add
            self._archive = ArchiveComparison(task.archive, task.first, task.last, add)

    def run(self) -> TaskResult:
        """Compare and return what was found."""
        try:
            self._compare()
            for walk in self._walks:
                if len(walk.chains) == 1:
                    self._amounts[walk.part.name].chain_crc = walk.chains[0]
        finally:
            for walk in self._walks:
                walk.close()
        rows, transactions = 0, Transactions()
        if self._archive is not None:
            self._archive.finish(self._task.ends)
            rows, transactions = self._archive.rows, self._archive.transactions
        found = self._findings
        return TaskResult(
            found.sorted(), found.counts, found.dropped, self._amounts, rows, transactions
        )

    def _compare(self) -> None:
        while True:
            for walk in self._walks:
                self._collect_findings(walk)
            unfinished = [walk for walk in self._walks if walk.at <= walk.part.last]
            if not unfinished:
                return
            at = min(walk.at for walk in unfinished)
            here = [walk for walk in unfinished if walk.at == at]
            until = min(walk.part.last for walk in here)
            until = min([until, *(walk.at - 1 for walk in unfinished if walk.at > at)])
            if at < self._task.first:  # only to know what comes before the range
                until = min(until, self._task.first - 1)
            if not self._equal_run(here, until):
                self._each_entry(here, until)

    def _collect_findings(self, walk: ReplicaWalk) -> None:
        """Add what a replica's walk found, as far as it concerns this range."""
        first = self._task.first
        for finding in walk.take_findings():
            if max(finding.first, finding.last) >= first:
                self._findings.add(
                    Finding(
                        finding.kind,
                        max(finding.first, first),
                        finding.last,
                        walk.part.name,
                        finding.reason,
                        finding.path,
                        finding.offset,
                        finding.detail,
                    )
                )

    def _count(self, walk: ReplicaWalk, first: int, count: int, size: int, unchecked: int) -> None:
        if first >= self._task.first:
            amount = self._amounts[walk.part.name]
            amount.entries += count
            amount.bytes += size
            amount.unchecked_entries += unchecked

    # -- a run at a time --------------------------------------------------------------------

    def _equal_run(self, here: Sequence[ReplicaWalk], until: int) -> bool:
        """Compare the next entries at once; return False, and read no further, if any differ."""
        lead = here[0]
        run = lead.run(until)
        if run is None:
            return False
        ends = run.block.offsets + run.block.sizes
        count, places = run.block.count, []
        for walk in here[1:]:
            place = walk.place()
            if place is None:
                return False
            view, offset, limit = place
            count = min(count, int(np.searchsorted(ends, limit - offset, side="right")))
            places.append((view, offset))
        if not count:
            return False
        size = int(ends[count - 1])
        block = run.block if count == run.block.count else run.block.slice(0, count)
        mine = pa.py_buffer(block.data)
        for view, offset in places:
            if not mine.equals(pa.py_buffer(view[offset : offset + size])):
                return False
        terms = run.table["term"][:count]
        before = max(walk.term for walk in here)
        if int(terms[0]) < before or bool((terms[1:] < terms[:-1]).any()):
            return False
        words = run.words[:count]
        if not _crcs_agree(block, words, here):
            return False
        unchecked = 0 if int(words[-1, CHAIN_CRC] | words[-1, BODY_CRC]) else count
        chains, term = (int(run.table["chain_crc"][count - 1]),), int(terms[-1])
        for walk in here:
            walk.take(count, size)
            walk.chains, walk.term = chains, term
            self._count(walk, run.first_index, count, size, unchecked)
        if self._archive is not None and run.first_index >= self._task.first:
            self._archive.take(block, run.first_index)
        return True

    # -- one by one -----------------------------------------------------------------------------

    def _each_entry(self, here: Sequence[ReplicaWalk], until: int) -> None:
        """Compare the next entries one by one in each replica."""
        at = here[0].at
        run = here[0].run(until)
        last = run.last_index if run is not None else min(until, at + ENTRIES_EACH - 1)
        found = [self._read(walk, at, last) for walk in here]
        if len(found) > 1:
            _compare_entries(found)
        for rows in found:
            _check_terms(rows)
        if self._archive is not None and at >= self._task.first:
            self._take_agreed(found)

    def _read(self, walk: ReplicaWalk, first: int, last: int) -> Rows:
        """Read entries first … last of a replica, each checked for itself."""
        count = last - first + 1
        table = np.zeros(count, dtype=HEADER_DTYPE)
        number = np.zeros(count, dtype=np.int64)
        rows = Rows(walk, first, table, np.zeros(count, dtype=bool), [], number)
        while walk.at <= last:
            run = walk.run(last)
            if run is None:
                walk.skip_damage()
                continue
            here = slice(run.first_index - first, run.last_index + 1 - first)
            table[here], rows.good[here], number[here] = run.table, True, len(rows.runs)
            rows.runs.append(run)
            walk.take(run.block.count, len(run.block.data))
            words = run.words
            unchecked = int(((words[:, CHAIN_CRC] | words[:, BODY_CRC]) == 0).sum())
            self._count(walk, run.first_index, run.block.count, len(run.block.data), unchecked)
            if _crcs_agree(run.block, words, [walk]):
                walk.chains = (int(run.table["chain_crc"][-1]),)
            else:
                _check_crcs(rows, run)
        return rows

    def _take_agreed(self, found: Sequence[Rows]) -> None:
        """Give the archive's comparison the entries that are without a finding, each once."""
        if self._archive is None:
            return
        taken = np.zeros(len(found[0].good), dtype=bool)
        for rows in found:
            for run in rows.runs:
                begin = run.first_index - rows.first
                here = slice(begin, begin + run.block.count)
                wanted = rows.good[here] & ~taken[here]
                taken[here] |= wanted
                edges = np.flatnonzero(np.diff(np.concatenate(([False], wanted, [False]))))
                for start, stop in edges.reshape(-1, 2).tolist():
                    self._archive.take(run.block.slice(start, stop), run.first_index + start)


def _crcs_agree(block: Block, words: Words, walks: Sequence[ReplicaWalk]) -> bool:
    """Whether the CRCs of all entries fit, or none carries any; if False, check each entry."""
    carries = (words[:, CHAIN_CRC] | words[:, BODY_CRC]) != 0
    before: set[int] = set()
    is_known = True
    for walk in walks:
        before.update(walk.chains)
        is_known &= bool(walk.chains)
    if not carries.any():
        return not is_known or 0 in before
    if not carries.all():
        return False
    return any(all_agree(block, words, chain) for chain in (before if is_known else (None,)))


def _check_crcs(rows: Rows, run: HeaderRun) -> None:
    """Find those of a run whose chain or body CRC does not fit.

    An entry may continue what the one before has, or what it should have.
    """
    walk, chains = rows.walk, rows.walk.chains
    for ordinal, covered in enumerate(chain_crc_rows(run.block)):
        row = run.first_index + ordinal - rows.first
        stated = int(run.table["chain_crc"][ordinal])
        body_crc = int(run.table["body_crc"][ordinal])
        if not stated and not body_crc:
            if chains and 0 not in chains:
                walk.findings.append(
                    rows.finding(CHAIN, "it has no CRCs, and those before do", row)
                )
            else:
                chains = (0,)
            continue
        expected = [crc32(covered, chain) for chain in chains]
        if chains and stated not in expected:
            walk.findings.append(rows.finding(CHAIN, "header and chain CRC do not fit", row))
            kept = (0,) if 0 in chains else ()  # it may stand among entries without CRCs
            chains = (*kept, stated, *expected)[:CHAINS_MAX]
            continue
        chains = (stated,)
        if crc32(rows.body(row)) != body_crc:
            walk.findings.append(rows.finding(DAMAGED, "the body CRC does not fit", row))
    walk.chains = chains


def _compare_entries(found: Sequence[Rows]) -> None:
    """Find entries that differ in one replica from most others."""
    good = np.array([rows.good for rows in found])
    wholes = np.array([rows.table.view(HEADER_VOID).view("<u4") for rows in found])
    wholes = wholes.reshape(len(found), good.shape[1], -1)
    base = np.argmax(good, axis=0)
    same = (wholes == wholes[base, np.arange(good.shape[1])]).all(axis=2) | ~good
    several = good.sum(axis=0) > 1
    crcs = np.array([rows.table["chain_crc"] | rows.table["body_crc"] for rows in found])
    unchecked = ((crcs == 0) & good).any(axis=0)
    for row in np.flatnonzero(several & (~same.all(axis=0) | unchecked)).tolist():
        here = [rows for rows in found if rows.good[row]]
        groups: dict[bytes, list[Rows]] = {}
        for rows in here:
            groups.setdefault(_identity(rows, row), []).append(rows)
        if len(groups) > 1:
            _report_minority(list(groups.values()), row)


def _identity(rows: Rows, row: int) -> bytes:
    """Return what identifies an entry; a body without CRC stands for itself."""
    header = rows.table[row]
    if header["chain_crc"] or header["body_crc"]:
        return bytes(header.tobytes())
    return bytes(header.tobytes()) + bytes(rows.body(row))


def _report_minority(groups: list[list[Rows]], row: int) -> None:
    """Report the smaller group; of equal ones, that of the lower term."""
    right = max(groups, key=lambda group: (len(group), int(group[0].table["term"][row])))
    names = ", ".join(rows.walk.part.name for rows in right)
    expected = right[0].table[row]
    for rows in (rows for group in groups if group is not right for rows in group):
        header = rows.table[row]
        reason, name = "its body differs", ""
        if header["term"] != expected["term"]:
            name = "term"
            reason = LOWER_TERM if header["term"] < expected["term"] else HIGHER_TERM
        else:
            for field, text in _FIELDS:
                if header[field] != expected[field]:
                    reason, name = text, field
                    break
        detail = f"unlike {names}"
        if name:
            detail = f"{name} {int(header[name])}, but {int(expected[name])} on {names}"
        rows.walk.findings.append(rows.finding(DIFFERING, reason, row, detail))


def _check_terms(rows: Rows) -> None:
    """Find entries whose term is lower than that of the good one before."""
    places = np.flatnonzero(rows.good)
    if not len(places):
        return
    terms = np.concatenate(([rows.walk.term], rows.table["term"][places].astype(np.int64)))
    for fall in np.flatnonzero(terms[1:] < terms[:-1]).tolist():
        # the one before is wrong if it is above both of its neighbours
        spike = fall > 0 and int(terms[fall - 1]) <= int(terms[fall + 1])
        row = int(places[fall - 1 if spike else fall])
        before = int(terms[fall - 1 if spike else fall])
        detail = f"term {int(rows.table['term'][row])} beside term {before}"
        if rows.good[row]:
            reason = "its term is not between those around it"
            rows.walk.findings.append(rows.finding(TERM_ORDER, reason, row, detail))
    good_rows = np.flatnonzero(rows.good)
    if len(good_rows):
        rows.walk.term = int(rows.table["term"][good_rows[-1]])
