"""Damage that another one hides: found by what repairs that one."""

import pytest

from damage_access import BODIES, HEADER_FIELDS, SIZES, filled, flip, repair_all
from quorumlog.model.errors import CorruptionError
from quorumlog.storage.files import OsFileSystem
from quorumlog.storage.offline_repair import repair_store
from store_access import Opened, stored_block


@pytest.fixture
def store(tmp_path):
    """Two equal stores: one to damage, one to repair from."""
    filled(tmp_path / "other")
    return tmp_path / "g", filled(tmp_path / "g")


@pytest.mark.parametrize("field", ["chain CRC", "channel"])
def test_damage_that_hides_behind_damage_is_told_by_the_repair(store, field):
    """What only the chain tells of a header is not seen while the entry before it is damaged."""
    directory, places = store
    flip(directory, places[30][0] + HEADER_FIELDS["term"])
    flip(directory, places[31][0] + HEADER_FIELDS[field])
    opened = Opened(directory, **SIZES)
    other = Opened(directory.parent / "other", **SIZES)
    assert opened.log.damaged.range_at(31) is None
    with pytest.raises(CorruptionError, match="entry 31: it does not continue") as caught:
        opened.submit(opened.log.repair(stored_block(other.log, 30, 30)))
    assert caught.value.index == 31
    other.close()
    opened.submit(opened.log.quarantine(31, is_readable=caught.value.is_readable))
    repair_all(opened, directory.parent / "other")
    assert not opened.log.damaged
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()


@pytest.mark.parametrize("field", ["chain CRC", "channel"])
def test_what_nothing_proves_is_not_served(store, field):
    """Entry 32 begins an index file: it is read by itself, behind a damaged one."""
    directory, places = store
    opened = Opened(directory, **{**SIZES, "cache": 1})
    flip(directory, places[31][0] + HEADER_FIELDS["term"])
    flip(directory, places[32][0] + HEADER_FIELDS[field])
    for index in (31, 32):
        with pytest.raises(CorruptionError, match=f"entry {index}:"):
            opened.log.read(index, 59, 1 << 20)
        opened.submit(opened.log.quarantine(index))
    assert opened.log.damaged.ranges == ((31, 32),)
    repair_all(opened, directory.parent / "other")
    assert not opened.log.damaged
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()


@pytest.mark.parametrize("field", HEADER_FIELDS)
def test_behind_one_damaged_field_an_entry_is_still_proven(store, field):
    """By the chain CRC that the damaged one states, or by the one that it should state."""
    directory, places = store
    opened = Opened(directory, **{**SIZES, "cache": 1})
    flip(directory, places[31][0] + HEADER_FIELDS[field])
    with pytest.raises(CorruptionError, match="entry 31:"):
        opened.log.read(31, 31, 1)
    opened.submit(opened.log.quarantine(31))
    assert opened.log.damaged.ranges == ((31, 31),)
    assert opened.log.read(32, 32, 1).count == 1
    opened.close()


def test_damage_is_set_aside_in_both_directions(store):
    """Whoever meets its last entry first: what lies before is damaged as well, and unseen."""
    directory, places = store
    opened = Opened(directory, **{**SIZES, "cache": 1})
    for entry in (30, 31):
        for field in ("chain CRC", "channel"):
            flip(directory, places[entry][0] + HEADER_FIELDS[field])
    with pytest.raises(CorruptionError, match="entry 32:"):
        opened.log.read(32, 32, 1)
    opened.submit(opened.log.quarantine(32))
    assert opened.log.damaged.ranges == ((30, 32),)
    repair_all(opened, directory.parent / "other")
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()


def test_the_first_entry_of_a_log_is_set_aside_with_the_one_that_does_not_follow_it(store):
    """The chain CRC before the log begins is not known: nothing but what follows proves it."""
    directory, places = store
    opened = Opened(directory, **{**SIZES, "cache": 1})
    flip(directory, places[9][0] + HEADER_FIELDS["body"])
    opened.submit(opened.log.quarantine(9))
    opened.log.note_committed(50)
    opened.submit(opened.log.reset(9))
    flip(directory, places[10][0] + HEADER_FIELDS["chain CRC"])
    with pytest.raises(CorruptionError, match="entry 11:"):
        opened.log.read(10, 20, 1 << 20)
    opened.submit(opened.log.quarantine(11))
    assert opened.log.damaged.ranges == ((10, 11),)
    repair_all(opened, directory.parent / "other")
    assert [entry.body for entry in opened.entries(10)] == BODIES[10:]
    opened.close()


@pytest.mark.parametrize("field", ["chain CRC", "channel"])
def test_damage_that_hides_behind_damage_is_repaired_offline(store, field):
    directory, places = store
    for entry in (30, 31, 32, 35):
        flip(directory, places[entry][0] + HEADER_FIELDS["term" if entry == 30 else field])
    report = repair_store(OsFileSystem(), str(directory), [str(directory.parent / "other")])
    assert (report.left, report.reasons) == ([], [])
    opened = Opened(directory, **SIZES)
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()


def test_a_header_that_nothing_proves_is_not_taken_over_into_the_index(store):
    """Behind damage no chain CRC tells whether header or index record is right."""
    directory, places = store
    opened = Opened(directory, **{**SIZES, "cache": 1})
    flip(directory, places[18][0] + HEADER_FIELDS["chain CRC"])
    flip(directory, places[20][0] + HEADER_FIELDS["term"], mask=0x01)
    for index in (18, 20):
        with pytest.raises(CorruptionError):
            opened.log.read(index, index, 1)
        opened.submit(opened.log.quarantine(index))
    assert opened.log.damaged.ranges == ((18, 18), (20, 20))
    repair_all(opened, directory.parent / "other")
    assert not opened.log.damaged
    assert [entry.body for entry in opened.entries()] == BODIES
    assert [entry.term for entry in opened.entries()][18:22] == [1, 1, 2, 2]
    opened.close()


def test_an_entry_set_aside_for_its_index_record_is_whole_once_the_chain_proves_it(store):
    directory, places = store
    opened = Opened(directory, **{**SIZES, "cache": 1})
    for field in ("chain CRC", "channel"):
        flip(directory, places[19][0] + HEADER_FIELDS[field])
    flip(directory, 20 * 32 + 31, "index", mask=0x03)  # term 1: as plausible as the header's 2
    for index in (19, 20):
        with pytest.raises(CorruptionError):
            opened.log.read(index, index, 1)
        opened.submit(opened.log.quarantine(index))
    other = Opened(directory.parent / "other", **SIZES)
    opened.submit(opened.log.repair(stored_block(other.log, 19, 19)))
    assert opened.log.damaged.ranges == ((20, 20),)
    opened.submit(opened.log.quarantine(20))
    other.close()
    assert not opened.log.damaged
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()
