"""The data source against a real cluster of processes."""

import zlib

import pytest
from pyspark.errors import PySparkException

from quorumlog.client import SyncClient

pytestmark = [pytest.mark.processes, pytest.mark.spark]

ENTRIES = 10_000


def load(spark, cluster, schema=None, group="g", **options):
    reader = spark.read.format("quorumlog").option("servers", cluster.servers)
    reader = reader.option("group", group).options(**options)
    return (reader.schema(schema) if schema else reader).load()


def bodies_of(frame):
    return [bytes(row.body) for row in frame.select("index", "body").orderBy("index").collect()]


def test_the_whole_log_is_read_once_and_in_order(spark, cluster):
    frame = load(spark, cluster)
    assert frame.columns == ["index", "term", "channel", "body", "body_crc"]
    assert bodies_of(frame) == [str(number).encode() for number in range(ENTRIES)]


def test_crcs_and_headers_are_columns(spark, cluster):
    row = load(spark, cluster, includeHeaders="true").orderBy("index").first()
    assert row.body_crc == zlib.crc32(row.body)
    assert (row.magic, row.size, row.channel) == (1, 49, 0)
    assert row.chain_crc


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_ranges_end_exclusively_and_partitions_are_as_asked(spark, cluster, partitions):
    frame = load(
        spark, cluster, startingIndex="100", endingOffsets="250", minPartitions=str(partitions)
    )
    assert [row["index"] for row in frame.orderBy("index").collect()] == list(range(100, 250))
    assert frame.rdd.getNumPartitions() == partitions


def test_a_users_schema_is_the_projection(spark, cluster):
    frame = load(spark, cluster, schema="term long, index long", startingIndex="5000")
    assert frame.columns == ["term", "index"]
    assert frame.agg({"index": "min"}).first()[0] == 5_000


def test_latest_to_latest_and_an_empty_group_have_no_rows(spark, cluster):
    assert load(spark, cluster, startingIndex="latest").count() == 0
    assert load(spark, cluster, group="empty").count() == 0


def test_any_replica_may_be_read(spark, cluster):
    assert load(spark, cluster, readFrom="any", endingIndex="1000").count() > 900


def test_sql_finds_the_source_without_registering(spark, cluster):
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW g USING quorumlog "
        f"OPTIONS (servers '{cluster.servers}', group 'g')"
    )
    (row,) = spark.sql(
        "SELECT count(*) AS n, sum(cast(cast(body AS string) AS long)) AS s FROM g"
    ).collect()
    assert (row.n, row.s) == (ENTRIES, ENTRIES * (ENTRIES - 1) // 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "x"}, "'topic' is not known"),
        ({"endingIndex": "999999"}, "endingIndex 999999 is beyond the end"),
        ({"minPartitions": "none"}, "minPartitions='none' is wrong"),
        ({"group": "nope"}, "does not host group 'nope'"),
    ],
)
def test_wrong_options_are_told_before_the_job_runs(spark, cluster, options, message):
    with pytest.raises(PySparkException, match=message):
        load(spark, cluster, **options).count()


def test_a_leader_killed_during_a_job_is_ridden_out(spark, cluster, bounds):
    frame = load(spark, cluster, minPartitions="8")
    victim = cluster.leader("g")
    cluster.kill(victim)
    try:
        assert frame.count() == ENTRIES
    finally:
        cluster.start(victim)
    with SyncClient(cluster.servers, "g", timeout_ms=20_000) as client:
        assert client.bounds()[1] >= bounds[1]
