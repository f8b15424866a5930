"""`store dump` on stores written by the real DLedger."""

import base64
import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from quorumlog.cli.main import main

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def multi_term(tmp_path):
    with tarfile.open(FIXTURES / "multi-term.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (manifest,) = tmp_path.rglob("manifest.json")
    return manifest.parent


def store_of(multi_term):
    return min(path.parent for path in multi_term.rglob("data") if path.is_dir())


def test_160_every_entry_of_a_foreign_store_is_shown_as_its_manifest_says(multi_term, capsys):
    store = store_of(multi_term)
    assert main(["store", "dump", str(store), "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    manifest = json.loads((multi_term / "manifest.json").read_text())
    stated = manifest["nodes"][store.name.removeprefix("dledger-")]["entries"]
    assert len(shown) == len(stated)
    for entry, expected in zip(shown, stated, strict=True):
        body = base64.b64decode(entry["body_base64"])
        assert hashlib.sha256(body).hexdigest() == expected["sha256"]
        for field in ("index", "term", "pos", "size", "magic"):
            assert entry[field] == expected[field]


def test_160_one_entry_at_an_index_with_its_file_and_a_preview(multi_term, capsys):
    store = store_of(multi_term)
    assert main(["store", "dump", str(store), "--from", "40", "--count", "2"]) == 0
    file, heading, first, second = capsys.readouterr().out.splitlines()
    assert file.startswith(f"{store}/data/")
    assert heading.split()[:4] == ["INDEX", "TERM", "POS", "SIZE"]
    assert first.split()[0] == "40"
    assert second.split()[0] == "41"
    assert len(first) < 160


def test_a_directory_above_the_store_is_answered_with_the_stores_below(multi_term, capsys):
    store = store_of(multi_term)
    assert main(["store", "dump", str(store.parent)]) == 1
    assert f"try {store.parent}" in capsys.readouterr().err
