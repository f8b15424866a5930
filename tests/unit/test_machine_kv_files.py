"""The key-value machine's file, its digest and its snapshots, whatever happens to them."""

import io
import os
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_access import (
    ask,
    compare_and_set,
    copy_of,
    delete,
    entry,
    everything,
    put,
    run,
    saved,
    scan,
)
from quorumlog.log_events import EVENT_FIELDS
from quorumlog.machine.kv import KeyValueMachine
from quorumlog.machine.kv_commands import (
    KEY_BYTES_MAX,
    Compare,
    Delete,
    Events,
    Get,
    Put,
    Transaction,
)
from quorumlog.model.errors import CorruptionError, StorageError


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "machine")


@pytest.fixture
def machine(directory):
    made = KeyValueMachine.open(directory)
    yield made
    made.close()


@pytest.fixture
def other(tmp_path):
    made = KeyValueMachine.open(str(tmp_path / "other"))
    yield made
    made.close()


# -- the file ---------------------------------------------------------------------------------


def test_what_was_not_closed_is_made_again(machine, directory, tmp_path):
    run(machine, put(b"a", b"1"), put(b"b", b"2"))
    empty = KeyValueMachine.open(copy_of(directory, tmp_path / "killed"))
    assert everything(empty)[:2] == (-1, bytes(16))
    assert scan(empty).items == []
    run(empty, put(b"c", b"3"))
    empty.close()


def test_a_closed_one_is_kept_until_it_is_opened(directory, tmp_path):
    machine = KeyValueMachine.open(directory)
    run(machine, put(b"a", b"1"))
    before = everything(machine)
    machine.close()
    machine = KeyValueMachine.open(directory)
    assert everything(machine) == before
    crashed = KeyValueMachine.open(copy_of(directory, tmp_path / "crashed"))
    assert crashed.applied_index == -1
    crashed.close()
    machine.close()
    machine = KeyValueMachine.open(directory)
    assert everything(machine) == before
    machine.close()


