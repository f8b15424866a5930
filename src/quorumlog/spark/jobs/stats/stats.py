"""Describes what a live group or a store's files hold: entries, sizes, terms and rates.

Entries carry no time. Rates over time come from the times at which a store's data files were last
written, so a live group, or a store that was copied, has none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import CorruptionError
from quorumlog.model.wording import counted
from quorumlog.spark.access import AnyAccess
from quorumlog.spark.jobs.audit.plan import absolute
from quorumlog.spark.jobs.audit.report import size_text, table
from quorumlog.spark.jobs.log_source import ClusterSource, LogSource, plan_ranges
from quorumlog.spark.jobs.progress import run_with_progress
from quorumlog.spark.jobs.stats.count import (
    Buckets,
    CountOfLog,
    CountOfStore,
    Counts,
    smallest_of_class,
)
from quorumlog.spark.jobs.tasks import (
    PipelineError,
    Progress,
    RunTasks,
    Task,
    cores_of,
    no_progress,
)
from quorumlog.storage.files.os_files import FileSystem, OsFileSystem
from quorumlog.storage.log.hard_state import HardStateStore
from quorumlog.storage.offline.replica_files import Replica, StoreDirectory, cuts_of, read_replica

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGE_BYTES = 256 * 1024 * 1024
"""Bytes of entries that a task counts."""
TASKS_MAX = 4_096
BUCKETS = 120
"""Ranges of the index that rates are reported for."""
TERMS_SHOWN = 10
BAR_CHARACTERS = 40
_COUNTS: Final = msgspec.msgpack.Decoder(Counts)


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Users' entries whose bodies have low … high bytes."""

    low: int
    high: int
    entries: int


