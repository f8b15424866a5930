"""The command line against three real processes (scenario 159: every command, exit statuses)."""

import base64
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from default_signals import default_signals
from integration.command_line import command, objects
from quorumlog.local import LocalCluster, LocalClusterError
from quorumlog.local.guard import node_pids
from quorumlog.local.ports import free_ports, unusable
from quorumlog.model.errors import ConfigError

pytestmark = pytest.mark.processes

KNOWN_SECONDS = 60.0
"""Until a replica knows what is committed; only what never ends is ended by it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three nodes, started by the command line, stopped at the end whatever happens."""
    directory = tmp_path_factory.mktemp("cluster") / "c"
    status, out, err = command(
        "cluster", "up", "--dir", directory, "--group", "flights", "--no-topics"
    )
    assert (status, err) == (0, "")
    assert "group flights: leader n" in out
    cluster = LocalCluster.open(directory)
    yield cluster
    cluster.down()


@pytest.fixture
def all_up(cluster):
    cluster.up()
    return cluster


def test_a_node_whose_pid_cannot_be_written_is_not_left_running(tmp_path):
    """As on a full disk: nobody would find its process again, and its port would stay in use."""
    cluster = LocalCluster.create(tmp_path / "c", nodes=1)
    (tmp_path / "c" / "n0.pid.new").mkdir()
    with pytest.raises(LocalClusterError, match=r"n0 is not started: .*n0\.pid cannot be written"):
        cluster.up()
    assert node_pids(str(tmp_path / "c")) == []
    (tmp_path / "c" / "n0.pid.new").rmdir()
    cluster.up()
    assert cluster.down() == ["n0"]


def test_159_appended_entries_are_read_back(all_up):
    where = ("--dir", all_up.directory)
    first, second = objects("append", "one", "zwei ✓", *where)
    assert second["index"] > first["index"]
    entry = objects("get", second["index"], *where)[0]
    assert set(entry) == {"index", "term", "pos", "size", "magic", "channel", "body_base64"}
    assert base64.b64decode(entry["body_base64"]).decode() == "zwei ✓"
    assert second.pop("level") == "replication"
    assert {name: entry[name] for name in second} == second
    assert command("get", second["index"], *where)[1].splitlines()[1] == "zwei ✓"


def test_159_lines_of_standard_input_are_appended_in_order(all_up):
    lines = [f"line {number}".encode() for number in range(3_000)]
    where = ("--servers", all_up.servers)
    appended = objects("append", *where, stdin=b"\n".join(lines))
    indexes = [entry["index"] for entry in appended]
    assert indexes == sorted(set(indexes))
    assert len(indexes) == len(lines)
    read = objects("tail", "--from", indexes[0], *where)
    assert [base64.b64decode(entry["body_base64"]) for entry in read] == lines


def test_159_a_batch_has_consecutive_indexes_and_is_all_or_none(all_up):
    where = ("--dir", all_up.directory, "--group", "flights")
    batch = objects("append", "--batch", *where, stdin=b"a\nb\nc\n")
    indexes = [entry["index"] for entry in batch]
    assert indexes == list(range(indexes[0], indexes[0] + 3))
    status, out, err = command(
        "append", "--batch", *where, stdin=b"x" * 1_000_000 + b"\n" * 5000000
    )
    assert (status, out) == (1, "")
    assert "nothing appended" in err
    assert objects("tail", "-n", 1, *where)[0]["index"] == indexes[-1]


def test_159_tail_shows_the_last_entries_and_stops_after_a_count(all_up):
    where = ("--dir", all_up.directory)
    command("append", "t1", "t2", "t3", *where)
    assert [line.split()[1] for line in command("tail", "-n", 2, *where)[1].splitlines()] == [
        "t2",
        "t3",
    ]
    everything = objects("tail", "--from", "earliest", "--all", "-n", 1, *where)
    assert everything[0]["magic"] == 3, "the entry that names the members"
    assert command("tail", "--from", "latest", *where) == (0, "", "")


