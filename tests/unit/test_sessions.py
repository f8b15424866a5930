"""Producer sessions: what the table makes of session entries, and what a leader makes of blocks."""

import pytest

from quorumlog.model.block import encode_block, parse_block, stamp
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import CorruptionError, UnexpectedArgumentError
from quorumlog.node.replica.tables import Tables
from quorumlog.sessions.entries import (
    SESSION_ENTRY_SIZE,
    SessionEntry,
    crc_of,
    system_entries_in,
    system_entry_of,
)
from quorumlog.sessions.producer_table import BLOCKS_REMEMBERED, SESSIONS_MAX, SessionTable
from quorumlog.sessions.table_set import TableSet
from quorumlog.storage.log.snapshots import SnapshotMeta
from quorumlog.storage.log.store import GroupStore
from store_access import Opened, take

OK, GAP = ResponseCode.SUCCESS, ResponseCode.SEQUENCE_GAP
MISMATCH, FENCED = ResponseCode.SEQUENCE_MISMATCH, ResponseCode.PRODUCER_FENCED


def raw_block(producer_id, sequence, bodies, *, epoch=0, crc=None, count=None):
    data = encode_block(bodies)
    block = parse_block(memoryview(bytearray(data)), count=len(bodies), entry_bytes_max=1 << 20)
    crcs = [int.from_bytes(block.data[o + 40 : o + 44], "big") for o in block.offsets.tolist()]
    entry = SessionEntry(
        producer_id,
        epoch,
        sequence,
        len(bodies) if count is None else count,
        crc_of(crcs) if crc is None else crc,
    )
    return entry, entry.encode() + data


def block_of(producer_id, sequence, bodies, **fields):
    entry, data = raw_block(producer_id, sequence, bodies, **fields)
    parsed = parse_block(
        memoryview(bytearray(data)), count=len(bodies) + 1, entry_bytes_max=1 << 20
    )
    return entry, parsed


def test_a_block_is_known_by_its_session_entry():
    entry, block = block_of(7, 3, [b"a", b"", b"c" * 500])
    assert system_entry_of(block) == entry
    assert int(block.sizes[0]) == SESSION_ENTRY_SIZE
    assert system_entries_in(block, 100) == [(100, entry)]


@pytest.mark.parametrize("fields", [{"crc": 1}, {"count": 2}, {"count": 4}])
def test_a_session_entry_that_does_not_match_is_refused(fields):
    _, block = block_of(7, 3, [b"a", b"b", b"c"], **fields)
    with pytest.raises(UnexpectedArgumentError, match=r"does not match|goes with"):
        system_entry_of(block)


def test_a_block_without_one_has_none_and_one_alone_is_refused():
    plain = parse_block(memoryview(bytearray(encode_block([b"a"]))), count=1, entry_bytes_max=1_000)
    assert system_entry_of(plain) is None
    entry = SessionEntry(7, 0, 0, 0, crc_of([]))
    alone = parse_block(memoryview(bytearray(entry.encode())), count=1, entry_bytes_max=1_000)
    with pytest.raises(UnexpectedArgumentError, match="without entries after it"):
        system_entry_of(alone)


# -- the table ----------------------------------------------------------------------------------


def entry(producer_id, sequence, count=2, *, epoch=0, crc=5):
    return SessionEntry(producer_id, epoch, sequence, count, crc)


def test_the_same_entries_give_the_same_table_however_often_they_come():
    table = TableSet()
    for index, what in ((0, entry(1, 0)), (3, entry(2, 0)), (6, entry(1, 2))):
        take(table, index, what)
    table.as_of = 8
    for index, what in ((3, entry(2, 0)), (6, entry(1, 2))):
        take(table, index, what)
    sessions = table.sessions.sessions
    assert sessions[1].next_sequence == 4
    assert [block.index for block in sessions[1].blocks] == [0, 6]
    assert TableSet.decode(table.encode()) == table


def test_a_higher_epoch_starts_anew_and_a_lower_one_is_ignored():
    table = SessionTable()
    table.apply(0, entry(1, 0))
    table.apply(3, entry(1, 0, epoch=2))
    table.apply(6, entry(1, 2, epoch=1))
    assert (table.sessions[1].epoch, table.sessions[1].next_sequence) == (2, 2)
    assert [block.index for block in table.sessions[1].blocks] == [3]


def test_the_table_is_bounded_and_forgets_who_was_idle_longest():
    table = SessionTable()
    for number in range(SESSIONS_MAX):
        table.apply(number * 3, entry(number, 0))
    table.apply(SESSIONS_MAX * 3, entry(0, 2))
    table.apply(SESSIONS_MAX * 3 + 3, entry(SESSIONS_MAX, 0))
    assert len(table.sessions) == SESSIONS_MAX
    assert 0 in table.sessions
    assert 1 not in table.sessions