@dataclass(frozen=True, slots=True)
class TermStats:
    """One term: its entries, their bytes with headers; its leader, or the one voted for, if known.

    A store knows only for whom it voted in its newest term; that one need not have won.
    """

    term: int
    first_index: int
    entries: int
    bytes: int
    leader: str = ""
    vote: str = ""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Entries that were found among first … last, and their bytes with headers."""

    first: int
    last: int
    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Period:
    """Entries first … last were written from from_ms to to_ms (wall clock, milliseconds)."""

    from_ms: int
    to_ms: int
    first: int
    last: int
    bytes: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.to_ms - self.from_ms) / 1_000


@dataclass(slots=True)
class LogStats:
    """A description of entries first_index … last_index of a log.

    `bytes` are of all entries with their headers; sizes (`smallest` … `largest`, `mean`, `p50`,
    `p99`, `sizes`) are of the bodies of users' entries. p50 and p99 are right within 0.8 %.
    `damaged` entries could not be read. `periods` are empty where no times are known.
    """

    source: str
    first_index: int
    last_index: int
    entries: int = 0
    bytes: int = 0
    damaged: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    body_bytes: int = 0
    smallest: int = 0
    largest: int = 0
    mean: float = 0.0
    p50: int = 0
    p99: int = 0
    sizes: list[SizeClass] = field(default_factory=list)
    terms: list[TermStats] = field(default_factory=list)
    buckets: list[Bucket] = field(default_factory=list)
    periods: list[Period] = field(default_factory=list)

    def to_object(self) -> dict[str, object]:
        """Return it as `--json` shows it."""
        return asdict(self)

    def text(self) -> str:
        """Return it for a person to read."""
        if not self.entries:
            return f"{self.source} holds no entries"
        kinds = ", ".join(f"{name} {count:,}" for name, count in sorted(self.kinds.items()))
        lines = [
            f"{self.source}: entries {self.first_index} to {self.last_index}",
            "",
            *table(("", ""), self._rows(kinds))[1:],
        ]
        if self.sizes:
            lines += ["", "bodies of users' entries", *self._size_lines()]
        lines += ["", *self._term_lines()]
        return "\n".join([*lines, *self._rate_lines()])

    def _rows(self, kinds: str) -> list[tuple[str, str]]:
        rows = [("entries", f"{self.entries:,} ({kinds})")]
        if self.damaged:
            rows.append(("not readable", counted(self.damaged, "entry", "entries")))
        rows.append(("bytes", f"{size_text(self.bytes)}, bodies {size_text(self.body_bytes)}"))
        rows.append(
            (
                "body sizes",
                f"{self.smallest:,} to {self.largest:,} bytes, mean {self.mean:,.0f}, "
                f"median {self.p50:,}, 99 % up to {self.p99:,}",
            )
        )
        return rows

    def _size_lines(self) -> list[str]:
        most = max(one.entries for one in self.sizes)
        rows = [
            (
                f"{one.low:,} to {one.high:,}" if one.high else "empty",
                f"{one.entries:,}",
                "█" * math.ceil(BAR_CHARACTERS * one.entries / most),
            )
            for one in self.sizes
        ]
        return table((">BYTES", ">ENTRIES", ""), rows)

    def _term_lines(self) -> list[str]:
        rows = [
            (
                str(one.term),
                str(one.first_index),
                f"{one.entries:,}",
                size_text(one.bytes),
                one.leader or (f"voted for {one.vote}" if one.vote else ""),
            )
            for one in self.terms[-TERMS_SHOWN:]
        ]
        earlier = len(self.terms) - TERMS_SHOWN
        note = [f"and {counted(earlier, 'term')} before"] if earlier > 0 else []
        return table((">TERM", ">FIRST", ">ENTRIES", ">BYTES", "LEADER"), rows) + note

    def _rate_lines(self) -> list[str]:
        if not self.periods:
            return []
        seconds = sum(one.seconds for one in self.periods)
        entries = sum(one.last - one.first + 1 for one in self.periods)
        size = sum(one.bytes for one in self.periods)
        fastest = max(self.periods, key=lambda one: one.bytes / one.seconds)
        return [
            "",
            f"written, as the data files' times tell: {entries / seconds:,.1f} entries/s, "
            f"{size_text(size / seconds)}/s on average; at most "
            f"{size_text(fastest.bytes / fastest.seconds)}/s (entries {fastest.first} to "
            f"{fastest.last})",
        ]


def stats(
    spark: "SparkSession",
    servers: AnyAccess = "",
    group: str = "",
    *,
    store: str | Path | StoreDirectory | None = None,
    quick: bool = False,
    progress: Progress = no_progress,
) -> LogStats:
    """Count what a live group (`servers`, `group`) holds up to its committed index, or a `store`.

    A store is read by its files, committed or not; `quick` reads its index files only, 32 bytes an
    entry, and takes entries of bookkeeping for users'. Raises `PipelineError` when a task fails, or
    neither or both are given, `RequestError`, `StorageError`.
    """
    if (store is None) == (not servers):
        raise PipelineError("give either servers and group, or the directory of a store")

    def run(tasks: Sequence[Task]) -> list[bytes]:
        return run_with_progress(spark, tasks, progress)

    if store is None:
        source = ClusterSource(servers, group, "read_uncommitted")
        source.check()
        found = stats_of_log(source, run, cores_of(spark))
        leaders = _leaders(source)
        found.terms = [_with_leader(one, leaders) for one in found.terms]
        return found
    return stats_of_store(OsFileSystem(), absolute(store), run, quick=quick)


def stats_of_log(source: LogSource, run: RunTasks, cores: int) -> LogStats:
    """Count a live group, with `run` to carry out the tasks."""
    first, last = source.bounds()
    name = f"group {source.group}"
    if last < first:
        return LogStats(name, first, last)
    buckets = Buckets(first, last, min(BUCKETS, last - first + 1))
    ranges = plan_ranges(source, first, last, RANGE_BYTES, cores)
    tasks = [CountOfLog(source, begin, end, buckets) for begin, end in ranges]
    return _joined(name, buckets, run(tasks))


def _leaders(source: ClusterSource) -> dict[int, str]:
    """Return the present leader by its term."""
    return {
        status.term: status.node_id
        for status in source.client().status()
        if status.code == ResponseCode.SUCCESS and status.role == Role.LEADER.value
    }


def _with_leader(one: TermStats, leaders: Mapping[int, str]) -> TermStats:
    leader = leaders.get(one.term, "")
    return TermStats(one.term, one.first_index, one.entries, one.bytes, leader, one.vote)


# -- of a store -----------------------------------------------------------------------------------


def stats_of_store(
    files: FileSystem, store: StoreDirectory, run: RunTasks, *, quick: bool = False
) -> LogStats:
    """Count a store by its files, with `run` to carry out the tasks."""
    replica = read_replica(files, store.directory, store)
    first, last = replica.begin_index, replica.end_index
    name = f"store {store.directory}"
    if last < first:
        return LogStats(name, first, last)
    buckets = Buckets(first, last, min(BUCKETS, last - first + 1))
    size = max(RANGE_BYTES, (replica.end_position - replica.marks()[0][1]) // TASKS_MAX)
    edges = [*cuts_of(files, replica, store, size), last + 1]
    parts = [replica.part(begin, stop - 1) for begin, stop in pairwise(edges) if begin < stop]
    found = _joined(
        name, buckets, run([CountOfStore(part, buckets, quick) for part in parts if part])
    )
    found.periods = periods_of(files, replica)
    vote = _vote(files, store.directory)
    if vote is not None:
        found.terms = [
            TermStats(one.term, one.first_index, one.entries, one.bytes, "", vote[1])
            if one.term == vote[0]
            else one
            for one in found.terms
        ]
    return found


def _vote(files: FileSystem, directory: str) -> tuple[int, str] | None:
    """Return (term, candidate) of a store's newest vote."""
    try:
        state = HardStateStore(files, directory).load(read_only=True)
    except CorruptionError:
        return None
    return (state.term, state.vote) if state.vote else None


