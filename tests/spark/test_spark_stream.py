"""The data source as a stream, against a real cluster of processes."""

import json
import time

import msgspec
import pytest
from pyspark.errors import PySparkException

from quorumlog.client import SyncClient, SyncProducer
from quorumlog.local import LocalCluster
from quorumlog.model.config import dump_config, load_config

pytestmark = [pytest.mark.processes, pytest.mark.spark]

ENTRIES = 10_000
DEADLINE_SECONDS = 200.0
"""Long, as nothing is asserted about time: on a busy machine Spark starts workers slowly."""
DATA_FILE = 5 << 20


class Stream:
    """A query that writes what it reads of a group to Parquet; each directory has a checkpoint."""

    def __init__(self, spark, servers, directory, **options):
        self.spark = spark
        self.rows = str(directory / "rows")
        self.checkpoint = str(directory / "checkpoint")
        self.options = {"servers": servers, "startingOffsets": "earliest", **options}

    def start(self, **trigger):
        frame = self.spark.readStream.format("quorumlog").options(**self.options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", self.checkpoint)
        return writer.trigger(**trigger).start(self.rows)

    def run(self):
        """Read all there is; return the progress of each batch that had rows."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(DEADLINE_SECONDS)
        return [json.loads(each.json) for each in query.recentProgress if each.numInputRows]

    def bodies(self):
        rows = self.spark.read.parquet(self.rows).select("index", "body").orderBy("index").collect()
        return [bytes(row.body) for row in rows]


def fill(servers, group, bodies):
    with SyncProducer(servers, group) as producer:
        for body in bodies:
            producer.send(body)


def end_of(servers, group):
    with SyncClient(servers, group, timeout_ms=20_000) as client:
        return client.bounds()[1] + 1


def process_until(query, group, index):
    """Let a query go on until it has read all entries before `index`."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        query.processAllAvailable()
        progress = query.lastProgress
        if progress and json.loads(progress.sources[0].endOffset)[group]["index"] >= index:
            return
        assert time.monotonic() < deadline, f"not at {index}: {progress}"


def test_available_now_reads_all_in_batches_of_the_size_asked_for(spark, cluster, tmp_path):
    stream = Stream(spark, cluster.servers, tmp_path, group="g", maxEntriesPerTrigger="4000")
    before = end_of(cluster.servers, "g")
    batches = stream.run()
    sources = [batch["sources"][0] for batch in batches]
    ends = [source["endOffset"]["g"]["index"] for source in sources]
    last = ends[-1]
    assert before <= last <= end_of(cluster.servers, "g"), "a new leader appends an entry"
    assert ends == [4_000, 8_000, last]
    assert [source["latestOffset"]["g"]["index"] for source in sources] == [last] * 3
    assert sum(batch["numInputRows"] for batch in batches) == ENTRIES
    assert stream.bodies() == [str(number).encode() for number in range(ENTRIES)]


def test_a_restarted_query_reads_each_entry_once(spark, cluster, tmp_path):
    first, second = [b"%d" % n for n in range(500)], [b"%d" % n for n in range(500, 800)]
    start = str(end_of(cluster.servers, "live"))
    stream = Stream(spark, cluster.servers, tmp_path, group="live", startingOffsets=start)
    fill(cluster.servers, "live", first)
    stream.run()
    assert stream.bodies() == first
    assert stream.run() == []
    fill(cluster.servers, "live", second)
    stream.options["maxBytesPerTrigger"] = "5k"  # 50 bytes and a header an entry
    assert len(stream.run()) > 1
    assert stream.bodies() == first + second


def test_a_leader_killed_while_a_stream_runs_is_ridden_out(spark, cluster, tmp_path):
    bodies = [b"%d" % n for n in range(2_000)]
    start = str(end_of(cluster.servers, "live"))
    stream = Stream(spark, cluster.servers, tmp_path, group="live", startingOffsets=start)
    query = stream.start(processingTime="0 seconds")
    try:
        fill(cluster.servers, "live", bodies[:1_000])
        process_until(query, "live", end_of(cluster.servers, "live"))
        victim = cluster.leader("live")
        cluster.kill(victim)
        try:
            fill(cluster.servers, "live", bodies[1_000:])
            process_until(query, "live", end_of(cluster.servers, "live"))
        finally:
            cluster.start(victim)
        assert query.isActive
        assert stream.bodies() == bodies
    finally:
        query.stop()


def test_retention_that_passes_a_slow_reader_is_an_error_or_a_counted_skip(spark, tmp_path):
    cluster = LocalCluster.create(tmp_path / "nodes", nodes=1, data_file_bytes=DATA_FILE)
    path = cluster.directory / "n0.toml"
    config = load_config(path)
    (group,) = config.groups
    small = msgspec.structs.replace(group, retention_bytes=DATA_FILE, clean_interval=20)
    path.write_bytes(dump_config(msgspec.structs.replace(config, groups=[small])))
    cluster.up()
    try:
        with SyncClient(cluster.servers) as client:
            last = client.append_batch([b"first", b"second"]).last_index
            stream = Stream(spark, cluster.servers, tmp_path / "stream", group="default")
            stream.run()
            while client.bounds()[0] <= last + 1:
                client.append_batch([b"x" * 100_000] * 40)
        with pytest.raises(PySparkException, match=r"were removed.*failOnDataLoss=false"):
            stream.run()
        stream.options["failOnDataLoss"] = "false"
        stream.run()
        bodies = stream.bodies()
        assert bodies[:2] == [b"first", b"second"]
        assert set(bodies[2:]) == {b"x" * 100_000}
    finally:
        cluster.down()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingIndex": "5"}, "'endingIndex' is for spark.read only"),
        ({"group": "nope"}, "does not host group 'nope'"),
    ],
)
def test_what_is_wrong_ends_the_query_with_a_clear_error(
    spark, cluster, tmp_path, options, message
):
    stream = Stream(spark, cluster.servers, tmp_path)
    del stream.options["startingOffsets"]
    stream.options |= {"group": "g", **options}
    with pytest.raises(PySparkException, match=message):
        stream.run()


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}])
@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"endingIndex": "5"}, None, "'endingIndex' is for spark.read only"),
        ({"pushDownPredicate": "true"}, None, "'pushDownPredicate' is for spark.read only"),
        ({"bogus": "1"}, "index long", "bogus"),
        ({"maxEntriesPerTrigger": "x"}, "index long", "maxEntriesPerTrigger"),
        ({}, "nothing long", "nothing"),
    ],
)
def test_a_wrong_option_of_a_stream_is_the_last_message(
    spark, cluster, tmp_path, options, schema, message, trigger
):
    reader = spark.readStream.format("quorumlog")
    reader = reader.options(servers=cluster.servers, group="g", **options)
    frame = (reader if schema is None else reader.schema(schema)).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(**trigger).start()
    with pytest.raises(PySparkException, match=message) as caught:
        query.awaitTermination(DEADLINE_SECONDS)
    assert "UnboundLocalError" not in str(caught.value)


