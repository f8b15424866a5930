"""Stores written by the real DLedger, unpacked for each test that wants to change them."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """Return the directory of an archive's content; do not change it."""
    base = tmp_path_factory.mktemp("fixtures")

    def unpack(name):
        target = base / name
        if not target.exists():
            with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
                archive.extractall(target, filter="data")
        return target / name

    return unpack


@pytest.fixture
def manifest(unpacked):
    """Return an archive's manifest."""

    def read(name):
        return json.loads((unpacked(name) / "manifest.json").read_text())

    return read


@pytest.fixture
def copied(unpacked, tmp_path):
    """Return a copy of one replica's directory that the test may change."""

    def copy(name, *path):
        target = tmp_path / "store"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(unpacked(name).joinpath(*path), target)
        return target

    return copy


@pytest.fixture
def torn(unpacked, copied):
    """Return a damaged copy: files of a variant laid over the base, then paths deleted."""

    def lay(variant):
        target = copied("multi-term", "dledger-n0")
        source = unpacked("torn-tail") / variant
        shutil.copytree(source / "dledger-n0", target, dirs_exist_ok=True)
        for line in (source / "DELETED").read_text().split():
            (target / line).unlink()
        return target

    return lay