def periods_of(files: FileSystem, replica: Replica) -> list[Period]:
    """Return when the entries of a store were written, by the times of its data files.

    The entries of a file were written after the last write to the file before it. Nothing is known
    of the first file, nor of any if the times are not in order: then the store was copied.
    """
    known = [file for file in replica.data_files if file.first_index >= 0]
    times = [files.modified_ms(file.path) for file in known]
    if any(after <= before for before, after in pairwise(times)):
        return []
    marks = replica.marks()
    periods = [
        Period(
            times[number - 1],
            times[number],
            known[number].first_index,
            marks[number + 1][0] - 1,
            marks[number + 1][1] - marks[number][1],
        )
        for number in range(1, len(known))
    ]
    together = -(-len(periods) // BUCKETS) or 1
    return [
        _one_period(periods[start : start + together]) for start in range(0, len(periods), together)
    ]


def _one_period(parts: Sequence[Period]) -> Period:
    size = sum(part.bytes for part in parts)
    return Period(parts[0].from_ms, parts[-1].to_ms, parts[0].first, parts[-1].last, size)


# -- joining --------------------------------------------------------------------------------------


def _joined(name: str, buckets: Buckets, results: Sequence[bytes]) -> LogStats:
    counts = Counts()
    for raw in results:
        counts.add(_COUNTS.decode(raw))
    users = counts.users_entries
    return LogStats(
        source=name,
        first_index=buckets.first,
        last_index=buckets.last,
        entries=counts.entries,
        bytes=counts.bytes,
        damaged=counts.damaged,
        kinds=counts.kinds,
        body_bytes=counts.body_bytes,
        smallest=max(0, counts.smallest),
        largest=max(0, counts.largest),
        mean=counts.body_bytes / users if users else 0.0,
        p50=percentile(counts, 0.50),
        p99=percentile(counts, 0.99),
        sizes=_size_classes(counts),
        terms=[
            TermStats(term, one.first_index, one.entries, one.bytes)
            for term, one in sorted(counts.terms.items())
        ],
        buckets=[
            Bucket(
                *buckets.range(number),
                counts.entries_in.get(number, 0),
                counts.bytes_in.get(number, 0),
            )
            for number in range(buckets.count)
        ],
    )


def percentile(counts: Counts, share: float) -> int:
    """Return the size that this share of the users' bodies does not exceed; 0 without bodies."""
    left = share * counts.users_entries
    for number in sorted(counts.classes):
        left -= counts.classes[number]
        if left <= 0:
            low, high = smallest_of_class(number), smallest_of_class(number + 1) - 1
            return min(max((low + high) // 2, counts.smallest), counts.largest)
    return 0


def _size_classes(counts: Counts) -> list[SizeClass]:
    """Return the sizes by powers of two, without gaps."""
    found: dict[int, int] = {}
    for number, entries in counts.classes.items():
        power = smallest_of_class(number).bit_length()
        found[power] = found.get(power, 0) + entries
    powers = range(min(found), max(found) + 1) if found else range(0)
    return [SizeClass((1 << power) >> 1, (1 << power) - 1, found.get(power, 0)) for power in powers]
