"""What contributors read first names only what exists: paths, names, targets, versions."""

import re
import tomllib
from pathlib import Path

import pytest

from quorumlog.model.release import RELEASE

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PAGES = ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FENCE = re.compile(r"^```\n(.*?)^```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
FILE = re.compile(r"[\w.-]*\.(?:py|md|toml|lock|sh|txt|yml)|\.\w+|Makefile|LICENSE|NOTICE")
MADE_BY_SETUP = ".venv"


def code():
    """All that is written as code on the page: pieces between backticks, and lines of blocks."""
    blocks = [line for block in FENCE.findall(CONTRIBUTING) for line in block.splitlines()]
    return SPAN.findall(FENCE.sub("", CONTRIBUTING)) + [line.partition("#")[0] for line in blocks]


def words():
    return {word for piece in code() for word in re.split(r"[\s\"=]+", piece) if word}


def paths():
    """Those of the repository: with a slash, or with the name of a file."""
    found = {word for word in words() if "/" in word or FILE.fullmatch(word)}
    ours = {word for word in found if not word.startswith(("/", MADE_BY_SETUP))}
    return {word.replace("NNNN-title", "0001-packages-beyond-the-design") for word in ours}


def names():
    """Pieces that are one word of Python, such as `Replica.receive`."""
    return {piece for piece in code() if re.fullmatch(r"[A-Za-z_][\w.]*", piece)} - paths()


def test_every_path_that_contributors_are_told_exists():
    assert len(paths()) > 80
    assert [path for path in sorted(paths()) if not (ROOT / path).exists()] == []


def test_every_name_that_contributors_are_told_is_in_the_code():
    files = {file for folder in ("src", "tests") for file in (ROOT / folder).rglob("*.py")}
    texts = [file.read_text() for file in files - {Path(__file__)}]
    known = {word for text in texts for word in re.findall(r"\w+", text)}
    named = {name for name in names() - {"make"} if not (ROOT / name).exists()}
    assert len(named) > 50
    assert [name for name in sorted(named) if not set(name.split(".")) <= known] == []


def test_every_make_target_that_contributors_are_told_exists():
    targets = {target for piece in code() for target in re.findall(r"\bmake ([a-z]+)", piece)}
    made = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets >= {"setup", "test", "lint"}
    assert targets <= set(made)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_that_these_pages_link_to_exists(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text())
    ours = [target for target in targets if not target.startswith("https://")]
    assert [target for target in ours if not (ROOT / target).exists()] == []


def test_every_folder_of_tests_is_told_of():
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/*") if path.is_file()}
    assert {f"tests/{folder}" for folder in folders} <= paths()


def test_the_code_and_the_package_have_the_same_version():
    assert PROJECT["version"] == RELEASE


def test_the_versions_of_python_are_the_same_everywhere():
    versions = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if " :: 3." in line]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    setup = (ROOT / "scripts/setup.sh").read_text()
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert re.findall(r'"(3\.\d+)"', workflow) == versions
    tried = re.search(r"for candidate in ([^;]*);", setup)[1].split()
    assert [f"python{version}" for version in reversed(versions)] == tried[: len(versions)]
    assert f"Python {versions[0]} to {versions[-1]}" in " ".join(CONTRIBUTING.split())


def test_the_licence_and_the_notice_go_into_packages():
    assert PROJECT["license-files"] == ["LICENSE", "NOTICE"]
    for name in PROJECT["license-files"]:
        assert (ROOT / name).read_text().strip()