DAMAGES = {
    "flipped": lambda data, at: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
    "zeroed": lambda data, at: data[: at & -512] + bytes(512) + data[(at & -512) + 512 :],
    "halved": lambda data, at: data[: len(data) // 2],
    "emptied": lambda data, at: b"",
    "deleted": lambda data, at: None,
}


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["state.mdb", "closed", "state.mdb-lock"])
def test_no_damage_to_its_files_is_ever_served(directory, name, how):
    machine = KeyValueMachine.open(directory, map_bytes=1 << 20)
    run(machine, *(put(b"%03d" % number, b"value %d" % number * 9) for number in range(300)))
    before = everything(machine)
    machine.close()
    good = {path.name: path.read_bytes() for path in Path(directory).iterdir()}
    whole = good[name]
    places = sorted({0, 9, 17, len(whole) // 3, len(whole) // 2, len(whole) - 1})
    for at in places:
        for path, data in good.items():
            Path(directory, path).write_bytes(data)
        damaged = DAMAGES[how](whole, min(at, len(whole) - 1))
        if damaged is None:
            Path(directory, name).unlink()
        else:
            Path(directory, name).write_bytes(damaged)
        again = KeyValueMachine.open(directory, map_bytes=1 << 20)
        is_derived = name == "state.mdb-lock" or damaged == whole
        assert everything(again) == before if is_derived else again.applied_index == -1
        run(again, put(b"on", b"and on"))
        again.check()
        again.close()


def test_a_stray_file_is_named_and_ignored(directory, caplog):
    machine = KeyValueMachine.open(directory)
    run(machine, put(b"a", b"1"))
    before = everything(machine)
    machine.close()
    Path(directory, "notes.txt").write_text("mine")
    machine = KeyValueMachine.open(directory)
    assert everything(machine) == before
    machine.close()
    (record,) = caplog.records
    assert record.message == "not a file of the key-value machine; ignored"
    assert getattr(record, EVENT_FIELDS)["path"].endswith("/notes.txt")
    assert Path(directory, "notes.txt").read_text() == "mine"


@contextmanager
def rotten(machine, table, key, at):
    """Flip a bit of a stored record, as a page would have it that rotted while it was not used."""
    environment = machine._database.environment
    with environment.begin(write=True) as transaction:
        handle = environment.open_db(table, transaction)
        record = bytearray(transaction.get(key, db=handle))
        record[min(at, len(record) - 1)] ^= 4
        transaction.put(key, bytes(record), db=handle)
    yield


EVENT = struct.pack(">qI", 1, 0)
READS = {
    "get": lambda machine: ask(machine, Get(b"b")),
    "scan": scan,
    "scan back": lambda machine: scan(machine, reverse=True),
    "compare": lambda machine: run(machine, compare_and_set(b"b", b"2", b"3")),
    "put": lambda machine: run(machine, put(b"b", b"3")),
    "delete": lambda machine: run(machine, delete(b"b")),
    "events": lambda machine: ask(machine, Events(b"", 0, 10)),
    "check": lambda machine: machine.check(),
    "save": saved,
}


@pytest.mark.parametrize("at", [0, 15, 16, 23, -1], ids=["hash", "hash's end", "index", "i", "v"])
@pytest.mark.parametrize("read", READS)
def test_a_bit_that_flips_under_a_running_machine_is_never_served(machine, read, at):
    run(machine, put(b"a", b"1"), put(b"b", b"2"), put(b"c", b"3"))
    table, key = (b"events", EVENT) if read == "events" else (b"items", b"b")
    before = machine.applied_index
    with rotten(machine, table, key, at), pytest.raises(CorruptionError):
        READS[read](machine)
    assert machine.applied_index == before, "nothing was applied"
    machine.close()
    again = KeyValueMachine.open(machine._directory)
    assert again.applied_index == -1, "damage that was met is not closed as if it were whole"
    again.close()


@pytest.mark.parametrize("table", [b"items", b"events", b"kept"])
def test_a_record_that_vanished_is_missed(machine, other, table):
    entries = [entry(number, put(b"%d" % number, b"1")) for number in range(5)]
    machine.apply_keeping(entries, lambda results: {b"a": b"1", b"b": b"2"})
    environment = machine._database.environment
    with environment.begin(write=True) as transaction:
        handle = environment.open_db(table, transaction)
        with transaction.cursor(handle) as cursor:
            cursor.first()
            cursor.delete()
    with pytest.raises(CorruptionError, match="missing"):
        machine.check()
    with pytest.raises(CorruptionError, match="missing"):
        saved(machine)


def test_the_file_grows_in_the_middle_of_a_batch(tmp_path, other):
    small = KeyValueMachine.open(str(tmp_path / "small"), map_bytes=64 << 10)
    commands = [put(b"%d" % number, bytes(5_000)) for number in range(300)]
    assert all(outcome.succeeded for outcome in run(small, *commands))
    run(other, *commands)
    assert everything(small) == everything(other)
    small.close()
    small = KeyValueMachine.open(str(tmp_path / "small"), map_bytes=64 << 10)
    assert everything(small) == everything(other)
    small.close()


CHILD = """
import sys
from quorumlog.machine.kv import KeyValueMachine
from quorumlog.machine.kv_commands import Put, Transaction, encode_command
from quorumlog.model.entry import Entry
machine = KeyValueMachine.open(sys.argv[1], map_bytes=1 << 20)
for first in range(0, 1_000_000, 7):
    machine.apply([
        Entry(i, 1, 0, encode_command(Transaction((), (Put(b"%d" % (i % 50), b"%d" % i * 99),))))
        for i in range(first, first + 7)
    ])
    print(first + 6, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 20, 111])
def test_after_kill_9_it_begins_empty_and_can_be_given_everything_again(directory, lines):
    child = subprocess.Popen([sys.executable, "-c", CHILD, directory], stdout=subprocess.PIPE)
    for _ in range(lines):
        child.stdout.readline()
    child.kill()
    child.communicate()
    machine = KeyValueMachine.open(directory)
    assert machine.applied_index == -1
    run(machine, *(put(b"%d" % (i % 50), b"%d" % i * 99) for i in range(100)))
    expected = {b"%d" % (i % 50): (b"%d" % i * 99, i) for i in range(100)}
    assert {key: (value, i) for key, value, i in scan(machine).items} == expected
    machine.close()


# -- the digest -------------------------------------------------------------------------------


def test_the_digest_is_the_state_not_the_way_to_it(machine, other):
    commands = [put(b"%d" % (number % 7), b"%d" % number) for number in range(40)]
    run(machine, *commands)
    for command in commands:
        run(other, command)
    assert machine.digest() == other.digest() != bytes(16)
    run(machine, put(b"0", b"39"), put(b"x", b""))
    run(other, put(b"0", b"38"), put(b"x", b""))
    assert machine.digest() != other.digest()


def test_the_digest_is_that_of_the_items(machine):
    assert machine.digest() == bytes(16)
    run(machine, put(b"a", b"1"), put(b"b", b"2"), put(b"a", b"3"))
    total = 0
    for key, value, index in scan(machine).items:
        data = len(key).to_bytes(2) + key + index.to_bytes(8) + value
        total += int.from_bytes(blake2b(data, digest_size=16).digest())
    assert machine.digest() == (total % (1 << 128)).to_bytes(16)
    run(machine, delete(b"a"), delete(b"b"))
    assert machine.digest() == bytes(16)


# -- snapshots --------------------------------------------------------------------------------


def fill(machine, count=300, size=1_000):
    run(machine, *(put(b"%05d" % number, os.urandom(size)) for number in range(count)))
    run(machine, *(delete(b"%05d" % number) for number in range(0, count, 3)))


def test_a_loaded_snapshot_is_the_saved_state(machine, other, tmp_path):
    fill(machine)
    run(other, put(b"other", b"state"))
    other.load_snapshot(io.BytesIO(saved(machine)))
    assert everything(other) == everything(machine)
    for each in (machine, other):
        run(each, put(b"x", b"y"), delete(b"00001"))
    assert everything(other) == everything(machine)
    before = everything(other)
    other.close()
    closed = KeyValueMachine.open(str(tmp_path / "other"))
    assert everything(closed) == before == everything(machine)
    closed.close()


def test_a_snapshot_of_nothing(machine, other):
    run(other, put(b"other", b"state"))
    other.load_snapshot(io.BytesIO(saved(machine)))
    assert (other.applied_index, scan(other).items) == (-1, [])


@pytest.mark.parametrize("map_bytes", [64 << 10, 64 << 20], ids=["growing", "fixed"])
def test_a_frozen_state_stays_while_others_follow(tmp_path, other, map_bytes):
    machine = KeyValueMachine.open(str(tmp_path / "m"), map_bytes=map_bytes)
    fill(machine)
    expected = everything(machine)
    frozen, unused = machine.freeze(), machine.freeze()
    for _ in range(3):
        fill(machine)
    assert everything(machine) != expected
    other.load_snapshot(io.BytesIO(saved(frozen)))
    frozen.close()
    unused.close()
    assert everything(other) == expected
    names = os.listdir(tmp_path / "m")
    assert sorted(names) == ["state.mdb", "state.mdb-lock"]
    machine.close()


class SlowWriter(io.BytesIO):
    """Takes its time after the first bytes: until it is told to go on."""

    def __init__(self):
        super().__init__()
        self.began, self.may_go_on = threading.Event(), threading.Event()

    def write(self, data):
        self.began.set()
        assert self.may_go_on.wait(60)
        return super().write(data)


def test_entries_are_applied_while_a_snapshot_is_saved(machine, other):
    fill(machine, count=1_000)
    expected, writer = everything(machine), SlowWriter()
    frozen = machine.freeze()
    thread = threading.Thread(target=frozen.save_snapshot, args=(writer,))
    thread.start()
    assert writer.began.wait(60)
    for _ in range(3):
        fill(machine, count=1_000)
    assert everything(machine) != expected
    writer.may_go_on.set()
    thread.join()
    frozen.close()
    other.load_snapshot(io.BytesIO(writer.getvalue()))
    assert everything(other) == expected


def test_growth_and_close_wait_for_a_snapshot_that_is_being_saved(tmp_path, other):
    machine = KeyValueMachine.open(str(tmp_path / "m"), map_bytes=1 << 20)
    fill(machine)
    expected, writer = everything(machine), SlowWriter()
    frozen = machine.freeze()
    saving = threading.Thread(target=frozen.save_snapshot, args=(writer,))
    saving.start()
    assert writer.began.wait(60)
    threading.Timer(0.05, writer.may_go_on.set).start()
    fill(machine, count=3_000)
    machine.close()
    saving.join()
    other.load_snapshot(io.BytesIO(writer.getvalue()))
    assert everything(other) == expected


class FullDisk:
    def __init__(self, room):
        self.room = room

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise StorageError("the disk is full")


def descriptors():
    return sorted(os.readlink(path) for path in map("/proc/self/fd/{}".format, fds()))


def fds():
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


@pytest.mark.parametrize("room", [0, 200_000, 1_000_000])
def test_a_writer_that_fails_harms_nothing(machine, other, room):
    fill(machine, count=3_000)
    before, threads, files = everything(machine), threading.active_count(), descriptors()
    with pytest.raises(StorageError, match="the disk is full"):
        machine.save_snapshot(FullDisk(room))
    assert threading.active_count() == threads
    assert descriptors() == files
    assert everything(machine) == before
    fill(machine)
    other.load_snapshot(io.BytesIO(saved(machine)))
    assert everything(other) == everything(machine)


def test_a_frozen_state_ends_with_the_machine(directory):
    machine = KeyValueMachine.open(directory)
    frozen = machine.freeze()
    machine.close()
    with pytest.raises(StorageError, match="closed"):
        frozen.save_snapshot(io.BytesIO())
    frozen.close()


def foreign_database(tmp_path):
    path = str(tmp_path / "foreign")
    with lmdb.open(path, subdir=False, max_dbs=3) as environment:
        for name in (b"items", b"events", b"meta"):
            environment.open_db(name)
        environment.copy(f"{path}.copy", compact=True)
    return (tmp_path / "foreign.copy").read_bytes()


def hashed(data):
    return data + blake2b(data, digest_size=16).digest()


@pytest.mark.parametrize("kind", range(9))
def test_what_is_no_snapshot_is_refused_and_the_state_stays(machine, other, tmp_path, kind):
    fill(other)
    good = saved(other)
    middle = len(good) // 2
    garbage = [
        b"",
        b"garbage",
        good[:-1],
        good[:middle],
        good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
        hashed(b""),
        hashed(b"garbage" * 5_000),
        hashed(good[: -16 - 4_096]),
        hashed(foreign_database(tmp_path)),
    ][kind]
    run(machine, put(b"a", b"1"))
    before, files = everything(machine), descriptors()
    with pytest.raises(CorruptionError):
        machine.load_snapshot(io.BytesIO(garbage))
    assert descriptors() == files
    assert everything(machine) == before
    run(machine, put(b"b", b"2"))
    machine.load_snapshot(io.BytesIO(good))
    assert everything(machine) == everything(other)


def test_a_reader_that_fails_leaves_the_state_and_a_later_load_ends_no_frozen_one(machine, other):
    class Broken(io.BytesIO):
        def read(self, length=-1, /):
            raise StorageError("the disk gave up")

    run(machine, put(b"a", b"1"))
    before, frozen = everything(machine), machine.freeze()
    with pytest.raises(StorageError, match="gave up"):
        machine.load_snapshot(Broken())
    assert everything(machine) == before
    machine.load_snapshot(io.BytesIO(saved(other)))
    assert machine.applied_index == -1
    other.load_snapshot(io.BytesIO(saved(frozen)))
    frozen.close()
    assert everything(other) == before


# -- at random --------------------------------------------------------------------------------

KEYS = [b"a", b"ab", b"b", b"\xff", b"k" * KEY_BYTES_MAX]
values = st.sampled_from([b"", b"1", b"2", bytes(3_000)])
operations = st.one_of(
    st.builds(Put, st.sampled_from(KEYS), values), st.builds(Delete, st.sampled_from(KEYS))
)
compares = st.one_of(
    st.builds(Compare, st.sampled_from(KEYS), value=st.none() | values),
    st.builds(Compare, st.sampled_from(KEYS), index=st.integers(-1, 8)),
)
branches = st.lists(operations, max_size=4).map(tuple)
transactions = st.builds(Transaction, st.lists(compares, max_size=2).map(tuple), branches, branches)
steps = st.one_of(
    st.lists(transactions | st.just(b"malformed"), min_size=1, max_size=5),
    st.sampled_from(["close", "snapshot"]),
)


class Model:
    """What the machine should be, as a dictionary."""

    def __init__(self):
        self.items, self.events, self.applied = {}, [], -1

    def holds(self, compare):
        value, index = self.items.get(compare.key, (None, -1))
        if isinstance(compare.index, int):
            return index == compare.index
        return value == compare.value

    def apply(self, command):
        self.applied += 1
        if command == b"malformed":
            return False, []
        succeeded = all(map(self.holds, command.compares))
        previous = []
        for operation in command.then if succeeded else command.otherwise:
            key, is_put = operation.key, isinstance(operation, Put)
            previous.append(self.items.pop(key, (None,))[0])
            if is_put:
                self.items[key] = (operation.value, self.applied)
            if is_put or previous[-1] is not None:
                self.events.append((self.applied, key, operation.value if is_put else None))
        return succeeded, previous


def reopened(machine, directory, how):
    """Return the machine as it is after `how`, and its directory."""
    target = f"{directory}'"
    if how == "close":
        machine.close()
        return KeyValueMachine.open(directory), directory
    snapshot = saved(machine)
    machine.close()
    machine = KeyValueMachine.open(target, map_bytes=64 << 10)
    machine.load_snapshot(io.BytesIO(snapshot))
    return machine, target


@settings(max_examples=60)
@given(st.lists(steps, max_size=12))
def test_it_is_a_dictionary_whatever_happens_to_it(tmp_path_factory, story):
    directory = str(tmp_path_factory.mktemp("story") / "machine")
    machine, model = KeyValueMachine.open(directory, map_bytes=64 << 10), Model()
    for step in story:
        if isinstance(step, str):
            machine, directory = reopened(machine, directory, step)
        else:
            outcomes = [(one.succeeded, one.previous) for one in run(machine, *step)]
            assert outcomes == [model.apply(command) for command in step]
        assert machine.applied_index == model.applied
        expected = [(key, *model.items[key]) for key in sorted(model.items)]
        assert scan(machine).items == expected
        assert scan(machine, reverse=True).items == expected[::-1]
        assert ask(machine, Events(b"", 0, 10_000)).events == model.events
    machine.close()