def test_a_bounded_number_of_blocks_of_a_producer_is_remembered():
    table = SessionTable()
    for number in range(BLOCKS_REMEMBERED + 3):
        table.apply(number * 3, entry(1, number * 2))
    assert table.sessions[1].block_at(4) is None
    assert table.sessions[1].block_at(6).index == 9


def test_garbage_is_no_table():
    with pytest.raises(UnexpectedArgumentError):
        TableSet.decode(b"\xc1")


# -- of a replica -------------------------------------------------------------------------------


class Replica:
    """A log with its sessions; everything is durable at once."""

    def __init__(self, directory):
        self.directory = directory
        self.store = GroupStore()
        self.open()

    def open(self):
        self.opened = Opened(self.directory, data_file=4_096, index_file=32 * 64)
        self.log = self.opened.log
        group = self.opened.group
        self.tables = Tables(self.log, group.committed_index, group.tables)
        self.log.keep_tables(self.tables.to_save)

    def run(self, plan):
        if plan is not None:
            self.store.execute([plan], sync=True)
            plan.completed()

    def append(self, producer_id, sequence, bodies, *, epoch=0):
        _, block = block_of(producer_id, sequence, bodies, epoch=epoch)
        first = self.log.end_index + 1
        plan, _ = self.log.append(block, 1)
        self.run(plan)
        self.tables.appended(block, first)
        return first

    def check(self, producer_id, sequence, bodies, *, epoch=0):
        made, _ = raw_block(producer_id, sequence, bodies, epoch=epoch)
        return self.tables.check(made)

    def commit(self, index=None):
        index = self.log.end_index if index is None else index
        self.log.note_committed(index)
        self.tables.committed(index)

    def reopen(self):
        self.opened.close()
        self.open()


@pytest.fixture
def replica(tmp_path):
    made = Replica(tmp_path / "g")
    yield made
    made.opened.close()


def test_a_first_block_is_known_although_only_a_snapshot_is_younger_than_it(tmp_path):
    """No checkpoint with sessions was written yet; the machine's snapshot shows the commit."""
    opened = Opened(tmp_path / "g", state_machine="counting:Counter")
    sessions = Tables(opened.log, -1, None)
    opened.log.keep_tables(sessions.to_save)
    opened.append([b"x"] * 10)
    opened.log.note_committed(9)
    sessions.committed(9)
    opened.checkpoint()
    made, block = block_of(7, 0, [b"a", b"b"])
    opened.submit(opened.log.append(block, 1)[0])
    saving = opened.group.snapshots.begin()
    saving.write(b"state")
    saving.publish(SnapshotMeta(last_included_index=12, last_included_term=1, kept_bytes=0))
    opened.close()
    opened = Opened(tmp_path / "g", state_machine="counting:Counter")
    assert opened.group.committed_index == 12
    sessions = Tables(opened.log, opened.group.committed_index, opened.group.tables)
    assert sessions.check(made).appended.index == 10
    opened.close()


def test_a_block_that_comes_again_is_found_committed_or_not(replica):
    at = replica.append(1, 0, [b"a", b"b"])
    for _ in range(2):
        result = replica.check(1, 0, [b"a", b"b"])
        assert (result.code, result.appended.index, result.appended.last_index) == (OK, at, at + 2)
        replica.commit()


def test_what_follows_is_added_and_what_does_not_fit_is_refused(replica):
    replica.append(1, 0, [b"a", b"b"], epoch=3)
    assert replica.check(1, 2, [b"c"], epoch=3).appended is None
    assert replica.check(1, 2, [b"c"], epoch=3).code is OK
    assert replica.check(1, 3, [b"c"], epoch=3).code is GAP
    assert replica.check(1, 0, [b"a", b"x"], epoch=3).code is MISMATCH
    assert replica.check(1, 0, [b"a"], epoch=3).code is MISMATCH
    assert replica.check(1, 1, [b"b"], epoch=3).code is MISMATCH
    assert replica.check(1, 0, [b"a", b"b"], epoch=2).code is FENCED
    assert replica.check(1, 2, [b"c"], epoch=4).code is GAP
    assert replica.check(1, 0, [b"c"], epoch=4).code is OK
    assert replica.check(2, 5, [b"c"]).code is ResponseCode.UNKNOWN_PRODUCER
    assert replica.check(77, 5, [b"c"]).text.startswith("producer 77 is not known")
    assert replica.check(2, 0, [b"c"]).code is OK


def test_a_block_that_was_truncated_is_not_known_any_more(replica):
    replica.append(1, 0, [b"a"])
    replica.commit()
    at = replica.append(1, 1, [b"b"])
    replica.run(replica.log.truncate(at))
    replica.tables.truncated(at)
    result = replica.check(1, 1, [b"other"])
    assert (result.code, result.appended) == (OK, None)
    assert replica.check(1, 0, [b"a"]).appended.index == 0


