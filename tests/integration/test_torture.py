"""The torture of real processes: a short run finds nothing, and none of its nodes outlives it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from integration.network import Network, NotPermittedError, prefix_of, remove_all_of
from quorumlog.local.guard import kill_nodes, node_pids

pytestmark = pytest.mark.processes

ROUNDS = Path(__file__).parents[1] / "torture" / "rounds.py"
NODES = ["n0", "n1", "n2", "n3"]
SECONDS = 60.0


@pytest.fixture(autouse=True)
def permitted():
    if os.geteuid():
        pytest.skip("the torture makes network namespaces: only root may")
    network = Network([])
    try:
        network.make()
    except NotPermittedError as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    finally:
        network.remove()


def started(directory, *arguments):
    command = [sys.executable, "-u", str(ROUNDS), "--dir", str(directory), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.timeout(280)
def test_two_rounds_find_nothing_and_leave_nothing(tmp_path):
    process = started(tmp_path / "run", "--rounds", "2", "--seed", "3")
    told, _ = process.communicate()
    assert process.returncode == 0, told
    assert "nothing found" in told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_its_nodes_end_whatever_ends_it(tmp_path, number):
    process = started(tmp_path / "run", "--rounds", "1000", "--seed", "3")
    try:
        begun = any(line.startswith("round 0") for line in process.stdout)
        assert begun, "it ended by itself"
        assert node_pids(str(tmp_path / "run"))
        process.send_signal(number)
        process.communicate(timeout=SECONDS)  # its nodes have the same output: they have ended
        assert process.returncode == -number
        assert not node_pids(str(tmp_path / "run"))
    finally:
        process.kill()
        kill_nodes(str(tmp_path / "run"))
        if number == signal.SIGKILL:
            remove_all_of(process.pid, NODES)
    left = [name for name in os.listdir("/run/netns") if name.startswith(prefix_of(process.pid))]
    assert not left
