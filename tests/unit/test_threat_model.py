"""The threat model names a test for each defence: each of them exists."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "security.md"
NAMED = re.compile(r"`((?:unit|integration|properties|torture)/\w+\.py)(?:::(\w+))?`")


def rows():
    """Yield the rows of the table of attackers: what is done about something, and what shows it."""
    text = PAGE.read_text().partition("**Attackers, and what is defended**")[2]
    table = text.partition("### What is not defended")[0]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and not set(line) <= set("|- ") and cells[0] != "who":
            yield cells[2], NAMED.findall(cells[3])


def test_each_defence_has_a_test():
    assert len(list(rows())) > 15
    assert [defence for defence, shown in rows() if not shown] == []


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(PAGE.read_text()))))
def test_what_is_named_exists(file, name):
    tree = ast.parse((TESTS / file).read_text())
    functions = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not name or name in functions
