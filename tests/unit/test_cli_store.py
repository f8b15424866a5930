"""`store dump` on stores written by the real DLedger."""

import base64
import hashlib
import json
import os
import tarfile
from pathlib import Path

import msgspec
import pytest

from quorumlog.cli.main import main
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.log.layout import Identity, note_unsettled
from store_access import Opened

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


@pytest.mark.parametrize("kind", ["data", "index"])
@pytest.mark.parametrize("size", [0, 1_000])
def test_a_store_whose_files_were_all_cut_short_is_read_to_its_end(multi_term, capsys, kind, size):
    store = store_of(multi_term)
    first, *others = sorted((store / kind).iterdir())
    for other in others:
        other.unlink()
    os.truncate(first, size)
    assert main(["store", "verify", str(store)]) == 1
    assert main(["store", "stats", str(store)]) == 0
    capsys.readouterr()
    main(["store", "dump", str(store), "--json"])
    read = capsys.readouterr().out.splitlines()
    assert len(read) == 500 if kind == "index" else len(read) < 10


def test_for_a_directory_above_a_store_the_error_names_the_stores_below(multi_term, capsys):
    store = store_of(multi_term)
    assert main(["store", "dump", str(store.parent)]) == 1
    assert f"try {store.parent}" in capsys.readouterr().err


def test_for_a_clusters_directory_the_error_names_the_stores_two_levels_below(tmp_path, capsys):
    for node in range(12):
        (tmp_path / "c" / f"n{node:02}" / "g" / "data").mkdir(parents=True)
    status, _, err = run(capsys, "dump", tmp_path / "c")
    assert status == 1
    assert f"; try {tmp_path}/c/n00/g or {tmp_path}/c/n01/g or " in err
    assert err.endswith(f" or {tmp_path}/c/n08/g or one of 3 more\n")


