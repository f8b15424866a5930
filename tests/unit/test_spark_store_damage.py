"""Damaged store files: an error, or rows that say so; never a wrong body, never a lost entry."""

import pytest

from quorumlog.model.block import encode_block
from quorumlog.model.errors import CorruptionError, QuorumlogError, StorageError
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.metadata.damaged_ranges import DamagedRanges, DamageFile
from quorumlog.storage.offline import range_reader
from quorumlog.storage.offline.range_reader import QUARANTINED
from store_scans import (
    build,
    flip,
    indexes_of,
    manifest_of,
    overwrite,
    parts_of,
    place_of,
    rows_of,
    unpack,
)

BODIES = [bytes([number + 1]) * (number * 37 % 900) for number in range(60)]
PERMISSIVE = {"mode": "permissive", "includeAll": "true"}


@pytest.fixture
def ours(tmp_path):
    return build(tmp_path / "g", BODIES)


@pytest.fixture
def original(tmp_path):
    return unpack("multi-term", tmp_path) / "dledger-n0"


def index_path(directory, entry):
    """The index file that holds a record, and the byte it begins at."""
    size = 1_024 if directory.name == "g" else 4_096
    start = entry * 32 // size * size
    return directory / "index" / f"{start:020d}", entry * 32 - start


def damaged_of(rows):
    return [row["index"] for row in rows if row["crc_ok"] is False]


# -- every byte that can be checked ---------------------------------------------------------------


def few(tmp_path):
    """A store of few entries over two data files and two index files; and its rows."""
    directory = build(tmp_path / "g", BODIES[:9], data_file=1_024, index_file=192)
    rows = rows_of(directory, includeAll="true")
    assert len({row["file"] for row in rows}) == 2
    return directory, rows


def scan(directory, **options):
    """Return the rows, or the error that the scan ended with."""
    try:
        return rows_of(directory, includeAll="true", **options)
    except QuorumlogError as error:
        return error


def test_no_flipped_bit_of_a_data_file_becomes_a_wrong_row(tmp_path):
    directory, good = few(tmp_path)
    for row in good:
        path, pos = place_of(row)
        whole = path.read_bytes()
        for offset in [*range(48), *range(48, row["size"], 97)]:
            flip(path, pos + offset, 1 << (offset * 5 + row["index"]) % 8)
            strict, marked = scan(directory), scan(directory, mode="permissive")
            path.write_bytes(whole)
            if 24 <= offset < 32:  # the leader's position: it may be any
                assert [found["body"] for found in strict] == [row["body"] for row in good]
                continue
            assert isinstance(strict, CorruptionError), (row["index"], offset)
            assert damaged_of(marked) == [row["index"]], (row["index"], offset)
            others = [found for found in marked if found["crc_ok"]]
            assert others == [other for other in good if other is not row]


def test_a_flipped_bit_of_an_index_file_changes_nothing(tmp_path):
    directory, good = few(tmp_path)
    columns = ("index", "term", "size", "pos", "file")
    outline = [{name: row[name] for name in columns} for row in good]
    for path in sorted((directory / "index").iterdir()):
        whole = path.read_bytes()
        for offset in range(len(whole)):
            flip(path, offset, 1 << (offset * 3) % 8)
            assert scan(directory) == good, (path.name, offset)
            assert rows_of(directory, columns, includeAll="true") == outline, (path.name, offset)
            path.write_bytes(whole)


def test_no_flipped_bit_in_a_header_of_the_original_becomes_a_wrong_row(original):
    good = rows_of(original, includeAll="true", startingIndex="100", endingIndex="103")
    path, _ = place_of(good[1])
    whole = path.read_bytes()
    free = {*range(24, 44)}  # the leader's position, channel and the CRCs, which are not kept
    for offset in sorted({*range(48)} - free):
        flip(path, good[1]["pos"] + offset, 1 << offset % 8)
        window = {"startingIndex": "100", "endingIndex": "103"}
        strict = scan(original, **window)
        marked = scan(original, mode="permissive", **window)
        path.write_bytes(whole)
        assert isinstance(strict, CorruptionError), offset
        assert strict.index == 101
        assert [row["index"] for row in marked] == [100, 101, 102]
        assert damaged_of(marked) == [101]
        assert [marked[0], marked[2]] == [good[0], good[2]]


# -- what is reported of damage -------------------------------------------------------------------


def test_a_damaged_body_is_an_error_that_names_file_and_index(ours):
    row = rows_of(ours)[33]
    path, pos = place_of(row)
    flip(path, pos + 48 + 20)
    with pytest.raises(CorruptionError, match=r"entry 33: the body does not fit .*=permissive"):
        rows_of(ours)
    with pytest.raises(CorruptionError) as caught:
        rows_of(ours, ("body",))
    assert (caught.value.file, caught.value.position, caught.value.index) == (str(path), pos, 33)
    assert len(indexes_of(ours)) == 60  # bodies are not looked at
    assert len(indexes_of(ours, startingIndex="34")) == 26


