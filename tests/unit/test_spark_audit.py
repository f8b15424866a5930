"""Audits of small stores: each fault that is planted is found as what it is, and nothing else."""

import random
import shutil
import struct
from pathlib import Path

import pytest

from audit_access import (
    DATA_FILE,
    INDEX_FILE,
    NAMES,
    RANGES,
    WHOLE,
    audit,
    flip,
    forget_notes,
    found,
    make,
    overwrite,
    places,
    rewrite,
    unpacked,
)
from quorumlog.model.membership import Membership
from store_access import Opened

both_ways = pytest.mark.parametrize("range_bytes", [WHOLE, RANGES])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    base = tmp_path_factory.mktemp("made")
    return [make(base / name, name) for name in NAMES]


@pytest.fixture
def stores(made, tmp_path):
    """Three equal replicas of group `g` with entries 0 to 99, up to 80 known as committed."""
    return [Path(shutil.copytree(store, tmp_path / store.name)) for store in made]


@pytest.fixture
def original(tmp_path):
    """Return copies of three stores that the original wrote."""
    return lambda name, *below: unpacked(tmp_path / "original", name, *below)


# -- nothing to find ------------------------------------------------------------------------------


@both_ways
def test_equal_replicas_have_no_findings_and_the_report_says_what_they_hold(stores, range_bytes):
    report, findings = audit(stores, range_bytes)
    assert (findings, report.is_clean, report.group) == ([], True, "g")
    size = sum(48 + len(entry.body) for entry, _, _ in places(stores[0]))
    for replica, name in zip(report.replicas, NAMES, strict=True):
        assert (replica.name, replica.begin_index, replica.end_index) == (name, 0, 99)
        assert (replica.entries, replica.bytes, replica.committed_index) == (100, size, 80)
    assert {replica.chain_crc for replica in report.replicas} == {
        places(stores[0])[-1][0].chain_crc
    }
    assert report.tasks == 1 if range_bytes == WHOLE else report.tasks > 10
    assert "3 replicas of group g, entries 0 to 99" in report.text()
    assert "no fault found" in report.text()


@both_ways
def test_a_follower_whose_entries_lie_elsewhere_is_equal(stores, tmp_path, range_bytes):
    leader = Opened(stores[0], data_file=DATA_FILE, index_file=INDEX_FILE)
    for name, size in (("n3", 1_500), ("n4", 1 << 20)):
        follower = Opened(tmp_path / name, self_id=name, data_file=size, index_file=INDEX_FILE)
        run = leader.log.read(0, 49, 1 << 20)
        while run.first_index <= 49:
            follower.submit(follower.log.append_received(run.block()))
            if run.last_index == 49:
                break
            run = leader.log.read(run.last_index + 1, 49, 1 << 20)
        follower.close()
    leader.close()
    given = [stores[1], tmp_path / "n3", tmp_path / "n4"]
    assert found(given, range_bytes) == [("extra", "n1", 50, 99)]
    report, _ = audit(given, range_bytes)
    assert [replica.entries for replica in report.replicas] == [100, 50, 50]


@both_ways
def test_a_replica_that_begins_later_is_equal(stores, range_bytes):
    opened = Opened(stores[1], self_id="n1", data_file=DATA_FILE, index_file=INDEX_FILE)
    opened.submit(opened.log.reset(60))
    opened.close()
    report, findings = audit(stores, range_bytes)
    assert findings == []
    assert [replica.begin_index for replica in report.replicas] == [0, 61, 0]
    assert [replica.entries for replica in report.replicas] == [100, 39, 100]


@both_ways
def test_index_files_are_not_needed(stores, range_bytes):
    shutil.rmtree(stores[0] / "index")
    overwrite(stores[1] / "index" / f"{0:020d}", 0, b"\xff" * INDEX_FILE)
    assert found(stores, range_bytes) == []


def test_stores_that_are_open_and_one_without_entries_are_read(stores, tmp_path):
    opened = Opened(stores[2], self_id="n2", data_file=DATA_FILE, index_file=INDEX_FILE)
    opened.append([b"only here"], term=5)
    new = Opened(tmp_path / "n3", self_id="n3")
    report, findings = audit([*stores, tmp_path / "n3"])
    assert [(one.kind, one.replica, one.first) for one in findings] == [("extra", "n2", 100)]
    assert "empty" in report.text()
    opened.close()
    new.close()


def test_entries_of_all_kinds_are_compared(tmp_path):
    for name in NAMES:
        opened = Opened(tmp_path / name, self_id=name, data_file=DATA_FILE, index_file=INDEX_FILE)
        opened.submit(opened.log.append_noop(1))
        opened.submit(opened.log.append_config(Membership(("n0", "n1"), ()).encode(), 1))
        opened.append([b"x"], term=1)
        opened.close()
    assert found([tmp_path / name for name in NAMES]) == []


