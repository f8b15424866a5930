"""What tests of archives of topics share: brokers in memory are archived, tasks run on the spot."""

from dataclasses import replace

from pipeline_access import run_here
from quorumlog.spark.jobs.archive.state import RunOptions
from quorumlog.spark.jobs.output_files import OutputFileSystem
from quorumlog.spark.jobs.tasks import no_progress
from quorumlog.spark.jobs.topics.files import RecordsInOrder
from quorumlog.spark.jobs.topics.manifest import load_topic_manifest
from quorumlog.spark.jobs.topics.run import TopicArchiveRun
from quorumlog.spark.jobs.topics.source import TopicSource, topic_source
from quorumlog.spark.jobs.topics.target import RecordTooLargeError
from quorumlog.spark.topics.errors import OffsetOutOfRangeError
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.planning import OffsetRange
from spark_topics_fakes import FakePartition

FILES = OutputFileSystem()
DAY_1 = 1_772_366_400  # 2026-03-01, noon UTC
DAY_MS = 86_400_000
NOON_MS = DAY_1 * 1_000


def source_of(brokers, topics=None, isolation="read_committed"):
    return topic_source("h:1", topics, isolation=isolation, connect=brokers.connect)


def split_in(source, records):
    """Return a source whose tasks read few records, so that a partition has several."""
    return TopicSource(replace(source.options, max_records_per_partition=records), source.connect)


def archived(source, directory, now=DAY_1, files=FILES, run=run_here, **options):
    options = RunOptions(**{"file_bytes": 4_000, "cores": 2, **options})
    return TopicArchiveRun(
        source, files, str(directory), options, run, no_progress, lambda: now
    ).run()


def rows_in(directory, files=FILES):
    """Return all records of an archive by partition, by way of its manifest."""
    manifest = load_topic_manifest(files, str(directory))
    return {
        part: [
            row
            for table in RecordsInOrder(files, str(directory), manifest.files_of(part))
            for row in table.to_pylist()
        ]
        for part in manifest.coverage
    }


def rows_at(source):
    """Return all records that brokers have, by partition."""
    found = {}
    for part, bounds in source.bounds(source.parts()).items():
        found[part] = []
        try:
            for batches, _ in source.records(OffsetRange(part, bounds.begin, bounds.beyond)):
                found[part] += [row for rows in batches for row in rows.to_pylist()]
        except OffsetOutOfRangeError:
            assert bounds.begin == bounds.beyond
    return found


def parquet_files(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*.parquet"))


class TargetInMemory:
    """Topics of brokers in memory that are replayed into; each produce is one transaction.

    `before` and `after` are called with the number of each transaction, from 0 on: before and after
    it is committed. What `before` raises aborts it.
    """

    def __init__(self, brokers):
        self.brokers = brokers
        self.committed = {}
        self.taken_over = 0
        self.number = 0
        self.bytes_max = 1 << 20
        self.before = self.after = lambda number: None

    def take_over(self):
        self.taken_over += 1

    def make_topics(self, topics):
        for topic, partitions in topics.items():
            for number in range(partitions):
                self.brokers.content.setdefault(Part(topic, number), FakePartition())

    def positions(self, parts):
        assert self.taken_over, "who may still commit is fenced first"
        return {part: self.committed.get(part) for part in parts}

    def claim(self, positions):
        self.committed |= positions

    def produce(self, part, records, position):
        records = list(records)
        for record in records:
            if record.size > self.bytes_max:
                raise RecordTooLargeError(part, record)
        number, self.number = self.number, self.number + 1
        partition = self.brokers.content[part]
        first = partition.end
        options = {"is_transactional": True, "producer_id": 100 + number, "epoch": 0}
        for sequence, record in enumerate(records):
            assert record.key == b"key"
            partition.append(
                record.time_ms or NOON_MS,
                value=record.value,
                headers=record.headers,
                sequence=sequence,
                **options,
            )
        try:
            self.before(number)
        except BaseException:
            partition.mark(commits=False, first=first, producer=100 + number)
            raise
        partition.mark(commits=True, producer=100 + number)
        self.committed[part] = position
        self.after(number)
