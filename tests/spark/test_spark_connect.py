"""The pipelines over Spark Connect; a script is the client, as Spark in this process is regular."""

import json

import pytest
from client_programs import output_of
from connect_server import connect_server
from topics_everywhere import AGAIN, EXPECTED, INPUT, OUTPUT, PARTITIONS, ROWS
from topics_everywhere import __file__ as EVERYWHERE  # noqa: N812  (a path, which does not change)

from topic_rows import make_topics

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(600)]

SECONDS = 400
"""Long, as a busy machine starts Spark's Python workers slowly."""

CLIENT = """
import json, sys
from quorumlog.cli.main import main
from quorumlog.spark import archive, audit, export, read_archive, session, stats
from quorumlog.spark.jobs.tasks import PipelineError, cores_of, run_tasks

remote, servers, base, *stores = sys.argv[1:]
spark = session("client", remote=remote)
reported = []
archived = archive(spark, servers, "g", base + "/archive")
counted = stats(spark, servers, "g", progress=lambda done, of: reported.append((done, of)))
exported = export(spark, servers, "g", base + "/export.jsonl", single_file=True)
report = audit(spark, stores, archive=base + "/archive", output=base + "/findings")
log = spark.read.format("quorumlog").option("servers", servers).option("group", "g").load()

def fails():
    raise ValueError("no luck today")

try:
    run_tasks(spark, [lambda: b"fine", fails])
    failure = ""
except PipelineError as error:
    failure = str(error)
found = {
    "cores": cores_of(spark),
    "order": b"".join(run_tasks(spark, [lambda n=n: b"%d" % n for n in range(5)])).decode(),
    "rows": archived.rows,
    "read": read_archive(spark, base + "/archive", first=100, last=199).count(),
    "scanned": log.where("index >= 10").count(),
    "counted": counted.kinds["NORMAL"],
    "reported": reported[-1],
    "exported": exported.rows,
    "clean": report.is_clean,
    "findings": spark.read.parquet(base + "/findings").count(),
    "failure": failure,
}
spark.stop()
found["again"] = main(["pipeline", "stats", "-s", servers, "-g", "g", "--json", "--remote", remote])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


def found_by(*command):
    """Run Python as a client; return the JSON that it prints."""
    return list(map(json.loads, output_of(*command, seconds=SECONDS).splitlines()))


def test_topics_are_written_streamed_archived_and_audited_over_spark_connect(
    remote, brokers, tmp_path
):
    make_topics(brokers.bootstrap_servers, [INPUT, OUTPUT, AGAIN], PARTITIONS)
    arguments = [EVERYWHERE, remote, brokers.bootstrap_servers, str(tmp_path)]
    found, stats = found_by(*arguments)
    assert found == EXPECTED
    assert stats["records"] == ROWS


def test_archive_stats_export_and_audit_work_over_spark_connect(remote, cluster, bounds, tmp_path):
    stores = [str(cluster.group_directory(node, "g")) for node in cluster.node_ids]
    stats, found = found_by("-c", CLIENT, remote, cluster.servers, str(tmp_path), *stores)
    first, last = bounds
    assert found.pop("failure") == "a task failed: ValueError: no luck today"
    assert found.pop("scanned") >= 9_900
    assert found == {
        "cores": 2,
        "order": "01234",
        "rows": 10_000,
        "read": found["read"],
        "counted": 10_000,
        "reported": [1, 1],
        "exported": 10_000,
        "clean": True,
        "findings": 0,
        "again": 0,
    }
    assert 90 <= found["read"] <= 100, "but NOOPs and bookkeeping"
    assert stats["first_index"] == first
    assert stats["last_index"] >= last, "other tests change leaders, whose terms have entries, too"
