"""The pure packages stay pure: two runs with the same input cannot differ."""

import ast
from pathlib import Path

import pytest

import quorumlog

ROOT = Path(quorumlog.__file__).parent
FORBIDDEN = {
    "asyncio",
    "datetime",
    "logging",
    "os",
    "random",
    "secrets",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
FILES = [path for room in ("raft", "wire", "model") for path in sorted((ROOT / room).rglob("*.py"))]


def imported_at_run_time(tree):
    """Names of modules imported, those for type checkers only left out."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        todo.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_clock_chance_or_input_output(path):
    modules = {name.split(".")[0] for name in imported_at_run_time(ast.parse(path.read_text()))}

    assert not modules & FORBIDDEN


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name == "raft"])
def test_the_core_imports_only_itself_and_the_model(path):
    ours = {
        ".".join(name.split(".")[:2])
        for name in imported_at_run_time(ast.parse(path.read_text()))
        if name.startswith("quorumlog")
    }

    assert ours <= {"quorumlog.raft", "quorumlog.model"}