@pytest.fixture
def brokers(tmp_path):
    """A cluster whose nodes are brokers, which keep the positions of consumer groups."""
    made = LocalCluster.create(
        tmp_path / "brokers",
        groups=("other",),
        data_file_bytes=8 << 20,
        topics=True,
        kafka_port=0,
    )
    made.up()
    yield made
    made.down()


def test_status_shows_a_query_by_its_name_exactly_once_and_exactly_where_it_ended(
    spark, brokers, tmp_path
):
    cluster = brokers
    fill(cluster.servers, "other", [b"%d" % number for number in range(50)])

    def run(name, end):
        """Run a query to its end; return the readers that the leader knows when it knows `end`.

        That is more if there was another leader meanwhile, who has an entry of its own in the log.
        """
        frame = (
            spark.readStream.format("quorumlog")
            .option("servers", cluster.servers)
            .option("group", "other")
            .option("startingOffsets", "earliest")
            .option("maxEntriesPerTrigger", 20)
            .load()
        )
        writer = frame.writeStream.format("parquet").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        named = writer.queryName(name) if name else writer
        query = named.trigger(availableNow=True).start(str(tmp_path / "rows"))
        assert query.awaitTermination(DEADLINE_SECONDS)
        deadline = time.monotonic() + DEADLINE_SECONDS
        with SyncClient(cluster.servers, "other", timeout_ms=20_000) as client:
            while True:  # Spark tells listeners of the end in a thread of its own
                known = {
                    one.group: one.index for status in client.status() for one in status.consumers
                }
                ended_at = known.get(f"{name or query.id}.other", -1)
                if end <= ended_at <= end_of(cluster.servers, "other"):
                    return known
                assert time.monotonic() < deadline, known

    first = run("delays", end_of(cluster.servers, "other"))
    fill(cluster.servers, "other", [b"more"] * 30)
    second = run("delays", end_of(cluster.servers, "other"))
    assert set(second) == set(first)
    assert "delays.other" in second
    fill(cluster.servers, "other", [b"and more"] * 5)
    third = run(None, end_of(cluster.servers, "other"))
    fill(cluster.servers, "other", [b"and more"] * 5)
    assert set(run(None, end_of(cluster.servers, "other"))) == set(third)
