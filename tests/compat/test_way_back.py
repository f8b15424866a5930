"""DLedger goes on with a log of ours, and we with what it left."""

import hashlib
import shutil
import struct

import msgspec
import pytest
from original import Original

from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.model.hard_state import HardState
from quorumlog.model.membership import founding
from quorumlog.storage.files.os_files import OsFile, OsFileSystem
from quorumlog.storage.metadata.dledger import has_original_run
from quorumlog.storage.metadata.store_metadata import StoreMetadata
from quorumlog.storage.offline.original_export import export_original
from quorumlog.storage.offline.store_files import scan_store
from quorumlog.storage.offline.verify import verify_store
from store_access import Opened

SIZES = {"data_file": 4_096, "index_file": 1_024}
MEMBERS = founding({"n0": "127.0.0.1:1", "n7": "127.0.0.1:2"}, original_compatible=True)
OURS = [b"ours %d " % number * (number % 9 + 1) for number in range(40)]
THEIRS = [b"theirs %d " % number * (number % 7 + 1) for number in range(30)]


def founded(directory, *, compatible=True):
    """A group's store whose log is as a leader of term 1 wrote it."""
    opened = Opened(directory, **SIZES)
    opened.submit(opened.group.hard_states.plan_save(HardState(1, "n0")))
    body = MEMBERS.encode()
    opened.submit(opened.log.append_config(body, 1, compatible=compatible))
    opened.append(OURS)
    return opened


def closed(opened):
    """Stop cleanly; return what DLedger finds."""
    opened.log.note_committed(opened.log.end_index)
    opened.checkpoint()
    end = opened.log.end_point
    opened.close()
    return Original(opened_directory(opened), end.index, end.position, *SIZES.values())


def opened_directory(opened):
    return opened.log._data.directory.removesuffix("/data")


def bodies(opened):
    return [entry.body for entry in opened.entries() if entry.is_data]


def values_of(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("=") for line in lines)


# -- what DLedger reads ---------------------------------------------------------------------------


def test_term_and_vote_are_in_currterm_before_they_count(tmp_path):
    opened = Opened(tmp_path / "g", **SIZES)
    assert values_of(tmp_path / "g" / "currterm") == {"currTerm": "0", "voteLeader": ""}
    opened.submit(opened.group.hard_states.plan_save(HardState(17, "n7")))
    raw = (tmp_path / "g" / "currterm").read_bytes()
    assert raw.startswith(b"currTerm=17\nvoteLeader=n7\n# kept by quorumlog ")
    assert len(raw) == 512  # one sector: no crash leaves half of it
    opened.close()


@pytest.mark.parametrize("compatible", [False, True])
def test_currterm_costs_an_fsync_only_where_dledger_may_go_on(tmp_path, compatible, monkeypatch):
    opened, synced, sync = Opened(tmp_path / "g", **SIZES), [], OsFile.sync

    def noted(file):
        synced.append(file.path)
        sync(file)

    monkeypatch.setattr(OsFile, "sync", noted)
    plan = opened.group.hard_states.plan_save(HardState(3, None), original_compatible=compatible)
    opened.submit(plan)
    assert (str(tmp_path / "g" / "currterm") in synced) == compatible
    assert values_of(tmp_path / "g" / "currterm") == {"currTerm": "3", "voteLeader": ""}
    opened.close()


def test_the_committed_index_is_in_checkpoint(tmp_path):
    opened = founded(tmp_path / "g")
    opened.log.note_committed(33)
    opened.checkpoint()
    assert values_of(tmp_path / "g" / "checkpoint") == {"endIndex": "40", "committedIndex": "33"}
    opened.close()


