"""An export without Spark: a log in memory, files on disk, pieces carried out on the spot."""

import base64
import csv
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_access import LogInMemory, run_here
from quorumlog.model.errors import (
    CorruptionError,
    IndexOutOfRangeError,
    IndexRemovedError,
    UnexpectedArgumentError,
)
from quorumlog.spark.jobs.export.export import ExportOptions, export_with
from quorumlog.spark.jobs.export.rows import ExportedRow, csv_lines, encoded_body, json_lines
from quorumlog.spark.jobs.output_files import OutputFileSystem
from quorumlog.spark.jobs.tasks import PipelineError

BODIES = [
    b'{"flight": 1545, "carrier": "UA"}',
    'Übergröße, "quoted"\nand on a second line\r\n'.encode(),
    b"\xff\xfe no text",
    b"",
    b"[1,\n 2.50]",
    b"comma, semicolon; \x00",
]


@pytest.fixture
def log():
    made = LogInMemory().append_noop(1)
    for number in range(60):
        made.append(BODIES[number % len(BODIES)], channel=number % 3)
    return made.append_bookkeeping()


def export(log, path, carry_out=run_here, **options):
    return export_with(
        log, path, ExportOptions(**{"file_bytes": 1_000, "cores": 2, **options}), carry_out
    )


def bodies_of(rows):
    return [
        base64.b64decode(row["body"]) if row["body_encoding"] == "base64" else row["body"].encode()
        for row in rows
    ]


def json_rows(*paths):
    return [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]


def csv_rows(*paths):
    found = []
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            found += csv.DictReader(file)
    return found


def expected(log):
    return [(entry.index, entry.term, entry.channel) for entry in log.entries() if entry.is_data]


def places(rows):
    return [(int(row["index"]), int(row["term"]), int(row["channel"])) for row in rows]


# -- what is written -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "rows_of"), [("json", json_rows), ("csv", csv_rows)])
@pytest.mark.parametrize("single_file", [True, False])
@pytest.mark.parametrize("bodies", ["text", "base64"])
def test_what_is_exported_is_what_is_in_the_log(log, tmp_path, kind, rows_of, single_file, bodies):
    path = tmp_path / "out"
    result = export(log, path, format=kind, single_file=single_file, bodies=bodies)
    files = [path] if single_file else sorted(path.glob("part-*"))
    assert len(files) == result.files
    assert single_file or len(files) > 3
    rows = rows_of(*files)
    assert places(rows) == expected(log)
    assert bodies_of(rows) == [BODIES[number % len(BODIES)] for number in range(60)]
    assert (result.rows, result.first_index, result.last_index) == (60, 0, 61)
    assert result.base64_rows == (60 if bodies == "base64" else 10)
    assert result.bytes == sum(file.stat().st_size for file in files)


def test_json_bodies_are_embedded_as_values(log, tmp_path):
    result = export(log, tmp_path / "out", bodies="json", single_file=True)
    rows = json_rows(tmp_path / "out")
    assert [row["body"] for row in rows[:6:4]] == [{"flight": 1545, "carrier": "UA"}, [1, 2.5]]
    assert [row["body_encoding"] for row in rows[:4]] == ["json", "utf-8", "base64", "utf-8"]
    assert result.base64_rows == 10


@pytest.mark.parametrize(
    "body", [b"NaN", b"1e999", b'"\xff"', b"{} {}", b"'a'", b"[" * 9_000, b'"a\nb"']
)
def test_what_is_no_json_is_text_or_base64(body):
    encoded, encoding = encoded_body(body, "json")
    assert encoding in {"utf-8", "base64"}
    assert bodies_of([{"body": encoded, "body_encoding": encoding}]) == [body]


@given(st.lists(st.binary(max_size=40) | st.text(max_size=40).map(str.encode), min_size=1))
def test_any_bodies_come_back_from_json_and_csv(bodies):
    rows = [
        ExportedRow(index, 1, 0, *encoded_body(body, "text")) for index, body in enumerate(bodies)
    ]
    assert bodies_of(map(json.loads, json_lines(rows).split(b"\n")[:-1])) == bodies
    lines = csv_lines(rows).decode().splitlines(keepends=True)
    records = csv.DictReader(lines, fieldnames=ExportedRow.__struct_fields__)
    assert bodies_of(records) == bodies


def test_a_part_of_the_log_is_exported(log, tmp_path):
    export(log, tmp_path / "out", first=10, last=19, single_file=True)
    assert [index for index, *_ in places(json_rows(tmp_path / "out"))] == list(range(10, 20))


def test_rejected_entries_of_transactions_are_not_exported(log, tmp_path):
    log.rejected = [(5, 8)]
    assert export(log, tmp_path / "out").rows == 56


