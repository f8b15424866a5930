"""The errors that users may catch: complete, documented, and found without `quorumlog.model`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import quorumlog
from quorumlog import errors
from quorumlog.model import errors as model_errors
from quorumlog.model.errors import Outcome, QuorumlogError, RequestError

ROOT = Path(__file__).parents[2]
WORDS = {
    "did not happen": Outcome.DID_NOT_HAPPEN,
    "happened": Outcome.HAPPENED,
    "unknown": Outcome.UNKNOWN,
}


def of_tree(root):
    return {root} | {kind for child in root.__subclasses__() for kind in of_tree(child)}


def defined():
    """Return the classes of the error tree, without those of single jobs and commands."""
    return {kind for kind in of_tree(QuorumlogError) if kind.__module__ == model_errors.__name__}


def test_every_error_may_be_imported_from_one_place():
    others = {"Outcome", "ResponseCode", "Undelivered"}
    assert set(errors.__all__) == {kind.__name__ for kind in defined()} | others
    assert all(hasattr(errors, name) for name in errors.__all__)
    for name in ("EventsForgottenError", "Outcome", "QuorumlogError", "RequestError"):
        assert getattr(quorumlog, name) is getattr(errors, name)


@pytest.mark.parametrize("kind", sorted(defined(), key=lambda kind: kind.__name__))
def test_every_error_says_when_it_is_raised(kind):
    assert kind.__doc__
    assert kind.__doc__ != (kind.__base__.__doc__ or "")


def test_the_page_of_guarantees_gives_every_error_its_outcome():
    page = (ROOT / "docs" / "guarantees.md").read_text()
    rows = re.findall(r"^\| (did not happen|happened|unknown) \| (.*?) \|", page, re.MULTILINE)
    documented = {
        name: WORDS[word]
        for word, cell in rows
        for name in re.findall(r"`(\w+Error)`", cell)
        if name != "RequestError"
    }
    kinds = of_tree(RequestError) & defined() - {RequestError}
    assert documented == {kind.__name__: kind.outcome for kind in kinds}


@pytest.mark.parametrize("folder", ["README.md", "examples", "docs"])
def test_users_import_nothing_from_the_model(folder):
    place = ROOT / folder
    files = [place] if place.is_file() else [*place.rglob("*.py"), *place.glob("*.md")]
    imports = re.compile(r"^\s*(?:from|import) quorumlog\.model", re.MULTILINE)
    assert [str(file) for file in files if imports.search(file.read_text())] == []


def test_names_are_loaded_when_they_are_asked_for():
    script = (
        "import sys, quorumlog; loaded = 'quorumlog.client' in sys.modules;"
        "print(loaded, quorumlog.errors.NotLeaderError.__name__, 'quorumlog.client' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "NotLeaderError", "False"]