def test_every_entry_and_record_has_magic_1_and_lies_where_its_header_says(tmp_path):
    opened = founded(tmp_path / "g")
    opened.submit(opened.log.append_noop(2, compatible=True))
    closed(opened)
    position, records = (
        0,
        b"".join(path.read_bytes() for path in sorted((tmp_path / "g" / "index").iterdir())),
    )
    data = {int(path.name): path.read_bytes() for path in (tmp_path / "g" / "data").iterdir()}
    for index in range(42):
        start = position - position % 4_096
        magic, size = struct.unpack_from(">ii", data[start], position - start)
        if magic == -1:
            assert size == start + 4_096 - position
            position = start + 4_096
            start, (magic, size) = position, struct.unpack_from(">ii", data[position])
        header = struct.unpack_from(">iiqqq", data[start], position - start)
        assert header == (1, size, index, 2 if index == 41 else 1, position)
        assert struct.unpack_from(">iqiqq", records, 32 * index) == (
            1,
            position,
            size,
            index,
            header[3],
        )
        position += size


def test_no_zero_file_lies_two_files_after_the_end(tmp_path):
    # DLedger exits if the last file starts more than a file size after the last entry
    opened = founded(tmp_path / "g")
    for file in opened.log.upcoming():
        file.prepare()
    original = closed(opened)
    last = max(int(path.name) for path in (tmp_path / "g" / "data").iterdir())
    assert last - original.position <= 4_096


# -- going on after it ----------------------------------------------------------------------------


def went_on(original, bodies=THEIRS, term=2):
    original.append(bodies, term)
    original.write_text("currterm", voteLeader="n0", currTerm=term)
    original.write_text("checkpoint", endIndex=original.index, committedIndex=original.index)


def test_entries_that_dledger_appended_are_taken_over_and_have_crcs_from_then_on(tmp_path, caplog):
    original = closed(founded(tmp_path / "g"))
    went_on(original)
    again = Opened(tmp_path / "g", **SIZES)
    assert bodies(again) == OURS + THEIRS
    assert again.group.hard_state == HardState(2, "n0")
    assert again.group.committed_index == 70
    assert "entries 41 to 70 were appended by DLedger" in caplog.text
    again.append([b"and on"], term=3)
    again.close()
    report = verify_store(OsFileSystem(), str(tmp_path / "g"))
    assert (report.findings_total, report.unchecked_entries, report.end_index) == (0, 0, 71)


def test_all_replicas_give_the_same_crcs(tmp_path):
    chains = set()
    for name in ("a", "b"):
        original = closed(founded(tmp_path / name))
        went_on(original)
        again = Opened(tmp_path / name, **SIZES)
        chains.add(again.log.end_chain_crc)
        again.close()
    assert len(chains) == 1


def test_forward_back_forward_back_and_forward(tmp_path):
    original = closed(founded(tmp_path / "g"))
    expected = list(OURS)
    for term in (2, 4, 6):
        went_on(original, THEIRS, term)
        again = Opened(tmp_path / "g", **SIZES)
        again.submit(again.group.hard_states.plan_save(HardState(term + 1, "n0")))
        again.submit(again.log.append_noop(term + 1, compatible=True))
        again.append([b"ours again"] * 3, term=term + 1)
        expected += THEIRS + [b"ours again"] * 3
        assert bodies(again) == expected
        assert not has_original_run(OsFileSystem(), str(tmp_path / "g"))
        original = closed(again)
    report = verify_store(OsFileSystem(), str(tmp_path / "g"))
    assert (report.findings_total, set(report.magics)) == (0, {1})


def test_a_crash_while_entries_get_their_crcs_is_finished_by_the_next_opening(tmp_path):
    original = closed(founded(tmp_path / "g"))
    went_on(original)
    Opened(tmp_path / "g", **SIZES).close()
    whole = {path: path.read_bytes() for path in (tmp_path / "g" / "data").iterdir()}
    other = closed(founded(tmp_path / "h"))
    went_on(other)
    for path, raw in whole.items():  # of each file the second half reached the disk
        target = tmp_path / "h" / "data" / path.name
        old = target.read_bytes()
        target.write_bytes(old[:2_048] + raw[2_048:])
    again = Opened(tmp_path / "h", **SIZES)
    assert bodies(again) == OURS + THEIRS
    again.close()


