"""Nodes that were started for a run end with it, whatever ends it; those of `cluster up` do not."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from default_signals import default_signals
from quorumlog.local import LocalCluster, ending_in_order, guard, guarded, guarded_directory
from quorumlog.local.guard import node_pids

pytestmark = pytest.mark.processes
SECONDS = 60.0

OWNER = """
import sys, time
from quorumlog.local import LocalCluster, guarded
with guarded(sys.argv[1], remove=sys.argv[2] == "remove"):
    cluster = LocalCluster.create(sys.argv[1] + "/nodes")
    cluster.up()
    cluster.pause("n1")  # it hears no other signal than SIGKILL
    print(" ".join(map(str, cluster.running().values())), flush=True)
    time.sleep(600)
"""


def wait_until(is_so):
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid):
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("remove", ["remove", "leave"])
def test_even_sigkill_of_their_owner_ends_all_nodes(tmp_path, remove):
    directory = tmp_path / "run"
    directory.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(directory), remove], stdout=subprocess.PIPE, text=True
    )
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(pids) == 3
    assert sorted(node_pids(str(directory))) == sorted(pids)
    owner.kill()
    owner.communicate()
    wait_until(lambda: all(map(is_gone, pids)))
    if remove == "remove":
        wait_until(lambda: not directory.exists())
    else:
        # a process whose first thread has ended is there until its other threads have
        wait_until(lambda: not LocalCluster.open(directory / "nodes").running())


def test_a_block_leaves_no_node_and_no_directory_unless_it_is_to_be_kept():
    with guarded_directory("quorumlog-test-") as guard:
        cluster = LocalCluster.create(guard.directory / "nodes", nodes=1)
        cluster.up()
        (pid,) = cluster.running().values()
    assert is_gone(pid)
    assert not guard.directory.exists()
    with guarded_directory("quorumlog-test-") as guard:
        guard.keep()
    guard.directory.rmdir()


def test_a_directory_goes_though_a_killed_node_makes_its_last_file_meanwhile(tmp_path, monkeypatch):
    """A process that waits for a disk when it is killed is not listed then, but ends its call."""
    directory, remove = tmp_path / "run", shutil.rmtree
    directory.mkdir()
    late = [directory / "journal", directory / "0"]

    def rmtree(path, **how):
        if late:
            late.pop().touch()
        else:
            remove(path, **how)

    monkeypatch.setattr(guard.shutil, "rmtree", rmtree)
    guard._remove(str(directory))
    assert not directory.exists()


def test_nodes_elsewhere_are_left_alone(tmp_path):
    """`cluster up` and `guarded` of a directory whose name another one begins with."""
    cluster = LocalCluster.create(tmp_path / "run-2", nodes=1)
    try:
        with guarded(tmp_path / "run"):
            cluster.up()
        assert list(cluster.running()) == ["n0"]
    finally:
        cluster.down()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_block_in_order_and_then_the_process(number):
    code = (
        "import signal, time\n"
        "from quorumlog.local import ending_in_order\n"
        "with ending_in_order():\n"
        "    try:\n"
        "        print('here', flush=True)\n"
        "        time.sleep(600)\n"
        "    finally:\n"
        "        print('closed', flush=True)\n"
    )
    words = [sys.executable, "-c", code]
    with default_signals():
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    assert process.stdout.readline() == "here\n"
    process.send_signal(number)
    assert process.communicate(timeout=SECONDS)[0] == "closed\n"
    assert process.returncode == -number


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_in_order():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
