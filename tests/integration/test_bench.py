"""`quorumlog bench` as a user runs it, with little of everything."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from default_signals import default_signals
from quorumlog.local import LocalCluster
from quorumlog.local.guard import node_pids

pytestmark = pytest.mark.processes


def bench(*arguments):
    """Return (exit status, figures by case, what was said on standard error)."""
    done = subprocess.run(
        [sys.executable, "-m", "quorumlog", "bench", "--quick", "--json", *map(str, arguments)],
        capture_output=True,
        timeout=200,
        check=False,
    )
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {figure["case"]: figure for figure in figures}, done.stderr.decode()


def test_a_cluster_of_its_own_is_loaded_and_loses_its_leader(tmp_path):
    plot = tmp_path / "bench.png"
    status, figures, error = bench("append", "failover", "--sizes", 256, "--plot", plot)
    assert (status, error) == (0, "")
    assert {"append, 1 in flight", "append, 64 in flight", "append, 512 in flight"} < set(figures)
    one = figures["append, 1 in flight"]
    assert one["value"] > 0
    assert one["p50_ms"] <= one["p99_ms"]
    assert one["of_limit"] > 0
    assert len(one["node_cpu_seconds"]) == 3
    assert figures["leader killed: no append for"]["value"] > 0
    assert figures["machine: memcpy"]["value"] > 0
    assert plot.stat().st_size > 10_000


def test_how_cost_grows_is_measured_when_it_is_asked_for():
    status, figures, error = bench("clients", "groups", "length", "steady")
    assert (status, error) == (0, "")
    assert figures["append, 5 clients"]["value"] > 0
    assert figures["5 groups, all led after"]["value"] > 0
    assert figures["append, 64 in flight over 5 groups"]["value"] > 0
    assert figures["append, 80 in flight over 5 groups"]["value"] > 0
    assert figures["get anywhere, 16 in flight, log of 0.015625 GiB"]["value"] > 0
    assert figures["restart, log of 0.015625 GiB, to the first append"]["value"] > 0
    assert 20 < figures["memory of a node over 1 s"]["value"] < 400


def test_its_clusters_have_tls_if_that_is_wanted(tmp_path):
    status, figures, error = bench("append", "groups", "--secure", "--sizes", 256)
    assert (status, error) == (0, "")
    assert figures["append, 1 in flight"]["value"] > 0
    assert figures["append, 64 in flight over 5 groups"]["value"] > 0
    status, _, error = bench("append", "--secure", "--dir", tmp_path)
    assert status == 2
    assert "--secure is for a cluster that is started for it" in " ".join(
        error.replace("│", " ").split()
    )


def test_a_body_too_large_for_an_entry_is_refused_before_anything_is_measured():
    status, figures, error = bench("append", "--sizes", f"256,{4 << 20}")
    assert (status, figures) == (2, {})
    assert "a body has 4,194,256 bytes at most" in " ".join(error.replace("│", " ").split())


def test_a_cluster_that_is_there_is_only_loaded(tmp_path):
    cluster = LocalCluster.create(tmp_path / "c", groups=("g",))
    cluster.up()
    try:
        running = cluster.running()
        status, figures, error = bench("--dir", tmp_path / "c", "read", "--sizes", 1_024)
        assert (status, error) == (0, "")
        assert figures["read in order, as entries"]["value"] > 0
        assert figures["append to its reader, one at a time"]["p50_ms"] > 0
        status, _, error = bench("--dir", tmp_path / "c", "failover")
        assert status == 2
        assert "leave --dir and --servers out" in " ".join(error.replace("│", " ").split())
        assert cluster.running() == running
    finally:
        cluster.down()


LOADED = (("append", "--sizes", "256"), "append, 1 in flight", 3)
GROWN = (("groups",), "5 groups, all led after", 6)
"""A case has a second cluster then."""


@pytest.mark.parametrize(
    ("number", "when"),
    [
        (signal.SIGTERM, GROWN),
        (signal.SIGHUP, LOADED),
        (signal.SIGINT, LOADED),
        (signal.SIGKILL, GROWN),
    ],
)
def test_whatever_ends_it_leaves_no_node_and_no_file(number, when, tmp_path):
    arguments, figure, nodes = when
    with default_signals():
        process = subprocess.Popen(
            [sys.executable, "-m", "quorumlog", "bench", "--quick", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"TMPDIR": str(tmp_path)},
        )
    cases = (json.loads(line)["case"] for line in process.stdout)
    assert any(case == figure for case in cases)
    (directory,) = tmp_path.iterdir()
    assert len(node_pids(str(directory))) == nodes
    process.send_signal(number)
    process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
    else:
        assert process.returncode == -number
    deadline = time.monotonic() + 60
    while number == signal.SIGKILL and directory.exists() and time.monotonic() < deadline:
        time.sleep(0.05)  # nobody waits for the guard then
    assert node_pids(str(directory)) == []
    assert not directory.exists()


def test_a_case_that_fails_keeps_the_logs_of_the_nodes_and_says_where(tmp_path):
    code = (
        "import sys\n"
        "from quorumlog.bench import loads\n"
        "from quorumlog.cli.main import main\n"
        "from quorumlog.model.errors import RequestError\n"
        "async def failing(*_):\n"
        "    raise RequestError('no luck today')\n"
        "loads.produced = failing\n"
        "sys.exit(main(['bench', 'producer', '--quick', '--sizes', '64']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 1
    (directory,) = tmp_path.iterdir()
    assert done.stderr.splitlines() == [
        f"quorumlog: logs and files of the nodes are kept in {directory}",
        "quorumlog: no luck today",
    ]
    assert node_pids(str(directory)) == []
    for node in ("n0", "n1", "n2"):
        assert (directory / "cluster" / f"{node}.log").stat().st_size > 0
