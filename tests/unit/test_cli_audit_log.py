"""`quorumlog audit-log` reads the files of audit logs, also while they are written and rotated."""

import json
import os

import pytest

from quorumlog.cli.audit_log import AuditReader
from quorumlog.cli.main import main
from quorumlog.model.config import AUDIT_LOG_NAME


def line(second, **values):
    given = {
        "at": f"2026-11-29T12:00:{second:02}.000Z",
        "node": "n0",
        "cluster": "c",
        "event": "administration",
        "principal": "User:alice",
        "mechanism": "",
        "address": "10.0.0.1:5000",
        "client": "",
        "resource": f"group:g{second}",
        "operation": "Create",
        "allowed": True,
        "reason": "",
        "request": "CreateGroup",
        "n": 1,
    }
    return json.dumps({**given, **values}) + "\n"


@pytest.fixture
def cluster(tmp_path):
    for node, seconds in (("n0", (1, 4)), ("n1", (2, 3))):
        (tmp_path / node).mkdir()
        (tmp_path / node / AUDIT_LOG_NAME).write_text(
            "".join(line(second, node=node) for second in seconds)
        )
    (tmp_path / "n0" / f"{AUDIT_LOG_NAME}.1").write_text(line(0))
    (tmp_path / "n0" / f"{AUDIT_LOG_NAME}.10").write_text(line(0, request="first"))
    return tmp_path


def shown(capsys, *arguments):
    assert main(["audit-log", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def test_all_nodes_of_a_cluster_are_shown_in_order(cluster, capsys):
    found = [json.loads(text) for text in shown(capsys, "--dir", cluster, "--json")]
    assert [one["resource"] for one in found] == [f"group:g{n}" for n in (0, 0, 1, 2, 3, 4)]
    assert found[0]["request"] == "first"


def test_a_line_says_in_words_who_did_what(cluster, capsys):
    (_, _, text) = shown(capsys, "--dir", cluster / "n0")[:3]
    assert text == (
        "2026-11-29T12:00:01.000Z  n0  administration  User:alice from 10.0.0.1:5000  "
        "Create group:g1 (CreateGroup)"
    )


def test_refusals_say_why_and_how_often(tmp_path, capsys):
    refused = {"event": "connection-refused", "allowed": False, "reason": "no frame", "n": 7}
    file = tmp_path / "f"
    file.write_text(line(1) + line(2, resource="", operation="", request="", **refused))
    (text,) = shown(capsys, "--file", file, "--refused")
    assert text.endswith(
        "connection-refused  User:alice from 10.0.0.1:5000: refused: no frame [7 times]"
    )


def test_lines_are_chosen_by_principal_and_by_event(tmp_path, capsys):
    file = tmp_path / "f"
    file.write_text(line(1) + line(2, principal="User:bob") + line(3, event="data-access"))
    assert len(shown(capsys, "--file", file)) == 3
    for bob in ("User:bob", "bob"):
        (found,) = shown(capsys, "--file", file, "--principal", bob)
        assert "group:g2" in found
    assert "group:g3" in shown(capsys, "--file", file, "--event", "data-access")[0]


def test_nothing_in_a_line_reaches_the_terminal_unless_it_is_printable(tmp_path, capsys):
    file = tmp_path / "f"
    file.write_text(line(1, client="\x1b[2J\u202e\n"))
    (text,) = shown(capsys, "--file", file)
    assert text.isprintable()


def test_a_line_that_a_crash_cut_off_is_left_out_and_counted(tmp_path, capsys):
    file = tmp_path / "f"
    file.write_text('{"at": "20\n' + line(1) + "[]\n")
    assert main(["audit-log", "--file", str(file)]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1
    assert "2 lines left out" in said.err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 2, "--dir DIR or --file FILE"),
        (["--dir", "{}"], 1, "there is no audit log in"),
        (["--dir", "{}/none"], 1, "there is no directory"),
    ],
)
def test_what_is_not_there_is_said(tmp_path, capsys, arguments, status, said):
    given = [one.format(tmp_path) for one in arguments]
    assert main(["audit-log", *given]) == status
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_followed_is_read_to_its_end_before_the_next_one(tmp_path):
    path = tmp_path / AUDIT_LOG_NAME
    reader = AuditReader(path, is_followed=True)
    assert list(reader.lines()) == [], "it is not there yet"
    path.write_text(line(1))
    assert [one["resource"] for one in reader.lines()] == ["group:g1"]
    with path.open("a") as file:
        file.write(line(2) + line(3)[:20])
    assert [one["resource"] for one in reader.lines()] == ["group:g2"]
    with path.open("a") as file:
        file.write(line(3)[20:] + line(4))
    os.replace(path, tmp_path / f"{AUDIT_LOG_NAME}.1")
    path.write_text(line(5))
    assert [one["resource"] for one in reader.lines()] == ["group:g3", "group:g4", "group:g5"]
    assert reader.unreadable == 0
    reader.close()
