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
def test_damage_that_hides_behind_damage_is_repaired_offline(store, field):
    directory, places = store
    for entry in (30, 31, 32, 35):
        flip(directory, places[entry][0] + HEADER_FIELDS["term" if entry == 30 else field])
    report = repair_store(OsFileSystem(), str(directory), [str(directory.parent / "other")])
    assert (report.left, report.reasons) == ([], [])
    opened = Opened(directory, **SIZES)
    assert [entry.body for entry in opened.entries()] == BODIES
    opened.close()
