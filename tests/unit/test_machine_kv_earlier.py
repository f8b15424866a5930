"""Snapshots and files of builds whose records had no hashes: read if whole, else refused."""

import io
import struct
from hashlib import blake2b

import lmdb
import pytest

from kv_access import delete, everything, put, run, saved
from quorumlog.machine.kv import KeyValueMachine
from quorumlog.model.errors import CorruptionError

KEPT = {b"one": b"1", b"two": b"2"}


def hashed(data):
    return blake2b(data, digest_size=16).digest()


@pytest.fixture
def machine(tmp_path):
    """What has been given the same commands as the earlier one."""
    made = KeyValueMachine.open(str(tmp_path / "machine"))
    for number in range(300):
        run(made, put(b"%03d" % number, b"value %d " % number * 40))
    run(made, delete(b"007"))
    run(made, put(b"large", bytes(200_000)))
    yield made
    made.close()


@pytest.fixture
def other(tmp_path):
    made = KeyValueMachine.open(str(tmp_path / "other"))
    yield made
    made.close()


def tables_of(machine):
    """The bodies of all records: what an earlier build stored as they are."""
    environment, tables = machine._database.environment, {}
    with environment.begin() as transaction:
        for name in (b"items", b"events"):
            table = environment.open_db(name, transaction, create=False)
            tables[name] = {key: record[16:] for key, record in transaction.cursor(table)}
    return {**tables, b"kept": KEPT}


def written_earlier(machine, path, change=None):
    """Return the file of an earlier build with the same state; `change` alters an item in it."""
    tables = tables_of(machine)
    digest = sum(
        int.from_bytes(hashed(struct.pack(">H", len(key)) + key + body))
        for key, body in tables[b"items"].items()
    )
    tables[b"items"].update(change or {})
    progress = struct.pack(">q16sq", machine.applied_index, (digest % (1 << 128)).to_bytes(16), 0)
    tables[b"meta"] = {b"format": b"quorumlog key-value 1", b"progress": progress}
    with lmdb.open(str(path), subdir=False, max_dbs=4, map_size=16 << 20) as environment:
        for name, records in tables.items():
            table = environment.open_db(name)
            with environment.begin(write=True, db=table) as transaction:
                for key, body in records.items():
                    transaction.put(key, body)
        environment.copy(f"{path}.copied", compact=True)
    return (path.parent / f"{path.name}.copied").read_bytes()


def test_a_snapshot_of_an_earlier_build_is_the_state_that_was_saved(machine, other, tmp_path):
    data = written_earlier(machine, tmp_path / "earlier")
    other.load_snapshot(io.BytesIO(data + hashed(data)))
    assert everything(other) == everything(machine)
    assert dict(other.kept()) == KEPT
    other.check()
    run(other, put(b"and", b"on"))
    assert saved(other)


def test_a_damaged_one_is_refused_and_nothing_changes(machine, other, tmp_path):
    data = written_earlier(machine, tmp_path / "earlier")
    run(other, put(b"a", b"1"))
    before = everything(other)
    for at in range(0, len(data), len(data) // 40):
        flipped = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        with pytest.raises(CorruptionError):
            other.load_snapshot(io.BytesIO(flipped + hashed(data)))
    with pytest.raises(CorruptionError):
        other.load_snapshot(io.BytesIO(data))
    assert everything(other) == before


def test_one_that_was_saved_of_a_damaged_file_is_refused(machine, other, tmp_path):
    """The earlier build copied pages, and its hash is of the copy: the sum of the items is not."""
    wrong = {b"123": b"\0" * 8 + b"not what was put"}
    data = written_earlier(machine, tmp_path / "earlier", wrong)
    with pytest.raises(CorruptionError, match="others than were saved"):
        other.load_snapshot(io.BytesIO(data + hashed(data)))


def test_the_file_of_an_earlier_build_is_made_again(machine, tmp_path):
    directory = tmp_path / "upgraded"
    directory.mkdir()
    (directory / "state.mdb").write_bytes(written_earlier(machine, tmp_path / "earlier"))
    (directory / "boot").write_text("closed")
    upgraded = KeyValueMachine.open(str(directory))
    assert upgraded.applied_index == -1
    assert not (directory / "boot").exists()
    upgraded.close()
