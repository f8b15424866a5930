"""The Spark programs in examples/, run as they are, in the session of these tests."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from prometheus_client import CollectorRegistry

import quorumlog.spark
from kafka_nodes import kafka_nodes
from quorumlog.client import SyncClient, SyncProducer
from quorumlog.spark import LagListener
from topic_rows import read_rows

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.processes, pytest.mark.spark]


class SharedSession:
    """The session of all tests, which goes on when an example has stopped it."""

    def __init__(self, spark):
        self._spark = spark

    def __getattr__(self, name):
        return getattr(self._spark, name)

    def stop(self):
        """The other tests need it."""


@pytest.fixture
def run(spark, monkeypatch, capsys):
    """Run an example with arguments; return what it printed."""
    listeners = []

    def made_listener():
        listeners.append(LagListener(registry=CollectorRegistry()))
        return listeners[-1]

    monkeypatch.setattr(quorumlog.spark, "session", lambda _: SharedSession(spark))
    monkeypatch.setattr(quorumlog.spark, "LagListener", made_listener)

    def run_example(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    yield run_example
    for listener in listeners:
        spark.streams.removeListener(listener)


def stored(cluster, group):
    with SyncClient(cluster.servers, group) as client:
        return [entry.body for entry in client.read(follow=False)]


def test_a_batch_reads_one_group_and_writes_to_another(run, cluster):
    before = len(stored(cluster, "results"))
    shown = run("spark_batch.py", cluster.servers, "g", "results")
    assert "|entries|" in shown
    rows = [json.loads(body) for body in stored(cluster, "results")[before:]]
    assert sum(row["entries"] for row in rows) == len(stored(cluster, "g"))


def test_a_topic_is_read_as_a_batch_and_as_a_stream_that_goes_on(run, tmp_path):
    with kafka_nodes(tmp_path) as nodes:
        for numbers in (range(60), range(60, 64)):
            producer = Producer({"bootstrap.servers": nodes.servers})
            for number in numbers:
                producer.produce("flights", b"%02d" % number, partition=number % 3)
            assert producer.flush(60) == 0
            shown = run("spark_topic.py", nodes.servers, "flights", str(tmp_path / "checkpoint"))
            cells = [row.split("|") for row in shown.splitlines()]
            (totals,) = [row for row in cells if len(row) == 4 and row[1].strip().isdecimal()]
            assert [int(cell) for cell in totals[1:3]] == [numbers.stop, 2 * numbers.stop]
            texts = [row for row in cells if len(row) == 5 and row[3].strip().isdecimal()]
            assert len(texts) == min(20, len(numbers))  # what is shown of a batch


def test_windows_of_a_topic_are_counted_once_in_another(run, tmp_path):
    minute_ms = 60_000

    def produced(minutes):
        producer = Producer({"bootstrap.servers": nodes.servers})
        for minute in minutes:
            for _ in range(minute + 1):
                producer.produce("flights", b"x", b"JFK", timestamp=minute * minute_ms + 1)
        assert producer.flush(60) == 0

    with kafka_nodes(tmp_path) as nodes:
        for minutes in (range(5), range(5, 9)):
            produced(minutes)
            checkpoint = str(tmp_path / "checkpoint")
            run("spark_topic_windows.py", nodes.servers, "flights", "counts", checkpoint)
        partitions = len(nodes.nodes[0].broker.topics["counts"].partitions)
        rows = read_rows(nodes.servers, ["counts"], partitions)
    found = [json.loads(row.value()) for row in rows if row.key() == b"JFK"]
    # the last windows wait for newer records
    assert sorted(row["count"] for row in found) == list(range(1, 1 + len(found)))
    assert 5 <= len(found) <= 7


def test_a_stream_continues_and_writes_each_entry_once(run, cluster, tmp_path):
    present = len(stored(cluster, "results"))
    for more in (50, 7):
        with SyncProducer(cluster.servers, "results") as producer:
            for number in range(more):
                producer.send(b"row %d" % number)
        present += more
        shown = run("spark_stream.py", cluster.servers, "results", str(tmp_path / "out"))
        assert f"{present} entries, {present} indexes" in shown
