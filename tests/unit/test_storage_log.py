"""The log in files and in memory: one suite of behaviour for both, then what only files can do."""

import random

import numpy as np
import pytest

from quorumlog.model.block import INDEX_RECORD_DTYPE
from quorumlog.model.codes import Magic
from quorumlog.model.config import CLUSTER_ID_NAME
from quorumlog.model.errors import (
    CorruptionError,
    IndexOutOfRangeError,
    IndexRemovedError,
    InvariantViolation,
    StorageError,
    StoreLockedError,
)
from quorumlog.model.hard_state import HardState
from quorumlog.storage.files.os_files import OsFile, OsFileSystem
from quorumlog.storage.log.layout import NodeDirectory
from quorumlog.storage.log.memory_log import MemoryLog
from quorumlog.storage.log.store import GroupStore
from quorumlog.storage.metadata.dual_slot_file import SLOT_SIZE, DualSlotFile
from store_access import Opened, block_of, entries_of


@pytest.fixture(params=["file", "file without cache", "memory"])
def log(request, tmp_path):
    """A log, and a function that carries out a plan."""
    store = GroupStore()

    def run(plan):
        store.execute([plan], sync=True)
        plan.completed()

    if request.param == "memory":
        yield MemoryLog(), run
    else:
        opened = Opened(tmp_path / "g", cache=1 if "without" in request.param else 1 << 20)
        yield opened.log, run
        opened.close()


def append(log, bodies, term=1):
    log, run = log
    plan, positions = log.append(block_of(bodies), term)
    run(plan)
    return positions


def test_44_45_positions_grow_by_header_and_body_and_everything_is_read_back(log):
    bodies = [b"x" * size for size in range(10)]
    for size, body in enumerate(bodies):
        ((index, pos),) = append(log, [body])
        assert index == size
        assert pos == sum(48 + earlier for earlier in range(size))
    entries = entries_of(log[0])
    assert [entry.body for entry in entries] == bodies
    with pytest.raises(IndexOutOfRangeError):
        log[0].read(10, 10, 1)


def test_what_was_removed_is_not_in_memory_any_more(log):
    append(log, [b"a", b"b", b"c", b"d"])
    log[0].note_committed(3)
    log[1](log[0].reset(1))
    assert not log[0].is_in_memory(1)
    with pytest.raises(IndexRemovedError):
        log[0].read(1, 1, 100)
    assert log[0].read(2, 2, 100).first_index == 2


def test_runs_of_terms(log):
    append(log, [b"a"] * 3, term=1)
    append(log, [b"b"] * 2, term=4)
    append(log, [b"c"], term=4)
    assert log[0].term_runs() == [(1, 0), (4, 3)]


def test_noop_has_magic_2_and_an_empty_body(log):
    append(log, [b"a"])
    log[1](log[0].append_noop(2))
    entry = entries_of(log[0])[1]
    assert (entry.magic, entry.body, entry.term) == (Magic.NOOP, b"", 2)


@pytest.mark.parametrize("from_index", range(12))
def test_61_63_truncate_removes_the_entry_that_is_named(log, from_index):
    append(log, [f"{i}".encode() for i in range(5)], term=1)
    append(log, [f"{i}".encode() for i in range(5, 12)], term=2)
    chain_before = log[0].chain_crc_at(from_index - 1)
    log[1](log[0].truncate(from_index))
    assert log[0].end_index == from_index - 1
    assert log[0].end_chain_crc == chain_before
    assert [entry.body for entry in entries_of(log[0])] == [
        f"{i}".encode() for i in range(from_index)
    ]
    assert all(first < from_index for _, first in log[0].term_runs())
    append(log, [b"after"], term=3)
    assert entries_of(log[0])[-1].body == b"after"


def test_the_chain_where_the_log_ended_when_it_was_opened_is_known_without_reading(tmp_path):
    """Each new leader compares there: a thousand groups that start would read a thousand files."""
    opened = Opened(tmp_path / "g")
    opened.append([b"a", b"b", b"c"])
    chains = [opened.log.chain_crc_at(index) for index in range(3)]
    opened.close()
    opened = Opened(tmp_path / "g")
    read = opened.log.read
    opened.log.read = None
    opened.append([b"d"])
    assert opened.log.chain_crc_at(2) == chains[2]
    opened.log.read = read
    opened.truncate(2)
    opened.append([b"another", b"last"])
    assert opened.log.chain_crc_at(1) == chains[1]
    assert opened.log.chain_crc_at(2) not in (None, chains[2])
    opened.close()