def test_an_empty_log_is_an_empty_export(tmp_path):
    export(LogInMemory(), tmp_path / "rows.csv", format="csv", single_file=True)
    assert csv_rows(tmp_path / "rows.csv") == []
    assert (tmp_path / "rows.csv").read_text().startswith('"index","term"')
    assert export(LogInMemory(), tmp_path / "dir").first_index is None
    assert [path.name for path in (tmp_path / "dir").iterdir()] == ["_export.json"]


# -- how it appears --------------------------------------------------------------------------------


@pytest.mark.parametrize("single_file", [True, False])
def test_an_existing_path_is_replaced_only_on_request(log, tmp_path, single_file):
    path = tmp_path / "out"
    export(log, path, single_file=single_file)
    with pytest.raises(PipelineError, match="--overwrite"):
        export(log, path, single_file=single_file)
    result = export(log, path, single_file=single_file, overwrite=True, first=50)
    assert result.rows == 11
    assert places(json_rows(*([path] if single_file else sorted(path.glob("part-*")))))[0][0] == 50
    assert [left.name for left in tmp_path.iterdir()] == ["out"]


def test_only_what_an_export_made_is_overwritten(log, tmp_path):
    mine = tmp_path / "thesis"
    mine.mkdir()
    (mine / "chapter-1.tex").write_text("years of work")
    for single_file in (True, False):
        with pytest.raises(PipelineError, match="is not overwritten"):
            export(log, mine, overwrite=True, single_file=single_file)
    file = tmp_path / "notes"
    file.write_text("more work")
    with pytest.raises(PipelineError, match="is not overwritten"):
        export(log, file, overwrite=True)
    assert [path.name for path in mine.iterdir()] == ["chapter-1.tex"]
    assert file.read_text() == "more work"


@pytest.mark.parametrize("single_file", [True, False])
def test_a_path_that_appears_meanwhile_is_not_replaced(log, tmp_path, single_file):
    path = tmp_path / "out"

    def late(pieces):
        if not path.exists():
            path.write_text("somebody else's")
        return run_here(pieces)

    with pytest.raises(PipelineError, match="exists"):
        export(log, path, late, single_file=single_file)
    assert path.read_text() == "somebody else's"
    assert [left.name for left in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("single_file", [True, False])
def test_a_failed_export_leaves_nothing(log, tmp_path, single_file):
    log.damage = 1
    with pytest.raises(CorruptionError):
        export(log, tmp_path / "out", single_file=single_file)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_dead_export_are_removed_and_of_a_live_one_are_not(log, tmp_path):
    dead, live, other = (
        tmp_path / f".{name}.tmp" for name in ("out.0abcdef0", "out.1abcdef1", "x")
    )
    for path in (dead, live, other):
        path.mkdir()
        (path / "part").write_bytes(b"x")
    lock = OutputFileSystem().lock(str(live))
    export(log, tmp_path / "out")
    lock.release()
    assert not dead.exists()
    assert live.exists()
    assert other.exists()


def test_what_was_being_replaced_comes_back_after_a_crash(log, tmp_path):
    export(log, tmp_path / "out")
    os.rename(tmp_path / "out", tmp_path / ".out.0abcdef0.old")  # between two renames
    with pytest.raises(PipelineError, match="exists"):
        export(log, tmp_path / "out")
    assert (tmp_path / "out" / "_export.json").exists()


def test_a_task_that_was_tried_twice_leaves_no_second_file(log, tmp_path):
    def with_a_stray(pieces):
        (next(tmp_path.glob(".out.*.tmp")) / "part-0-1.jsonl.deadbeef").write_bytes(b"half")
        return run_here([*pieces, pieces[0]])[: len(pieces)]

    result = export(log, tmp_path / "out", with_a_stray)
    assert len(list((tmp_path / "out").glob("part-*"))) == result.files
    describe_error = json.loads((tmp_path / "out" / "_export.json").read_bytes())
    assert (describe_error["rows"], describe_error["group"]) == (60, "g")


def test_a_directory_that_is_not_shared_with_the_tasks_is_noticed(log, tmp_path):
    def elsewhere(pieces):
        results = run_here(pieces)
        next(tmp_path.glob(".out.*.tmp/part-*")).unlink()
        return results

    with pytest.raises(PipelineError, match="must see the same directory"):
        export(log, tmp_path / "out", elsewhere)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"format": "xml"}, UnexpectedArgumentError),
        ({"bodies": "hex"}, UnexpectedArgumentError),
        ({"format": "csv", "bodies": "json"}, UnexpectedArgumentError),
        ({"first": 9, "last": 7}, UnexpectedArgumentError),
        ({"first": 2}, IndexRemovedError),
        ({"last": 62}, IndexOutOfRangeError),
    ],
)
def test_what_cannot_be_exported_is_refused_before_anything_is_written(
    log, tmp_path, options, error
):
    log.begin = 3
    with pytest.raises(error):
        export(log, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []
