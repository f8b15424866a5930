"""Writes docs/spec/coverage.md: the tests of each scenario of spec 90, or why it has none.

A test carries the numbers that its name begins with and those that its docstring cites. Run as a
program it writes the page; test_citations.py checks that the page is current.
"""

import ast
import tomllib
from functools import cache
from typing import NamedTuple

from citations import ROOT, SPEC, citations, of_test, scenarios

TESTS = ROOT / "tests"
PAGE = SPEC / "coverage.md"
REASONS = TESTS / "untested_scenarios.toml"
HEAD = """# Tests of the scenarios

`tests/spec_coverage.py` writes this page from the names and docstrings of the tests and from
`tests/untested_scenarios.toml`; do not edit it. {tested} of the {total} scenarios of
[spec 90](90-scenarios.md) have tests that carry their number; of the others the table says why.

| scenario | tests, or why there are none |
| --- | --- |
"""


class Reason(NamedTuple):
    """Why no test carries a scenario's number."""

    text: str
    tests: tuple[str, ...]


@cache
def all_tests():
    """Return (file, name, numbers carried) of every test but those of citations themselves."""
    return tuple(_tests())


def _tests():
    for path in sorted(TESTS.rglob("test_*.py")):
        if path == TESTS / "test_citations.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and node.name.startswith("test_"):
                yield str(path.relative_to(TESTS)), node.name, _carried(node)


def _carried(node):
    found = [*of_test(node.name)]
    found += [(kind, name) for kind, name, _ in citations(ast.get_docstring(node) or "")]
    return {int(name) for kind, name in found if kind == "scenario"}


def numbered():
    """Return scenario → its tests as file::name."""
    found = {}
    for file, name, numbers in all_tests():
        for number in numbers:
            found.setdefault(number, []).append(f"{file}::{name}")
    return found


def reasons():
    """Return scenario → why no test carries its number."""
    found = {}
    for entry in tomllib.loads(REASONS.read_text())["reason"]:
        for number in entry["scenarios"]:
            if number in found:
                raise ValueError(f"scenario {number} has two reasons")
            found[number] = Reason(entry["text"], tuple(entry.get("tests", ())))
    return found


def page():
    """Return the page as it should be."""
    tested, why = numbered(), reasons()
    lines = []
    for number in scenarios():
        reason = why.get(number, Reason("", ()))
        cells = [reason.text] if reason.text else []
        cells += [f"`{test}`" for test in sorted({*tested.get(number, ()), *reason.tests})]
        lines.append(f"| {number} | {'<br>'.join(cells)} |\n")
    return HEAD.format(tested=len(tested), total=len(scenarios())) + "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
