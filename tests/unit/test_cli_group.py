"""`group describe`: what nodes whose configurations differ are shown as."""

import json
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from quorumlog.cli import group
from quorumlog.cli.main import main
from quorumlog.client.group_answers import GroupChange, GroupSummary
from quorumlog.model.messages.groups import Setting

SUMMARY = GroupSummary(
    group="orders",
    identity="07",
    members={"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"},
    leader_id="n0",
    term=3,
    states={"n0": "HOSTED", "n1": "FAILED"},
    settings={},
    is_from_file=False,
    end_index=9,
)


@pytest.fixture
def describe(monkeypatch, capsys):
    """Describe group orders with the given settings of its nodes; return what is printed."""

    class Client:
        def __init__(self, *_, **__):
            self.admin = SimpleNamespace(groups=SimpleNamespace(describe=lambda _: self.answer))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    def described(by_node, *arguments):
        Client.answer = (SUMMARY, by_node)
        monkeypatch.setattr(group, "SyncClient", Client)
        assert main(["group", "describe", "orders", "--servers", "127.0.0.1:1", *arguments]) == 0
        return capsys.readouterr().out

    return described


def test_a_node_that_cannot_use_the_groups_file_is_left_out(describe):
    known = Setting("retentionHours", "3", "runtime", "0", "now", "3")
    by_node = {"n0": [known], "n1": []}
    assert describe(by_node).splitlines()[-1].split() == [
        *("retentionHours", "3", "run", "time", "0", "now")
    ]
    shown = json.loads(describe(by_node, "--json"))["configuration"]["retentionHours"]["nodes"]
    assert shown == {"n0": {"value": "3", "source": "runtime", "running": "3"}}


def test_a_key_that_only_nodes_of_one_version_have_is_shown_for_them(describe):
    both, newer = (Setting(key, "1", "default", "1", "now", "1") for key in ("both", "newer"))
    by_node = {"n0": [both, newer], "n1": [both]}
    shown = json.loads(describe(by_node, "--json"))["configuration"]
    assert {key: sorted(at["nodes"]) for key, at in shown.items()} == {
        "both": ["n0", "n1"],
        "newer": ["n0"],
    }


@pytest.mark.parametrize(
    "failure", [OSError("Connection refused"), TimeoutError(), ValueError("a bad answer")]
)
@pytest.mark.parametrize("command", ["create", "delete"])
def test_what_one_group_fails_with_is_a_line_and_the_others_go_on(
    monkeypatch, capsys, command, failure
):
    done = []

    class Client:
        def __init__(self, *_, **__):
            groups = SimpleNamespace(create=self.work, delete=self.work)
            self.admin = SimpleNamespace(groups=groups)

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def work(self, name, **_):
            if name == "bad":
                raise failure
            done.append(name)
            return SUMMARY if command == "create" else GroupChange(["n0"], {})

    monkeypatch.setattr(group, "Client", Client)
    arguments = ["group", command, "a", "bad", "c", "--servers", "127.0.0.1:1"]
    assert main(arguments) == 1
    assert done == ["a", "c"]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"quorumlog: bad: {type(failure).__name__}")
    assert f"1 of 3 groups not {'made' if command == 'create' else 'deleted'}" in lines[-1]
    assert "Traceback" not in "".join(lines)


def test_a_size_that_existing_files_do_not_have_is_shown_beside_theirs(describe):
    size = Setting("mappedFileSizeForEntryData", "1073741824", "default", "1", "new", "67108864")
    line = describe({"n0": [size], "n1": [size]}).splitlines()[2]
    assert "67108864 (its files; new ones: 1073741824)" in line
    assert line.rstrip().endswith("for new replicas")


def test_deleted_groups_are_listed_with_columns_of_their_own(monkeypatch, capsys):
    states = {"n0": "DELETED", "n1": "DELETED"}
    former = replace(SUMMARY, group="old", states=states, deleted_ms=1_700_000_000_000, purged=True)
    monkeypatch.setattr(group, "SyncClient", MagicMock())
    monkeypatch.setattr(group, "summaries", lambda _: [former, SUMMARY])
    assert main(["group", "list", "--deleted", "--servers", "127.0.0.1:1"]) == 0
    here, there = capsys.readouterr().out.split("\n\n")
    assert [line.split()[0] for line in here.splitlines()] == ["GROUP", "orders"]
    names, row = there.splitlines()
    assert names.split("  ")[0] == "DELETED GROUP"
    assert row.split()[:4] == ["old", "07", "n0,", "n1"]
    assert row.split()[-1] == "removed"
    assert "2023-11-1" in row


def test_what_is_wrong_with_a_group_on_a_node_is_a_line_of_its_own(monkeypatch, capsys):
    damaged = replace(SUMMARY, problems={"n1": "quorumlog.group cannot be read"})
    monkeypatch.setattr(group, "SyncClient", MagicMock())
    monkeypatch.setattr(group, "summaries", lambda _: [damaged])
    assert main(["group", "list", "--servers", "127.0.0.1:1"]) == 0
    said = capsys.readouterr().err
    assert "orders: n1, FAILED: quorumlog.group cannot be read" in said


def test_a_change_of_a_files_size_says_that_files_keep_theirs(monkeypatch, capsys):
    client = MagicMock()
    client.return_value.__enter__.return_value.admin.groups.alter.return_value = GroupChange(
        ["n0"], {}
    )
    monkeypatch.setattr(group, "SyncClient", client)
    changed = ["group", "alter", "orders", "--set", "mappedFileSizeForEntryData=67108864"]
    assert main([*changed, "--servers", "127.0.0.1:1"]) == 0
    assert "for new replicas, as files keep their size: mapped" in capsys.readouterr().err


def test_the_usage_of_a_command_for_several_groups_has_one_ellipsis(capsys):
    assert main(["group", "create", "--help"]) == 0
    usage = capsys.readouterr().out
    assert "{GROUP}..." in usage
    assert "...}" not in usage
