"""Data files of a store of DLedger that are gone: nothing is forgotten, peers give it back.

DLedger notes nowhere how far its log reached, but its index does.
"""

import logging
import shutil

import pytest

from quorumlog.model.errors import CorruptionError
from store_access import Opened, stored_block

SIZES = {"data_file": 131_072, "index_file": 4_096}
END = 499


def data_files(directory):
    return sorted((directory / "data").iterdir())


def bodies_of(opened):
    return [(entry.index, entry.term, entry.body) for entry in opened.entries()]


HOW = {
    "gone": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:20]),
}


@pytest.fixture
def whole(unpacked, tmp_path):
    """The same log, of another member."""
    shutil.copytree(unpacked("multi-term") / "dledger-n1", tmp_path / "whole")
    opened = Opened(tmp_path / "whole", self_id="n1", **SIZES)
    yield opened
    opened.close()


def repair_all(opened, other):
    for first, last in list(opened.log.damaged):
        opened.submit(opened.log.repair(stored_block(other.log, first, last)))


@pytest.mark.parametrize(
    ("how", "count"), [("gone", 1), ("gone", 2), ("emptied", 1), ("emptied", 2), ("cut short", 1)]
)
def test_entries_in_lost_files_at_the_end_are_quarantined_and_repaired(
    copied, whole, how, count, caplog
):
    directory = copied("multi-term", "dledger-n0")
    lost = data_files(directory)[-count:]
    for path in lost:
        HOW[how](path)
    opened = Opened(directory, **SIZES)
    assert opened.log.end_index == END
    ((first, last),) = opened.log.damaged
    assert last == END
    assert opened.group.report.damaged_entries == END - first + 1
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert str(lost[0]) in record.getMessage()
    assert f"entries {first} to {END}" in record.getMessage()
    assert "asks its peers" in record.getMessage()
    with pytest.raises(CorruptionError):
        opened.log.read(first, first, 1 << 20)
    opened.close()
    again = Opened(directory, **SIZES)
    assert list(again.log.damaged) == [(first, END)]
    repair_all(again, whole)
    assert not again.log.damaged
    assert bodies_of(again) == bodies_of(whole)
    again.append([b"and on"], term=6)
    again.close()
    again = Opened(directory, **SIZES)
    assert bodies_of(again)[: END + 1] == bodies_of(whole)
    assert again.log.end_index == END + 1
    again.close()


def test_a_store_without_any_data_file_is_not_an_empty_one(copied, whole):
    directory = copied("multi-term", "dledger-n0")
    for path in data_files(directory):
        path.unlink()
    opened = Opened(directory, **SIZES)
    assert list(opened.log.damaged) == [(0, END)]
    repair_all(opened, whole)
    assert bodies_of(opened) == bodies_of(whole)
    opened.close()


def test_without_data_files_an_index_that_begins_later_is_refused(copied):
    directory = copied("multi-term", "dledger-n0")
    for path in data_files(directory):
        path.unlink()
    indexes = sorted((directory / "index").iterdir())
    indexes[0].unlink()
    before = {path: path.read_bytes() for path in indexes[1:]}
    with pytest.raises(CorruptionError, match="Nothing was changed"):
        Opened(directory, **SIZES)
    assert {path: path.read_bytes() for path in indexes[1:]} == before


def test_two_files_that_were_cut_short_are_refused_with_advice(copied):
    directory = copied("multi-term", "dledger-n0")
    for path in data_files(directory)[-2:]:
        HOW["cut short"](path)
    before = {path: path.read_bytes() for path in directory.rglob("0*")}
    with pytest.raises(CorruptionError, match=r"the file ends inside an entry.*store repair DIR"):
        Opened(directory, **SIZES)
    assert {path: path.read_bytes() for path in directory.rglob("0*")} == before


def test_what_the_original_truncated_is_not_lost(copied, manifest):
    directory = copied("truncated-follower", "after", "dledger-n0")
    expected = manifest("truncated-follower")["nodes"]["after"]["n0"]["entries"]
    opened = Opened(directory)
    assert opened.log.end_index == len(expected) - 1
    assert not opened.log.damaged
    opened.close()
