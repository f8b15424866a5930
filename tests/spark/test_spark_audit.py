"""Audits and counts by Spark's tasks: of stores on disk, of a running cluster, of its archive."""

import json
import time

import pytest

from audit_access import flip, make, places
from quorumlog.cli.main import main
from quorumlog.client import SyncClient
from quorumlog.spark.jobs.archive.archive import archive
from quorumlog.spark.jobs.audit.audit import audit
from quorumlog.spark.jobs.stats.stats import stats
from quorumlog.spark.jobs.tasks import PipelineError

pytestmark = [pytest.mark.processes, pytest.mark.spark]

NAMES = ("n0", "n1", "n2")
SECONDS = 200


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Three replicas, of which the second has a damaged body."""
    base = tmp_path_factory.mktemp("stores")
    made = [make(base / name, name) for name in NAMES]
    _, path, offset = next(row for row in places(made[1])[40:] if row[0].body)
    flip(path, offset + 48)
    return made


@pytest.fixture
def run(spark, capsys):
    """Run a pipeline as a command, in the tests' session; return exit status and output."""

    def run(*arguments):
        status = main(["pipeline", *map(str, arguments)])
        return status, capsys.readouterr().out

    return run


def test_findings_are_reported_and_all_are_in_the_parquet(spark, stores, tmp_path):
    reported = []
    output = tmp_path / "findings"
    report = audit(
        spark,
        stores,
        output=output,
        range_bytes=4_000,
        progress=lambda done, total: reported.append((done, total)),
    )
    assert report.tasks == 4
    assert reported[-1] == (4, 4)
    (one,) = report.findings
    (row,) = spark.read.parquet(str(output)).collect()
    for name in ("kind", "first", "last", "replica", "reason", "file", "pos", "detail"):
        assert row[name] == getattr(one, name)
    assert (row.kind, row.replica, row.is_note) == ("damaged", "n1", False)
    assert audit(spark, stores[::2], output=output).is_clean
    assert spark.read.parquet(str(output)).count() == 0


def test_a_running_cluster_and_its_archive_are_without_fault(spark, cluster, tmp_path):
    directory = tmp_path / "archive"
    archive(spark, cluster.servers, "g", directory, file_bytes=64 * 1024)
    stores = [cluster.group_directory(node, "g") for node in cluster.node_ids]
    report = audit(spark, stores, archive=directory)
    assert report.is_clean
    assert [replica.name for replica in report.replicas] == cluster.node_ids
    assert report.archive.rows == 10_000
    next(iter(directory.glob("*.parquet"))).unlink()
    report = audit(spark, stores, archive=directory)
    assert set(report.counts) - {"extra"} == {"archive-missing"}


def test_a_live_group_is_counted_with_its_leader(spark, cluster, bounds):
    deadline, leaders, term = time.monotonic() + SECONDS, {}, -1
    while term not in leaders:  # it may change meanwhile
        assert time.monotonic() < deadline, (term, leaders)
        found = stats(spark, cluster.servers, "g")
        term = found.terms[-1].term
        with SyncClient(cluster.servers, "g") as client:
            leaders = {one.term: one.node_id for one in client.status() if one.role == "LEADER"}
    assert (found.first_index, found.entries) == (bounds[0], found.last_index - bounds[0] + 1)
    assert found.kinds["NORMAL"] == 10_000
    assert (found.smallest, found.largest) == (1, 4)
    assert found.terms[-1].leader == leaders[term]
    with pytest.raises(PipelineError, match="give either servers and group"):
        stats(spark)


def test_commands_print_results_and_say_by_their_status_whether_there_are_faults(
    run, stores, tmp_path
):
    status, output = run("audit", *stores)
    assert status == 1
    assert "damaged, 1 entry" in output
    status, output = run("audit", stores[0], stores[2], "--json")
    assert (status, json.loads(output)["clean"]) == (0, True)
    status, output = run("stats", stores[0], "--plot", tmp_path / "plot.png")
    assert status == 0
    assert "entries      100" in output
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    status, output = run("stats", stores[0], "--json", "--quick")
    assert (status, json.loads(output)["entries"]) == (0, 100)
    assert run("stats")[0] == 2
    assert run("audit", stores[0], "--data", "elsewhere")[0] == 2
    assert run("audit", stores[0], "--data", f"{tmp_path}=x")[0] == 2
