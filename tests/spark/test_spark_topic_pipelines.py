"""The pipelines of topics with Spark's tasks, against a cluster of three processes."""

import json
import signal
import subprocess
import sys
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog.sql import SqlCatalog

from kafka_nodes import idempotent_producer
from quorumlog.cli.main import main
from quorumlog.spark import archive_topics, audit_topics, read_archive, replay_topics, topic_stats
from quorumlog.spark.jobs.tasks import PipelineError

pytestmark = [pytest.mark.processes, pytest.mark.spark]

RECORDS = 3_000
NOON_MS = 1_772_366_400_000  # 2026-03-01
DAY_MS = 86_400_000
SECONDS = 200


def make_topics(servers, **partitions):
    admin = AdminClient({"bootstrap.servers": servers})
    made = admin.create_topics([NewTopic(name, count) for name, count in partitions.items()])
    for one in made.values():
        one.result(SECONDS)


def produce(servers, topic, numbers, partitions=3):
    producer = idempotent_producer(servers, **{"compression.type": "lz4"})
    for number in numbers:
        producer.produce(
            topic,
            None if number % 10 == 3 else f"value {number} ".encode() * (number % 7),
            None if number % 5 == 1 else str(number % 11).encode(),
            number % partitions,
            timestamp=NOON_MS + number * 1_000 + number % 2 * DAY_MS,
            headers=[("n", str(number).encode()), ("none", None)] if number % 4 == 0 else None,
        )
        producer.poll(0)
    assert producer.flush(SECONDS) == 0


@pytest.fixture(scope="module")
def servers(brokers):
    """Topics `007` and `landed` have records, `live` gets some from tests."""
    found = brokers.bootstrap_servers
    make_topics(found, **{"007": 3, "landed": 2, "live": 3})
    produce(found, "007", range(RECORDS))
    produce(found, "landed", range(20), partitions=2)
    return found


@pytest.fixture(scope="module")
def archived(spark, servers, tmp_path_factory):
    directory = tmp_path_factory.mktemp("topics") / "a [b]"
    result = archive_topics(spark, servers, ["007", "landed"], directory)
    assert (result.new_rows, result.topics, result.partitions) == (RECORDS + 20, 2, 5)
    return directory


def rows_of(frame):
    return frame.select(
        "topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers"
    ).collect()


def read_live(spark, servers, topics):
    return (
        spark.read.format("quorumlog")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topics)
        .option("includeHeaders", "true")
        .load()
    )


