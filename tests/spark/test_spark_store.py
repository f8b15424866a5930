"""Store files read by Spark: found without registering, on stores of DLedger and of ours."""

import zlib

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from store_scans import build, flip, manifest_of, overwrite, place_of, rows_of, unpack

pytestmark = [pytest.mark.processes, pytest.mark.spark]

BODIES = [str(number).encode() * (number % 50) for number in range(2_000)]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """2,000 entries over several data files; do not change it."""
    sizes = {"data_file": 32 * 1024, "index_file": 16 * 1024}
    return build(tmp_path_factory.mktemp("store") / "g", BODIES, **sizes)


def load(spark, path, schema=None, **options):
    reader = spark.read.format("quorumlog-store").options(**options)
    return (reader.schema(schema) if schema else reader).load(path)


def test_a_store_is_read_whole_and_in_partitions(spark, store):
    frame = load(spark, str(store), maxBytesPerPartition="20k")
    assert frame.columns == [
        "index",
        "term",
        "channel",
        "body",
        "body_crc",
        "file",
        "pos",
        "crc_ok",
    ]
    rows = frame.orderBy("index").collect()
    assert [bytes(row.body) for row in rows] == BODIES
    assert [row["index"] for row in rows] == list(range(2_000))
    assert {row.crc_ok for row in rows} == {True}
    assert [row.body_crc for row in rows] == [zlib.crc32(body) for body in BODIES]


def test_a_store_of_the_original_has_the_digests_of_its_manifest(spark, tmp_path):
    directory = unpack("multi-term", tmp_path)
    frame = load(spark, f"file://{directory}/dledger-n2", includeAll="true")
    found = frame.select("index", "term", sf.sha2("body", 256).alias("sha256"), "crc_ok")
    stated = manifest_of(directory, "dledger-n2")
    assert [tuple(row) for row in found.orderBy("index").collect()] == [
        (entry["index"], entry["term"], entry["sha256"], None) for entry in stated
    ]


def test_a_users_schema_is_the_projection(spark, store):
    frame = load(spark, str(store), "pos long, body binary, file string, index long")
    assert frame.columns == ["pos", "body", "file", "index"]
    row = frame.filter("index = 1234").first()
    assert bytes(row.body) == BODIES[1_234]
    with open(row.file, "rb") as file:
        file.seek(row.pos + 48)
        assert file.read(len(row.body)) == row.body
    assert load(spark, str(store), "index long", includeAll="true").count() == 2_000
    assert frame.count() == len(BODIES), "the condition is not kept"


def test_damage_is_an_error_or_a_row_that_says_so(spark, tmp_path):
    directory = build(tmp_path / "g", BODIES[:100])
    good = rows_of(directory)
    path, pos = place_of(good[60])
    flip(path, pos + 50)
    path, pos = place_of(good[61])
    overwrite(path, pos, bytes(48))
    with pytest.raises(PySparkException, match=r"entry 60: the body does not fit its CRC"):
        load(spark, str(directory)).count()
    rows = load(spark, str(directory), mode="permissive").orderBy("index").collect()
    damaged = [row for row in rows if not row.crc_ok]
    assert [(row["index"], row.body is None, row.pos) for row in damaged] == [
        (60, False, good[60]["pos"]),
        (61, True, good[61]["pos"]),
    ]
    assert len(rows) == 100


def test_sql_and_lists_of_directories(spark, store, tmp_path):
    build(tmp_path / "other", [b"x"] * 10)
    assert load(spark, [str(store), f"{tmp_path}/oth*"], "index long").count() == 2_010
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW s USING `quorumlog-store` OPTIONS (path '{store}')"
    )
    (row,) = spark.sql("SELECT count(*) AS n, sum(length(body)) AS bytes FROM s").collect()
    assert (row.n, row.bytes) == (2_000, sum(map(len, BODIES)))


def test_a_wrong_option_is_reported_before_the_job_runs(spark, store):
    with pytest.raises(PySparkException, match="'servers' is not known"):
        load(spark, str(store), servers="h:1")


def test_the_store_of_a_running_node_is_read(spark, cluster):
    directory = cluster.group_directory(cluster.leader("g"), "g")
    frame = load(spark, str(directory), committedOnly="false")
    numbers = frame.select(sf.col("body").cast("string").cast("long").alias("number"), "crc_ok")
    ok = sf.count_if("crc_ok").alias("ok")
    (row,) = numbers.agg(sf.sum("number").alias("s"), ok).collect()
    assert (row.ok, row.s) == (10_000, 10_000 * 9_999 // 2)