def test_119_truncating_what_is_committed_is_refused(log):
    append(log, [b"x"] * 10)
    log[0].note_committed(5)
    with pytest.raises(InvariantViolation, match="committed"):
        log[0].truncate(5)
    assert log[0].end_index == 9


def test_chain_crcs_of_a_copied_log_agree(log, tmp_path):
    append(log, [b"one", b"two"], term=1)
    append(log, [b"three" * 100] * 20, term=2)
    copy = MemoryLog()
    index = 0
    while index <= log[0].end_index:
        entry_run = log[0].read(index, log[0].end_index, 500)
        bodies = entry_run.data
        block = block_of([b""])  # replaced below by the very bytes
        block = type(block)(
            memoryview(bytearray(bodies)),
            np.cumsum(sizes_of(entry_run)) - sizes_of(entry_run),
            sizes_of(entry_run),
        )
        copy.append_received(block)
        index = entry_run.last_index + 1
    assert copy.end_chain_crc == log[0].end_chain_crc
    assert copy.term_runs() == log[0].term_runs()


def sizes_of(entry_run):
    return np.frombuffer(entry_run.records, INDEX_RECORD_DTYPE)["size"].astype(np.int64)


def test_reads_are_bounded_but_give_at_least_one_entry(log):
    append(log, [b"x" * 100] * 50)
    assert log[0].read(0, 49, 148 * 7 + 10).count == 7
    assert log[0].read(3, 49, 1).count == 1
    assert log[0].read(3, 5, 1 << 20).last_index == 5


def test_entries_that_do_not_follow_the_end_are_refused(log):
    append(log, [b"x"])
    other = MemoryLog()
    other.append(block_of([b"a", b"b", b"c"]), 1)
    entry_run = other.read(2, 2, 1000)
    block = block_of([b"c"])
    block.data[:] = entry_run.data
    with pytest.raises(InvariantViolation, match="follow"):
        log[0].append_received(block)


# -- files only -----------------------------------------------------------------------------------


def test_54_55_entries_never_span_files_and_the_rest_is_blank(tmp_path):
    opened = Opened(tmp_path / "g", data_file=8_200, index_file=32 * 8)
    opened.append([b"x" * 1_024] * 10)
    names = sorted(path.name for path in (tmp_path / "g" / "data").iterdir())
    assert names == [f"{0:020d}", f"{8_200:020d}"]
    raw = (tmp_path / "g" / "data" / names[0]).read_bytes()
    assert len(raw) == 8_200
    blank = 7 * 1_072
    assert raw[blank : blank + 8] == (-1).to_bytes(4, "big", signed=True) + (
        8_200 - blank
    ).to_bytes(4, "big")
    assert [entry.pos for entry in opened.entries()] == [1_072 * i for i in range(7)] + [
        8_200 + 1_072 * i for i in range(3)
    ]
    opened.close()


def test_a_file_that_is_filled_to_its_last_byte_but_eight(tmp_path):
    opened = Opened(tmp_path / "g", data_file=1_000, index_file=32 * 4)
    opened.append([b"x" * (1_000 - 8 - 48), b"next"])
    assert [entry.pos for entry in opened.entries()] == [0, 1_000]
    opened.close()
    again = Opened(tmp_path / "g", data_file=1_000, index_file=32 * 4)
    assert len(again.entries()) == 2
    again.close()


def test_56_a_clean_restart_keeps_everything(tmp_path):
    opened = Opened(tmp_path / "g", data_file=10_248, index_file=32 * 64)
    for term in (1, 3, 7):
        opened.append([b"y" * 1_000] * 33, term=term)
    opened.log.note_committed(80)
    opened.checkpoint()
    before, chain = opened.entries(), opened.log.end_chain_crc
    opened.close()
    again = Opened(tmp_path / "g", data_file=10_248, index_file=32 * 64)
    assert again.entries() == before
    assert again.log.end_chain_crc == chain
    assert again.log.term_runs() == [(1, 0), (3, 33), (7, 66)]
    assert again.group.committed_index == 80
    assert again.group.report.from_checkpoint
    assert again.group.report.scanned_entries == 0
    again.close()