def run(capsys, *arguments):
    """Run `quorumlog store …`; return exit status, output and what was said on standard error."""
    status = main(["store", *map(str, arguments)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def stores_of(multi_term):
    return sorted(path.parent for path in multi_term.rglob("data") if path.is_dir())


@pytest.fixture
def ours(tmp_path):
    """Two equal stores written by quorumlog, with 40 committed entries of 60."""
    for name in ("g", "other"):
        opened = Opened(tmp_path / name, data_file=4_000, index_file=32 * 16)
        for term in (1, 2, 3):
            opened.append([f"{term} {n} ".encode() * 20 for n in range(20)], term=term)
        opened.log.note_committed(39)
        opened.checkpoint()
        opened.close()
    return tmp_path / "g", tmp_path / "other"


def overwrite(path, offset, raw=b"?!"):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(raw)


def test_verify_says_what_is_wrong_and_where(ours, capsys):
    store, _ = ours
    status, out, _ = run(capsys, "verify", store)
    assert (status, out) == (0, "60 entries checked, 0 to 59: no findings\n")
    damaged = store / "data" / f"{4_000:020d}"
    overwrite(damaged, 100)
    overwrite(store / "index" / f"{0:020d}", 32 * 3 + 8)
    overwrite(store / "quorumlog.checkpoint", 20)
    status, out, _ = run(capsys, "verify", store)
    assert status == 1
    assert f"damaged: {damaged}: byte " in out
    assert f"index: {store}/index/{0:020d}: byte 96, entry 3: the index record does not fit" in out
    assert f"damaged copy: {store}/quorumlog.checkpoint" in out
    assert out.splitlines()[-1].endswith("3 findings")


def test_the_last_data_file_of_a_foreign_store_that_is_gone_is_a_finding(multi_term, capsys):
    """DLedger notes nowhere how far its log reached, but its index does."""
    store = store_of(multi_term)
    last = max((store / "data").iterdir())
    whole = last.read_bytes()
    before = json.loads(run(capsys, "verify", store, "--json")[1])
    for damage in (last.unlink, lambda: last.write_bytes(b""), lambda: last.write_bytes(whole[:1])):
        damage()
        status, out, _ = run(capsys, "verify", store)
        assert status == 1
        assert f"lost: {last}: byte 0, entry " in out
        lost = before["entries"] - json.loads(run(capsys, "verify", store, "--json")[1])["entries"]
        assert lost > 0
        assert f"named by {lost:,} index record" in out
        (store / "checkpoint").write_text(f"committedIndex={before['end_index']}\n")
        status, out, printed = run(capsys, "dump", store, "--json")
        assert status == 1
        assert len(out.splitlines()) == before["entries"] - lost
        assert str(last) in printed
        assert "Restore the file" in printed


@pytest.mark.parametrize("place", [16, 23, 7, 15])
def test_dump_prints_no_entry_that_its_index_record_contradicts(multi_term, capsys, place):
    """Stores of DLedger have no CRCs: a flipped bit in a term shows nowhere else."""
    store = store_of(multi_term)
    good = run(capsys, "dump", store, "--json")[1].splitlines()
    entry = json.loads(good[20])
    path = Path(entry["file"])
    raw = bytearray(path.read_bytes())
    raw[entry["offset"] + place] ^= 0x01
    path.write_bytes(raw)
    status, out, printed = run(capsys, "dump", store, "--json")
    assert status == 1
    assert out.splitlines() == good[:20]
    assert f"byte {entry['offset']}, entry 20" in printed


def test_verify_and_stats_for_programs(ours, capsys):
    store, _ = ours
    overwrite(store / "data" / f"{4_000:020d}", 100)
    status, out, _ = run(capsys, "verify", store, "--json")
    report = json.loads(out)
    assert (status, report["findings_total"], report["findings"][0]["kind"]) == (1, 1, "damaged")
    status, out, _ = run(capsys, "stats", store, "--json")
    report = json.loads(out)
    assert (status, report["entries"], report["committed_index"]) == (0, 59, 39)
    assert report["terms"] == [[1, 0], [2, 20], [3, 40]]
    assert report["identity"]["group"] == "g"


def test_verify_changes_nothing_and_works_beside_a_node(ours, capsys):
    store, _ = ours
    opened = Opened(store, data_file=4_000, index_file=32 * 16)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert run(capsys, "verify", store)[0] == 0
    assert run(capsys, "stats", store)[0] == 0
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    status, _, err = run(capsys, "repair", store, "--from", store)
    assert status == 1
    assert "in use by another process" in err
    opened.close()


def test_repair_takes_what_is_damaged_from_another_directory(ours, capsys):
    store, other = ours
    overwrite(store / "data" / f"{4_000:020d}", 100)
    overwrite(store / "index" / f"{0:020d}", 32 * 3 + 8)
    (store / "data" / f"{8_000:020d}").unlink()
    status, out, _ = run(capsys, "repair", store, "--from", other)
    assert status == 0
    assert out.endswith(" entries repaired, 1 index record repaired, no damage left\n")
    assert run(capsys, "verify", store)[:2] == (0, "60 entries checked, 0 to 59: no findings\n")
    for path in (other / "data").iterdir():
        assert (store / "data" / path.name).read_bytes() == path.read_bytes()


def test_one_entry_is_repaired_not_one_entries(ours, capsys):
    store, other = ours
    damaged = store / "data" / f"{4_000:020d}"
    overwrite(damaged, 100)
    (found,) = json.loads(run(capsys, "verify", store, "--json")[1])["findings"]
    index = found["index"]
    status, out, _ = run(capsys, "repair", store, "--from", store)
    assert status == 1
    assert out.endswith(
        f"\n0 entries repaired, 0 index records repaired, damage left in entry {index}\n"
    )
    printed = "1 entry repaired, 0 index records repaired, no damage left\n"
    assert run(capsys, "repair", store, "--from", other) == (0, printed, "")


def renamed(store, group):
    """Give a store another group's name."""
    for path in store.glob("quorumlog.identity*"):
        identity = msgspec.json.decode(path.read_bytes(), type=Identity)
        other = msgspec.structs.replace(identity, group=group)
        other = msgspec.structs.replace(other, crc=other.checksum())
        path.write_bytes(msgspec.json.encode(other))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_repair_takes_nothing_from_another_group(ours, capsys, tmp_path, is_damaged):
    store, other = ours
    foreign = Opened(tmp_path / "foreign", data_file=4_000, index_file=32 * 16)
    foreign.append([f"F {n} ".encode() * 20 for n in range(60)])
    foreign.log.note_committed(39)
    foreign.checkpoint()
    foreign.close()
    if is_damaged:
        overwrite(store / "data" / f"{0:020d}", 100)
    status, out, err = run(capsys, "repair", store, "--from", other, "--from", tmp_path / "foreign")
    assert (status, out) == (1, "")
    assert f"{tmp_path}/foreign is no replica of {store}: entry " in err
    renamed(other, "h")
    status, out, err = run(capsys, "repair", store, "--from", other)
    assert (status, out) == (1, "")
    assert f"{other} holds group 'h', but {store} group 'g'" in err
    assert run(capsys, "verify", store)[0] == is_damaged


def test_replicas_whose_uncommitted_entries_differ_repair_each_other(ours, capsys):
    store, other = ours
    assert run(capsys, "truncate", other, "--from", 40)[0] == 0
    opened = Opened(other, data_file=4_000, index_file=32 * 16)
    opened.append([b"of another leader"], term=7)
    opened.checkpoint()
    opened.close()
    overwrite(store / "data" / f"{4_000:020d}", 100)
    assert run(capsys, "repair", store, "--from", other)[0] == 0


def test_repair_from_a_directory_with_other_damage_says_what_is_left(ours, capsys):
    store, other = ours
    for directory in ours:
        overwrite(directory / "data" / f"{4_000:020d}", 100)
    status, out, _ = run(capsys, "repair", store, "--from", other, "--json")
    report = json.loads(out)
    assert status == 1
    assert report["found"] == report["left"]
    assert "does not fit" in report["reasons"][0]


def test_truncate_keeps_what_is_committed(ours, capsys):
    store, _ = ours
    status, _, err = run(capsys, "truncate", store, "--from", 39)
    assert status == 1
    assert "entry 39 is committed" in err
    assert run(capsys, "truncate", store, "--from", 40)[:2] == (
        0,
        "20 entries removed, from 40 on\n",
    )
    assert run(capsys, "verify", store)[1].startswith("40 entries checked, 0 to 39")


def test_truncate_beyond_the_end_says_so_as_dump_does(ours, capsys):
    store, _ = ours
    for start in (60, 10**9):
        status, out, err = run(capsys, "truncate", store, "--from", start)
        assert (status, out) == (3, "")
        end = f"index {start} is beyond the end of {store}: its last index is 59"
        assert err == f"quorumlog: {end}; nothing was removed\n"
        assert run(capsys, "dump", store, "--from", start)[::2] == (3, f"quorumlog: {end}\n")
    printed = "1 entry removed, from 59 on\n"
    assert run(capsys, "truncate", store, "--from", 59)[:2] == (0, printed)


def test_160_a_store_of_the_original_is_checked_and_repaired_like_ours(multi_term, capsys):
    store, other, _ = stores_of(multi_term)
    before = {path.name: path.read_bytes() for path in (store / "data").iterdir()}
    status, out, _ = run(capsys, "verify", store)
    assert status == 0
    assert "500 of them without CRCs (written by DLedger)" in out
    (store / "data" / f"{131_072 * 3:020d}").unlink()
    overwrite(store / "data" / f"{131_072:020d}", 8, b"\xff")
    status, out, _ = run(capsys, "verify", store)
    assert status == 1
    assert "the file that should be here is missing" in out
    assert run(capsys, "repair", store, "--from", other)[0] == 0
    assert {path.name: path.read_bytes() for path in (store / "data").iterdir()} == before


def test_no_directory_no_store(tmp_path, capsys):
    for command in ("verify", "stats", "dump"):
        status, _, err = run(capsys, command, tmp_path / "nothing")
        assert status == 1
        assert "no such directory" in err


def test_settle_refuses_a_directory_that_is_no_node_and_changes_nothing_in_it(tmp_path, capsys):
    """It made a lock there, and removed what is called as a journal's files are."""
    node = tmp_path / "n0"
    Opened(node / "g").group.close()
    (node / "quorumlog.lock").touch()
    mine = tmp_path / "mine"
    mine.mkdir()
    names = ["list-of-friends", "notes", "segment.txt"]
    for name in names:
        (mine / name).write_text("mine")
    for arguments, said in (
        ([mine], "mine is no node's directory"),
        ([node / "g"], "is the directory of one group; give the node's directory above it"),
        ([node, "--journal", mine], "mine is no journal's directory: list-of-friends is no part"),
        ([node, "--journal", tmp_path / "none"], "none: no such directory"),
    ):
        assert main(["store", "settle", *map(str, arguments)]) == 1
        error = capsys.readouterr().err
        assert said in error
        assert "nothing is changed" in error
    assert sorted(path.name for path in mine.iterdir()) == [
        "list-of-friends",
        "notes",
        "segment.txt",
    ]
    assert main(["store", "settle", str(node)]) == 0


def test_settle_says_once_why_several_groups_cannot_be_settled(tmp_path, capsys):
    """The text was there for each group, in the log and in one line of thousands of characters."""
    node, names = tmp_path / "n0", [f"g{number:02}" for number in range(10)]
    for name in names:
        Opened(node / name).group.close()
        note_unsettled(OsFileSystem(), str(node / name), "", 7, [])
    assert main(["store", "settle", str(node)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.count("is gone") == 1
    assert f"{node / 'g00'}, {node / 'g01'}, " in error
    assert f"{node / 'g07'} and 2 more: " in error
