"""Parts of the demonstration that need no cluster: the data, the comparisons, the chart."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq

from quorumlog.cli.main import main
from quorumlog.demo.analyse import Delay, draw_chart
from quorumlog.demo.flights import RECORDS_IN_ALL, flight_bodies
from quorumlog.demo.load import body_digest
from quorumlog.demo.partition_reads import partition_read
from quorumlog.demo.proof import (
    Proof,
    compare_content,
    compare_partitions,
    content_digest,
    parquet_digests,
)


def digests(*bodies):
    return [body_digest(body) for body in bodies]


def compared(sent, found):
    proof = Proof()
    compare_content(proof, sent, found)
    return proof


def test_flights_are_json_with_numbers_and_nulls():
    records = [json.loads(body) for body in flight_bodies(1_000)]
    assert len(records) == 1_000
    assert records[0]["carrier"] == "UA"
    assert records[0]["dep_delay"] == 2
    assert records[0]["time_hour"] == "2013-01-01T10:00:00Z"
    assert any(record["dep_time"] is None for record in records)


def test_all_flights_are_there_and_distinct():
    assert len(set(flight_bodies())) == RECORDS_IN_ALL


def test_equal_content_is_proved_whatever_the_order():
    proof = compared(digests(b"a", b"b", b"c"), digests(b"c", b"a", b"b"))
    assert proof.failures == []
    assert (proof.missing, proof.duplicates) == (0, 0)
    assert proof.content_digest == content_digest(digests(b"b", b"c", b"a"))


def test_a_missing_record_is_a_failure():
    proof = compared(digests(b"a", b"b"), digests(b"a"))
    assert proof.missing == 1
    assert any("missing" in failure for failure in proof.failures)


def test_a_record_nobody_sent_is_a_failure():
    proof = compared(digests(b"a"), digests(b"a", b"z"))
    assert (proof.foreign, proof.missing) == (1, 0)
    assert proof.failures


def test_a_record_that_is_there_twice_is_counted_and_a_failure():
    sent, found = digests(b"a", b"b"), digests(b"a", b"b", b"b", b"a")
    proof = compared(sent, found)
    assert proof.duplicates == 2
    assert "2 records are there more than once" in proof.failures


def test_digests_of_partitioned_parquet(tmp_path):
    for month, body in ((1, b"one"), (2, b"two")):
        folder = tmp_path / f"month={month}"
        folder.mkdir()
        pq.write_table(pa.table({"body": [body]}), folder / "part.parquet")
    assert sorted(parquet_digests(tmp_path)) == sorted(digests(b"one", b"two"))


def test_the_chart_is_a_png(tmp_path):
    path = tmp_path / "delays.png"
    draw_chart([Delay("UA", 12.5, 10)], [Delay("5", 0.5, 3), Delay("6", 2.0, 4)], path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_cluster_that_is_there_is_left_alone(tmp_path, capsys):
    there = tmp_path / "cluster" / "cluster.json"
    there.parent.mkdir()
    there.write_text("somebody's")
    assert main(["demo", "--dir", str(tmp_path), "--records", "10"]) == 1
    assert f"{there.parent} exists; choose another directory" in capsys.readouterr().err
    assert there.read_text() == "somebody's"


def partitions_compared(sent, found):
    proof = Proof()
    compare_partitions(proof, "kcat", {0: partition_read(sent)}, {0: partition_read(found)})
    return proof


def test_a_partition_is_proved_by_the_order_of_its_records():
    sent = [(0, b"a"), (1, b"b")]
    assert partitions_compared(sent, sent).failures == []
    for found in ([(0, b"b"), (1, b"a")], [(0, b"a"), (1, b"z")]):
        (failure,) = partitions_compared(sent, found).failures
        assert "partition 0, read by kcat: the digest differs" in failure


def test_records_missing_or_twice_in_a_partition_are_counted_and_failures():
    sent = [(0, b"a"), (1, b"b")]
    fewer, more = partitions_compared(sent, sent[:1]), partitions_compared(sent, [*sent, (2, b"b")])
    assert (fewer.missing_in_topic, fewer.duplicates_in_topic) == (1, 0)
    assert (more.missing_in_topic, more.duplicates_in_topic) == (0, 1)
    assert fewer.failures == ["partition 0, read by kcat: 1 record of 2 acknowledged"]
    assert more.failures == ["partition 0, read by kcat: 3 records of 2 acknowledged"]


def test_a_gap_between_offsets_is_a_failure():
    proof = partitions_compared([(0, b"a"), (1, b"b")], [(0, b"a"), (2, b"b")])
    assert "partition 0, read by kcat: 1 offset out of order" in proof.failures


def test_what_spark_workers_import_neither_draws_nor_prints():
    code = "import sys, quorumlog.spark.topics.batch; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert not {b"matplotlib", b"rich", b"aiokafka"} & set(loaded.split())
