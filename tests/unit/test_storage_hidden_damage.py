"""Damage that another one hides: found by what repairs that one."""

import pytest

from damage_access import BODIES, HEADER_FIELDS, SIZES, filled, flip, repair_all
from quorumlog.model.block import chain_crcs, parse_block
from quorumlog.model.errors import CorruptionError
from quorumlog.storage.entries.disk_reader import DiskReader
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.offline.repair import repair_store
from store_access import Opened, stored_block


@pytest.fixture
def store(tmp_path):
    """Two equal stores: one to damage, one to repair from."""
    filled(tmp_path / "other")
    return tmp_path / "g", filled(tmp_path / "g")


def meet(opened, *entries, first=None, last=59):
    """Read from each of these entries on (or from `first`): each is refused, and quarantined."""
    for index in entries:
        with pytest.raises(CorruptionError, match=f"entry {index}:"):
            opened.log.read(index if first is None else first, last, 1 << 20)
        opened.submit(opened.log.quarantine(index))


def repaired_and_closed(opened, directory, begin=0):
    """Nothing is left to repair; every body is what it was."""
    repair_all(opened, directory.parent / "other")
    assert not opened.log.damaged
    assert [entry.body for entry in opened.entries(begin)] == BODIES[begin:]
    opened.close()


@pytest.mark.parametrize("field", ["chain CRC", "channel"])
def test_damage_hidden_by_damage_is_found_by_the_repair(store, field):
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
    repaired_and_closed(opened, directory)


@pytest.mark.parametrize("field", ["chain CRC", "channel"])
def test_what_nothing_proves_is_not_served(store, field):
    """Entry 32 begins an index file: it is read by itself, behind a damaged one."""
    directory, places = store
    opened = Opened(directory, **{**SIZES, "cache": 1})
    flip(directory, places[31][0] + HEADER_FIELDS["term"])
    flip(directory, places[32][0] + HEADER_FIELDS[field])
    meet(opened, 31, 32)
    assert opened.log.damaged.ranges == ((31, 32),)
    repaired_and_closed(opened, directory)


@pytest.mark.parametrize("field", HEADER_FIELDS)
def test_after_one_damaged_field_the_next_entry_is_still_proven(store, field):
    """By the chain CRC that the damaged one states, or by the one that it should state."""
    directory, places = store
    opened = Opened(directory, **{**SIZES, "cache": 1})
    flip(directory, places[31][0] + HEADER_FIELDS[field])
    meet(opened, 31)
    assert opened.log.damaged.ranges == ((31, 31),)
    assert opened.log.read(32, 32, 1).count == 1
    opened.close()


def test_damage_is_quarantined_in_both_directions(store):
    """Whoever meets its last entry first: what lies before is damaged as well, and unseen."""
    directory, places = store
    opened = Opened(directory, **{**SIZES, "cache": 1})
    for entry in (30, 31):
        for field in ("chain CRC", "channel"):
            flip(directory, places[entry][0] + HEADER_FIELDS[field])
    meet(opened, 32)
    assert opened.log.damaged.ranges == ((30, 32),)
    repaired_and_closed(opened, directory)


def test_the_first_entry_of_a_log_is_quarantined_with_the_one_that_does_not_follow_it(store):
    """The chain CRC before the log begins is not known: nothing but what follows proves it."""
    directory, places = store
    opened = Opened(directory, **{**SIZES, "cache": 1})
    flip(directory, places[9][0] + HEADER_FIELDS["body"])
    opened.submit(opened.log.quarantine(9))
    opened.log.note_committed(50)
    opened.submit(opened.log.reset(9))
    flip(directory, places[10][0] + HEADER_FIELDS["chain CRC"])
    meet(opened, 11, first=10)
    assert opened.log.damaged.ranges == ((10, 11),)
    repaired_and_closed(opened, directory, begin=10)


@pytest.mark.parametrize("field", ["chain CRC", "channel"])
def test_damage_hidden_by_damage_is_repaired_offline(store, field):
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
        meet(opened, index, last=index)
    assert opened.log.damaged.ranges == ((18, 18), (20, 20))
    repair_all(opened, directory.parent / "other")
    assert not opened.log.damaged
    assert [entry.body for entry in opened.entries()] == BODIES
    assert [entry.term for entry in opened.entries()][18:22] == [1, 1, 2, 2]
    opened.close()


