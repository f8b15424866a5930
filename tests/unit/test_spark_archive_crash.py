"""A crash at every single call to the file system, over a run that fetches, merges and removes.

The disk is simulated: what was not fsynced, file by file and name by name, survives only by chance.
"""

from random import Random

import pytest

from pipeline_access import LogInMemory, run_here
from quorumlog.model.errors import StorageError
from quorumlog.sim.disk import SimulatedCrash, SimulatedFileSystem
from quorumlog.spark.jobs.archive.manifest import MANIFEST_NAME, load_manifest
from quorumlog.spark.jobs.archive.parquet import orphan_files, row_groups
from quorumlog.spark.jobs.archive.run import ArchiveOptions, ArchiveRun

DIRECTORY = "/archive"
NOW = 1_772_366_400
FETCHED, MERGED = 8_000, 20_000
"""File sizes with which the new files stay as they are, and with which they are merged."""


def log_of(count):
    log = LogInMemory(block=50).append_noop(1)
    return log.append(*[f"body {number}".encode() * 8 for number in range(count)])


def archive(files, log, file_bytes=MERGED, now=NOW):
    options = ArchiveOptions(file_bytes=file_bytes, cores=2, keep_replaced_s=10)
    return ArchiveRun(log, files, DIRECTORY, options, run_here, now_s=lambda: now).run()


def indexes(files):
    manifest = load_manifest(files, DIRECTORY)
    return [
        index
        for file in manifest.files
        for table in row_groups(files, DIRECTORY, file, ("index",))
        for index in table.column(0).to_pylist()
    ]


def crashed_runs(before, log, now=NOW):
    """Yield the disk after each crash that one run can suffer, until the run is through."""
    call = 0
    while True:
        call += 1
        files = before.copy(Random(call))
        files.crash_at = call
        try:
            archive(files, log, now=now)
        except SimulatedCrash:
            files.restart()
            yield files
        else:
            assert call > 15
            return


def check_next_run(files, log, now=NOW):
    archive(files, log, now=now)
    assert indexes(files) == list(range(1, log.log.end_index + 1))
    assert orphan_files(files, DIRECTORY, load_manifest(files, DIRECTORY)) == []


def test_crashes_of_a_first_run():
    log = log_of(60)
    for files in crashed_runs(SimulatedFileSystem(Random(0)), log):
        if files.exists(f"{DIRECTORY}/{MANIFEST_NAME}"):
            found = indexes(files)
            assert found == list(range(1, len(found) + 1))
        check_next_run(files, log)


def test_crashes_of_a_run_that_adds_merges_and_removes():
    files = SimulatedFileSystem(Random(0))
    for count in (10, 20, 30):
        archive(files, log_of(count), FETCHED)
    assert len(load_manifest(files, DIRECTORY).files) == 3
    archive(files, log_of(30), MERGED)  # what this replaces is removed by the run that crashes
    archive(files, log_of(34), FETCHED)
    assert len(load_manifest(files, DIRECTORY).files) == 2
    assert len(load_manifest(files, DIRECTORY).replaced) == 3
    log, later = log_of(54), NOW + 10
    for crashed in crashed_runs(files, log, later):
        found = indexes(crashed)  # also proves that every file named is whole
        assert found in (list(range(1, 35)), list(range(1, 55)))
        check_next_run(crashed, log, later)
    archive(files, log, now=later)
    assert [file.last for file in load_manifest(files, DIRECTORY).files] == [30, 54]


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC"])
def test_a_call_that_fails_ends_the_run_and_spoils_nothing(kind):
    log = log_of(60)
    before = SimulatedFileSystem(Random(0))
    archive(before, log_of(30), FETCHED)
    ended = 0
    for call in range(1, 200):
        files = before.copy(Random(call))
        files.fail(call, kind)
        try:
            archive(files, log)
        except StorageError:
            ended += 1
        files.forgive()
        check_next_run(files, log)
        if files.calls < call:
            break
    assert ended > 15
