"""Damage at rest: found, quarantined with its identity, not served, repaired from another copy."""

import random

import pytest

from damage_access import BODIES, HEADER_FIELDS, SIZES, file_of, filled, flip, repair_all
from quorumlog.model.block import block_from_index_records, decode_entries
from quorumlog.model.errors import CorruptionError, UnexpectedArgumentError
from quorumlog.sim.disk import SimulatedFileSystem
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.offline.verify import verify_store
from store_access import Opened, block_of, entries_of, stored_block

POSITION_BYTE = 30
"""Of a header: the last but one of `pos`."""


@pytest.fixture
def store(tmp_path):
    """Two equal stores: one to damage, one to repair from."""
    filled(tmp_path / "other")
    return tmp_path / "g", filled(tmp_path / "g")


def bodies_that_can_be_read(log):
    found = {}
    for index in range(log.before_begin_index + 1, log.end_index + 1):
        try:
            (entry,) = entries_of_one(log, index)
        except CorruptionError as error:
            found.setdefault("damaged", []).append(error.index)
        else:
            found[index] = entry.body
    return found


def entries_of_one(log, index):
    entry_run = log.read(index, index, 1 << 20)
    return list(entries_of_run(entry_run))


def entries_of_run(entry_run):
    return decode_entries(block_from_index_records(entry_run.data, entry_run.records))


def verify_all(log, piece=700):
    index = 0
    while index <= log.end_index:
        index = log.verify(index, log.end_index, piece) + 1


@pytest.mark.parametrize("field", HEADER_FIELDS)
@pytest.mark.parametrize("damaged", [0, 1, 30, 58, 59])
def test_74_a_flipped_bit_in_any_field_quarantines_exactly_that_entry(store, damaged, field):
    directory, places = store
    path, _ = flip(directory, places[damaged][0] + HEADER_FIELDS[field])
    opened = Opened(directory, **SIZES)
    assert opened.log.end_index == 59
    assert opened.log.damaged.ranges == ((damaged, damaged),)
    assert opened.group.report.damaged_entries == 1
    expected = dict(enumerate(BODIES)) | {"damaged": [damaged]}
    del expected[damaged]
    assert bodies_that_can_be_read(opened.log) == expected
    with pytest.raises(CorruptionError) as caught:
        opened.log.read(damaged, damaged, 1)
    assert (caught.value.index, caught.value.file) == (damaged, str(path))
    repair_all(opened, directory.parent / "other")
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.append([b"goes on"], term=3)
    opened.close()
    again = Opened(directory, **SIZES)
    assert [entry.body for entry in again.entries()] == [*BODIES, b"goes on"]
    assert not again.log.damaged
    again.close()


def test_several_neighbours_are_one_range_and_survive_a_restart(store):
    directory, places = store
    for index in (10, 11, 12, 40):
        flip(directory, places[index][0] + 50)
    for _ in range(2):
        opened = Opened(directory, **SIZES)
        assert opened.log.damaged.ranges == ((10, 12), (40, 40))
        opened.close()
    opened = Opened(directory, **SIZES)
    repair_all(opened, directory.parent / "other")
    opened.close()
    again = Opened(directory, **SIZES)
    assert [entry.body for entry in again.entries()] == BODIES
    again.close()


@pytest.mark.parametrize("byte", [0, 3, 4, 6, 7])
def test_a_damaged_blank_record_is_written_again(store, byte):
    directory, places = store
    ends = [position + size for position, size in places]
    last_in_file = next(i for i in range(59) if ends[i] != places[i + 1][0])
    flip(directory, ends[last_in_file] + byte)
    opened = Opened(directory, **SIZES)
    assert not opened.log.damaged
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()
    raw = file_of(directory, places[0][0])[0].read_bytes()
    assert raw == file_of(directory.parent / "other", places[0][0])[0].read_bytes()


def test_a_data_file_that_is_gone_is_made_again_and_its_entries_quarantined(store):
    directory, places = store
    file_of(directory, 4_000)[0].unlink()
    lost = [index for index, (position, _) in enumerate(places) if 4_000 <= position < 6_000]
    opened = Opened(directory, **SIZES)
    assert opened.log.damaged.ranges == ((lost[0], lost[-1]),)
    repair_all(opened, directory.parent / "other")
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("position", [2_000, 4_000])
def test_a_data_file_cut_short_loses_what_lay_after_the_cut(tmp_path, position, checkpoint):
    places = filled(tmp_path / "g", checkpoint=checkpoint)
    filled(tmp_path / "other")
    path, _ = file_of(tmp_path / "g", position)
    path.write_bytes(path.read_bytes()[:700])
    lost = [
        index
        for index, (begin, size) in enumerate(places)
        if position <= begin < position + 2_000 and begin + size > position + 700
    ]
    opened = Opened(tmp_path / "g", **SIZES)
    assert opened.log.damaged.ranges == ((lost[0], lost[-1]),)
    repair_all(opened, tmp_path / "other")
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("number", [0, 3, 7])
def test_58_an_index_file_that_is_gone_is_made_again_from_the_data(tmp_path, number, checkpoint):
    filled(tmp_path / "g", checkpoint=checkpoint)
    path = file_of(tmp_path / "g", 256 * number, "index")[0]
    before = path.read_bytes()
    path.unlink()
    opened = Opened(tmp_path / "g", **SIZES)
    assert [entry.body for entry in opened.entries()] == BODIES
    assert not opened.log.damaged
    opened.close()
    assert path.read_bytes() == before


