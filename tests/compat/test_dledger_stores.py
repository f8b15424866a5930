"""Stores of the real DLedger open here, entry for entry, and what we write has their layout."""

import hashlib

import numpy as np
import pytest

from quorumlog.model.block import INDEX_RECORD_DTYPE, parse_block
from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.model.hard_state import HardState
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.offline.store_files import scan_store
from store_access import ENTRY_MAX, Opened

NODES = ("n0", "n1", "n2")
STORES = [("multi-term", node, ()) for node in NODES] + [("noop", node, ()) for node in NODES]
STORES += [
    ("truncated-follower", node, (state,)) for node in NODES for state in ("before", "after")
]
TORN = (
    "torn-body",
    "torn-header",
    "torn-size-only",
    "torn-file-cut",
    "torn-index-tail",
    "index-deleted",
)
SIZES = {"data_file": 131_072, "index_file": 4_096}


def expected_entries(manifest, name, node, state):
    nodes = manifest(name)["nodes"]
    for key in state:
        nodes = nodes[key]
    return nodes[node]["entries"]


def same(entry, expected):
    return (
        entry.index == expected["index"]
        and entry.term == expected["term"]
        and entry.pos == expected["pos"]
        and entry.magic == expected["magic"]
        and entry.channel == expected["channel"]
        and 48 + len(entry.body) == expected["size"]
        and hashlib.sha256(entry.body).hexdigest() == expected["sha256"]
    )


@pytest.mark.parametrize(("name", "node", "state"), STORES)
def test_every_entry_is_read_without_a_server(unpacked, manifest, name, node, state):
    directory = unpacked(name).joinpath(*state, f"dledger-{node}")
    found = [entry for entry, _, _ in scan_store(OsFileSystem(), str(directory))]
    expected = expected_entries(manifest, name, node, state)
    assert len(found) == len(expected)
    assert all(map(same, found, expected))


@pytest.mark.parametrize(("name", "node", "state"), STORES)
def test_every_store_opens_in_place(copied, manifest, name, node, state):
    directory = copied(name, *state, f"dledger-{node}")
    before = {path: path.read_bytes() for path in directory.rglob("0*")}
    opened = Opened(directory)
    expected = expected_entries(manifest, name, node, state)
    assert opened.log.end_index == len(expected) - 1
    assert all(map(same, opened.entries(), expected))
    opened.close()
    end = expected[-1]["pos"] + expected[-1]["size"]
    for path, raw in before.items():  # a truncation by DLedger leaves bytes behind the end
        used = end - int(path.name) if path.parent.name == "data" else 32 * len(expected)
        assert path.read_bytes()[: max(0, used)] == raw[: max(0, used)]


def test_term_and_vote_of_the_original_are_taken_over(copied, unpacked):
    for node in NODES:
        raw = (unpacked("multi-term") / f"dledger-{node}" / "currterm").read_text()
        values = dict(line.split("=") for line in raw.split() if "=" in line)
        opened = Opened(copied("multi-term", f"dledger-{node}"))
        assert opened.group.hard_state == HardState(
            int(values["currTerm"]), values["voteLeader"] or None
        )
        opened.close()


def test_appends_go_on_in_a_store_of_the_original(copied, manifest):
    directory = copied("multi-term", "dledger-n0")
    opened = Opened(directory, **SIZES)
    opened.append([b"new" * 100] * 500, term=6)
    opened.checkpoint()
    opened.close()
    again = Opened(directory, **SIZES)
    entries = again.entries()
    assert len(entries) == 1_000
    assert all(map(same, entries, expected_entries(manifest, "multi-term", "n0", ())))
    assert {entry.body for entry in entries[500:]} == {b"new" * 100}
    assert [entry.chain_crc for entry in entries[:500]] == [0] * 500
    assert all(entry.chain_crc for entry in entries[500:])
    again.close()


@pytest.mark.parametrize("variant", TORN)
def test_57_a_torn_tail_is_cut_and_never_served(torn, manifest, variant):
    directory = torn(variant)
    expected = expected_entries(manifest, "multi-term", "n0", ())
    damaged = manifest("torn-tail")["variants"][variant]["served_with_wrong_body"] or []
    opened = Opened(directory)
    found = opened.entries()
    assert len(found) >= 499
    assert all(map(same, found, expected))
    assert not [entry.index for entry in found if entry.index in damaged]
    opened.close()
    again = Opened(directory)
    assert again.entries() == found
    assert again.group.report.cut_bytes == 0
    again.close()


@pytest.mark.parametrize("variant", ["torn-index-tail", "index-deleted"])
def test_58_59_index_records_are_made_again_from_the_data(torn, unpacked, variant):
    directory = torn(variant)
    Opened(directory, **SIZES).close()
    for path in sorted((unpacked("multi-term") / "dledger-n0" / "index").iterdir()):
        assert (directory / "index" / path.name).read_bytes() == path.read_bytes()


