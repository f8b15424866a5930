"""What every file of the project must look like."""

import ast
import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import quorumlog
from import_graph import import_graph, modules, rings

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
CLASS_LINES_MAX = 400
CLASS_ATTRIBUTES_MAX = 20
SMALL_MODULE_LINES = 60
"""A module with fewer lines and a single importer belongs into that importer, or has a reason."""
LINE_COLUMNS_MAX = 100
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager"}
EXCEPTIONS = tomllib.loads((ROOT / "tests" / "tidy.toml").read_text())
RINGS = EXCEPTIONS["rings"]
UNFINISHED = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "NotImplemented" + "Error"]))


def name_of(path):
    return str(path.relative_to(ROOT))


def requirements(path):
    lines = (ROOT / path).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def canonical(requirement):
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement)[0]).lower()


def lines_of(node):
    return node.end_lineno - node.lineno + 1


def attributes_of(tree):
    """Return what a class assigns to `self`, and the fields it declares."""
    fields = {
        node.target.id
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and "ClassVar" not in ast.unparse(node.annotation)
    }
    return fields | {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def classes():
    """Yield (module:class, its tree) for every class in src."""
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield f"{name}:{node.name}", node


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
    lengths = [(lines_of(node), node.name) for node in functions]
    assert [pair for pair in lengths if pair[0] > FUNCTION_LINES_MAX] == []
    assert ast.get_docstring(tree), "a module says what lives in it"
    assert path.stem not in BANNED_NAMES
    assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree)), (
        "use model.errors.check"
    )


def types_learned_late(tree):
    """Return the calls by which msgspec learns a type when they are first made.

    If two threads are the first, the interpreter may crash (SIGSEGV): a decoder is made when its
    module is imported.
    """
    in_functions = {
        call
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for call in ast.walk(function)
    }
    names = [
        (node, ast.unparse(node.func)) for node in ast.walk(tree) if isinstance(node, ast.Call)
    ]
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node, name in names
        if (
            re.fullmatch(r"msgspec\.\w+\.decode", name)
            and any(one.arg == "type" for one in node.keywords)
        )
        or (re.fullmatch(r"msgspec\.\w+\.Decoder", name) and node in in_functions)
    ]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_msgspec_learns_types_when_modules_are_imported(path):
    assert types_learned_late(ast.parse(path.read_text())) == []


def test_a_type_that_is_learned_late_is_found():
    early = "D = msgspec.json.Decoder(T)\ndef f(): return D.decode(b''), msgspec.toml.decode(b'')"
    assert types_learned_late(ast.parse(early)) == []
    assert len(types_learned_late(ast.parse("msgspec.json.decode(b'', type=T)"))) == 1
    assert len(types_learned_late(ast.parse("def f(): msgspec.msgpack.Decoder(T)"))) == 1


def test_classes_keep_the_limits():
    excepted = EXCEPTIONS["large_classes"] | EXCEPTIONS["records"]
    large = {
        name: f"{lines_of(tree)} lines, {len(attributes_of(tree))} attributes"
        for name, tree in classes()
        if lines_of(tree) > CLASS_LINES_MAX or len(attributes_of(tree)) > CLASS_ATTRIBUTES_MAX
    }
    assert {name: size for name, size in large.items() if name not in excepted} == {}
    assert sorted(set(excepted) - set(large)) == [], "small enough now: remove from tests/tidy.toml"


def test_a_small_module_has_several_importers_or_a_reason():
    graph, reasons = import_graph(), EXCEPTIONS["small_modules"]
    importers = {name: [one for one in graph if name in graph[one]] for name in graph}
    small = {
        name: importers[name][0]
        for name, path in modules().items()
        if path.name not in ("__init__.py", "__main__.py")
        and len(importers[name]) == 1
        and len(path.read_text().splitlines()) < SMALL_MODULE_LINES
    }
    matched = {name: [one for one in reasons if fnmatchcase(name, one)] for name in small}
    assert {name: small[name] for name in small if not matched[name]} == {}
    unneeded = set(reasons) - {one for found in matched.values() for one in found}
    assert sorted(unneeded) == [], "no longer needed: remove from tests/tidy.toml"


def test_no_modules_import_each_other():
    found = {".".join(min(ring).split(".")[:2]): sorted(ring) for ring in rings(import_graph())}
    assert {package: ring for package, ring in found.items() if package not in RINGS} == {}
    assert sorted(set(RINGS) - set(found)) == [], "open now: remove from tests/tidy.toml"


def test_a_ring_of_imports_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert rings(graph) == [{"a", "b", "c"}]


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
    extras = project["project"]["optional-dependencies"]
    for extra, names in extras.items():
        if extra not in ("jre", "docs"):  # which have lock files of their own
            wanted += [name for name in names if "quorumlog" not in name]
    lines, of_docs = requirements("requirements.lock"), requirements("requirements-docs.lock")
    pinned, pinned_for_docs = ({canonical(line) for line in each} for each in (lines, of_docs))
    assert {canonical(name) for name in wanted} <= pinned
    assert {canonical(name) for name in extras["docs"]} <= pinned_for_docs
    assert not pinned & pinned_for_docs
    for line in lines + of_docs + requirements("requirements-jre.lock"):
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)