def test_a_data_file_and_its_index_gone_together_cannot_be_recovered_here(store):
    directory, _ = store
    file_of(directory, 4_000)[0].unlink()
    file_of(directory, 256 * 2, "index")[0].unlink()
    with pytest.raises(CorruptionError, match="it is not known which entries it held"):
        Opened(directory, **SIZES)


def test_damage_below_the_checkpoint_is_found_by_reading_and_by_verifying(tmp_path):
    places = filled(tmp_path / "g", checkpoint=True)
    flip(tmp_path / "g", places[20][0] + 49)
    opened = Opened(tmp_path / "g", **SIZES)
    assert not opened.log.damaged
    with pytest.raises(CorruptionError) as caught:
        entries_of(opened.log)
    assert caught.value.index == 20
    with pytest.raises(CorruptionError) as caught:
        verify_all(opened.log)
    assert caught.value.index == 20
    opened.submit(opened.log.quarantine(20))
    assert opened.log.damaged.ranges == ((20, 20),)
    opened.close()
    again = Opened(tmp_path / "g", **SIZES)
    assert again.log.damaged.ranges == ((20, 20),)
    again.close()


@pytest.mark.parametrize("byte", range(32))
@pytest.mark.parametrize("entry", [0, 20, 33, 59])
def test_a_damaged_index_record_is_repaired_from_the_entry(tmp_path, entry, byte):
    filled(tmp_path / "g", checkpoint=True)
    path, _ = file_of(tmp_path / "g", 32 * entry, "index")
    before = path.read_bytes()
    flip(tmp_path / "g", 32 * entry + byte, "index")
    opened = Opened(tmp_path / "g", **SIZES)
    assert opened.log.term_runs() == [(1, 0), (2, 20), (3, 40)]
    try:
        served = entries_of_one(opened.log, entry)[0]
    except CorruptionError as error:
        opened.submit(opened.log.quarantine(error.index))
        assert path.read_bytes() == before
    else:
        assert served.body == BODIES[entry]
    assert not opened.log.damaged
    assert [found.body for found in opened.entries()] == BODIES
    opened.close()


def test_bytes_of_another_entry_are_not_taken_for_a_repair(store):
    directory, places = store
    flip(directory, places[30][0] + 50)
    opened = Opened(directory, **SIZES)
    other = Opened(directory.parent / "foreign", **SIZES)
    other.append([body.upper() for body in BODIES[:40]], term=1)
    before = file_of(directory, places[30][0])[0].read_bytes()
    for offered, reason in [
        (stored_block(other.log, 30, 30), "term 1 instead of 2"),
        (stored_block(other.log, 31, 31), "are not damaged"),
    ]:
        with pytest.raises((CorruptionError, UnexpectedArgumentError), match=reason):
            opened.submit(opened.log.repair(offered))
    wrong_content = Opened(directory.parent / "same-terms", **SIZES)
    for term in (1, 2, 3):
        wrong_content.append(
            [body.upper() for body in BODIES[20 * (term - 1) : 20 * term]], term=term
        )
    with pytest.raises(CorruptionError, match="CRC"):
        opened.submit(opened.log.repair(stored_block(wrong_content.log, 30, 30)))
    assert file_of(directory, places[30][0])[0].read_bytes() == before
    assert opened.log.damaged.ranges == ((30, 30),)
    for each in (opened, other, wrong_content):
        each.close()


def test_a_truncation_takes_damaged_entries_away(store):
    directory, places = store
    for index in (30, 55):
        flip(directory, places[index][0] + 50)
    opened = Opened(directory, **SIZES)
    opened.truncate(52)
    assert opened.log.damaged.ranges == ((30, 30),)
    opened.append([b"instead"], term=4)
    opened.close()
    again = Opened(directory, **SIZES)
    assert again.log.damaged.ranges == ((30, 30),)
    assert again.log.end_index == 52
    again.close()


