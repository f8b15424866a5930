"""`store partitions` and `store verify` of directories that hold partitions, without a cluster."""

import json
import shutil
import struct

import pytest
from isal.isal_zlib import crc32

from partition_group import prepared
from quorumlog.cli.main import main
from quorumlog.model.block import parse_block, put_body_crc
from quorumlog.node.replica.tables import Tables
from quorumlog.records.batch import stamp_batch
from quorumlog.topics.entries import LogStartsMoved, PartitionClosed, PartitionOpened
from record_batches import batch_of
from store_access import Opened

DLEDGER_HEADER = 48
BLANK = -1
"""Magic of what is left empty at the end of a data file."""


class Store:
    """A group's directory, written as a leader writes it."""

    def __init__(self, directory):
        self.directory = directory
        self.opened = Opened(directory, data_file=16_384, index_file=32 * 64, kind="partitions")
        self.log = self.opened.log
        self.tables = Tables(self.log, -1, None)
        self.log.keep_tables(self.tables.to_save)
        self.term = 1
        self.sent = []

    def append(self, block):
        first = self.log.end_index + 1
        self.opened.submit(self.log.append(block, self.term)[0])
        self.tables.appended(block, first)
        self.log.note_committed(first)
        self.tables.committed(first)

    def system(self, *entries):
        for entry in entries:
            data = memoryview(bytearray(entry.encode()))
            self.append(parse_block(data, count=1, entry_bytes_max=1_000))

    def batch(self, channel, count, *, offset=None, epoch=None, damage=0):
        raw = bytearray(batch_of(range(count), value=bytes(300)))
        raw[-1] ^= damage
        self.sent.append(bytes(raw))
        _, block = prepared(channel, memoryview(raw))
        following = self.tables.partitions_at_end.partitions[channel].next_offset
        body = block.data[48:]
        stamp_batch(body, 0, following if offset is None else offset, epoch or self.term)
        put_body_crc(block.data, 0, crc32(body))
        self.append(block)

    def checkpoint(self):
        self.opened.submit(self.log.checkpoint())

    def close(self):
        self.opened.close()


@pytest.fixture
def store(tmp_path):
    found = Store(tmp_path / "g")
    found.system(*[PartitionOpened(at, at - 1, bytes(15) + b"t", "orders") for at in (1, 2, 3)])
    for number in range(30):
        found.term = 1 + number // 10
        found.batch(1 + number % 2, 3)
    found.system(LogStartsMoved(((1, 7),)), PartitionClosed(3))
    return found


def run(capsys, command, directory, *more):
    status = main(["store", command, str(directory), *more])
    return status, capsys.readouterr().out


def entries_as_dledger_reads_them(directory):
    """Yield (index, channel, body) of all entries, found by DLedger's rules alone."""
    position = 0
    for path in sorted((directory / "data").iterdir()):
        data, start = path.read_bytes(), int(path.name)
        while position < start + len(data):
            magic, size = struct.unpack_from(">ii", data, position - start)
            if magic == BLANK:
                position = start + len(data)
            elif not magic:
                return
            else:
                header = struct.unpack_from(">iiqqqiiii", data, position - start)
                _, _, index, _, stated, channel, _, _, length = header
                assert (magic, size, stated) == (1, DLEDGER_HEADER + length, position)
                body = position - start + DLEDGER_HEADER
                yield index, channel, data[body : body + length]
                position += size


def test_b12_dledger_finds_every_entry_and_batches_as_they_were_sent(store):
    store.checkpoint()
    store.close()
    found = list(entries_as_dledger_reads_them(store.directory))
    assert [index for index, _, _ in found] == list(range(store.log.end_index + 1))
    batches = [body for _, channel, body in found if channel in (1, 2, 3)]
    assert [without_stamp(one) for one in batches] == [without_stamp(one) for one in store.sent]


def without_stamp(batch):
    """Leave out the base offset and the leader epoch, which the leader of the partition writes."""
    return batch[8:12], batch[16:]


@pytest.mark.parametrize("is_saved", [False, True])
def test_b12_a_directory_alone_lists_its_partitions(store, capsys, is_saved):
    if is_saved:
        store.checkpoint()
        store.batch(2, 3)
    store.close()
    before = {path: path.read_bytes() for path in store.directory.rglob("*") if path.is_file()}
    status, out = run(capsys, "partitions", store.directory, "--json")
    first, second = json.loads(out)["partitions"]
    end = 48 if is_saved else 45
    assert status == 0
    assert (first["topic"], first["partition"], first["channel"]) == ("orders", 0, 1)
    assert (first["log_start"], first["end"], first["batches"]) == (7, 45, 13)
    assert (second["log_start"], second["end"], second["batches"]) == (0, end, end // 3)
    assert second["epochs"] == [[1, 0], [2, 15], [3, 30]]
    assert second["size_bytes"] % second["batches"] == 0
    assert first["topic_id"] == "AAAAAAAAAAAAAAAAAAAAdA"
    status, out = run(capsys, "partitions", store.directory)
    assert out.splitlines()[0].split() == [
        *("TOPIC", "PARTITION", "TOPIC-ID", "CHANNEL", "START", "END", "BATCHES", "BYTES"),
        "EPOCHS",
    ]
    assert "3 from 30" in out
    assert run(capsys, "verify", store.directory)[0] == 0
    assert "partitions (2)" in run(capsys, "stats", store.directory)[1]
    after = {path: path.read_bytes() for path in store.directory.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"damage": 1}, "CRC-32C"),
        ({"offset": 50}, "base offset 50, where 45 follows"),
        ({"epoch": 2}, "leader epoch 2 in an entry of term 3"),
    ],
)
def test_b12_record_batches_are_verified(store, capsys, wrong, text):
    store.batch(1, 1, **wrong)
    store.close()
    status, out = run(capsys, "verify", store.directory)
    assert status == 1
    assert text in out
    assert "1 finding" in out


def test_a_torn_copy_lists_what_it_holds(store, capsys, tmp_path):
    store.close()
    copy = tmp_path / "copy"
    shutil.copytree(store.directory, copy)
    newest = max((copy / "data").iterdir(), key=lambda path: path.name)
    older = sorted((copy / "data").iterdir())[-2]
    with (newest if newest.stat().st_blocks else older).open("r+b") as file:
        raw = file.read()
        file.seek(len(raw.rstrip(b"\0")) - 200)
        file.write(bytes(200))
    out = run(capsys, "partitions", copy, "--json")[1]
    assert [one["log_start"] for one in json.loads(out)["partitions"]][-1] == 0


def test_a_damaged_directory_says_what_it_could_not_read(store, capsys):
    store.checkpoint()
    store.close()
    first = min((store.directory / "data").iterdir())
    raw = bytearray(first.read_bytes())
    raw[5_000] ^= 1
    first.write_bytes(raw)
    status, out = run(capsys, "partitions", store.directory)
    assert status == 1
    assert "not read: " in out
    assert "orders" in out


def test_a_log_has_no_partitions(tmp_path, capsys):
    opened = Opened(tmp_path / "g")
    opened.append([b"x"])
    opened.close()
    assert json.loads(run(capsys, "partitions", tmp_path / "g", "--json")[1])["partitions"] == []
    assert main(["store", "partitions", str(tmp_path / "g")]) == 0
    assert "holds no partitions of topics" in capsys.readouterr().err