def test_a_crash_while_entries_get_their_crcs_cuts_no_entry_that_ends_in_zeros(tmp_path):
    zeros = [bytes(900)] * 8
    original = closed(founded(tmp_path / "g"))
    went_on(original, [*zeros, b"last"])
    Opened(tmp_path / "g", **SIZES).close()
    whole = {path: path.read_bytes() for path in (tmp_path / "g" / "data").iterdir()}
    other = closed(founded(tmp_path / "h"))
    went_on(other, [*zeros, b"last"])
    path = tmp_path / "h" / "data" / max(whole).name
    path.write_bytes(whole[max(whole)])  # the last entries have theirs, those before do not
    again = Opened(tmp_path / "h", **SIZES)
    assert bodies(again) == OURS + zeros + [b"last"]
    again.close()


def test_entries_that_dledger_removed_as_a_follower_are_gone(tmp_path):
    opened = founded(tmp_path / "g")
    opened.log.note_committed(20)
    opened.checkpoint()
    end = opened.log._point_before(31)
    original = closed_uncommitted(opened)
    original.truncate(30, end.position)
    went_on(original)
    again = Opened(tmp_path / "g", **SIZES)
    assert bodies(again) == OURS[:30] + THEIRS
    assert (again.log.end_index, again.log.damaged.count) == (60, 0)
    again.close()


def closed_uncommitted(opened):
    opened.checkpoint()
    end = opened.log.end_point
    opened.close()
    return Original(opened_directory(opened), end.index, end.position, *SIZES.values())


def test_data_files_that_dledger_removed_at_the_front_are_gone(tmp_path):
    original = closed(founded(tmp_path / "g"))
    went_on(original)
    first = min((tmp_path / "g" / "data").iterdir())
    first.unlink()
    again = Opened(tmp_path / "g", **SIZES)
    begin = again.log.before_begin_index + 1
    assert begin > 0
    assert bodies(again) == (OURS + THEIRS)[begin - 1 :]
    assert again.log.damaged.count == 0
    again.close()


AFTER_A_CRASH = [b"", bytes(512), b"endIndex=40\n".ljust(512)]
"""What a crash may leave of a file that was just made and not fsynced, or damage of the mark."""


def ended_at(directory, index):
    """Do what a crash leaves after the first step of removing the entries after an index."""
    opened = Opened(directory, **SIZES)
    opened.checkpoint()
    point, log_start = opened.log._point_before(index + 1), opened.log._log_start
    opened.close()
    saved = StoreMetadata(OsFileSystem(), str(directory))
    saved.load()
    ended = msgspec.structs.replace(saved.checkpoint, point=point, is_end=True)
    saved.start_removal(ended, log_start, saved.load_config_entries())
    saved.close()


def test_what_dledger_appended_after_a_crash_of_ours_that_was_removing_entries_stays(tmp_path):
    original = closed(founded(tmp_path / "g"))
    ended_at(tmp_path / "g", 40)
    went_on(original)
    again = Opened(tmp_path / "g", **SIZES)
    assert bodies(again) == OURS + THEIRS
    assert again.log.damaged.count == 0
    again.close()


def test_a_removal_that_a_crash_interrupted_is_finished_if_dledger_did_not_run(tmp_path):
    closed(founded(tmp_path / "g"))
    ended_at(tmp_path / "g", 30)
    again = Opened(tmp_path / "g", **SIZES)
    assert bodies(again) == OURS[:30]
    again.close()


@pytest.mark.parametrize("left", [None, *AFTER_A_CRASH])
@pytest.mark.parametrize("name", ["checkpoint", "currterm"])
def test_without_dledger_a_missing_first_file_is_damage_as_ever(tmp_path, name, left):
    closed(founded(tmp_path / "g"))
    if left is not None:
        (tmp_path / "g" / name).write_bytes(left)
    assert not has_original_run(OsFileSystem(), str(tmp_path / "g"))
    min((tmp_path / "g" / "data").iterdir()).unlink()
    again = Opened(tmp_path / "g", **SIZES)
    assert again.log.before_begin_index == -1
    assert again.log.damaged.count > 0
    again.close()