def test_159_tail_follows_and_ctrl_c_ends_it_quietly(all_up):
    with default_signals():
        tail = subprocess.Popen(
            [sys.executable, "-m", "quorumlog", "tail", "-f", "-n", "1", "-d", all_up.directory],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        assert tail.stdout.readline()
        command("append", "while-following", "-d", all_up.directory)
        assert tail.stdout.readline().split()[1] == "while-following"
        tail.send_signal(signal.SIGINT)
        rest, stderr = tail.communicate(timeout=60)
        assert (tail.returncode, rest, stderr) == (130, "", "")
    finally:
        tail.kill()
        tail.wait()


def test_159_a_reader_that_goes_away_is_no_failure(all_up):
    lines = b"\n".join(b"x" * 100 for _ in range(20_000))
    assert command("append", "-d", all_up.directory, stdin=lines)[0] == 0
    tail = subprocess.Popen(
        [sys.executable, "-m", "quorumlog", "tail", "--from", "0", "-d", all_up.directory],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    tail.stdout.readline()
    tail.stdout.close()
    stderr = tail.stderr.read()
    tail.wait(timeout=60)
    tail.stderr.close()
    assert stderr == b""


def test_159_status_shows_every_replica(all_up):
    replicas = objects("status", "--dir", all_up.directory)
    assert [replica["node"] for replica in replicas] == all_up.node_ids
    assert sorted(replica["role"] for replica in replicas) == ["FOLLOWER", "FOLLOWER", "LEADER"]
    assert all(replica["healthy"] for replica in replicas)
    assert {replica["flush"] for replica in replicas} == {"sync"}
    status, out, _ = command("status", "--servers", all_up.servers.split(",")[0])
    assert status == 0
    assert out.splitlines()[1].split() == [
        *("NODE", "ADDRESS", "ROLE", "TERM", "END"),
        *("COMMITTED", "DURABLE", "LAG", "HEALTH"),  # all vote and flush: the usual is left out
    ]
    assert "\x1b" not in out


def test_159_a_killed_leader_is_replaced_and_comes_back(all_up):
    where = ("--dir", all_up.directory)
    before = all_up.leader("flights")
    status, out, _ = command("cluster", "kill", "--leader", *where)
    assert (status, out) == (0, f"killed {before}\n")
    assert before not in all_up.running()
    (appended,) = objects("append", "after the kill", *where)
    assert all_up.leader("flights") != before
    nodes = {node["node"]: node for node in objects("cluster", "status", *where)}
    assert nodes[before]["pid"] is None
    assert not nodes[before]["answers"]
    assert "down" in command("cluster", "status", *where)[1]
    by_node = {replica["node"]: replica for replica in objects("status", *where)}
    assert by_node[before]["role"] is None
    assert command("cluster", "restart", before, *where)[:2] == (0, f"restarted {before}\n")
    assert len(all_up.running()) == 3
    assert objects("get", appended["index"], *where)


def test_159_failures_are_status_1_and_say_why_in_one_line(all_up):
    where = ("--dir", all_up.directory)
    for arguments, said in [
        (("get", 0, *where, "--group", "nope"), "nope"),
        (("status", "--history", *where, "--group", "nope"), "no replica of group nope answers"),
        (("cluster", "kill", "--leader", "--group", "nope", *where), "'nope', only flights"),
        (("cluster", "kill", "n9", *where), "n9"),
        (("cluster", "up", "--nodes", 5, *where), "has 3 nodes"),
        (("append", "x" * 100_000, "--servers", "127.0.0.1:9", "--timeout", 0.3), "127.0.0.1:9"),
    ]:
        status, out, err = command(*arguments)
        assert (status, out) == (1, ""), arguments
        assert said in err
        assert err.count("\n") == 1


def test_45_159_an_index_beyond_the_end_is_said_with_a_status_of_its_own(all_up):
    where = ("--dir", all_up.directory)
    (appended,) = objects("append", "the last one", *where)
    last = appended["index"]
    directory = all_up.group_directory(all_up.leader("flights"), "flights")
    for arguments, end in [
        (("get", last + 1, *where), f"last committed index, {last}"),
        (("tail", "--from", last + 1, *where), f"its last index is {last}; -f waits for it"),
        (("tail", "--from", 10**9, "--all", *where), f"its last index is {last}; -f waits for it"),
        (("store", "dump", directory, "--from", 10**9), f"its last index is {last}"),
    ]:
        status, out, err = command(*arguments)
        assert (status, out) == (3, ""), arguments
        assert "index 1000000000 is" in err or f"index {last + 1} is" in err
        assert err.endswith(f"{end}\n")
        assert err.count("\n") == 1
    assert command("tail", "--from", last, *where)[0] == 0


def test_159_who_waits_beyond_the_end_is_told_so(all_up):
    where = ("--dir", all_up.directory)
    (appended,) = objects("append", "before", *where)
    begin = appended["index"] + 2
    tail = subprocess.Popen(
        [sys.executable, "-m", "quorumlog", "tail", "-f", "--from", str(begin), "-n", "1", *where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert tail.stderr.readline() == (
            f"quorumlog: waiting for index {begin} of group flights: its last index is "
            f"{appended['index']}\n"
        )
        command("append", "one", "two", *where)
        out, err = tail.communicate(timeout=60)
        assert (tail.returncode, out.split(), err) == (0, [str(begin), "two"], "")
    finally:
        tail.kill()
        tail.wait()


def test_159_any_replica_is_read_while_there_is_no_majority(all_up):
    where = ("--dir", all_up.directory)
    (appended,) = objects("append", "kept", *where)
    index = appended["index"]
    command("append", "so that its commit is known", *where)
    leader = all_up.leader("flights")
    last = next(node_id for node_id in all_up.node_ids if node_id != leader)
    deadline = time.monotonic() + KNOWN_SECONDS
    while not any(  # which may be the one that the others did not wait for
        replica["node"] == last and replica["committed_index"] >= index
        for replica in objects("status", *where)
    ):
        assert time.monotonic() < deadline, f"{last} does not know that {index} is committed"
    for node_id in all_up.node_ids:
        if node_id != last:
            all_up.kill(node_id)
    while any(  # a busy machine may have made it the leader, which knows only later that it is not
        replica["node"] == last and replica["role"] == "LEADER"
        for replica in objects("status", *where)
    ):
        assert time.monotonic() < deadline, f"{last} leads without a majority"
    try:
        for arguments in ("get", index), ("tail",), ("tail", "--from", index):
            status, out, err = command(*arguments, "--timeout", 3, *where)
            assert (status, out) == (1, ""), arguments
            assert "--read-from any" in err
            assert "Errno" not in err
            assert "('" not in err
        from_any = ("--read-from", "any", *where)
        (entry,) = objects("get", index, *from_any)
        assert base64.b64decode(entry["body_base64"]) == b"kept"
        assert index in [entry["index"] for entry in objects("tail", *from_any)]
        assert objects("tail", "--from", index, "-n", 1, *from_any) == [entry]
        status, _, err = command("get", 10**9, *from_any)
        assert (status, "beyond" in err) == (3, True)
    finally:
        all_up.up()


def test_159_a_frozen_node_is_shown_as_such_and_stops_all_the_same(all_up):
    follower = next(n for n in all_up.node_ids if n != all_up.leader("flights"))
    all_up.pause(follower)
    status, out, _ = command("cluster", "status", "--dir", all_up.directory)
    assert status == 0
    assert [line.split()[0] for line in out.splitlines() if "not answering" in line] == [follower]
    all_up.stop(follower)
    assert follower not in all_up.running()


def test_159_store_dump_agrees_with_get(all_up):
    appended = objects("append", "on disk", "--dir", all_up.directory)[0]
    node_id = all_up.leader("flights")
    directory = all_up.group_directory(node_id, "flights")
    dumped = objects("store", "dump", directory, "--from", appended["index"], "--count", 1)[0]
    entry = objects("get", appended["index"], "--dir", all_up.directory)[0]
    assert {name: dumped[name] for name in entry} == entry
    with open(dumped["file"], "rb") as file:
        file.seek(dumped["offset"] + 48)
        assert file.read(7) == b"on disk"


def test_a_node_that_cannot_start_says_why(tmp_path):
    cluster = LocalCluster.create(tmp_path / "c", nodes=1)
    (tmp_path / "c" / "n0").write_text("a file where the data goes")
    with pytest.raises(LocalClusterError, match=r"(?s)c/n0.*n0\.log"):
        cluster.up()
    assert cluster.running() == {}


def test_up_says_which_ports_it_takes_before_anything_runs(tmp_path):
    first, *_ = unused = free_pairs(2)
    up = ("cluster", "up", "--dir", tmp_path / "c", "--nodes", 2, "--port", first, "--no-topics")
    for taken in unused:
        with socket.create_server(("127.0.0.1", taken)):
            status, out, err = command(*up)
        assert (status, out) == (1, "")
        assert err.startswith(f"quorumlog: port {taken} on 127.0.0.1 is in use; ")
        assert "--port" in err
        assert list(tmp_path.iterdir()) == []
    try:
        status, out, err = command(*up)
        assert (status, err) == (0, "")
        assert [line.split() for line in out.splitlines()[:4]] == [
            ["STARTING", "CLIENTS", "AND", "PEERS", "METRICS"],
            ["n0", f"127.0.0.1:{first}", f"http://127.0.0.1:{first + 100}/metrics"],
            ["n1", f"127.0.0.1:{first + 1}", f"http://127.0.0.1:{first + 101}/metrics"],
            ["started", "n0,", "n1"],
        ]
        assert command("cluster", "kill", "n1", "--dir", tmp_path / "c")[0] == 0
        for taken in (first + 1, first + 101):
            for again in ("up",), ("restart", "n1"):
                with socket.create_server(("127.0.0.1", taken)):
                    status, out, err = command("cluster", *again, "--dir", tmp_path / "c")
                assert (status, out) == (1, "")
                assert err.startswith(f"quorumlog: port {taken} on 127.0.0.1 is in use, ")
                assert "another directory" in err
        assert list(LocalCluster.open(tmp_path / "c").running()) == ["n0"]
    finally:
        LocalCluster.open(tmp_path / "c").down()


def free_pairs(nodes):
    """Return the ports that nodes and their admin servers take from the first one on."""
    while True:
        first = free_ports(1)[0]
        ports = [port for n in range(nodes) for port in (first + n, first + 100 + n)]
        if not unusable(ports):
            return ports


def test_one_node_cluster_with_two_groups_from_up_to_down(tmp_path):
    where = ("--dir", tmp_path / "c")
    up = ("cluster", "up", *where, "--nodes", 1, "--group", "a", "--group", "b", "--kafka-port", 0)
    try:
        (node,) = objects(*up)
        assert {group["role"] for group in node["groups"].values()} == {"LEADER"}
        os.kill(node["pid"], 0)
        again = command(*up[:-2])[1]
        assert again.startswith("all nodes ran already")
        assert [line for line in again.splitlines() if line.startswith("group")] == [
            "group a: leader n0",  # and not the group of the brokers
            "group b: leader n0",
        ]
        assert again.endswith(f"\nbootstrap.servers: {node['kafka']}\n")
        host, _, port = node["kafka"].rpartition(":")
        socket.create_connection((host, int(port))).close()
        assert node["kafka"] in command("cluster", "status", *where)[1]
        status, _, err = command("append", "x", *where)
        assert status == 2
        assert "--group" in err
        assert objects("append", "x", *where, "--group", "b")
    finally:
        assert command("cluster", "down", *where)[:2] == (0, "stopped n0\n")
    assert command("cluster", "down", *where)[:2] == (0, "no node ran\n")
    status, _, err = command("status", *where, "--group", "a")
    assert status == 1
    assert "cluster up" in err


def test_a_node_that_could_not_start_again_is_not_stopped(tmp_path):
    where = ("--dir", tmp_path / "c")
    cluster = LocalCluster.create(tmp_path / "c", nodes=1)
    config = tmp_path / "c" / "n0.toml"
    good = config.read_text()
    try:
        cluster.up()
        before = cluster.running()
        for change, said in [
            (('stateMachine = ""', 'stateMachine = "nowhere:Gone"'), "'nowhere:Gone' cannot be"),
            (('selfId = "n0"', 'selfId = "n7"'), "selfId 'n7' is not in peers"),
        ]:
            config.write_text(good.replace(*change))
            status, out, err = command("cluster", "restart", "n0", *where)
            assert (status, out) == (1, "")
            assert said in err
            assert cluster.running() == before
        with pytest.raises(ConfigError, match="selfId"):
            cluster.restart("n0")
        assert cluster.running() == before
    finally:
        cluster.down()
    config.write_text(good.replace('stateMachine = ""', 'stateMachine = "nowhere:Gone"'))
    status, out, err = command("cluster", "up", *where)
    assert (status, out) == (1, "")
    assert err.startswith("quorumlog: stateMachine 'nowhere:Gone' cannot be imported")


def test_f93_entries_are_appended_to_a_channel_and_read_by_channel(all_up):
    directory = all_up.directory
    written = objects("append", "--dir", directory, "--channel", 7, "seven", "also seven")
    objects("append", "--dir", directory, "none of them")
    assert [entry["channel"] for entry in written] == [7, 7]
    entry = objects("get", written[0]["index"], "--dir", directory)[0]
    assert (entry["channel"], base64.b64decode(entry["body_base64"])) == (7, b"seven")
    found = objects("tail", "--dir", directory, "--channel", 7, "-n", 2)
    assert [entry["index"] for entry in found] == [entry["index"] for entry in written]
    assert objects("tail", "--dir", directory, "--channel", 8) == []
    status, _, err = command("append", "--dir", directory, "--channel", 4294967295, "x")
    assert status == 2
    assert "4294967294" in err