def test_truncating_just_after_a_damaged_entry(store):
    directory, places = store
    flip(directory, places[54][0] + 50)
    opened = Opened(directory, **SIZES)
    opened.truncate(55)
    assert opened.log.chain_crc_at(54) is None
    opened.close()
    again = Opened(directory, **SIZES)
    assert (again.log.end_index, again.log.damaged.ranges) == (54, ((54, 54),))
    repair_all(again, directory.parent / "other")
    assert [entry.body for entry in again.entries()] == BODIES[:55]
    again.close()


def test_entries_of_another_program_after_ours_are_not_cut_silently(tmp_path):
    opened = Opened(tmp_path / "g")
    opened.append([b"ours"] * 5)
    end = 5 * 52
    opened.close()
    foreign = bytearray(block_of([b"theirs"]).data)
    foreign[8:16], foreign[16:24] = (5).to_bytes(8, "big"), (1).to_bytes(8, "big")
    foreign[24:32], foreign[40:44] = end.to_bytes(8, "big"), bytes(4)
    path = tmp_path / "g" / "data" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[end : end + len(foreign)] = foreign
    path.write_bytes(bytes(raw))
    with pytest.raises(CorruptionError, match="written by another program"):
        Opened(tmp_path / "g")
    assert path.read_bytes() == bytes(raw)


def test_an_entry_that_the_disk_cannot_read_is_damaged_and_can_be_repaired():
    files = SimulatedFileSystem(random.Random(5))
    files.make_directory("/node")
    opened = Opened("/node/g", files=files, **SIZES)
    opened.append(BODIES[:20])
    verify_all(opened.log)
    files.fail_reads(f"{0:020d}", "EIO")
    with pytest.raises(CorruptionError, match=r"entry 0: it cannot be read: .*Input/output error"):
        verify_all(opened.log)


@pytest.mark.parametrize("entry", [0, 7, 19, 20, 33, 59])
def test_a_wrong_position_in_a_header_is_found_by_verifying_and_the_entry_is_read(tmp_path, entry):
    places = filled(tmp_path)
    _, offset = flip(tmp_path, places[entry][0] + POSITION_BYTE)
    [finding] = verify_store(OsFileSystem(), str(tmp_path)).findings
    assert (finding.kind, finding.index, finding.offset) == (
        "position",
        entry,
        offset - POSITION_BYTE,
    )
    opened = Opened(tmp_path, **SIZES)
    assert [one.body for one in opened.entries()] == BODIES
    opened.close()


def test_positions_in_headers_are_the_leaders_and_the_index_holds_ours(tmp_path):
    """After a snapshot a follower's files begin elsewhere than its leader's (fixtures.md)."""
    leader, follower = Opened(tmp_path / "leader", **SIZES), Opened(tmp_path / "g", **SIZES)
    leader.append(BODIES[:30])
    follower.submit(follower.log.reset(9, 1, leader.log.chain_crc_at(9)))
    follower.submit(follower.log.append_received(stored_block(leader.log, 10, 29)))
    leader.close()
    for _ in range(2):
        entries = follower.entries()
        assert [entry.body for entry in entries] == BODIES[10:30]
        shifts = {entry.pos - follower.log._place_of(entry.index)[0] for entry in entries}
        assert shifts != {0}
        verify_all_from(follower.log, 10)
        follower.close()
        assert not verify_store(OsFileSystem(), str(tmp_path / "g")).findings
        follower = Opened(tmp_path / "g", **SIZES)
        assert not follower.log.damaged
    follower.close()


def verify_all_from(log, first):
    while first <= log.end_index:
        first = log.verify(first, log.end_index, 700) + 1


def test_59_index_files_after_the_end_are_removed(tmp_path):
    filled(tmp_path / "g")
    index = tmp_path / "g" / "index"
    longest = max(index.iterdir())
    for further in (1, 2):
        behind = index / f"{int(longest.name) + 256 * further:020d}"
        behind.write_bytes(longest.read_bytes())
    opened = Opened(tmp_path / "g", **SIZES)
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.append([b"next"], term=3)
    opened.close()
    again = Opened(tmp_path / "g", **SIZES)
    assert again.entries()[-1].body == b"next"
    again.close()


@pytest.mark.parametrize("damaged", [24, 12])
def test_a_wrong_place_in_the_index_does_not_lead_a_truncation_astray(tmp_path, damaged):
    places = filled(tmp_path / "g", checkpoint=True)
    opened = Opened(tmp_path / "g", cache=1, **SIZES)
    opened.log._committed_index = 24
    flip(tmp_path / "g", 32 * damaged + 10, "index", mask=0x04)  # 1,024 bytes away
    opened.truncate(25)
    opened.submit(opened.log.quarantine(damaged))
    assert not opened.log.damaged
    assert [entry.body for entry in opened.entries()] == BODIES[:25]
    assert opened.log._place_of(24) == places[24]
    opened.close()


