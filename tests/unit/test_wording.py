"""Numbers in sentences: `1 node`, never `1 nodes`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog.model.wording import TEXT_MAX, counted, entries_text, sendable, there_is_no

SOURCE = Path(__file__).resolve().parents[2] / "src"
NOUNS = (
    "appends|archives|batches|blocks|bodies|brokers|channels|clients|clusters|commands|connections|"
    "entries|errors|events|faults|files|findings|gaps|groups|indexes|keys|learners|lines|members|"
    "messages|nodes|others|partitions|peers|ports|positions|producers|records|replicas|requests|"
    "results|retries|rounds|rows|seeds|segments|servers|snapshots|stores|tables|tasks|terms|topics|"
    "transactions|voters"
)
ADJECTIVES = "acknowledged|damaged|free|index|open|other"
COUNTS = re.compile(rf"^ (?:(?:{ADJECTIVES}) )?(?:{NOUNS})\b(?!/s)")
"""What follows a number that is put into a text, if it says what is counted: `{n} free nodes`."""


def test_a_count_of_one_is_said_in_the_singular():
    assert [counted(n, "file") for n in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
    assert counted(2, "node does", "nodes do") == "2 nodes do"
    assert counted(12_000, "file") == "12,000 files"
    assert [entries_text(n) for n in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]


def test_a_text_of_any_program_can_be_sent():
    assert sendable("grün \U0001f600 \ud800\udcff") == "grün \U0001f600 ??"
    assert sendable("x" * TEXT_MAX) == "x" * TEXT_MAX
    assert sendable("x" * (TEXT_MAX + 1)).startswith("x" * TEXT_MAX + "… (")


def plurals(tree: ast.AST) -> Iterator[str]:
    """Yield the parts of f-strings that count something, and are wrong if it is one."""
    for text in ast.walk(tree):
        if not isinstance(text, ast.JoinedStr):
            continue
        for value, after in zip(text.values, text.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(after, ast.Constant):
                continue
            found = COUNTS.match(str(after.value))
            if found is not None and not is_never_one(value.value):
                yield f"{{{ast.unparse(value.value)}}}{found.group()}"


def is_never_one(expression: ast.expr) -> bool:
    """Whether a number is a bound (`GROUPS_MAX`, `limits.groups_max`), above 1; or no number."""
    name = ast.unparse(expression).rpartition(".")[2]
    return name.isupper() or name.endswith(("_max", "most", "directory", "size"))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('f"{n} nodes"', ["{n} nodes"]),
        ('f"{len(nodes)} other nodes were found"', ["{len(nodes)} other nodes"]),
        ('f"{NODES_MAX} nodes"', []),
        ('f"{rate} entries/s"', []),
        ("f\"{counted(n, 'node')} and more\"", []),
    ],
)
def test_a_plural_after_a_number_is_found(source, found):
    assert list(plurals(ast.parse(source))) == found


def test_no_text_says_1_nodes():
    found = {
        f"{path.relative_to(SOURCE)}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        for text in plurals(ast.parse(path.read_text()))
    }
    assert found == set(), "use quorumlog.model.wording.counted"


def test_what_was_asked_for_is_not_what_may_be_meant():
    """A broker may still name what a majority says is gone."""
    assert "mean" not in there_is_no("topic", ["flights"], ["flights", "z"], "list")
    text = there_is_no("topic", ["flights"], ["flights", "flight"], "list")
    assert "did you mean 'flight'?" in text