def test_an_archive_has_the_rows_of_the_source_by_topic_and_day(spark, servers, archived):
    frame = read_archive(spark, archived)
    expected = rows_of(read_live(spark, servers, "007,landed"))
    assert sorted(rows_of(frame), key=str) == sorted(expected, key=str)
    days = {str(day): count for day, count in frame.groupBy("day").count().collect()}
    assert days == {"2026-03-01": RECORDS // 2 + 10, "2026-03-02": RECORDS // 2 + 10}
    assert read_archive(spark, archived, topics="007").where("day = '2026-03-01'").count() == 1_500
    assert (archived / "topic=007" / "day=2026-03-02").is_dir()


def test_an_iceberg_table_has_the_rows_of_the_source_once(spark, servers, tmp_path, capsys):
    directory, uri = tmp_path / "a [b]", f"sqlite:///{tmp_path}/catalog.db"
    command = (
        *("pipeline", "archive", str(directory), "--bootstrap-server", servers, "-t", "landed"),
        *("--iceberg-table", "lake.landed", "--iceberg-catalog", uri),
    )
    assert (main(command), main(command)) == (0, 0)
    assert "20 records added" in capsys.readouterr().out
    frame = SqlCatalog("default", uri=uri).load_table("lake.landed").scan().to_arrow()
    found = frame.select(["partition", "offset", "value"]).to_pylist()
    live = read_live(spark, servers, "landed").select("partition", "offset", "value").collect()
    assert sorted(map(str, found)) == sorted(str(row.asDict()) for row in live)


def test_what_comes_later_is_added_once_and_an_audit_finds_what_is_amiss(spark, servers, tmp_path):
    produce(servers, "live", range(100))
    archive_topics(spark, servers, None, tmp_path, pattern="li.e")
    produce(servers, "live", range(100, 130))
    assert archive_topics(spark, servers, "live", tmp_path).new_rows == 30
    assert archive_topics(spark, servers, "live", tmp_path).new_rows == 0
    report = audit_topics(spark, tmp_path, servers)
    assert (report.is_clean, report.records) == (True, 130)
    next(tmp_path.rglob("*.parquet")).unlink()
    found = audit_topics(spark, tmp_path, servers)
    assert set(found.counts) == {"damaged", "archive-missing"}


def test_a_replay_has_the_records_of_the_archive_and_is_done_once(spark, servers, archived):
    names = {"007": "again", "landed": "landed-again"}
    first = replay_topics(archived, servers, names=names)
    assert (first.produced_records, first.found_records) == (RECORDS + 20, 0)
    second = replay_topics(archived, servers, names=names)
    assert (second.produced_records, second.found_records) == (0, RECORDS + 20)
    columns = ("partition", "key", "value", "timestamp", "headers")
    found = read_live(spark, servers, "again").select(*columns).collect()
    expected = read_archive(spark, archived, topics="007").select(*columns).collect()
    assert sorted(found, key=str) == sorted(expected, key=str)
    with pytest.raises(PipelineError, match="that this replay did not write"):
        replay_topics(archived, servers, "007")


def test_a_replay_that_is_killed_goes_on(servers, archived):
    make_topics(servers, killed=3)
    code = (
        "import sys; from quorumlog.spark.jobs.topics import replay\n"
        "replay.TRANSACTION_RECORDS = 50\n"
        "def told(done, total):\n"
        "    print(done, flush=True)\n"
        f"    if done >= {RECORDS // 2}:\n"
        "        sys.stdin.read()  # it shall not be done before it is killed\n"
        "replay.replay_topics(sys.argv[1], sys.argv[2], '007', names={'007': 'killed'},\n"
        "    progress=told)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, archived, servers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = [process.stdout.readline() for _ in range(4)]
    process.send_signal(signal.SIGKILL)
    process.wait(SECONDS)
    assert int(lines[-1]) >= 200
    result = replay_topics(archived, servers, "007", names={"007": "killed"})
    assert 200 <= result.found_records < RECORDS
    assert result.records == RECORDS, "and what was read back is the same"


def test_the_statistics_count_what_was_produced(spark, servers, tmp_path, capsys):
    found = topic_stats(spark, servers, "007")
    assert (found.records, len(found.partitions)) == (RECORDS, 3)
    assert sum(one.null_values for one in found.partitions) == RECORDS // 10
    assert sum(one.records for one in found.periods) == RECORDS
    reached = ("--bootstrap-server", servers, "--topic", "landed")
    plot = tmp_path / "plot.png"
    assert main(["pipeline", "stats", *reached, "--plot", str(plot), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 20
    assert plot.stat().st_size > 10_000


def test_the_commands_take_topics(servers, tmp_path, capsys):
    directory = str(tmp_path / "archive")
    reached = ("--bootstrap-server", servers)
    assert main(["pipeline", "archive", directory, *reached, "-t", "landed"]) == 0
    assert "holds 20 records of 1 topic, 2 partitions" in capsys.readouterr().out
    assert main(["pipeline", "audit", "--archive", directory, *reached]) == 0
    assert "20 records compared: no difference" in capsys.readouterr().out
    rename = ("--rename", f"landed=landed-{time.time_ns()}")
    assert main(["pipeline", "replay", directory, *reached, *rename]) == 0
    assert "20 records produced" in capsys.readouterr().out