def test_a_damaged_body_is_returned_as_found_if_crc_ok_is_selected(ours):
    row = rows_of(ours)[33]
    path, pos = place_of(row)
    flip(path, pos + 48 + 20)
    found = rows_of(ours, **PERMISSIVE)[33]
    assert found["crc_ok"] is False
    assert found["body"] == row["body"][:20] + bytes([row["body"][20] ^ 1]) + row["body"][21:]
    assert rows_of(ours, ("body", "index"), **PERMISSIVE)[33] == {"body": None, "index": 33}
    trusting = rows_of(ours, verifyCrc="none", **PERMISSIVE)[33]
    assert trusting["crc_ok"] is None


@pytest.mark.parametrize("entry", [0, 1, 12, 58, 59])
def test_of_a_damaged_header_the_index_gives_place_and_term(ours, entry):
    good = rows_of(ours)
    path, pos = place_of(good[entry])
    overwrite(path, pos, bytes(48))
    with pytest.raises(CorruptionError, match=f"entry {entry}: "):
        rows_of(ours)
    rows = rows_of(ours, **PERMISSIVE)
    known = {name: good[entry][name] for name in ("index", "term", "file", "pos", "size", "magic")}
    nothing = dict.fromkeys(good[entry])
    assert rows[entry] == nothing | known | {"crc_ok": False}
    assert rows[:entry] + rows[entry + 1 :] == good[:entry] + good[entry + 1 :]


def test_of_a_damaged_header_and_index_record_only_the_place_is_known(ours):
    good = rows_of(ours)
    first = next(row["index"] for row in good[1:] if row["pos"] == 0)
    for lost in ((3, 4), (first - 1, first), (first, first + 1)):
        files = {*(place_of(good[entry])[0] for entry in lost)}
        files |= {index_path(ours, entry)[0] for entry in lost}
        whole = {path: path.read_bytes() for path in files}
        for entry in lost:
            overwrite(*place_of(good[entry]), bytes(48))
            overwrite(*index_path(ours, entry), bytes(32))
        rows = rows_of(ours, **PERMISSIVE)
        assert damaged_of(rows) == list(lost)
        for entry in lost:
            assert (rows[entry]["term"], rows[entry]["body"]) == (None, None)
            assert rows[entry]["pos"] in {good[entry]["pos"], None}
        assert [row for row in rows if row["index"] not in lost] == [
            row for row in good if row["index"] not in lost
        ]
        for path, raw in whole.items():
            path.write_bytes(raw)


def test_damage_is_skipped_also_without_an_index(ours):
    good = rows_of(ours)
    for path in (ours / "index").iterdir():
        path.unlink()
    path, pos = place_of(good[40])
    flip(path, pos + 15)  # its index
    rows = rows_of(ours, **PERMISSIVE)
    assert damaged_of(rows) == [40]
    assert rows[:40] + rows[41:] == good[:40] + good[41:]
    overwrite(path, pos, bytes(48))  # nothing says where the next begins
    rows = rows_of(ours, **PERMISSIVE)
    lost = damaged_of(rows)
    assert lost[0] == 40
    assert lost == [row["index"] for row in good if row["file"] == str(path) and row["pos"] >= pos]
    assert len(rows) == 60


def test_zeros_over_several_entries_are_skipped(ours):
    good = rows_of(ours)
    path, pos = place_of(good[6])
    path_end, end = place_of(good[8])
    assert path == path_end
    overwrite(path, pos + 5, bytes(end - pos))
    rows = rows_of(ours, **PERMISSIVE)
    assert damaged_of(rows) == [6, 7, 8]
    assert rows[:6] + rows[9:] == good[:6] + good[9:]


@pytest.mark.parametrize("is_cut", [False, True], ids=["missing", "cut short"])
def test_of_a_data_file_that_is_gone_every_entry_is_a_row(ours, is_cut):
    good = rows_of(ours)
    victim = sorted((ours / "data").iterdir())[2]
    if is_cut:
        victim.write_bytes(victim.read_bytes()[:100])
    else:
        victim.unlink()
    lost = [row["index"] for row in good if row["file"] == str(victim)]
    with pytest.raises(CorruptionError, match=f"entry {lost[0]}: "):
        rows_of(ours)
    rows = rows_of(ours, **PERMISSIVE)
    assert damaged_of(rows) == lost
    assert [row["index"] for row in rows] == list(range(60))
    for row, expected in zip(rows, good, strict=True):
        assert (row["term"], row["file"], row["pos"]) == (
            expected["term"],
            expected["file"],
            expected["pos"],
        )