@both_ways
def test_stores_of_the_original_are_equal(original, range_bytes):
    for name in ("multi-term", "noop"):
        report, findings = audit(original(name), range_bytes * 50)
        assert findings == []
        assert report.replicas[0].unchecked_entries == report.replicas[0].entries > 0
        assert "carry no CRCs" in report.text()


# -- one fault, one finding -----------------------------------------------------------------------

HEADER_FIELDS = {
    "magic": (3, "damaged"),
    "size": (6, "damaged"),
    "index": (14, "index-order"),
    "term": (23, "chain"),
    "pos": (31, "differing"),
    "channel": (35, "chain"),
    "chain_crc": (37, "chain"),
    "body_crc": (41, "chain"),
    "body_size": (46, "damaged"),
}


@both_ways
@pytest.mark.parametrize("field", HEADER_FIELDS)
def test_a_flipped_bit_in_a_header_is_one_finding(stores, field, range_bytes):
    at, kind = HEADER_FIELDS[field]
    entries = places(stores[1])
    firsts = [row for row, (_, _, offset) in enumerate(entries) if not offset]
    for row in (0, 40, 98, 99, firsts[1] - 1, firsts[1]):
        _, path, offset = entries[row]
        flip(path, offset + at, 0x10)
        _, findings = audit(stores, range_bytes)
        (one,) = findings
        assert (one.kind, one.replica, one.first, one.last) == (kind, "n1", row, row)
        assert (one.file, one.pos) == (path, offset)
        flip(path, offset + at, 0x10)


@both_ways
def test_a_flipped_bit_anywhere_in_an_entry_is_one_finding(stores, range_bytes):
    chance = random.Random(range_bytes)
    for _ in range(20):
        entry, path, offset = chance.choice(places(stores[2]))
        at, bit = offset + chance.randrange(48 + len(entry.body)), 1 << chance.randrange(8)
        flip(path, at, bit)
        (one,) = found(stores, range_bytes)
        assert one[1:] == ("n2", entry.index, entry.index)
        flip(path, at, bit)


@both_ways
def test_a_damaged_blank_record_hides_no_entry(stores, range_bytes):
    rows = places(stores[1])
    second = next(row for row in rows if not row[2] and row[0].index)[0].index
    before, path, offset = rows[second - 1]
    blank = offset + 48 + len(before.body)
    for at in range(8):
        flip(path, blank + at, 2)
        (one,) = audit(stores, range_bytes)[1]
        assert (one.kind, one.replica, one.first, one.entries) == ("damaged", "n1", second, 0)
        assert (one.file, one.pos) == (path, blank)
        flip(path, blank + at, 2)
    overwrite(path, blank, bytes(8))
    (one,) = audit(stores, range_bytes)[1]
    assert one.reason == "the blank record before it is damaged"


@both_ways
def test_a_damaged_body_is_found_in_every_replica_that_has_it(stores, range_bytes):
    for store in stores:
        entry, path, offset = places(store)[33]
        flip(path, offset + 48 + len(entry.body) - 1)
    assert found(stores, range_bytes) == [("damaged", name, 33, 33) for name in NAMES]


@both_ways
def test_one_replica_alone_is_checked_too(stores, range_bytes):
    entry, path, offset = places(stores[0])[70]
    flip(path, offset + 48)
    assert entry.body
    assert found(stores[:1], range_bytes) == [("damaged", "n0", 70, 70)]


@both_ways
def test_entries_that_were_removed_are_missing(stores, range_bytes):
    rows = places(stores[1])
    path = rows[40][1]
    here = [(entry, offset) for entry, file, offset in rows if file == path]
    gone = [entry.index for entry, _ in here[2:5]]
    raw = bytearray(Path(path).read_bytes())
    begin, end = here[2][1], here[5][1]
    blank = here[-1][1] + 48 + len(here[-1][0].body)
    moved = raw[end:blank]
    raw[begin : begin + len(moved)] = moved
    left = len(raw) - begin - len(moved)
    raw[begin + len(moved) :] = struct.pack(">ii", -1, left) + bytes(left - 8)
    Path(path).write_bytes(raw)
    assert found(stores, range_bytes) == [("missing", "n1", gone[0], gone[-1])]
    shutil.rmtree(stores[1] / "index")
    assert found(stores, range_bytes) == [("missing", "n1", gone[0], gone[-1])]


