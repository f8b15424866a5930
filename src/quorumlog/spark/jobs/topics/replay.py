"""Produces an archive of topics again: each record once, in the order of its partition.

    replay_topics("/archive/topics", "h:p,h:p,h:p", names={"flights": "flights-again"})

Records keep their partitions, keys, values, headers and timestamps; offsets are those of the new
topics. It runs in this process, without a Spark session: order allows one producer only. Each
transaction has records, and how far the archive was replayed as committed offsets of a consumer
group. So a replay that is stopped at any point and run again goes on after the last record that
counts, and what was under way never does. At the end what was produced is read and compared.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.client.results import Isolation
from quorumlog.model.wording import counted
from quorumlog.spark.access import AnyAccess
from quorumlog.spark.jobs.log_source import TIMEOUT_MS
from quorumlog.spark.jobs.output_files import OutputFileSystem, local_path
from quorumlog.spark.jobs.tasks import PipelineError, Progress, no_progress, read_ahead
from quorumlog.spark.jobs.topics.compare import differing
from quorumlog.spark.jobs.topics.files import FILE_COLUMNS, TOPIC_LAYOUT, RecordsInOrder, offsets_in
from quorumlog.spark.jobs.topics.manifest import TopicManifest, load_topic_manifest
from quorumlog.spark.jobs.topics.source import TopicSource, topic_source
from quorumlog.spark.jobs.topics.target import (
    ConfluentTarget,
    Outgoing,
    Position,
    RecordTooLargeError,
    TopicTarget,
)
from quorumlog.spark.topics.errors import OffsetOutOfRangeError
from quorumlog.spark.topics.part import LATEST, Part
from quorumlog.spark.topics.planning import OffsetRange
from quorumlog.storage.files.os_files import FileSystem

TRANSACTION_RECORDS: Final = 10_000
TRANSACTION_BYTES: Final = 8 * 1024 * 1024
"""Records of one transaction at most, and their bytes, unless one record has more."""
ISOLATION: Final[Isolation] = "read_committed"
REPLAYED: Final = ("key", "value", "timestamp", "headers")
"""What a record keeps."""
STABLE_S: Final = 0.05
"""Pause before it is looked again whether a transaction is still open."""
_LEADERS_TIME: Final = 1
"""The timestampType of a topic in which leaders give the timestamps."""
_FIRST_TIME_US: Final = 1_000
"""librdkafka takes 0 for the present, so records of the first millisecond of 1970 get this."""


@dataclass(frozen=True, slots=True)
class TopicReplayResult:
    """The result of a replay. The topics now have the `records` of the archive.

    `found_records` of them were replayed by an earlier run, and the others were produced.
    `topics` are their names in the archive and in the cluster. `changed_timestamps` records have
    another timestamp than in the archive, the first of which is `first_changed`: topic, partition
    and offset there.
    """

    directory: str
    topics: dict[str, str]
    partitions: int
    records: int
    found_records: int
    produced_records: int
    changed_timestamps: int = 0
    first_changed: tuple[str, int, int] | None = None


def replay_topics(  # noqa: PLR0913  (named options of a public entry point)
    directory: str | os.PathLike[str],
    servers: AnyAccess,
    topics: str | Sequence[str] | None = None,
    *,
    names: Mapping[str, str] | None = None,
    append: bool = False,
    allow_gaps: bool = False,
    timeout_ms: int = TIMEOUT_MS,
    progress: Progress = no_progress,
) -> TopicReplayResult:
    """Produce what an archive holds into topics of the cluster at `servers`.

    `topics` are those to replay (all, unless given), `names` the new names of those that get one. A
    topic that is not there is made, with as many partitions. Its partitions must be empty, unless
    an earlier run of this replay has written to them, or `append`; nobody else may write to them
    meanwhile. With `allow_gaps` records may be missing from the archive. `progress` is called with
    the number of records that the topics have and that they will have.

    Raises `PipelineError` when a partition holds something else, the archive is damaged, a topic
    refuses a record for its size, or what is read back differs (timestamps may, see
    `TopicReplayResult`); `NetworkError` after an outage longer than `timeout_ms`;
    `ModuleNotFoundError` without confluent-kafka.
    """
    files, root = OutputFileSystem(), local_path(directory)
    manifest = load_topic_manifest(files, root)
    chosen = _chosen(root, manifest, topics, names or {})
    if not allow_gaps:
        _check_gaps(root, manifest, chosen)
    source = topic_source(
        servers, list(chosen.values()), isolation=ISOLATION, timeout_ms=timeout_ms
    )
    source.brokers().cluster_id()  # says soon that no broker answers
    target = ConfluentTarget(servers, f"quorumlog-replay-{manifest.archive_id}", timeout_ms)
    try:
        replay = TopicReplay(files, root, chosen, target, source, progress, append=append)
        return replay.run()
    finally:
        target.close()


def _chosen(
    directory: str,
    manifest: TopicManifest,
    topics: str | Sequence[str] | None,
    names: Mapping[str, str],
) -> dict[str, str]:
    """Return the topics to replay, and what they are called in the cluster."""
    known = sorted({one.topic for one in manifest.partitions})
    given = topics.split(",") if isinstance(topics, str) else topics
    wanted = known if given is None else sorted({name.strip() for name in given})
    if missing := sorted({*wanted, *names} - set(known)):
        raise PipelineError(f"{directory} has nothing of {', '.join(missing)}")
    chosen = {topic: names.get(topic, topic) for topic in wanted}
    if len(set(chosen.values())) < len(chosen):
        raise PipelineError("two topics would be replayed into one; give them names of their own")
    if not chosen:
        raise PipelineError(f"{directory} holds no topics yet")
    return chosen


def _check_gaps(directory: str, manifest: TopicManifest, chosen: Mapping[str, str]) -> None:
    lost = sum(gap.last - gap.first + 1 for gap in manifest.gaps if gap.topic in chosen)
    if lost:
        raise PipelineError(
            f"{directory} has gaps of {counted(lost, 'offset')} in all; to replay what it has: "
            "allow_gaps=True (--allow-gaps)"
        )


class TopicReplay:
    """One run; `run` may be called once. `source` reads what the target has."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        topics: Mapping[str, str],
        target: TopicTarget,
        source: TopicSource,
        progress: Progress = no_progress,
        *,
        append: bool = False,
    ) -> None:
        self._files = files
        self._directory = directory
        self._topics = dict(topics)
        self._target = target
        self._source = source
        self._progress = progress
        self._append = append
        self._manifest = load_topic_manifest(files, directory)
        self._parts = {
            one.part: Part(self._topics[one.topic], one.partition)
            for one in self._manifest.partitions
            if one.topic in self._topics
        }
        self._total = sum(file.rows for file in self._manifest.files if file.part in self._parts)
        self._done = 0
        self._changed_timestamps = 0
        self._first_changed: tuple[str, int, int] | None = None

    def run(self) -> TopicReplayResult:
        """Produce, read back; see `replay_topics`."""
        sizes: dict[str, int] = {}
        for part in self._parts.values():
            sizes[part.topic] = max(sizes.get(part.topic, 0), part.partition + 1)
        self._target.make_topics(sizes)
        self._target.take_over()
        self._source.parts()  # waits until brokers know of those that were made
        found = self._target.positions(list(self._parts.values()))
        begins = {part: self._position(part, found[there]) for part, there in self._parts.items()}
        new = {
            self._parts[part]: one for part, one in begins.items() if not found[self._parts[part]]
        }
        if new:  # so that what is aborted before the first commit is known as this replay's own
            self._target.claim(new)
        before = sum(self._rows_below(part, one.offset) for part, one in begins.items())
        self._done = before
        for part, one in begins.items():
            try:
                self._replay(part, one)
            except RecordTooLargeError as error:
                raise PipelineError(
                    f"offset {error.offset} of partition {part} in {self._directory} cannot be "
                    f"replayed: {error}. {self._how_to_go_on(part)}"
                ) from error
        for part, one in begins.items():
            self._read_back(part, one)
        return TopicReplayResult(
            directory=self._directory,
            topics=self._topics,
            partitions=len(self._parts),
            records=self._done,
            found_records=before,
            produced_records=self._done - before,
            changed_timestamps=self._changed_timestamps,
            first_changed=self._first_changed,
        )

    def _how_to_go_on(self, stopped: Part) -> str:
        """Return what is done, and what to do, if a partition cannot be replayed further."""
        topics = list(dict.fromkeys(part.topic for part in self._parts))
        number = topics.index(stopped.topic)
        done, left = topics[:number], topics[number + 1 :]
        whole = f"whole, but not compared: {', '.join(done)}" if done else "no topic is whole"
        text = f"Then run the replay again: it goes on from there ({whole})"
        others = ",".join([*done, *left])
        return f"{text}; without {stopped.topic}: --topic {others}" if others else text

    def _position(self, part: Part, found: Position | None) -> Position:
        """Return where to go on. Raises `PipelineError` if others have written to a partition."""
        there = self._parts[part]
        end = self._end(there)
        if found is not None and found.topic not in {"", part.topic}:
            raise PipelineError(
                f"partition {there} has records of topic {found.topic!r} of this archive, by an "
                f"earlier replay; replay {part.topic!r} into a topic of another name"
            )
        if found is not None and found.began <= end:
            return found._replace(topic=part.topic)
        if found is not None:
            raise PipelineError(
                f"partition {there} ends at offset {end}, before what an earlier replay wrote: it "
                "was made again; replay into a topic of another name"
            )
        if end and not self._append:
            raise PipelineError(
                f"partition {there} has had {counted(end, 'offset')} that this replay did not "
                "write; replay into another topic (names=, --rename), or after them (append=True, "
                "--append)"
            )
        return Position(self._manifest.coverage[part].first, end, part.topic)

    def _end(self, there: Part, *, reads_committed: bool = False) -> int:
        """Return the offset that the next record of a partition will have.

        With `reads_committed`, that of the oldest transaction that is ongoing, if there is one.
        """
        found = self._source.brokers().offsets({there: LATEST}, reads_committed=reads_committed)
        return found[there] or 0

    def _rows_below(self, part: Part, offset: int) -> int:
        """Return how many records of a partition are below an offset."""
        count = 0
        for file in self._manifest.files_of(part):
            if file.last < offset:
                count += file.rows
            elif file.first < offset:
                for table in RecordsInOrder(self._files, self._directory, [file]):
                    count += int((offsets_in(table) < offset).sum())
        return count

    # -- producing ----------------------------------------------------------------------------

    def _rows(self, part: Part, first: int) -> Iterator[pa.Table]:
        """Yield the records of a partition from an offset on; the next ones are read ahead."""
        parts = [file for file in self._manifest.files_of(part) if file.last >= first]
        for table in read_ahead(iter(RecordsInOrder(self._files, self._directory, parts))):
            rows = table.filter(pa.array(offsets_in(table) >= first))
            if rows.num_rows:
                yield rows

    def _replay(self, part: Part, begin: Position) -> None:
        there = self._parts[part]
        for table in self._rows(part, begin.offset):
            for rows in _transactions(table):
                position = begin._replace(offset=int(offsets_in(rows)[-1]) + 1)
                self._target.produce(there, _outgoing(rows), position)
                self._done += rows.num_rows
                self._progress(self._done, self._total)

    # -- proving ------------------------------------------------------------------------------

    def _read_back(self, part: Part, begin: Position) -> None:
        """Raise `PipelineError` unless a partition has what the archive has of it, in order."""
        there = self._parts[part]
        written = self._written(OffsetRange(there, begin.began, self._stable_end(there)))
        rest = TOPIC_LAYOUT.schema.empty_table()
        compared = 0
        try:
            for ours in self._rows(part, 0):
                start = 0
                while start < ours.num_rows:
                    if not rest.num_rows and (following := next(written, None)) is not None:
                        rest = following
                    count = min(rest.num_rows, ours.num_rows - start)
                    if not count:
                        raise self._different(there, compared + start, "it is missing")
                    pair = ours.slice(start, count), rest.slice(0, count)
                    if found := differing(*_comparable(*pair), REPLAYED):
                        row, columns = found[0]
                        raise self._different(there, compared + start + row, f"another {columns}")
                    self._note_changed(part, *pair)
                    rest = rest.slice(count)
                    start += count
                compared += ours.num_rows
            if rest.num_rows or next(written, None) is not None:
                raise self._different(there, compared, "it is not in the archive")
        except OffsetOutOfRangeError as error:
            raise PipelineError(
                f"retention of partition {there} removed records before they were read back, so "
                f"nothing is proved: {error}"
            ) from error

    def _note_changed(self, part: Part, ours: pa.Table, theirs: pa.Table) -> None:
        """Count records whose timestamps differ."""
        one, other = (rows.column("timestamp").cast(pa.int64()) for rows in (ours, theirs))
        is_same = pc.fill_null(pc.equal(one, other), False)
        changed = ours.filter(pc.invert(is_same))
        self._changed_timestamps += changed.num_rows
        if changed.num_rows and self._first_changed is None:
            self._first_changed = (*part, int(offsets_in(changed)[0]))

    def _stable_end(self, there: Part) -> int:
        """Return the end of a partition once no transaction is open: markers may come late.

        Raises `PipelineError` if that takes too long.
        """
        timeout_ms = self._source.options.fetch_timeout_ms
        ends_at = time.monotonic() + timeout_ms / 1_000
        while True:
            stable, end = self._end(there, reads_committed=True), self._end(there)
            if stable >= end:
                return stable
            if time.monotonic() > ends_at:
                raise PipelineError(
                    f"partition {there} ends at offset {end}, but a transaction has been open from "
                    f"offset {stable} on for {timeout_ms / 1_000:g} s, so nothing is proved: does "
                    "anybody else write?"
                )
            time.sleep(STABLE_S)

    def _written(self, one: OffsetRange) -> Iterator[pa.Table]:
        for batches, _ in self._source.records(one):
            for rows in batches:
                if rows.num_rows:
                    yield pa.Table.from_batches([rows]).select(FILE_COLUMNS)

    def _different(self, there: Part, number: int, reason: str) -> PipelineError:
        return PipelineError(
            f"partition {there} is not what {self._directory} holds of it: record {number} since "
            f"the replay began, {reason}; did anybody else write?"
        )