def test_entries_that_the_replica_has_quarantined_are_damaged_rows(ours):
    notes = DamageFile(OsFileSystem(), str(ours))
    notes.save(DamagedRanges([(7, 8), (30, 30)]))
    with pytest.raises(CorruptionError, match=f"entry 7: {QUARANTINED}"):
        rows_of(ours)
    with pytest.raises(CorruptionError, match="entry 30"):
        indexes_of(ours, startingIndex="9", includeAll="true")
    rows = rows_of(ours, **PERMISSIVE)
    assert damaged_of(rows) == [7, 8, 30]
    assert [row["body"] for row in rows] == BODIES


def test_a_flip_that_would_hide_an_entry_is_damage(ours):
    row = rows_of(ours)[25]
    path, pos = place_of(row)
    overwrite(path, pos + 32, b"\xff" * 4)  # the system channel, which readers do not see
    with pytest.raises(CorruptionError, match="entry 25: the chain CRC does not fit"):
        indexes_of(ours)
    assert damaged_of(rows_of(ours, mode="permissive")) == [25]


def test_the_first_entry_of_a_partition_is_checked_against_the_one_before(ours):
    _, parts = parts_of(ours, maxBytesPerPartition="1k")
    good = {row["index"]: row for row in rows_of(ours)}
    for part in (one.part for partition in parts for one in partition.ranges):
        path, pos = place_of(good[part.first])
        flip(path, pos + 35)  # the channel: only the chain of CRCs covers it
        marked = rows_of(ours, mode="permissive", maxBytesPerPartition="1k")
        assert damaged_of(marked) == [part.first]
        flip(path, pos + 35)


def test_entries_without_crcs_after_entries_with_them_are_refused(ours):
    rows = rows_of(ours)
    path, pos = place_of(rows[-1])
    foreign = bytearray(encode_block([b"by another program"]))
    foreign[40:44] = bytes(4)
    for offset, value in ((8, 60), (16, rows[-1]["term"])):
        foreign[offset : offset + 8] = value.to_bytes(8, "big")
    overwrite(path, pos + rows[-1]["size"], foreign)
    assert len(rows_of(ours)) == 60
    with pytest.raises(CorruptionError, match="written by another program"):
        rows_of(ours, committedOnly="false")


def test_a_body_of_zeroed_crcs_is_not_taken_for_one_of_the_original(ours):
    path, pos = place_of(rows_of(ours)[25])
    overwrite(path, pos + 36, bytes(8))
    with pytest.raises(CorruptionError, match="entry 25: an entry without CRCs after"):
        rows_of(ours)
    assert damaged_of(rows_of(ours, mode="permissive")) == [25]


def test_terms_of_the_original_that_differ_are_in_doubt(original):
    path, place = index_path(original, 250)
    flip(path, place + 31)
    with pytest.raises(CorruptionError, match="entry 250: header and index record disagree"):
        rows_of(original, includeAll="true")
    rows = rows_of(original, **PERMISSIVE)
    assert damaged_of(rows) == [250]
    assert [row["index"] for row in rows] == list(range(500))


@pytest.mark.parametrize("entry", [0, 250, 498])
def test_damaged_headers_of_the_original_are_skipped(original, entry):
    good = rows_of(original, includeAll="true")
    stated = manifest_of(original.parent, "dledger-n0")
    path, pos = place_of(good[entry])
    overwrite(path, pos, b"\x7f" * 48)
    with pytest.raises(CorruptionError, match=f"entry {entry}: "):
        rows_of(original, includeAll="true")
    rows = rows_of(original, **PERMISSIVE)
    assert damaged_of(rows) == [entry]
    assert rows[entry]["size"] == stated[entry]["size"]
    assert rows[:entry] + rows[entry + 1 :] == good[:entry] + good[entry + 1 :]


def test_a_file_removed_after_the_job_was_planned_is_an_error(ours):
    reader, parts = parts_of(ours)
    for path in (ours / "data").iterdir():
        path.unlink()
    with pytest.raises(StorageError, match=r"is gone: .* run the job again"):
        list(reader.read(parts[-1]))


def test_many_lost_entries_are_rows_of_several_batches(ours, monkeypatch):
    good = rows_of(ours)
    victim = sorted((ours / "data").iterdir())[1]
    lost = [row["index"] for row in good if row["file"] == str(victim)]
    for path in (ours / "index").iterdir():
        path.unlink()
    overwrite(victim, 48, b"\x7f" * 4_048)
    monkeypatch.setattr(range_reader, "RUN_ENTRIES", 2)
    rows = rows_of(ours, **PERMISSIVE)
    assert [row["index"] for row in rows] == list(range(60))
    assert damaged_of(rows) == lost
    assert [row["pos"] for row in rows if row["index"] in lost[2:]] == [None] * (len(lost) - 2)
