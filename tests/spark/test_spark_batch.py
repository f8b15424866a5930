"""The data source against a real cluster of processes."""

import urllib.request
import zlib

import pytest
from pyspark.errors import PySparkException

from quorumlog.client import SyncClient

pytestmark = [pytest.mark.processes, pytest.mark.spark]

ENTRIES = 10_000


PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def load(spark, cluster, schema=None, **options):
    reader = spark.read.format("quorumlog").options(**{"servers": cluster.servers, **options})
    if not {"group", "groupPattern"} & set(options):
        reader = reader.option("group", "g")
    return (reader.schema(schema) if schema else reader).load()


def bodies_of(frame):
    return [bytes(row.body) for row in frame.select("index", "body").orderBy("index").collect()]


def fetched_bytes(cluster):
    """What clients were sent of the log, by all nodes together."""
    urls = [f"http://{cluster.admin_address(node)}/metrics" for node in cluster.node_ids]
    pages = [urllib.request.urlopen(url, timeout=10).read().decode() for url in urls]
    return sum(
        float(line.split()[-1])
        for page in pages
        for line in page.splitlines()
        if line.startswith("quorumlog_service_fetch_bytes") and 'group="g"' in line
    )


@pytest.mark.parametrize("read_from", ["leader", "any"])
@pytest.mark.parametrize("local", ["true", "false"])
def test_entries_in_files_of_this_machine_are_read_there_unless_that_is_not_wanted(
    spark, cluster, local, read_from
):
    before = fetched_bytes(cluster)
    frame = load(spark, cluster, localReads=local, readFrom=read_from, minPartitions="3")
    assert bodies_of(frame) == [str(number).encode() for number in range(ENTRIES)]
    sent = fetched_bytes(cluster) - before
    assert sent == 0 if local == "true" else sent >= 48 * ENTRIES


@pytest.mark.parametrize("local", ["true", "false"])
def test_the_whole_log_is_read_once_and_in_order(spark, cluster, local):
    frame = load(spark, cluster, localReads=local)
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


@pytest.mark.parametrize("local", ["true", "false"])
def test_a_users_schema_is_the_projection(spark, cluster, local):
    frame = load(
        spark, cluster, schema="term long, index long", startingIndex="5000", localReads=local
    )
    assert frame.columns == ["term", "index"]
    assert frame.agg({"index": "min"}).first()[0] == 5_000


def test_latest_to_latest_and_an_empty_group_have_no_rows(spark, cluster):
    assert load(spark, cluster, startingIndex="latest").count() == 0
    assert load(spark, cluster, group="empty").count() == 0


def test_several_groups_are_distinguished(spark, cluster, bounds):
    with SyncClient(cluster.servers, "other") as client:
        client.append_batch([b"a", b"b", b"c"])
    frame = load(spark, cluster, groupPattern="g|other|empty", minPartitions="3")
    assert frame.columns == ["group", "index", "term", "channel", "body", "body_crc"]
    counts = {row["group"]: row["count"] for row in frame.groupBy("group").count().collect()}
    assert counts == {"g": ENTRIES, "other": 3}
    start = f'{{"g": {bounds[1] - 1}, "other": -2}}'
    frame = load(spark, cluster, schema="group string", group="g,other", startingOffsets=start)
    assert sorted(row["group"] for row in frame.collect()) == ["g"] * 2 + ["other"] * 3


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_conditions_on_the_index_are_ranges_that_are_fetched(spark, cluster, enabled):
    options = {"minPartitions": "4", "pushDownPredicate": "true"}
    few = load(spark, cluster, **options).where("index >= 100 AND index < 103")
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, enabled)
    try:
        assert [row["index"] for row in few.orderBy("index").collect()] == [100, 101, 102]
        assert few.rdd.getNumPartitions() == (3 if enabled == "true" else 4)
        plan = few._jdf.queryExecution().executedPlan().toString()
        assert ("Filter (" in plan) == (enabled == "false")
        for condition, count in (("term >= 1 AND term < 1000000", ENTRIES), ("term > 999999", 0)):
            assert load(spark, cluster, **options).where(condition).count() == count
    finally:
        spark.conf.set(PUSHDOWN, before)


def test_a_frame_that_was_read_with_a_condition_is_whole_without_it(spark, cluster):
    assert spark.conf.get(PUSHDOWN) == "true"
    log = load(spark, cluster)
    few = log.where("index >= 100 AND index < 103")
    assert (log.count(), few.count(), log.count()) == (ENTRIES, 3, ENTRIES)
    assert few.unionAll(log).count() == ENTRIES + 3
    log.createOrReplaceTempView("whole")
    assert spark.sql("SELECT count(*) FROM whole WHERE term > 999999").first()[0] == 0
    assert spark.sql("SELECT count(*) FROM whole").first()[0] == ENTRIES


def test_sql_finds_the_source_without_registering(spark, cluster):
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW g USING quorumlog "
        f"OPTIONS (servers '{cluster.servers}', group 'g')"
    )
    (row,) = spark.sql(
        "SELECT count(*) AS n, sum(cast(cast(body AS string) AS long)) AS s FROM g"
    ).collect()
    assert (row.n, row.s) == (ENTRIES, ENTRIES * (ENTRIES - 1) // 2)


def test_a_table_which_would_lose_its_options_is_refused_with_what_to_say_instead(spark, cluster):
    with pytest.raises(PySparkException, match="say CREATE TEMPORARY VIEW"):
        spark.sql(
            f"CREATE TABLE t USING quorumlog OPTIONS (servers '{cluster.servers}', group 'g')"
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "x"}, "'topic' is not known"),
        ({"endingIndex": "999999"}, "endingIndex 999999 is beyond the end"),
        ({"minPartitions": "none"}, "minPartitions='none' is wrong"),
        ({"group": "nope"}, "does not host group 'nope'"),
        ({"maxEntriesPerTrigger": "5"}, "'maxEntriesPerTrigger' is for spark.readStream only"),
        ({"servers": "127.0.0.1:1", "fetchTimeoutMs": "500"}, "cannot connect to 127.0.0.1:1"),
        ({"schema": "index int"}, "column index is bigint, not int"),
    ],
)
def test_wrong_options_are_reported_before_the_job_runs(spark, cluster, options, message):
    with pytest.raises(PySparkException, match=message):
        load(spark, cluster, **options).count()


@pytest.mark.parametrize("local", ["true", "false"])
def test_a_leader_killed_during_a_job_is_ridden_out(spark, cluster, bounds, local):
    frame = load(spark, cluster, minPartitions="8", localReads=local)
    victim = cluster.leader("g")
    cluster.kill(victim)
    try:
        assert frame.count() == ENTRIES
    finally:
        cluster.start(victim)
    with SyncClient(cluster.servers, "g", timeout_ms=20_000) as client:
        assert client.bounds()[1] >= bounds[1]
