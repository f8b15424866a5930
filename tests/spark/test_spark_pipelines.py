"""The pipelines with Spark's tasks, against a cluster of processes."""

import json
import subprocess
import sys
from collections import Counter

import pytest
from pyspark.sql import functions as f

from quorumlog.cli.main import main
from quorumlog.client import SyncClient, SyncProducer
from quorumlog.local import LocalCluster
from quorumlog.spark.jobs.archive.archive import FILE_BYTES_MIN, archive, read_archive
from quorumlog.spark.jobs.archive.manifest import load_manifest
from quorumlog.spark.jobs.export.export import export
from quorumlog.spark.jobs.output_files import OutputFileSystem
from quorumlog.spark.jobs.replay.replay import replay
from quorumlog.spark.jobs.tasks import PipelineError, run_tasks

pytestmark = [pytest.mark.processes, pytest.mark.spark]

ENTRIES = 3_000


def bodies(count, start=0):
    return [f"entry {number} ".encode() * 10 for number in range(start, start + count)]


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """One node; group `log` holds ENTRIES bodies, the others are for replays."""
    made = LocalCluster.create(
        tmp_path_factory.mktemp("pipelines") / "node",
        nodes=1,
        groups=("log", "again", "elsewhere"),
        data_file_bytes=8 << 20,
    )
    made.up()
    append(made, bodies(ENTRIES))
    yield made
    made.down()


def append(node, given):
    with SyncProducer(node.servers, "log", batch_bytes=16 * 1024) as producer:
        for body in given:
            producer.send(body)


def in_log(node, group="log"):
    with SyncClient(node.servers, group) as client:
        return [(entry.index, entry.body) for entry in client.read(follow=False)]


def rows_of(frame):
    rows = frame.orderBy("index").collect()
    return [(row["index"], bytes(row["body"])) for row in rows]


def test_archive_twice_is_once_and_what_comes_later_is_added(spark, node, tmp_path):
    directory = tmp_path / "a [b] {c}"
    first = archive(spark, node.servers, "log", directory, file_bytes=100_000)
    assert first.files > 2
    assert first.new_rows >= ENTRIES
    assert archive(spark, node.servers, "log", directory).new_rows == 0
    assert rows_of(read_archive(spark, directory)) == in_log(node)
    append(node, [b"later", b"and later"])
    assert archive(spark, node.servers, "log", directory).new_rows == 2
    assert rows_of(read_archive(spark, directory)) == in_log(node)


def test_an_archive_has_exactly_the_files_of_its_manifest(spark, node, tmp_path):
    archive(spark, node.servers, "log", tmp_path, file_bytes=100_000, partition_by="day")
    manifest = load_manifest(OutputFileSystem(), str(tmp_path))
    day, name = manifest.files[0].path.split("/")
    (tmp_path / day / f"{name[:-16]}deadbeef.parquet").write_bytes(
        (tmp_path / day / name).read_bytes()
    )
    frame = read_archive(spark, tmp_path)
    assert frame.count() == len(in_log(node))
    assert f"day={frame.select('day').distinct().collect()[0].day}" == day
    assert read_archive(spark, tmp_path, first=500, last=520).count() == 21
    with_crc = frame.where(f.crc32("body") == f.col("body_crc"))
    assert with_crc.count() == manifest.rows


def test_many_small_files_become_few_with_the_same_rows(spark, node, tmp_path):
    runs = [
        archive(
            spark,
            node.servers,
            "log",
            tmp_path,
            until=last,
            file_bytes=FILE_BYTES_MIN,
            keep_replaced_s=0,
        )
        for last in (1, 2, 3, 4, 5)
    ]
    assert sum(run.merged_files for run in runs) > 0
    assert runs[-1].files == len(list(tmp_path.glob("*.parquet"))) < 4
    assert rows_of(read_archive(spark, tmp_path)) == [row for row in in_log(node) if row[0] <= 5]


def test_a_replay_has_the_archives_digest_and_goes_on_later(spark, node, tmp_path):
    archive(spark, node.servers, "log", tmp_path, until=2_000, file_bytes=100_000)
    first = replay(tmp_path, node.servers, "again")
    archive(spark, node.servers, "log", tmp_path)
    second = replay(tmp_path, node.servers, "again")
    assert (second.found_entries, second.entries) == (first.entries, len(in_log(node)))
    assert [body for _, body in in_log(node, "again")] == [body for _, body in in_log(node)]
    elsewhere = replay(tmp_path, node.servers, "elsewhere")
    assert elsewhere.digest == second.digest != first.digest
    with SyncClient(node.servers, "again") as client:
        client.append(b"stranger")
    with pytest.raises(PipelineError, match="holds more than"):
        replay(tmp_path, node.servers, "again")


def test_what_is_exported_is_read_back_by_spark(spark, node, tmp_path):
    lines, table = tmp_path / "lines", tmp_path / "rows.csv"
    export(spark, node.servers, "log", lines, file_bytes=100_000)
    export(spark, node.servers, "log", table, "csv", single_file=True)
    expected = Counter((str(index), body.decode()) for index, body in in_log(node))
    assert len(list(lines.glob("part-*"))) > 2
    from_json = spark.read.json(str(lines))
    from_csv = spark.read.csv(str(table), header=True, escape='"', multiLine=True)
    for frame in (from_json, from_csv):
        found = frame.select(f.col("index").cast("string"), "body").collect()
        assert Counter(map(tuple, found)) == expected


def test_a_failed_task_is_reported_with_its_reason(spark):
    def damaged():
        raise ValueError("the disk says no")

    with pytest.raises(PipelineError, match="a task failed: ValueError: the disk says no"):
        run_tasks(spark, [lambda: b"fine", damaged])
    assert run_tasks(spark, [lambda: b"1", lambda: b"2", lambda: b"3"]) == [b"1", b"2", b"3"]


def test_the_command_uses_the_cluster_in_a_directory(spark, node, tmp_path, capsys):
    of_log = ("--dir", str(node.directory), "--group", "log", "--json")
    archive_directory, exported = str(tmp_path / "archive"), str(tmp_path / "lines.jsonl")
    assert main(["pipeline", "archive", archive_directory, *of_log]) == 0
    assert main(["pipeline", "export", exported, *of_log, "--single-file"]) == 0
    archived, exported_rows = map(json.loads, capsys.readouterr().out.splitlines())
    assert archived["new_rows"] == exported_rows["rows"] == len(in_log(node))
    assert main(["pipeline", "export", exported, *of_log, "--single-file"]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main(["pipeline", "archive", archive_directory, *of_log[:2], "-g", "again"]) == 1
    assert "is an archive of group log, not again" in capsys.readouterr().err


def test_the_command_starts_spark_and_says_nothing_else(node, tmp_path):
    options = ("--servers", node.servers, "--group", "log", "--master", "local[1]")
    done = subprocess.run(
        [sys.executable, "-m", "quorumlog", "pipeline", "archive", tmp_path / "archive", *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"holds {len(in_log(node)):,} entries" in done.stdout
