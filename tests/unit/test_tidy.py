"""What every file of the project must look like."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import quorumlog

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
LINE_COLUMNS_MAX = 100
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager"}
UNFINISHED = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "NotImplemented" + "Error"]))


def name_of(path):
    return str(path.relative_to(ROOT))


def requirements(path):
    lines = (ROOT / path).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def canonical(requirement):
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement)[0]).lower()


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=name_of)
def test_file_keeps_the_limits(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= FILE_LINES_MAX
    assert [number for number, line in enumerate(lines, 1) if len(line) > LINE_COLUMNS_MAX] == []
    assert [number for number, line in enumerate(lines, 1) if UNFINISHED.search(line)] == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_source_keeps_the_limits(path):
    tree = ast.parse(path.read_text())
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lengths = {node.name: node.end_lineno - node.lineno + 1 for node in functions}
    assert {name: n for name, n in lengths.items() if n > FUNCTION_LINES_MAX} == {}
    assert ast.get_docstring(tree), "a module says what lives in it"
    assert path.stem not in BANNED_NAMES
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree)), (
        "use model.errors.check"
    )


def test_exported_names_exist_and_are_all_that_is_public():
    assert len(set(quorumlog.__all__)) == len(quorumlog.__all__)
    for name in quorumlog.__all__:
        assert getattr(quorumlog, name, None) is not None
    tree = ast.parse(Path(quorumlog.__file__).read_text())
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }
    assert {name for name in imported if not name.startswith("_")} <= set(quorumlog.__all__)


def test_lock_pins_every_dependency_and_names_no_index():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"]) + project["build-system"]["requires"]
    for extra, names in project["project"]["optional-dependencies"].items():
        wanted += [name for name in names if extra != "jre" and "quorumlog" not in name]
    lines = requirements("requirements.lock")
    assert {canonical(name) for name in wanted} <= {canonical(line) for line in lines}
    for line in lines + requirements("requirements-jre.lock"):
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)
