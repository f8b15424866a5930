"""Entries of a replica on this machine are read from its files; others are fetched."""

import asyncio
import logging
import shutil
from dataclasses import replace
from itertools import pairwise

import pytest

from damage_access import SIZES, file_of, flip
from quorumlog.client import FetchedBlock
from quorumlog.model.block import decode_entries
from quorumlog.model.codes import Magic
from quorumlog.model.errors import (
    CorruptionError,
    IndexOutOfRangeError,
    IndexRemovedError,
    RemoteProtocolError,
)
from quorumlog.spark.source import clusters as clients
from quorumlog.spark.source import local_reads
from quorumlog.spark.source.arrow import decode_block
from quorumlog.spark.source.clusters import RemoteCluster
from quorumlog.spark.source.local_reads import local_blocks, read_located
from quorumlog.storage.entries.checksums import header_words
from quorumlog.storage.entries.disk_reader import DiskReader
from quorumlog.storage.files.location import is_here, location_of
from store_access import Opened

COUNT = 400
BODIES = [b"%d" % number * 20 for number in range(COUNT)]
NOTHING = memoryview(b"")


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """A store that is open in its node, with entries in several data and index files."""
    monkeypatch.setattr(local_reads, "READ_BYTES", 1_024)
    found = Opened(tmp_path / "g", **SIZES)
    for first in range(0, COUNT, 50):
        found.append(BODIES[first : first + 50], term=1 + first // 100)
    yield found
    found.close()


def place(directory):
    return location_of([str(directory / room) for room in ("", "index", "data")])


def answered(first=0, last=COUNT - 1, rejected=()):
    return FetchedBlock(first, last - first + 1, NOTHING, NOTHING, 0, COUNT - 1, list(rejected))


def located(directory, *args, **kwargs):
    return answered(*args, **kwargs), place(directory)


def read(directory, *args, headers_only=False, **kwargs):
    return list(read_located(*located(directory, *args, **kwargs), headers_only=headers_only))


def entries(blocks):
    return [entry for each in blocks for entry in decode_entries(each.block(1 << 20))]


def test_entries_in_files_are_read_as_they_are_while_their_node_runs(opened, tmp_path):
    blocks = read(tmp_path / "g", 37, 390)
    assert [entry.body for entry in entries(blocks)] == BODIES[37:391]
    assert [entry.index for entry in entries(blocks)] == list(range(37, 391))
    assert all(one.first_index + one.count == two.first_index for one, two in pairwise(blocks))
    assert all(each.is_checked and each.location is None for each in blocks)
    assert len(blocks) > 20


def test_without_bodies_headers_are_read(opened, tmp_path):
    blocks = read(tmp_path / "g", 5, 90, headers_only=True)
    rows = [
        row
        for each in blocks
        for batch in decode_block(
            each.block(1 << 20), header_words(each.block(1 << 20)), ("index", "term")
        )
        for row in batch.to_pylist()
    ]
    assert rows == [{"index": index, "term": 1} for index in range(5, 91)]
    assert all(each.headers_only for each in blocks)


def test_data_files_are_read_wherever_they_lie(tmp_path):
    places = [str(tmp_path / "one"), str(tmp_path / "two")]
    opened = Opened(tmp_path / "spread", **SIZES, data_store_path=",".join(places))
    opened.append(BODIES)
    location = location_of([str(tmp_path / "spread"), str(tmp_path / "spread" / "index"), *places])
    assert all((tmp_path / name).iterdir() for name in ("one", "two"))
    found = entries(read_located(answered(), location, headers_only=False))
    assert [entry.body for entry in found] == BODIES
    opened.close()


def test_entries_that_were_removed_meanwhile_are_not_taken_for_damaged(
    read_by, opened, tmp_path, caplog
):
    shutil.copytree(tmp_path / "g", tmp_path / "later")
    later = Opened(tmp_path / "later", **SIZES)
    later.log.note_committed(COUNT - 1)
    later.submit(later.log.reset(299))
    later.close()
    with pytest.raises(IndexRemovedError):
        read(tmp_path / "later", 100)
    servers = read_by([(COUNT, place(tmp_path / "later"))], 100)
    assert servers.served[0][0] == 100
    assert caplog.records == []


def test_rejected_ranges_come_with_the_blocks_that_contain_them(opened, tmp_path):
    rejected_ranges = [(3, 3), (10, 60), (399, 500)]
    blocks = read(tmp_path / "g", rejected=rejected_ranges)
    for each in blocks:
        indexes = set(range(each.first_index, each.first_index + each.count))
        assert each.rejected == [
            one for one in rejected_ranges if indexes & set(range(one[0], one[1] + 1))
        ]
    assert {one for each in blocks for one in each.rejected} == set(rejected_ranges)


def test_a_damaged_entry_is_never_returned(opened, tmp_path):
    flip(tmp_path / "g", opened.entries(200)[0].pos + 60)
    blocks, found = read_located(*located(tmp_path / "g"), headers_only=False), []
    with pytest.raises(CorruptionError) as error:
        found.extend(blocks)
    assert error.value.index == 200
    assert [entry.body for entry in entries(found)] == BODIES[: len(entries(found))]
    assert len(entries(found)) <= 200


def test_files_are_here_only_if_the_kernel_says_so(opened, tmp_path):
    known = place(tmp_path / "g")
    assert is_here(known)
    shutil.copytree(tmp_path / "g", tmp_path / "copy")
    (_, device, inode), *_ = known.directories
    of_copy = [(str(tmp_path / "copy"), device, inode)]
    assert not is_here(type(known)(known.machine, of_copy))
    assert not is_here(type(known)("another machine", known.directories))
    assert not is_here(type(known)(known.machine, [(str(tmp_path / "gone"), device, inode)]))


class Servers:
    """Stands in for a `SyncClient`: locates what it is told to, and serves everything else."""

    def __init__(self, log, answers):
        self.log = log
        self.answers = answers
        self.served = []
        self.asynchronous = self

    def locating(self, first, last):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        count, location = answer
        count = min(count, last - first + 1)
        return FetchedBlock(first, count, NOTHING, NOTHING, 0, COUNT - 1, location=location)

    def fetch(self, begin, end, *, machine="", **options):
        return self.locating(begin, end) if machine else self.fetched(begin, end)

    async def fetched(self, begin, end):
        run = self.log.read(begin, end, 4_096)
        self.served.append((begin, run.last_index))
        return FetchedBlock(begin, run.count, run.data, run.records, 0, COUNT - 1)

    def each(self, found):
        async def collect():
            return [item async for item in found]

        return iter(asyncio.run(collect()))


@pytest.fixture
def read_by(opened, monkeypatch):
    def reading(answers, first=0, last=COUNT - 1, **options):
        servers = Servers(opened.log, answers)
        monkeypatch.setattr(clients, "client_for", lambda *key: servers)
        blocks = RemoteCluster("n0:1", 1_000).blocks(
            "g", first, last, "read_committed", leader_only=True, **options
        )
        found = entries(list(blocks))
        assert [entry.body for entry in found] == BODIES[first : last + 1]
        return servers

    return reading


def test_servers_send_nothing_that_can_be_read_locally(read_by, tmp_path):
    here = place(tmp_path / "g")
    servers = read_by([(COUNT, here)])
    assert servers.served == []
    servers = read_by([(100, here), (150, here), (COUNT, here)], 20, 380)
    assert servers.served == [] == servers.answers


def test_servers_send_what_is_not_in_files_yet_or_not_on_this_machine(read_by, tmp_path):
    here = place(tmp_path / "g")
    elsewhere = type(here)("another machine", here.directories)
    assert read_by([(1, None)]).served[0][0] == 0
    assert read_by([(COUNT, elsewhere)]).served[0][0] == 0
    assert read_by([(250, here), (0, None)]).served[0][0] == 250


@pytest.mark.parametrize("error", [IndexOutOfRangeError("behind"), IndexRemovedError("gone")])
def test_a_replica_that_cannot_say_is_asked_for_the_entries_themselves(read_by, error):
    assert read_by([error]).served[0][0] == 0


@pytest.mark.parametrize("count", [0, COUNT + 1])
def test_a_server_that_locates_what_was_not_requested_is_refused(opened, tmp_path, count):
    answer, location = located(tmp_path / "g")
    wrong = replace(answer, count=count, location=location)
    found = local_blocks(lambda *asked, **options: wrong, "g", 0, COUNT - 1, headers_only=False)
    with pytest.raises(RemoteProtocolError, match="asked where entries 0 to 399 of g are"):
        next(found)


@pytest.mark.parametrize("headers_only", [False, True])
def test_a_blank_written_over_what_was_read_is_detected(opened, tmp_path, headers_only):
    """It may come when the begin of a file has just been checked."""
    first = next(e for e in opened.entries() if e.index and e.pos % SIZES["data_file"] == 0)
    path, _ = file_of(tmp_path / "g", first.pos)
    found = read_located(*located(tmp_path / "g", first.index), headers_only=headers_only)

    def examined(self, *args):
        wrong = examine(self, *args)
        with path.open("r+b") as file:
            file.write(Magic.BLANK.to_bytes(4, "big", signed=True))
        return wrong

    with pytest.MonkeyPatch.context() as patched:
        examine = DiskReader._examine
        patched.setattr(DiskReader, "_examine", examined)
        with pytest.raises(IndexRemovedError):
            next(found)


def test_local_reads_can_be_turned_off(read_by):
    assert read_by([], local_reads=False).served[0][0] == 0


def a_flipped_bit(directory, position):
    flip(directory, position)


def a_lost_file(directory, position):
    file_of(directory, position)[0].unlink()


@pytest.mark.parametrize("harm", [a_flipped_bit, a_lost_file])
def test_from_a_damaged_entry_on_the_servers_are_asked(read_by, opened, tmp_path, caplog, harm):
    caplog.set_level(logging.WARNING)
    shutil.copytree(tmp_path / "g", tmp_path / "harmed")
    harm(tmp_path / "harmed", opened.entries(200)[0].pos + 60)
    servers = read_by([(COUNT, place(tmp_path / "harmed"))])
    assert 100 < servers.served[0][0] <= 200
    (record,) = caplog.records
    assert f"entries of g from {servers.served[0][0]} on are fetched: " in record.message


def test_a_store_that_does_not_say_where_it_starts_is_not_read(read_by, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    for room in ("data", "index"):
        shutil.copytree(tmp_path / "g" / room, tmp_path / "bare" / room)
    servers = read_by([(COUNT, place(tmp_path / "bare"))])
    assert servers.served[0][0] == 0
    assert "it is not recorded where the log starts" in caplog.text