def test_an_entry_quarantined_for_its_index_record_is_whole_once_the_chain_proves_it(store):
    directory, places = store
    opened = Opened(directory, **{**SIZES, "cache": 1})
    for field in ("chain CRC", "channel"):
        flip(directory, places[19][0] + HEADER_FIELDS[field])
    flip(directory, 20 * 32 + 31, "index", mask=0x03)  # term 1: as plausible as the header's 2
    for index in (19, 20):
        meet(opened, index, last=index)
    other = Opened(directory.parent / "other", **SIZES)
    opened.submit(opened.log.repair(stored_block(other.log, 19, 19)))
    assert opened.log.damaged.ranges == ((20, 20),)
    opened.submit(opened.log.quarantine(20))
    other.close()
    assert not opened.log.damaged
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()


# -- where DLedger's entries are, at the end, where an index record tells of another place ----


def without_crcs(directory, until):
    """Make the first entries of a store what DLedger writes; the chain begins behind them."""
    opened = Opened(directory)
    opened.append([b"body %d " % number * 5 for number in range(30)])
    places = [opened.log._place_of(index) for index in range(30)]
    opened.close()
    path = directory / "data" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    for begin, _ in places[:until]:
        raw[begin + 36 : begin + 44] = bytes(8)
    chain = 0
    for begin, size in places[until:]:
        block = parse_block(memoryview(raw)[begin : begin + size], count=1, entry_bytes_max=size)
        (chain,) = chain_crcs(block, chain)
        raw[begin + 36 : begin + 40] = chain.to_bytes(4, "big")
    path.write_bytes(raw)
    for name in ("quorumlog.checkpoint", "quorumlog.durable"):
        (directory / name).unlink(missing_ok=True)
    opened = Opened(directory)
    opened.log.note_committed(29)
    opened.checkpoint()
    opened.close()
    return path, places


def found_in(opened):
    """Read everything; quarantined what is damaged."""
    index = opened.log.before_begin_index + 1
    while index <= opened.log.end_index:
        try:
            index = opened.log.read(index, opened.log.end_index, 1 << 20).last_index + 1
        except CorruptionError as error:
            if opened.log.damaged.range_at(error.index) is None:
                opened.submit(opened.log.quarantine(error.index))
            index = error.index + 1
    return opened.log.damaged.ranges


def repaired_from(opened, directory):
    """Repair range by range from a store whose files are of any size; return what is left."""
    other = Opened(directory)
    for first, last in opened.log.damaged.ranges:
        opened.submit(opened.log.repair(stored_block(other.log, first, last)))
    other.close()
    return opened.log.damaged.ranges


def test_a_range_in_which_the_originals_entries_end_is_repaired(tmp_path):
    without_crcs(tmp_path / "other", 10)
    path, places = without_crcs(tmp_path / "g", 10)
    raw = bytearray(path.read_bytes())
    begin, end = places[9][0], places[10][0] + 60
    raw[begin:end] = bytes(end - begin)
    path.write_bytes(raw)
    opened = Opened(tmp_path / "g", cache=1)
    assert found_in(opened) == ((9, 11),)
    assert repaired_from(opened, tmp_path / "other") == ()
    opened.close()


def test_an_entry_without_a_body_whose_chain_crc_is_gone_is_not_taken_for_the_originals(tmp_path):
    for name in ("g", "other"):
        opened = Opened(tmp_path / name)
        opened.append([b"x%d" % number * 20 for number in range(10)])
        opened.submit(opened.log.append_noop(2))
        opened.append([b"y%d" % number * 20 for number in range(20)], term=2)
        opened.log.note_committed(30)
        opened.checkpoint()
        noop, _ = opened.log._place_of(10)
        opened.close()
    path = tmp_path / "g" / "data" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[noop + 36 : noop + 548] = bytes(512)
    path.write_bytes(raw)
    opened = Opened(tmp_path / "g", cache=1)
    ((first, last),) = found_in(opened)
    assert (first, last > 12) == (10, True)
    assert repaired_from(opened, tmp_path / "other") == ()
    opened.close()