@both_ways
def test_zeros_in_the_place_of_entries_are_missing_entries(stores, range_bytes):
    rows = places(stores[1])
    _, path, offset = rows[10]
    overwrite(path, offset, bytes(rows[13][2] - offset))
    assert found(stores, range_bytes) == [("missing", "n1", 10, 12)]


@both_ways
def test_garbage_over_several_entries_is_damage_of_these(stores, range_bytes):
    rows = places(stores[1])
    _, path, offset = rows[10]
    overwrite(path, offset, b"\xab" * (rows[13][2] - offset))
    assert found(stores, range_bytes) == [("damaged", "n1", 10, 12)]


@both_ways
def test_a_file_that_is_gone_or_cut_short_is_missing_entries(stores, range_bytes):
    rows = places(stores[1])
    second = f"{stores[1]}/data/{DATA_FILE:020d}"
    held = [entry.index for entry, path, _ in rows if path == second]
    at = next(row for row in rows if row[0].index == held[3])
    content = Path(second).read_bytes()
    Path(second).write_bytes(content[: at[2] + 20])
    assert found(stores, range_bytes) == [("missing", "n1", held[3], held[-1])]
    Path(second).unlink()
    assert found(stores, range_bytes) == [("missing", "n1", held[0], held[-1])]
    forget_notes(stores[1])
    assert found(stores, range_bytes) == [("missing", "n1", held[0], held[-1])]


def test_a_replica_that_lost_all_its_files_is_missing_everything(stores):
    shutil.rmtree(stores[1] / "data")
    assert found(stores) == [("missing", "n1", 0, 99)]


def test_a_damaged_first_entry_of_the_original_is_found(original):
    stores = original("multi-term")
    _, path, offset = places(stores[2])[0]
    flip(path, offset + 3)
    assert found(stores) == [("damaged", "dledger-n2", 0, 0)]


@both_ways
def test_a_replica_that_lost_its_end_is_missing_what_was_durable(stores, range_bytes):
    last = max((stores[1] / "data").iterdir())
    held = [entry.index for entry, path, _ in places(stores[1]) if path == str(last)]
    last.unlink()
    assert found(stores, range_bytes) == [("missing", "n1", held[0], 99)]
    forget_notes(stores[1])  # now nobody knows that it ever had more
    shutil.rmtree(stores[1] / "index")
    report, findings = audit(stores, range_bytes)
    assert findings == []
    assert report.replicas[1].end_index == held[0] - 1


@both_ways
def test_a_rewritten_term_differs_and_so_do_the_chain_crcs_after_it(stores, range_bytes):
    rewrite(stores[1], 30, term=1)
    report, findings = audit(stores, range_bytes)
    listed = [(one.kind, one.first, one.last, one.reason) for one in findings]
    assert listed == [
        ("differing", 30, 30, "it has a lower term"),
        ("differing", 31, 99, "it has another chain CRC"),
    ]
    assert findings[0].detail.startswith("term 1, but 2 on n0, n2")
    assert not report.is_clean


@both_ways
def test_a_term_below_the_one_before_is_found_where_all_replicas_have_it(stores, range_bytes):
    for store in stores:
        rewrite(store, 60, term=1)
    assert found(stores, range_bytes) == [("term-order", name, 60, 60) for name in NAMES]


@both_ways
def test_another_entry_of_the_same_term_differs(stores, range_bytes):
    entry = next(row[0] for row in places(stores[1])[20:] if len(row[0].body) > 10)
    rewrite(stores[1], entry.index, body=b"\x01" * len(entry.body))
    listed = [(one.kind, one.first, one.last, one.reason) for one in audit(stores, range_bytes)[1]]
    assert listed == [
        ("differing", entry.index, entry.index, "it has another body CRC"),
        ("differing", entry.index + 1, 99, "it has another chain CRC"),
    ]


def test_without_crcs_the_majority_shows_which_replica_differs(original):
    stores = original("multi-term")
    entry, path, offset = places(stores[0])[250]
    flip(path, offset + 48 + len(entry.body) // 2)
    assert found(stores) == [("differing", "dledger-n0", 250, 250)]
    (one,) = audit(stores)[1]
    assert one.reason == "its body differs"
    assert one.detail == "unlike dledger-n1, dledger-n2"


def test_a_damaged_entry_at_the_end_of_the_originals_store_is_no_torn_tail(original):
    stores = original("multi-term")
    _, path, offset = places(stores[1])[480]
    flip(path, offset + 2)
    assert found(stores) == [("damaged", "dledger-n1", 480, 480)]
    shutil.rmtree(stores[1] / "index")  # now nothing tells where the next entry lies
    (one,) = audit(stores)[1]
    assert (one.kind, one.replica, one.first) == ("broken-end", "dledger-n1", 480)
    assert (one.file, one.pos) == (path, offset)
