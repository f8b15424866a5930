"""The key-value machine's file, its digest and its snapshots, whatever happens to them."""

import io
import os
import shutil
import subprocess
import sys
import threading
from hashlib import blake2b
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_access import ask, copy_of, delete, everything, put, run, saved, scan
from quorumlog.machine import kv
from quorumlog.machine.kv import KeyValueMachine
from quorumlog.machine.kv_commands import (
    KEY_BYTES_MAX,
    Compare,
    Delete,
    Events,
    Put,
    Transaction,
)
from quorumlog.model.errors import CorruptionError, StorageError


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "machine")


@pytest.fixture
def machine(directory):
    made = KeyValueMachine.open(directory, "boot")
    yield made
    made.close()


@pytest.fixture
def other(tmp_path):
    made = KeyValueMachine.open(str(tmp_path / "other"), "boot")
    yield made
    made.close()


# -- the file ---------------------------------------------------------------------------------


def test_after_a_kill_everything_is_there_in_the_same_boot_only(machine, directory, tmp_path):
    run(machine, put(b"a", b"1"), put(b"b", b"2"))
    before = everything(machine)
    again = KeyValueMachine.open(copy_of(directory, tmp_path / "killed"), "boot")
    assert everything(again) == before
    run(again, put(b"c", b"3"))
    again.close()
    for boot in ("another boot", ""):
        target = tmp_path / f"crashed {boot}"
        empty = KeyValueMachine.open(copy_of(directory, target), boot)
        assert everything(empty)[:2] == (-1, bytes(16))
        assert scan(empty).items == []
        run(empty, put(b"c", b"3"))
        empty.close()


def test_a_closed_one_is_kept_in_any_boot_until_it_is_opened(directory, tmp_path):
    machine = KeyValueMachine.open(directory, "first")
    run(machine, put(b"a", b"1"))
    before = everything(machine)
    machine.close()
    machine = KeyValueMachine.open(directory, "second")
    assert everything(machine) == before
    crashed = KeyValueMachine.open(copy_of(directory, tmp_path / "crashed"), "third")
    assert crashed.applied_index == -1
    crashed.close()
    machine.close()
    machine = KeyValueMachine.open(directory, "")
    assert everything(machine) == before
    machine.close()


def test_without_its_note_a_database_is_not_believed(directory):
    machine = KeyValueMachine.open(directory)
    run(machine, put(b"a", b"1"))
    machine.close()
    os.unlink(os.path.join(directory, "boot"))
    machine = KeyValueMachine.open(directory)
    assert machine.applied_index == -1
    machine.close()


def test_a_file_that_is_none_of_ours_is_told(directory):
    KeyValueMachine.open(directory, "boot").close()
    with open(os.path.join(directory, kv.DATA_NAME), "wb") as file:
        file.write(b"no database" * 1_000)
    with pytest.raises(StorageError, match=kv.DATA_NAME):
        KeyValueMachine.open(directory, "boot")


def test_the_file_grows_in_the_middle_of_a_batch(tmp_path, other):
    small = KeyValueMachine.open(str(tmp_path / "small"), "boot", map_bytes=64 << 10)
    commands = [put(b"%d" % number, bytes(5_000)) for number in range(300)]
    assert all(outcome.succeeded for outcome in run(small, *commands))
    run(other, *commands)
    assert everything(small) == everything(other)
    small.close()
    small = KeyValueMachine.open(str(tmp_path / "small"), "boot", map_bytes=64 << 10)
    assert everything(small) == everything(other)
    small.close()


CHILD = """
import sys
from quorumlog.machine.kv import KeyValueMachine
from quorumlog.machine.kv_commands import Put, Transaction, encode_command
from quorumlog.model.entry import Entry
machine = KeyValueMachine.open(sys.argv[1], "boot", map_bytes=1 << 20)
for first in range(0, 1_000_000, 7):
    machine.apply([
        Entry(i, 1, 0, encode_command(Transaction((), (Put(b"%d" % (i % 50), b"%d" % i * 99),))))
        for i in range(first, first + 7)
    ])
    print(first + 6, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 20, 111])
def test_kill_9_loses_nothing_that_was_applied(directory, lines):
    child = subprocess.Popen([sys.executable, "-c", CHILD, directory], stdout=subprocess.PIPE)
    told = [int(child.stdout.readline()) for _ in range(lines)][-1]
    child.kill()
    child.communicate()
    machine = KeyValueMachine.open(directory, "boot")
    last = machine.applied_index
    assert last >= told
    assert last % 7 == 6, "a batch is there as a whole"
    expected = {b"%d" % (i % 50): (b"%d" % i * 99, i) for i in range(last + 1)}
    assert {key: (value, i) for key, value, i in scan(machine).items} == expected
    run(machine, put(b"on", b"and on"))
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
    killed = KeyValueMachine.open(copy_of(tmp_path / "other", tmp_path / "killed"), "boot")
    assert everything(killed) == everything(machine)
    killed.close()


def test_a_snapshot_of_nothing(machine, other):
    run(other, put(b"other", b"state"))
    other.load_snapshot(io.BytesIO(saved(machine)))
    assert (other.applied_index, scan(other).items) == (-1, [])


@pytest.mark.parametrize("map_bytes", [64 << 10, 64 << 20], ids=["growing", "fixed"])
def test_a_frozen_state_stays_while_others_follow(tmp_path, other, map_bytes):
    machine = KeyValueMachine.open(str(tmp_path / "m"), "boot", map_bytes=map_bytes)
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
    assert sorted(names) == ["boot", "state.mdb", "state.mdb-lock"]
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
    machine = KeyValueMachine.open(str(tmp_path / "m"), "boot", map_bytes=1 << 20)
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
    machine = KeyValueMachine.open(directory, "boot")
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
    st.sampled_from(["close", "kill", "snapshot"]),
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
        return KeyValueMachine.open(directory, "next boot"), directory
    if how == "kill":
        shutil.copytree(directory, target)
        machine.close()
        boot_id = Path(target, "boot").read_text().removeprefix("open ")
        return KeyValueMachine.open(target, boot_id), target
    snapshot = saved(machine)
    machine.close()
    machine = KeyValueMachine.open(target, "boot", map_bytes=64 << 10)
    machine.load_snapshot(io.BytesIO(snapshot))
    return machine, target


@settings(max_examples=60)
@given(st.lists(steps, max_size=12))
def test_it_is_a_dictionary_whatever_happens_to_it(tmp_path_factory, story):
    directory = str(tmp_path_factory.mktemp("story") / "machine")
    machine, model = KeyValueMachine.open(directory, "boot", map_bytes=64 << 10), Model()
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