def test_60_an_empty_last_file_is_no_damage(tmp_path):
    opened = Opened(tmp_path / "g", data_file=4_096, index_file=32 * 4)
    opened.append([b"z" * 1_000] * 9)
    opened.close()
    (tmp_path / "g" / "data" / f"{4_096 * 3:020d}").write_bytes(bytes(4_096))
    again = Opened(tmp_path / "g", data_file=4_096, index_file=32 * 4)
    assert len(again.entries()) == 9
    again.append([b"more"])
    assert again.entries()[-1].body == b"more"
    again.close()


def test_file_sizes_of_a_store_win_over_the_configuration(tmp_path):
    opened = Opened(tmp_path / "g", data_file=4_096, index_file=32 * 4)
    opened.append([b"z" * 1_000] * 9)
    opened.close()
    again = Opened(tmp_path / "g", data_file=1 << 20, index_file=32 * 400)
    again.append([b"z" * 1_000] * 9)
    sizes = {path.stat().st_size for path in (tmp_path / "g" / "data").iterdir()}
    assert sizes == {4_096}
    again.close()


def test_62_truncate_at_a_file_boundary_in_the_middle_and_in_the_first_file(tmp_path):
    for from_index in (18, 13, 3, 9, 0):
        directory = tmp_path / f"g{from_index}"
        opened = Opened(directory, data_file=10_248, index_file=32 * 8)
        opened.append([f"{i}".encode() * 500 for i in range(10, 40)])
        opened.checkpoint()
        opened.truncate(from_index)
        opened.close()
        again = Opened(directory, data_file=10_248, index_file=32 * 8)
        assert [entry.index for entry in again.entries()] == list(range(from_index))
        again.append([b"new"], term=9)
        again.close()
        third = Opened(directory, data_file=10_248, index_file=32 * 8)
        assert [entry.body for entry in third.entries()][-1] == b"new"
        assert third.log.end_index == from_index
        third.close()


def test_old_entries_behind_a_cut_never_come_back(tmp_path):
    opened = Opened(tmp_path / "g")
    opened.append([b"old"] * 50, term=1)
    opened.truncate(10)
    opened.append([b"new"], term=2)  # same size as the old entry 10; old entry 11 lay behind it
    opened.close()
    again = Opened(tmp_path / "g")
    assert again.log.end_index == 10
    assert again.entries()[10].body == b"new"
    again.close()


def corrupt(directory, position, room="data"):
    for path in sorted((directory / room).iterdir()):
        start, size = int(path.name), path.stat().st_size
        if start <= position < start + size:
            raw = bytearray(path.read_bytes())
            raw[position - start] ^= 0x40
            path.write_bytes(bytes(raw))
            return path
    raise AssertionError(position)


def test_74_a_corrupted_byte_is_found_when_read_and_named(tmp_path):
    opened = Opened(tmp_path / "g", cache=1)
    opened.append([b"b" * 100] * 20)
    opened.append([b"b" * 100] * 20)
    path = corrupt(tmp_path / "g", 5 * 148 + 60)
    with pytest.raises(CorruptionError) as caught:
        opened.log.read(0, 19, 1 << 20)
    assert (caught.value.index, caught.value.file) == (5, str(path))
    assert caught.value.position == 5 * 148
    assert opened.log.read(6, 19, 1 << 20).count == 14
    opened.close()


