"""Keys, values and snapshots on the command line, against three real processes."""

import base64
import os
import signal
import subprocess
import sys

import pytest

from default_signals import default_signals
from integration.command_line import command, objects
from quorumlog import Compare, Put, SyncClient, SyncKV
from quorumlog.cli.main import main
from quorumlog.local import LocalCluster
from quorumlog.model.config import load_config
from quorumlog.model.errors import UnexpectedArgumentError

processes = pytest.mark.processes


def printed(*arguments):
    """Return the lines that a command prints; it succeeds and complains of nothing."""
    status, out, err = command(*arguments)
    assert (status, err) == (0, ""), (arguments, err)
    return out.splitlines()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three nodes with the key-value machine, started by the command line."""
    directory = tmp_path_factory.mktemp("cluster") / "c"
    printed("cluster", "up", "--dir", directory, "--machine", "kv", "--no-topics")
    cluster = LocalCluster.open(directory)
    yield cluster
    cluster.down()


@pytest.fixture
def where(cluster):
    return ("--dir", cluster.directory)


def watching(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "quorumlog", "kv", "watch", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@processes
def test_what_is_put_is_got_until_it_is_deleted(where):
    assert printed("kv", "put", "city", "Köln ✓", *where) == ["there was none before"]
    assert printed("kv", "get", "city", *where) == ["Köln ✓"]
    assert printed("kv", "put", "city", "Ulm", *where) == ["before: Köln ✓"]
    assert printed("kv", "del", "city", *where) == ["before: Ulm"]
    assert printed("kv", "del", "city", *where) == ["there was none before"]
    status, out, err = command("kv", "get", "city", *where)
    assert (status, out, err) == (1, "", "quorumlog: group default has no key city\n")


@processes
def test_a_stale_answer_may_come_from_anybody_at_an_address(cluster, where):
    printed("kv", "put", "stale", "1", *where)
    address = cluster.servers.split(",")[0]
    status, out, _ = command("kv", "get", "stale", "--stale", "-s", address, "-g", "default")
    assert (status, out) in ((0, "1\n"), (1, ""))
    assert printed("kv", "get", "stale", "--servers", address) == ["1"]


@processes
def test_bytes_that_are_no_text_are_printed_as_escapes_and_exactly_as_json(where):
    printed("kv", "put", b"raw/\xff", b"\x1b[2J\n\xfe", *where)
    assert printed("kv", "get", b"raw/\xff", *where) == [r"\x1b[2J\n\xfe"]
    assert printed("kv", "scan", "raw/", *where) == [r"raw/\xff \x1b[2J\n\xfe"]
    (item,) = objects("kv", "scan", "raw/", *where)
    assert base64.b64decode(item["key_base64"]) == b"raw/\xff"
    assert base64.b64decode(item["value_base64"]) == b"\x1b[2J\n\xfe"
    assert objects("kv", "get", b"raw/\xff", *where) == [item]
    assert item["index"] > 0


@processes
def test_a_scan_prints_the_range_that_was_asked_for(where):
    for name in ("s/a", "s/b", "s/c", "s/d", "t"):
        printed("kv", "put", name, f"of {name}", *where)
    assert printed("kv", "scan", "s/", *where) == [f"s/{n} of s/{n}" for n in "abcd"]
    assert printed("kv", "scan", "s/", "--limit", "2", *where) == ["s/a of s/a", "s/b of s/b"]
    last = printed("kv", "scan", "s/", "--reverse", "--limit", "1", *where)
    assert last == ["s/d of s/d"]
    between = printed("kv", "scan", "--from", "s/b", "--to", "s/d", *where)
    assert between == ["s/b of s/b", "s/c of s/c"]
    assert printed("kv", "scan", "nothing", *where) == []


@processes
def test_a_watch_prints_past_and_coming_changes_and_ends_after_so_many(where):
    printed("kv", "put", "w/1", "one", *where)
    index = objects("kv", "get", "w/1", *where)[0]["index"]
    watch = watching("w/", "--from", str(index), "--count", "3", *where)
    try:
        assert watch.stdout.readline().split() == [str(index), "put", "w/1", "one"]
        printed("kv", "put", "other", "x", *where)
        printed("kv", "put", "w/2", "two", *where)
        assert watch.stdout.readline().split()[1:] == ["put", "w/2", "two"]
        printed("kv", "del", "w/2", *where)
        out, err = watch.communicate(timeout=60)
        assert (watch.returncode, out.split()[1:], err) == (0, ["del", "w/2"], "")
    finally:
        watch.kill()
        watch.wait()
    found = objects("kv", "watch", "w/", "--from", str(index), "--count", "3", *where)
    assert [base64.b64decode(event["value_base64"] or "") for event in found] == [
        *(b"one", b"two", b"")
    ]
    assert found[2]["value_base64"] is None


@processes
def test_a_watch_that_begins_in_the_future_says_that_it_waits(where):
    printed("kv", "put", "future/", "1", *where)
    (item,) = objects("kv", "get", "future/", *where)
    begin = item["index"] + 1_000
    watch = watching("--from", str(begin), "--dir", where[1])
    try:
        line = watch.stderr.readline()
        assert line.startswith(f"quorumlog: waiting for index {begin}: the machine has applied ")
    finally:
        watch.kill()
        watch.communicate()


@processes
def test_ctrl_c_ends_a_watch_quietly(where):
    printed("kv", "put", "c/1", "one", *where)
    with default_signals():
        watch = watching("c/", "--from", "0", *where)
    try:
        assert watch.stdout.readline()
        watch.send_signal(signal.SIGINT)
        out, err = watch.communicate(timeout=60)
        assert (watch.returncode, out, err) == (130, "", "")
    finally:
        watch.kill()
        watch.wait()


@processes
def test_a_snapshot_is_saved_on_the_leader_and_shown_by_status(cluster, where):
    printed("kv", "put", "saved", "1", *where)
    index = objects("kv", "get", "saved", *where)[0]["index"]
    (saved,) = objects("snapshot", *where)
    assert saved["last_included_index"] >= index
    assert printed("snapshot", *where) == [f"snapshot up to index {saved['last_included_index']}"]
    leader = cluster.leader("default")
    directory = cluster.group_directory(leader, "default") / "snapshot"
    (name,) = os.listdir(directory)
    assert int(name.removeprefix("snapshot_")) == saved["last_included_index"]
    replicas = {replica["node"]: replica for replica in objects("status", *where)}
    assert replicas[leader]["snapshot_index"] == saved["last_included_index"]
    assert {replica["state_machine"] for replica in replicas.values()} == {"kv"}
    assert {replica["install_state"] for replica in replicas.values()} == {"ready"}
    head, *rows = [line.split() for line in printed("status", *where)[1:]]
    assert head[-4:] == ["MACHINE", "APPLIED", "SNAPSHOT", "HEALTH"]
    assert {row[-4] for row in rows} == {"kv"}
    assert {row[0]: row[-2] for row in rows}[leader] == str(saved["last_included_index"])


@processes
def test_what_fails_is_status_1_and_one_line(where):
    for arguments, said in [
        (("kv", "put", "k" * 512, "x"), "a key has 1 to 511 bytes"),
        (("kv", "get", ""), "a key has 1 to 511 bytes"),
        (("cluster", "up", "--machine", "counting:Counter"), "has the state machine kv"),
    ]:
        status, out, err = command(*arguments, *where)
        assert (status, out) == (1, ""), arguments
        assert said in err
        assert err.count("\n") == 1


BROKEN = """
from quorumlog.machine import StateMachine