def blocks_of(directory, entries):
    """The fixture's own bytes, as pushes of up to 40 entries (never over a file's end)."""
    files = {int(path.name): path.read_bytes() for path in sorted((directory / "data").iterdir())}
    pieces = []
    for entry in entries:
        start = entry["pos"] // 131_072 * 131_072
        offset = entry["pos"] - start
        raw = files[start][offset : offset + entry["size"]]
        if pieces and pieces[-1][1] < 40:
            pieces[-1] = (pieces[-1][0] + raw, pieces[-1][1] + 1)
        else:
            pieces.append((raw, 1))
    for raw, count in pieces:
        yield parse_block(memoryview(bytearray(raw)), count=count, entry_bytes_max=ENTRY_MAX)


def test_a_follower_writes_the_same_bytes_as_the_original(unpacked, manifest, tmp_path):
    source = unpacked("multi-term") / "dledger-n0"
    opened = Opened(tmp_path / "ours", **SIZES)
    for block in blocks_of(source, expected_entries(manifest, "multi-term", "n0", ())):
        opened.waiting.append(opened.log.append_received(block))
        opened.run()
    opened.close()
    for room in ("data", "index"):
        names = sorted(path.name for path in (source / room).iterdir())
        assert sorted(path.name for path in (tmp_path / "ours" / room).iterdir()) == names
        for name in names:
            ours = (tmp_path / "ours" / room / name).read_bytes()
            assert ours == (source / room / name).read_bytes(), f"{room}/{name}"


def test_a_leader_writes_the_same_bytes_but_for_the_crcs(unpacked, manifest, tmp_path):
    source = unpacked("multi-term") / "dledger-n0"
    expected = expected_entries(manifest, "multi-term", "n0", ())
    theirs = [entry for entry, _, _ in scan_store(OsFileSystem(), str(source))]
    opened = Opened(tmp_path / "ours", **SIZES)
    for start in range(0, 500, 20):  # terms change every 100 entries
        part = theirs[start : start + 20]
        opened.append([entry.body for entry in part], term=part[0].term)
    opened.close()
    for path in sorted((tmp_path / "ours" / "data").iterdir()):
        ours = bytearray(path.read_bytes())
        for entry in expected:
            offset = entry["pos"] - int(path.name)
            if 0 <= offset < len(ours):
                ours[offset + 36 : offset + 44] = bytes(8)
        assert bytes(ours) == (source / "data" / path.name).read_bytes(), path.name
    for path in sorted((tmp_path / "ours" / "index").iterdir()):
        assert path.read_bytes() == (source / "index" / path.name).read_bytes(), path.name


def test_noop_index_records_of_the_original_may_say_normal(copied):
    magics = set()
    for node in NODES:
        directory = copied("noop", f"dledger-{node}")
        index = (directory / "index" / f"{0:020d}").read_bytes()
        opened = Opened(directory)
        noops = [entry for entry in opened.entries() if entry.magic == 2]
        assert noops
        assert opened.group.report.repaired_index_records == 0
        table = np.frombuffer(index, INDEX_RECORD_DTYPE)
        magics |= {int(table[entry.index]["magic"]) for entry in noops}
        opened.close()
    assert magics == {1, 2}


def test_a_directory_of_something_else_is_refused_clearly(tmp_path):
    with pytest.raises(StorageError, match="is this a group directory"):
        list(scan_store(OsFileSystem(), str(tmp_path)))


def test_a_damaged_entry_ends_the_scan_with_file_and_byte(copied, manifest):
    directory = copied("multi-term", "dledger-n0")
    victim = expected_entries(manifest, "multi-term", "n0", ())[250]
    start = victim["pos"] // 131_072 * 131_072
    path = directory / "data" / f"{start:020d}"
    raw = bytearray(path.read_bytes())
    raw[victim["pos"] - start + 4] ^= 0x01  # its size
    path.write_bytes(bytes(raw))
    found = []
    scan = scan_store(OsFileSystem(), str(directory))
    with pytest.raises(CorruptionError) as caught:
        found.extend(entry.index for entry, _, _ in scan)
    assert found == list(range(250))
    assert (caught.value.file, caught.value.index) == (str(path), 250)
    assert caught.value.position == victim["pos"] - start


@pytest.mark.parametrize(("stated", "expected"), [("90", 90), ("100000", 499), ("-1", -1)])
def test_56_the_committed_index_of_version_0_2_7_is_taken_over(copied, stated, expected):
    text = f"#Sat Nov 21 10:00:00 UTC 2026\ncommittedIndex={stated}\nendIndex=99\n"
    directory = copied("multi-term", "dledger-n0")
    (directory / "checkpoint").write_text(text)
    opened = Opened(directory, **SIZES)
    assert opened.group.committed_index == expected
    opened.close()