def test_tables_read_again_are_not_ahead_of_the_log(replica):
    """After a repair, while what is committed already is still on its way into the log."""
    replica.append(1, 0, [b"a"])
    replica.commit()
    committed_index = replica.log.end_index + 2
    replica.tables.scan(committed_index)
    assert replica.tables.as_of == replica.log.end_index
    assert TableSet.decode(replica.tables.encode()).as_of == replica.log.end_index
    replica.append(1, 1, [b"b"])
    replica.commit()
    assert replica.tables.as_of == replica.log.end_index == committed_index


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_restart_knows_what_was_known(replica, checkpoints):
    for number in range(40):
        replica.append(number % 3, number // 3 * 2, [b"%d" % number, b"x"])
        if number % 10 == 9 and checkpoints:
            replica.commit()
            replica.run(replica.log.checkpoint())
    before = replica.tables._current.sessions.sessions
    replica.reopen()
    assert replica.tables._current.sessions.sessions == before
    assert replica.check(0, 0, [b"0", b"x"]).appended is not None


def test_entries_that_retention_removes_leave_their_sessions(replica):
    for number in range(40):
        replica.append(1, number, [b"%d" % number])
    replica.commit()
    replica.run(replica.log.reset(60))
    replica.reopen()
    assert replica.check(1, 39, [b"39"]).appended.index == 78
    assert replica.check(1, 40, [b"next"]).code is OK
    assert replica.check(1, 30, [b"30"]).appended.index == 60, "one of the newest blocks"


def test_a_replica_that_begins_anew_knows_what_the_leader_knew(tmp_path):
    leader, follower = Replica(tmp_path / "n0"), Replica(tmp_path / "n1")
    for number in range(10):
        leader.append(1, number, [b"%d" % number])
    leader.commit()
    follower.append(1, 0, [b"0"])
    follower.tables.learned(leader.tables.encode())
    follower.tables.log_reset(15)
    follower.run(follower.log.reset(15, 1, 77))
    follower.tables.committed(15)
    assert follower.check(1, 9, [b"9"]).appended.index == 18
    follower.reopen()
    assert follower.check(1, 9, [b"9"]).appended.index == 18
    assert follower.check(1, 10, [b"next"]).code is OK
    for made in (leader, follower):
        made.opened.close()


def test_sessions_that_are_damaged_and_removed_elsewhere_are_the_leaders(tmp_path):
    leader, follower = Replica(tmp_path / "n0"), Replica(tmp_path / "n1")
    for number in range(10):
        for one in (leader, follower):
            one.append(1, number, [b"%d" % number])
    leader.commit(15)
    follower.commit(3)
    follower.run(follower.log.checkpoint())
    follower.commit()
    position = follower.log._place_of(8)[0]
    path = follower.log._data.path_at(position)
    follower.opened.close()
    with open(path, "r+b") as file:
        file.seek(position % 4_096 + 60)
        file.write(b"?")
    follower.open()
    with pytest.raises(CorruptionError):
        follower.log.read(8, 8, 1_000)
    follower.run(follower.log.quarantine(8, is_readable=True))
    assert follower.tables.scan(follower.log.end_index) == 8
    follower.tables.committed(follower.log.end_index)
    assert follower.tables.is_incomplete
    assert follower.tables.known_until == 3, "what is behind must not be removed yet"

    follower.tables.learned(memoryview(b"garbage"))
    assert follower.tables.known_until == 3
    follower.tables.learned(memoryview(leader.tables.encode()))
    assert follower.tables.known_until == 15
    follower.log.note_committed(follower.log.end_index)
    follower.run(follower.log.reset(15))
    follower.tables.scan(follower.log.end_index)
    assert not follower.tables.is_incomplete
    for _ in range(2):
        assert follower.check(1, 9, [b"9"]).appended.index == 18
        assert follower.check(1, 10, [b"next"]).code is OK
        follower.reopen()
    for made in (leader, follower):
        made.opened.close()


def test_sessions_behind_a_new_begin_stay_unknown_while_damage_hides_them(tmp_path):
    replica = Replica(tmp_path / "g")
    for number in range(10):
        replica.append(1, number, [b"%d" % number])
    replica.commit(3)
    place = replica.log._place_of(16)[0]
    path = replica.log._data.path_at(place)
    replica.opened.close()
    with open(path, "r+b") as file:
        file.seek(place % 4_096 + 60)
        good = file.read(1)
        file.seek(place % 4_096 + 60)
        file.write(b"?")
    replica.open()
    assert replica.tables.scan(3) == 16
    replica.commit(15)
    replica.tables.log_reset(13)
    replica.run(replica.log.reset(13))
    assert replica.tables.is_incomplete
    with open(path, "r+b") as file:
        file.seek(place % 4_096 + 60)
        file.write(good)
    replica.run(replica.log.quarantine(16))
    assert replica.tables.scan(15) is None
    assert replica.check(1, 8, [b"8"]).appended.index == 16
    replica.opened.close()


def test_a_stamped_block_is_read_as_it_was_proposed():
    made, block = block_of(7, 0, [b"a", b"b"])
    stamp(block, 500, 3, block.offsets, 9)
    assert system_entries_in(block, 500) == [(500, made)]