@pytest.mark.parametrize("kept", [20, 50, 511, 600])
def test_a_torn_last_entry_of_dledger_is_cut(tmp_path, kept):
    original = closed(founded(tmp_path / "g"))
    went_on(original)
    begin = original.position
    original.append([b"\x01" * 1_500], 2)
    end = original.position
    if begin // 4_096 != (end - 1) // 4_096:
        begin = end - 1_548
    path = tmp_path / "g" / "data" / f"{begin - begin % 4_096:020d}"
    raw = path.read_bytes()
    cut = begin % 4_096 + kept
    if kept > 48:  # sectors are written whole
        cut += -cut % 512
    path.write_bytes(raw[:cut].ljust(4_096, b"\0"))
    again = Opened(tmp_path / "g", **SIZES)
    assert bodies(again) == OURS + THEIRS
    again.close()


def test_a_group_that_is_not_compatible_refuses_what_dledger_appended(tmp_path):
    opened = Opened(tmp_path / "g", **SIZES)
    opened.submit(opened.log.append_config(founding({"n0": "127.0.0.1:1"}).encode(), 1))
    opened.append(OURS)
    original = closed(opened)
    went_on(original)
    with pytest.raises(CorruptionError, match="written by another program"):
        Opened(tmp_path / "g", **SIZES)


def test_a_term_that_dledger_raised_counts_in_every_group(tmp_path):
    opened = Opened(tmp_path / "g", **SIZES)
    opened.submit(opened.group.hard_states.plan_save(HardState(4, "n0")))
    opened.close()
    currterm = tmp_path / "g" / "currterm"
    currterm.write_text("voteLeader=n7\ncurrTerm=9\n")
    again = Opened(tmp_path / "g", **SIZES)
    assert again.group.hard_state == HardState(9, "n7")
    again.close()
    currterm.write_text("voteLeader=n7\ncurrTerm=3\n")  # an old copy, put back by hand
    again = Opened(tmp_path / "g", **SIZES)
    assert again.group.hard_state == HardState(9, "n7")
    assert values_of(currterm)["currTerm"] == "9"
    again.close()


def test_a_vote_that_dledger_gave_in_a_term_without_one_of_ours_counts(tmp_path):
    # DLedger starts in the term that it finds, and votes in it
    opened = Opened(tmp_path / "g", **SIZES)
    opened.submit(opened.group.hard_states.plan_save(HardState(4, None)))
    opened.close()
    currterm = tmp_path / "g" / "currterm"
    currterm.write_text("voteLeader=n7\ncurrTerm=4\n")
    again = Opened(tmp_path / "g", **SIZES)
    assert again.group.hard_state == HardState(4, "n7")
    again.close()
    currterm.write_text("voteLeader=n0\ncurrTerm=4\n")  # ours was given first
    again = Opened(tmp_path / "g", **SIZES)
    assert again.group.hard_state == HardState(4, "n7")
    again.close()


# -- store export-original ------------------------------------------------------------------------


def test_export_original_keeps_indexes_terms_and_bodies_and_has_magic_1_only(tmp_path):
    opened = founded(tmp_path / "g", compatible=False)
    opened.submit(opened.log.append_noop(2))
    opened.append(THEIRS, term=2)
    opened.submit(opened.group.hard_states.plan_save(HardState(2, "n7")))
    closed(opened)
    target = tmp_path / "dledger-n0"
    report = export_original(OsFileSystem(), str(tmp_path / "g"), str(target))
    assert (report.begin_index, report.end_index, report.rewritten_entries) == (0, 71, 2)
    before = [entry for entry, _, _ in scan_store(OsFileSystem(), str(tmp_path / "g"))]
    after = [entry for entry, _, _ in scan_store(OsFileSystem(), str(target))]
    assert {entry.magic for entry in after} == {1}
    for one, other in zip(before, after, strict=True):
        assert (one.index, one.term) == (other.index, other.term)
        assert one.body == other.body or not one.is_data
    assert sorted(path.name for path in target.iterdir()) == [
        "checkpoint",
        "currterm",
        "data",
        "index",
    ]
    assert values_of(target / "currterm") == {"currTerm": "2", "voteLeader": "n7"}
    assert values_of(target / "checkpoint") == {"endIndex": "71", "committedIndex": "71"}
    assert verify_store(OsFileSystem(), str(target)).findings_total == 0