@pytest.mark.parametrize("field", ["chain CRC", "channel", "body"])
def test_the_end_of_a_log_is_known_although_its_last_entry_is_not_proven(store, field):
    directory, places = store
    flip(directory, places[58][0] + HEADER_FIELDS["term"])
    flip(directory, places[59][0] + HEADER_FIELDS[field])
    opened = Opened(directory, **{**SIZES, "cache": 1})
    other = Opened(directory.parent / "other", **SIZES)
    assert opened.log.end_chain_crc == other.log.end_chain_crc
    other.close()
    assert found_in(opened) == ((58, 59),)
    repaired_and_closed(opened, directory)


@pytest.fixture
def places(tmp_path):
    """Two equal stores with checkpoints; in g the body of entry 25 is damaged."""
    filled(tmp_path / "other", checkpoint=True)
    found = filled(tmp_path / "g", checkpoint=True)
    flip(tmp_path / "g", found[25][0] + HEADER_FIELDS["body"])
    return found


def test_a_wrong_index_record_behind_damage_does_not_spread(tmp_path, places):
    """Header and index record of the damaged entry agree: those are two against one."""
    flip(tmp_path / "g", 26 * 32 + 11, "index", mask=0x01)
    opened = Opened(tmp_path / "g", **{**SIZES, "cache": 1})
    opened.submit(opened.log.quarantine(25))
    assert opened.log._reader.place_of(25) == places[25]
    opened.close()
    report = repair_store(OsFileSystem(), str(tmp_path / "g"), [str(tmp_path / "other")])
    assert report.left == []
    opened = Opened(tmp_path / "g", **{**SIZES, "cache": 1})
    assert [opened.log._reader.place_of(index) for index in range(24, 29)] == places[24:29]
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()


@pytest.mark.usefixtures("places")
def test_entries_are_not_written_where_a_wrong_index_record_says(tmp_path):
    opened = Opened(tmp_path / "g", **{**SIZES, "cache": 1})
    opened.submit(opened.log.quarantine(25))
    flip(tmp_path / "g", 25 * 32 + 11, "index", mask=0x01)
    with pytest.raises(CorruptionError, match="not that of the place"):
        repair_all(opened, tmp_path / "other")
    opened.submit(opened.log.quarantine(25))
    repair_all(opened, tmp_path / "other")
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()


def test_stores_with_damage_side_by_side_are_repaired_from_one_another(tmp_path):
    filled(tmp_path / "a", checkpoint=True)
    places = filled(tmp_path / "b", checkpoint=True)
    flip(tmp_path / "a", places[30][0] + HEADER_FIELDS["body"])
    for offset in range(48):
        flip(tmp_path / "b", places[29][0] + offset)
    for repaired, source in (("b", "a"), ("a", "b")):
        report = repair_store(OsFileSystem(), str(tmp_path / repaired), [str(tmp_path / source)])
        assert (report.left, report.reasons) == ([], [])


def test_what_is_quarantined_is_not_looked_at_again_for_more(tmp_path, monkeypatch):
    opened = Opened(tmp_path / "g", cache=1, data_file=1 << 20, index_file=1 << 16)
    for _ in range(4):
        opened.append([b"x" * 100] * 1_000)
    opened.log.note_committed(3_999)
    path = tmp_path / "g" / "data" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    begin, end = (opened.log._place_of(index)[0] for index in (100, 3_000))
    raw[begin:end] = bytes(end - begin)
    path.write_bytes(raw)
    looks = []
    verify = DiskReader.verify
    monkeypatch.setattr(
        DiskReader, "verify", lambda self, *what: (looks.append(what[0]), verify(self, *what))[1]
    )
    index = 100
    while index < 3_000:
        opened.submit(opened.log.quarantine(index))
        ((_, last),) = opened.log.damaged.ranges
        index = last + 1
    assert len(looks) <= len(set(looks)) + 8
    opened.close()