def test_57_a_write_torn_at_every_byte_is_cut(tmp_path):
    reference = Opened(tmp_path / "reference", data_file=4_096, index_file=32 * 16)
    reference.append([b"kept"] * 3)
    kept_end = 3 * 52
    reference.append([b"torn" * 10])
    raw = (tmp_path / "reference" / "data" / f"{0:020d}").read_bytes()
    reference.close()
    for cut in range(kept_end, kept_end + 88):
        directory = tmp_path / f"g{cut}"
        opened = Opened(directory, data_file=4_096, index_file=32 * 16)
        opened.append([b"kept"] * 3)
        opened.close()
        torn = raw[:cut].ljust(4_096, b"\0")
        (directory / "data" / f"{0:020d}").write_bytes(torn)
        again = Opened(directory, data_file=4_096, index_file=32 * 16)
        assert [entry.body for entry in again.entries()] == [b"kept"] * 3, cut
        assert not again.group.report.cut_bytes or cut > kept_end
        again.append([b"more"])
        again.close()


def test_group_commit_of_several_plans_and_unsynced_writes(tmp_path):
    opened = Opened(tmp_path / "g")
    for number in range(5):
        opened.append([f"{number}".encode()], run=False)
    opened.run(sync=False)
    assert [entry.body for entry in opened.entries()] == [b"0", b"1", b"2", b"3", b"4"]
    opened.run(sync=True)
    opened.close()
    again = Opened(tmp_path / "g")
    assert again.log.end_index == 4
    again.close()


def test_what_is_staged_can_be_read_before_it_is_written(tmp_path):
    opened = Opened(tmp_path / "g", cache=1)
    opened.append([b"x" * 1_000] * 100, run=False)
    assert len(opened.entries()) == 100
    opened.run()
    opened.append([b"y"])
    assert not opened.log.is_in_memory(0)
    assert len(opened.entries()) == 101
    opened.close()


def test_truncate_and_append_staged_behind_one_another(tmp_path):
    opened = Opened(tmp_path / "g")
    opened.append([b"a"] * 10, run=False)
    opened.truncate(4, run=False)
    opened.append([b"b"] * 3, term=2, run=False)
    opened.run()
    assert [entry.body for entry in opened.entries()] == [b"a"] * 4 + [b"b"] * 3
    opened.checkpoint()
    opened.close()
    again = Opened(tmp_path / "g")
    assert [entry.body for entry in again.entries()] == [b"a"] * 4 + [b"b"] * 3
    again.close()


def test_20_term_and_vote_survive(tmp_path):
    opened = Opened(tmp_path / "g")
    for term in range(1, 6):
        opened.waiting.append(opened.group.hard_states.plan_save(HardState(term, f"n{term}")))
        opened.run()
    opened.close()
    again = Opened(tmp_path / "g")
    assert again.group.hard_state == HardState(5, "n5")
    again.close()


def test_75_a_slot_file_torn_at_any_byte_gives_the_old_or_the_new_value(tmp_path):
    files = OsFileSystem()
    slots = DualSlotFile(files, str(tmp_path), "value")
    slots.write(b"old value")
    old = (tmp_path / "value").read_bytes()
    slots.write(b"new value")
    new = (tmp_path / "value").read_bytes()
    for cut in range(0, 2 * SLOT_SIZE + 1, 37):
        (tmp_path / "value").write_bytes(new[:cut] + old[cut:])
        again = DualSlotFile(files, str(tmp_path), "value")
        assert again.read() in (b"old value", b"new value")


def test_75_one_flipped_bit_never_brings_back_an_older_value(tmp_path):
    files = OsFileSystem()
    slots = DualSlotFile(files, str(tmp_path), "value")
    for value in (b"first", b"second", b"third"):
        slots.write(value)
    raw = (tmp_path / "value").read_bytes()
    generator = random.Random(1)
    for _ in range(200):
        changed = bytearray(raw)
        changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
        (tmp_path / "value").write_bytes(bytes(changed))
        again = DualSlotFile(files, str(tmp_path), "value")
        assert again.read() == b"third"


def test_75_both_copies_damaged_is_an_error_not_an_empty_value(tmp_path):
    files = OsFileSystem()
    slots = DualSlotFile(files, str(tmp_path), "value")
    slots.write(b"value")
    (tmp_path / "value").write_bytes(bytes(2 * SLOT_SIZE))
    with pytest.raises(CorruptionError, match="all its copies"):
        DualSlotFile(files, str(tmp_path), "value").read()