def test_a_wrong_place_in_the_index_does_not_lead_a_reset_astray(tmp_path):
    filled(tmp_path / "g", checkpoint=True)
    opened = Opened(tmp_path / "g", cache=1, **SIZES)
    opened.log.note_committed(50)
    flip(tmp_path / "g", 32 * 20 + 10, "index", mask=0x04)
    opened.submit(opened.log.reset(19))
    opened.submit(opened.log.quarantine(20))
    assert [entry.body for entry in opened.entries()] == BODIES[20:]
    opened.close()
    again = Opened(tmp_path / "g", **SIZES)
    assert [entry.body for entry in again.entries()] == BODIES[20:]
    again.close()


def test_a_checkpoint_in_a_group_commit_does_not_hide_what_became_durable(tmp_path):
    opened = Opened(tmp_path / "g", **SIZES)
    opened.append(BODIES[:5])
    opened.append(BODIES[5:10], run=False)
    opened.submit(opened.log.checkpoint())  # both are carried out, and reported, together
    place = opened.log._place_of(9)[0]
    opened.close()
    flip(tmp_path / "g", place + 50)
    again = Opened(tmp_path / "g", **SIZES)
    assert (again.log.end_index, again.log.damaged.ranges) == (9, ((9, 9),))
    again.close()


def test_a_late_report_of_damage_does_not_touch_what_was_written_since(store):
    directory, places = store
    opened = Opened(directory, **SIZES)
    flip(directory, places[50][0] + 50)
    opened.truncate(45)
    opened.append([b"new"] * 15, term=4, run=False)
    opened.submit(opened.log.quarantine(50))
    assert not opened.log.damaged
    assert [entry.body for entry in opened.entries()] == [*BODIES[:45], *[b"new"] * 15]
    opened.close()


def test_a_late_report_of_damage_does_not_touch_what_was_removed_since(tmp_path):
    filled(tmp_path / "g", checkpoint=True)
    opened = Opened(tmp_path / "g", cache=1, **SIZES)
    opened.log.note_committed(50)
    opened.submit(opened.log.reset(40))
    index = (tmp_path / "g").glob("index/*")
    before = [path.read_bytes() for path in sorted(index)]
    for late in (3, 39, 40):
        opened.submit(opened.log.quarantine(late))
    index = (tmp_path / "g").glob("index/*")
    assert [path.read_bytes() for path in sorted(index)] == before
    assert not opened.log.damaged
    assert [entry.body for entry in opened.entries()] == BODIES[41:]
    opened.close()


def test_a_repair_in_progress_is_not_recorded_as_damage_by_what_is_staged_after_it(store):
    directory, places = store
    for index in (10, 30):
        flip(directory, places[index][0] + 50)
    opened = Opened(directory, **SIZES)
    other = Opened(directory.parent / "other", **SIZES)
    opened.submit(opened.log.repair(stored_block(other.log, 10, 10)), run=False)
    opened.submit(opened.log.quarantine(30), run=False)
    opened.truncate(55, run=False)
    opened.run()
    assert opened.log.damaged.ranges == ((30, 30),)
    opened.close()
    other.close()
    again = Opened(directory, **SIZES)
    assert again.log.damaged.ranges == ((30, 30),)
    again.close()


def test_damage_in_two_neighbouring_headers_is_not_believed(store):
    """A term that only the header names must not be taken over into the index."""
    directory, places = store
    flip(directory, places[2][0], mask=0x01)
    flip(directory, places[3][0] + 16 + 4, mask=0x01)
    opened = Opened(directory, **SIZES)
    assert opened.log.damaged.ranges == ((2, 3),)
    assert opened.log.term_runs() == [(1, 0), (2, 20), (3, 40)]
    repair_all(opened, directory.parent / "other")
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()


def test_a_bad_file_is_quarantined_as_a_whole(tmp_path):
    places = filled(tmp_path / "g", checkpoint=True)
    filled(tmp_path / "other", checkpoint=True)
    opened = Opened(tmp_path / "g", **{**SIZES, "cache": 1})
    path, _ = file_of(tmp_path / "g", 2_000)
    path.write_bytes(random.Random(1).randbytes(2_000))
    inside = [index for index, (position, _) in enumerate(places) if 2_000 <= position < 4_000]
    opened.submit(opened.log.quarantine(inside[0]))
    # nothing is left that tells of the one behind whether its channel and chain CRC are right
    assert opened.log.damaged.ranges == ((inside[0], inside[-1] + 1),)
    repair_all(opened, tmp_path / "other")
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()


def test_75_a_missing_state_file_is_a_loss_not_a_new_replica(store):
    directory, _ = store
    (directory / "quorumlog.state").unlink()
    Opened(directory, **SIZES).close()  # its copy is there
    (directory / "quorumlog.state").unlink()
    (directory / "quorumlog.state.copy").unlink()
    with pytest.raises(CorruptionError, match=r"quorumlog\.state is gone: whom this replica voted"):
        Opened(directory, **SIZES)