def test_export_original_of_a_log_without_its_beginning(tmp_path):
    opened = founded(tmp_path / "g", compatible=False)
    opened.append(OURS + OURS)
    opened.log.note_committed(120)
    opened.submit(opened.log.reset(opened.log.segments()[0].last_index))
    begin = opened.log.before_begin_index + 1
    closed(opened)
    target = tmp_path / "dledger-n0"
    report = export_original(OsFileSystem(), str(tmp_path / "g"), str(target))
    assert (report.begin_index, report.end_index) == (begin, 120)
    after = [entry.body for entry, _, _ in scan_store(OsFileSystem(), str(target))]
    assert after == (OURS * 3)[begin - 1 :]


def test_export_original_of_damaged_entries_writes_nothing(tmp_path):
    closed(founded(tmp_path / "g"))
    path = min((tmp_path / "g" / "data").iterdir())
    raw = bytearray(path.read_bytes())
    raw[1_000] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(CorruptionError):
        export_original(OsFileSystem(), str(tmp_path / "g"), str(tmp_path / "dledger-n0"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g"]


class Interrupted(OsFileSystem):
    """A user gives up before the log is whole."""

    def remove(self, path):
        raise KeyboardInterrupt


def test_export_original_removes_what_an_earlier_one_left_and_nothing_else(tmp_path):
    closed(founded(tmp_path / "g"))
    part, target = tmp_path / "dledger-n0.part", tmp_path / "dledger-n0"

    def refused():
        with pytest.raises(StorageError, match="part is in the way"):
            export_original(OsFileSystem(), str(tmp_path / "g"), str(target))

    part.write_bytes(b"a file of mine")
    refused()
    assert part.read_bytes() == b"a file of mine"
    part.unlink()
    shutil.copytree(tmp_path / "g", part)  # a store of DLedger has the same names
    refused()
    assert sorted(one.name for one in part.iterdir()) == sorted(
        one.name for one in (tmp_path / "g").iterdir()
    )
    shutil.rmtree(part)
    with pytest.raises(KeyboardInterrupt):
        export_original(Interrupted(), str(tmp_path / "g"), str(target))
    assert part.is_dir()
    export_original(OsFileSystem(), str(tmp_path / "g"), str(target))
    assert not part.exists()
    assert not [one for one in target.iterdir() if one.name.startswith("quorumlog")]
    assert verify_store(OsFileSystem(), str(target)).end_index == 40


# -- stores that the real DLedger went on with, twice -------------------------------------------


@pytest.mark.parametrize("release", ["0.2.7", "0.3.2", "0.4.0"])
def test_a_store_that_a_release_of_dledger_went_on_with_is_gone_on_with(copied, manifest, release):
    directory = copied("continued", release, "dledger-n0")
    expected = manifest("continued")[release]["entries"]
    currterm = (directory / "currterm").read_text()
    assert "currTerm=4\n" in currterm
    assert "quorumlog" not in currterm
    assert has_original_run(OsFileSystem(), str(directory))
    assert {entry["magic"] for entry in expected} == {1}

    before = verify_store(OsFileSystem(), str(directory))
    assert (before.findings_total, before.unchecked_entries, before.end_index) == (0, 9, 67)

    opened = Opened(directory, **SIZES)
    assert opened.group.hard_state == HardState(4, "n0")
    entries = opened.entries()
    assert len(entries) == len(expected) == 68
    for entry, stated in zip(entries, expected, strict=True):
        assert (entry.index, entry.term, entry.pos) == (
            stated["index"],
            stated["term"],
            stated["pos"],
        )
        assert entry.channel == stated["channel"] % (1 << 32)
        assert hashlib.sha256(entry.body).hexdigest()[:16] == stated["body_sha256_start"]
    opened.append([b"and on"], term=5)
    opened.close()
    after = verify_store(OsFileSystem(), str(directory))
    assert (after.findings_total, after.unchecked_entries, after.end_index) == (0, 0, 68)


@pytest.mark.parametrize("release", ["0.2.7", "0.3.2"])
def test_the_committed_index_of_a_release_that_writes_one_is_taken_over(copied, release):
    opened = Opened(copied("continued", release, "dledger-n0"), **SIZES)
    assert opened.group.committed_index == 67
    opened.close()