class Broken(StateMachine):
    def apply(self, entries):
        raise RuntimeError("it is broken")

    def save_snapshot(self, writer):
        pass

    def load_snapshot(self, reader):
        pass
"""


@processes
def test_153_status_shows_the_first_line_of_why_a_machine_failed(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(BROKEN)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", path)  # of the node
    monkeypatch.syspath_prepend(tmp_path)  # of the command
    where = ("--dir", tmp_path / "c")
    up = ("cluster", "up", "--nodes", "1", "--machine", "broken:Broken", "--no-topics", *where)
    try:
        assert command(*up)[0] == 0
        assert command("append", "x", "--timeout", "1", *where)[0] == 1
        status, out, _ = command("status", *where)
        assert (status, len(out.splitlines())) == (0, 3)
        assert "RuntimeError: it is broken at entry" in out
        assert "RuntimeError: it is broken at entry" in command("cluster", "status", *where)[1]
        (replica,) = objects("status", *where)
        assert "Traceback" in replica["text"]
        status, _, err = command("snapshot", "--timeout", "1", *where)
        assert (status, err.count("\n")) == (1, 1)
    finally:
        command("cluster", "down", *where)


# -- without processes ------------------------------------------------------------------------


@pytest.fixture
def run(capsys):
    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_a_machine_that_cannot_be_is_refused_before_anything_is_made(run, tmp_path):
    for name, said in [("nonsense", "neither one of kv nor"), ("no_such:Thing", "be imported")]:
        status, out, err = run("cluster", "up", "--dir", tmp_path / "c", "--machine", name)
        assert (status, out) == (1, "")
        assert said in err
        assert not (tmp_path / "c").exists()


def test_every_node_of_a_new_cluster_has_the_machine(tmp_path):
    cluster = LocalCluster.create(tmp_path / "c", groups=("a", "b"), state_machine="kv")
    assert cluster.machines == {"a": "kv", "b": "kv"}
    for node_id in cluster.node_ids:
        config = load_config(tmp_path / "c" / f"{node_id}.toml")
        assert [group.state_machine for group in config.groups] == ["kv", "kv"]


def test_a_cluster_of_plain_logs_does_not_get_a_machine(run, tmp_path):
    assert LocalCluster.create(tmp_path / "c").machines == {"default": ""}
    status, _, err = run("cluster", "up", "--dir", tmp_path / "c", "--machine", "kv")
    assert status == 1
    assert "has no state machine, not kv; choose another directory" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("kv", "put", "k", "--dir", "d"),
        ("kv", "get", "k"),
        ("kv", "scan", "--limit", "0", "--dir", "d"),
        ("kv", "watch", "--from", "-1", "--dir", "d"),
        ("snapshot",),
    ],
)
def test_a_wrong_command_line_is_status_2(run, arguments):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert "Usage: quorumlog" in err


# -- without an event loop ----------------------------------------------------------------------


@processes
def test_scripts_without_an_event_loop_have_keys_and_values_too(cluster):
    with SyncClient(cluster.servers, cluster.groups[0]) as client:
        kv = SyncKV(client)
        index = kv.applied_index()
        assert kv.put("sync/a", "1") is None
        assert kv.compare_and_set("sync/a", "1", "2")
        value, changed = kv.get_with_index("sync/a")
        assert (value, kv.compare_index_and_set("sync/a", changed, "3")) == (b"2", True)
        assert kv.transaction([Compare("sync/a", "3")], [Put("sync/b", "4")]).succeeded
        assert [item.key for item in kv.scan(prefix="sync/")] == [b"sync/a", b"sync/b"]
        assert kv.delete("sync/b") == b"4"
        assert (kv.get("sync/a"), kv.get("sync/b")) == (b"3", None)
        events = kv.watch("sync/", index + 1)
        assert [next(events).value for _ in range(5)] == [b"1", b"2", b"3", b"4", None]
        events.close()
        assert client.admin.save_snapshot() > index
        with pytest.raises(UnexpectedArgumentError):
            client.query(b"nonsense")
        assert b"not a key-value command" in client.execute(b"nonsense").result