def _comparable(ours: pa.Table, theirs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return records without the timestamps that cannot be equal.

    Those are the ones that leaders gave, and those of no time for Spark (see `arrow_batch`).
    """
    times, number = ours.column("timestamp"), ours.schema.get_field_index("timestamp")
    numbers = times.cast(pa.int64())
    given = pc.if_else(pc.equal(numbers, 0), _FIRST_TIME_US, numbers)
    ours = ours.set_column(number, "timestamp", given.cast(times.type))
    is_kept = pc.and_(times.is_valid(), pc.not_equal(theirs.column("timestampType"), _LEADERS_TIME))
    none = pa.scalar(None, times.type)
    ours, theirs = (
        rows.set_column(number, "timestamp", pc.if_else(is_kept, rows.column("timestamp"), none))
        for rows in (ours, theirs)
    )
    return ours, theirs


def _transactions(table: pa.Table) -> Iterator[pa.Table]:
    """Yield records that fit one transaction."""
    sizes = np.zeros(table.num_rows, np.int64)
    for name in ("key", "value"):
        sizes += pc.fill_null(pc.binary_length(table.column(name)), 0).to_numpy()
    ends = np.cumsum(sizes)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + TRANSACTION_BYTES, side="right"))
        stop = min(max(stop, start + 1), start + TRANSACTION_RECORDS)
        yield table.slice(start, stop - start)
        start = stop


def _outgoing(rows: pa.Table) -> Iterator[Outgoing]:
    keys, values, headers = (rows.column(name).to_pylist() for name in ("key", "value", "headers"))
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    offsets = offsets_in(rows).tolist()
    for key, value, time_us, pairs, offset in zip(
        keys, values, times, headers, offsets, strict=True
    ):
        yield Outgoing(
            key,
            value,
            None if time_us is None else (time_us or _FIRST_TIME_US) // 1_000,
            [(pair["key"], pair["value"]) for pair in pairs or ()],
            offset,
        )
