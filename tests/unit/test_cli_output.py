"""How entries look on a terminal and as JSON."""

import io
import json

import pytest
from rich.console import Console

from quorumlog.cli import output
from quorumlog.cli.output import (
    body_text,
    entry_object,
    print_json,
    print_line,
    print_lines,
    print_note,
    print_table,
    printable,
)
from quorumlog.model.codes import Magic
from quorumlog.model.entry import Entry


def test_json_has_nothing_that_steers_a_terminal_and_loses_nothing(capsys):
    strange = {"client": "caf\u00e9 \U0001f600 \x9b2J \u202e \u2028 \x1b \U000f0000 \ud800"}
    print_json(strange)
    out = capsys.readouterr().out
    assert out[:-1].isprintable()
    assert "caf\u00e9 \U0001f600" in out
    assert json.loads(out) == strange


def test_lines_and_notes_have_nothing_that_steers_a_terminal(capsys):
    print_line("caf\u00e9 \x1b[2J\x07\nforged \u202e")
    print_lines("a\n\x1b[2J")
    print_note("b \x9b2J\nquorumlog: forged")
    assert tuple(capsys.readouterr()) == (
        "caf\u00e9 \\x1b[2J\\x07\\nforged \\u202e\na\n\\x1b[2J\n",
        "quorumlog: b \\x9b2J\\nquorumlog: forged\n",
    )


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


@pytest.fixture
def terminal(monkeypatch):
    """Print to a terminal of 80 columns; return a function that gives the lines printed."""
    written = io.StringIO()
    monkeypatch.setattr(
        output, "console", lambda: Console(file=written, width=80, color_system=None)
    )
    return lambda: written.getvalue().splitlines()


NODES = ["NODE", "ADDRESS", ">TERM", "SETTINGS"]


def test_a_table_that_nearly_fits_a_terminal_has_narrower_gaps(terminal):
    print_table(NODES, [["n0", "a" * 30, "7", "b" * 36]])
    [names, row] = terminal()
    assert row == f"n0    {'a' * 30}     7  {'b' * 36}"
    assert names.split() == ["NODE", "ADDRESS", "TERM", "SETTINGS"]


def test_a_value_that_is_too_long_for_a_column_goes_on_in_the_next_line(terminal):
    rows = [["n0", "127.0.0.1:7101", "7", " ".join(f"setting{number}=24" for number in range(9))]]
    print_table(NODES, rows)
    names, *lines = terminal()
    start = names.index("SETTINGS")
    assert all(len(line) <= 80 for line in lines)
    assert not any(line[:start].strip() for line in lines[1:])
    assert [word for line in lines for word in line[start:].split()] == rows[0][3].split()


@pytest.mark.parametrize("other", ["g", "__cluster"])
def test_a_list_of_groups_in_a_terminal_breaks_no_setting(terminal, other):
    settings = "kind=partitions preferredLeaderIds=n0 mappedFileSizeForEntryData=67108864"
    rows = [
        [group, "n0, n1, n2", "n0", "1", "1234567", "run time", settings]
        for group in ("pg-0", other)
    ]
    print_table(["GROUP", "MEMBERS", "LEADER", ">TERM", ">END", "FROM", "SETTINGS"], rows)
    lines = terminal()
    assert all(len(line) <= 80 for line in lines)
    words = [word for line in lines for word in line.split()]
    assert all(words.count(word) == 2 for word in settings.split())


def test_a_table_that_would_cut_a_word_is_printed_as_a_block_for_each_row(terminal):
    settings = ["a=1", "kind=partitions", "originalCompatible=false", "b" * 60, "c=" + "x" * 30]
    print_table(NODES, [["n0", "127.0.0.1:7101", "7", " ".join(settings)], ["n1", "", "-", ""]])
    assert terminal() == [
        "NODE n0",
        "  ADDRESS   127.0.0.1:7101",
        "  TERM      7",
        "  SETTINGS  a=1 kind=partitions originalCompatible=false",
        "            " + settings[3],
        "            " + settings[4],
        "NODE n1",
        "  TERM      -",
    ]


def test_a_word_that_is_longer_than_a_terminal_stays_whole_in_its_block(terminal):
    print_table(NODES, [["n0", "127.0.0.1:7101", "7", "short " + "x" * 90 + " after it"]])
    values = [line.removeprefix("  SETTINGS").strip() for line in terminal()[3:]]
    assert "".join(values[1:-1]) == "x" * 90
    assert (values[0], values[-1]) == ("short", "after it")


def test_a_table_with_too_many_columns_for_a_terminal_is_printed_row_by_row(terminal):
    columns = ["NODE", *(f">COLUMN {number:02}" for number in range(12))]
    print_table(columns, [["n0", *(str(10**7 + number) for number in range(12))]] * 2)
    lines = terminal()
    assert lines[:3] == ["NODE n0", "  COLUMN 00  10000000", "  COLUMN 01  10000001"]
    assert lines[13:15] == ["NODE n0", "  COLUMN 00  10000000"]
    assert len(lines) == 26


def test_names_of_columns_of_numbers_go_on_in_the_next_line_before_a_table_becomes_blocks(terminal):
    columns = ["TOPIC", ">PARTITION", ">COMMITTED", ">LOG END OFFSET", ">LAG", "MEMBER", "HOST"]
    print_table(columns, [["flights", "0", "52", "52", "0", "m" * 25, "127.0.0.1"]])
    *names, row = terminal()
    assert [line.split()[-1] for line in names] == ["LOG", "END", "HOST"]
    assert max(map(len, [*names, row])) <= 80
    assert row.split() == ["flights", "0", "52", "52", "0", "m" * 25, "127.0.0.1"]


def test_a_table_without_rows_has_the_names_of_its_columns(terminal):
    print_table(NODES, [])
    [names] = terminal()
    assert names.split() == ["NODE", "ADDRESS", "TERM", "SETTINGS"]
