"""A crash at every third call to the file system, over runs that fetch, merge and remove.

The disk is simulated: what was not fsynced, file by file and name by name, survives only by chance.
"""

from random import Random

from quorumlog.sim.disk import SimulatedCrash, SimulatedFileSystem
from quorumlog.spark.jobs.archive.manifest_file import MANIFEST_NAME
from quorumlog.spark.jobs.archive.parquet import orphan_files
from quorumlog.spark.jobs.topics.manifest import load_topic_manifest
from quorumlog.spark.topics.part import Part
from spark_topics_fakes import FakeBrokers, FakePartition
from topic_archives import DAY_1, DAY_MS, NOON_MS, archived, rows_at, rows_in, source_of, split_in

DIRECTORY = "/archive"
SMALL = 4_000
CALLS = 3


def brokers_with(count):
    """Return brokers with records of two days in two partitions."""
    parts = [FakePartition(), FakePartition()]
    for number in range(count):
        parts[0].append(NOON_MS + number, NOON_MS + DAY_MS)
        parts[1].append(NOON_MS + number)
    return FakeBrokers(a=parts)


def archive(files, brokers, now=DAY_1, file_bytes=SMALL):
    source = split_in(source_of(brokers), 4)
    options = {"file_bytes": file_bytes, "keep_replaced_s": 10}
    return archived(source, DIRECTORY, now, files, **options)


def check_is_true(files, brokers):
    """Whatever the manifest names is there, whole, and the beginning of the partitions."""
    if not files.exists(f"{DIRECTORY}/{MANIFEST_NAME}"):
        return
    there = rows_at(source_of(brokers))
    for part, rows in rows_in(DIRECTORY, files).items():
        assert rows == there[part][: len(rows)]


def crash_everywhere(before, brokers, now):
    """Crash one run at every third call, and let another one end what it began."""
    call = 0
    while True:
        call += CALLS
        files = before.copy(Random(call))
        files.crash_at = call
        try:
            archive(files, brokers, now)
        except SimulatedCrash:
            files.restart()
        else:
            return call
        check_is_true(files, brokers)
        archive(files, brokers, now)
        assert rows_in(DIRECTORY, files) == rows_at(source_of(brokers))
        manifest = load_topic_manifest(files, DIRECTORY)
        assert orphan_files(files, DIRECTORY, manifest) == []


def test_crashes_of_a_first_run():
    assert crash_everywhere(SimulatedFileSystem(Random(0)), brokers_with(2), DAY_1) > 60


def test_crashes_of_a_run_that_adds_merges_and_removes():
    files = SimulatedFileSystem(Random(0))
    for count in range(1, 9):
        archive(files, brokers_with(count))  # the last one merges; what it replaced is still there
    assert len(load_topic_manifest(files, DIRECTORY).replaced) == 24
    for count in range(9, 16):
        archive(files, brokers_with(count))
    brokers = brokers_with(17)
    assert crash_everywhere(files, brokers, DAY_1 + 11) > 60
    archive(files, brokers, DAY_1 + 11)
    assert {file.part for file in load_topic_manifest(files, DIRECTORY).files} == {
        Part("a", 0),
        Part("a", 1),
    }