def test_one_directory_is_opened_by_one_process_only(tmp_path):
    files = OsFileSystem()
    first = NodeDirectory(files, str(tmp_path / "node"))
    with pytest.raises(StoreLockedError, match="node is in use by another process"):
        NodeDirectory(files, str(tmp_path / "node"))
    first.close()
    NodeDirectory(files, str(tmp_path / "node")).close()


def test_a_nodes_directory_is_of_the_first_cluster_that_it_was_used_for(tmp_path):
    node = NodeDirectory(OsFileSystem(), str(tmp_path))
    (tmp_path / f"{CLUSTER_ID_NAME}.new").write_text("a crash before it was renamed, and longer")
    node.claim_for("A" * 22)
    node.claim_for("A" * 22)
    with pytest.raises(StorageError, match=f"'{'A' * 22}'.*'{'B' * 22}'.*remove {tmp_path}"):
        node.claim_for("B" * 22)
    (tmp_path / CLUSTER_ID_NAME).unlink()
    node.claim_for("B" * 22)
    (tmp_path / CLUSTER_ID_NAME).write_bytes(b"\xff" * 1_000)
    with pytest.raises(StorageError, match="start the node with"):
        node.claim_for("B" * 22)
    node.close()


def test_data_of_another_member_is_refused(tmp_path):
    Opened(tmp_path / "g").close()
    with pytest.raises(StorageError, match="of group 'g', member 'n0', not of"):
        Opened(tmp_path / "g", self_id="n7")


def test_a_changed_identity_is_noticed(tmp_path):
    Opened(tmp_path / "g").close()
    identity = tmp_path / "g" / "quorumlog.identity"
    whole = identity.read_text()
    identity.write_text(whole.replace('"n0"', '"n7"'))
    Opened(tmp_path / "g").close()
    assert identity.read_text() == whole
    for path in (identity, identity.with_name("quorumlog.identity.copy")):
        path.write_text(whole.replace('"n0"', '"n7"'))
    with pytest.raises(CorruptionError, match="its CRC does not fit"):
        Opened(tmp_path / "g", self_id="n7")


def test_what_is_strange_is_named_and_ignored(tmp_path, caplog):
    opened = Opened(tmp_path / "g", data_file=4_096)
    opened.append([b"entry %d" % number * 20 for number in range(100)])
    opened.close()
    group = tmp_path / "g"
    unknown_files = [group / "notes.txt", group / "data" / "notes.txt", group / "index" / "x.bak"]
    unknown_files += [group / "data" / f"{7:020d}", group / "data" / f"{4_096 * 9 + 5:020d}"]
    for path in unknown_files:
        path.write_text("hello")
    directories = [group / "old", group / "data" / "old", group / "data" / f"{1 << 40:020d}"]
    for path in directories:
        path.mkdir()
    again = Opened(group, data_file=4_096)
    assert [entry.index for entry in again.entries()] == list(range(100))
    again.append([b"more"])
    again.close()
    for path in (*unknown_files, *directories):
        assert f"{path} is no" in caplog.text
        assert path.exists()


def test_the_only_file_cut_short_by_a_crash_gets_its_size_back(tmp_path):
    opened = Opened(tmp_path / "g", data_file=1 << 20)
    opened.append([b"z" * 1_000] * 9)
    opened.close()
    path = tmp_path / "g" / "data" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[: 9 * 1_048 + 17])
    again = Opened(tmp_path / "g", data_file=4_096)
    assert len(again.entries()) == 9
    again.append([b"more"])
    assert path.stat().st_size == 1 << 20
    again.close()


def test_a_checkpoint_makes_unsynced_entries_durable_before_it_names_them(tmp_path, monkeypatch):
    opened = Opened(tmp_path / "g")
    opened.append([b"x"] * 10, run=False)
    opened.run(sync=False)
    order = []
    synced = OsFile.sync

    def note(file):
        order.append(file.path.rsplit("/", 2)[-2:])
        synced(file)

    monkeypatch.setattr(OsFile, "sync", note)
    opened.checkpoint()
    names = ["/".join(parts) for parts in order]
    assert names.index(f"data/{0:020d}") < names.index("g/quorumlog.checkpoint")
    opened.close()
