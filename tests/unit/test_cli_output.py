"""How entries look on a terminal and as JSON."""

import json

import pytest

from quorumlog.cli.output import (
    body_text,
    entry_object,
    print_json,
    print_table,
    printable,
)
from quorumlog.model.codes import Magic
from quorumlog.model.entry import Entry


def test_json_entry_has_the_documented_fields_and_the_exact_body(capsys):
    print_json(entry_object(Entry(7, 2, 4096, b"\x00\xff", channel=3)))
    assert json.loads(capsys.readouterr().out) == {
        "index": 7,
        "term": 2,
        "pos": 4096,
        "size": 50,
        "magic": 1,
        "channel": 3,
        "body_base64": "AP8=",
    }


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"plain", "plain"),
        ("Zürich ✓".encode(), "Zürich ✓"),
        (b"two\nlines\t", r"two\nlines\t"),
        (b"\x1b[31mred", r"\x1b[31mred"),
        (b"\xff\xfe", r"\xff\xfe"),
        ("\u202egnitrap".encode(), r"\u202egnitrap"),
    ],
)
def test_nothing_of_a_body_reaches_the_terminal_unescaped(body, shown):
    assert printable(body) == shown


def test_preview_is_cut_and_says_so():
    entry = Entry(0, 0, 0, b"x" * 100)
    assert body_text(entry, 10) == "x" * 10 + "…"
    assert body_text(entry, 100) == "x" * 100
    assert body_text(Entry(0, 0, 0, b"\x00" * 6), 10).endswith("…")


def test_entries_without_a_body_show_their_kind():
    assert body_text(Entry(0, 1, 0, b"", magic=Magic.NOOP)) == "(NOOP)"
    assert body_text(Entry(0, 1, 0, b"")) == ""


def test_a_table_in_a_pipe_is_plain_and_nothing_is_cut(capsys):
    print_table(["NODE", ">TERM"], [["n0", "7"], ["x" * 300, "12"]])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "x" * 300 in out
    assert out.splitlines()[0].split() == ["NODE", "TERM"]
