"""How old entries are: by marks in the log, never by a clock that people set."""

from types import SimpleNamespace

import msgspec
import pytest

from quorumlog.model.block import parse_block
from quorumlog.model.codes import Role
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.node.clock_watch import STEP_MS, ClockWatch
from quorumlog.node.replica.group_time import GroupTime
from quorumlog.node.replica.tables import Tables
from quorumlog.sessions.entries import (
    TIME_MS_MAX,
    InitTransactions,
    TimeMark,
    decode_system_entry,
    is_transactional,
    system_entry_of,
)
from quorumlog.sessions.table_set import TableSet
from quorumlog.sessions.time_marks import MARKS_MAX, STEP_MS_MAX, TimeMarks
from replica_context import Surroundings
from store_access import Opened, config, take

HOUR = 3_600_000
MINUTE = 60_000
DAY = 24 * HOUR


def block_of(mark):
    data = mark.encode()
    return parse_block(memoryview(bytearray(data)), count=1, entry_bytes_max=1_000)


class Replica(Surroundings):
    """A log with its sessions; what is proposed is appended and durable at once."""

    def __init__(self, directory, **settings):
        self.directory, self.settings = directory, settings
        self.takes = True
        self.open()

    def open(self):
        self.opened = Opened(self.directory, data_file=16_384, index_file=32 * 64)
        self.log, group = self.opened.log, self.opened.group
        self.tables = Tables(self.log, group.committed_index, group.tables)
        self.log.keep_tables(self.tables.to_save)
        now_ms = getattr(self, "now_ms", 5_000)
        self.core = SimpleNamespace(role=Role.LEADER, is_ready=True)
        super().__init__(config(**self.settings), core=self.core, log=self.log)
        self.now_ms = now_ms
        self.time = GroupTime(self.context, self.tables, self.propose)

    def reopen(self):
        self.opened.close()
        self.open()

    def propose(self, block, answer, entry):
        if self.takes:
            first = self.log.end_index + 1
            self.opened.submit(self.log.append(block, 1)[0])
            self.tables.appended(block, first)
            self.commit()
        answer(None, ())

    def commit(self):
        self.log.note_committed(self.log.end_index)
        self.tables.committed(self.log.end_index)

    def append(self, count=1):
        self.opened.append([b"x" * 3_600] * count)
        self.commit()

    def write(self, time_ms):
        self.propose(block_of(TimeMark(time_ms)), lambda *_: None, None)

    def pass_(self, ms, step=MINUTE):
        """Let time pass, looking as often as upkeep does."""
        end = self.now_ms + ms
        while self.now_ms < end:
            self.now_ms = min(end, self.now_ms + step)
            self.time.check()

    @property
    def marks(self):
        return self.tables.marks.pairs

    @property
    def first_file(self):
        return self.log.segments()[0].last_index


@pytest.fixture
def replica(tmp_path):
    made = Replica(tmp_path / "g")
    yield made
    made.opened.close()


# -- marks --------------------------------------------------------------------------------------


def test_a_mark_is_an_entry_of_its_own_that_clients_cannot_append():
    mark = TimeMark(123)
    block = block_of(mark)
    assert decode_system_entry(block.data[48:]) == mark
    assert not is_transactional(mark)
    assert is_transactional(InitTransactions(b"i" * 16, b"r" * 16, 1))
    with pytest.raises(UnexpectedArgumentError, match="only leaders"):
        system_entry_of(block)
    assert decode_system_entry(block_of(TimeMark(TIME_MS_MAX + 1)).data[48:]) is None


def test_the_first_mark_at_or_after_an_index_bounds_its_age():
    marks = TimeMarks([(10, 100), (20, 200), (30, 300)])
    assert [marks.first_since(index) for index in (5, 10, 11, 20, 30, 31)] == [
        *(100, 100, 200, 200, 300, None),
    ]


def test_marks_of_removed_entries_are_forgotten_but_never_the_newest():
    marks = TimeMarks([(10, 100), (20, 200), (30, 300)])
    marks.removed(20)
    assert marks.pairs == [(30, 300)]
    marks.removed(1_000)
    assert marks.newest == (30, 300)


def test_there_are_not_more_marks_than_are_allowed_and_fewer_make_entries_younger():
    marks = TimeMarks()
    for number in range(3 * MARKS_MAX):
        marks.add(10 * number, number)
        assert len(marks.pairs) <= MARKS_MAX
    assert marks.newest == (10 * (3 * MARKS_MAX - 1), 3 * MARKS_MAX - 1)
    for number in range(0, 3 * MARKS_MAX, 1_000):
        assert marks.first_since(10 * number) >= number


def test_group_time_never_goes_back():
    marks = TimeMarks([(1, 100)])
    marks.add(2, 50)
    assert marks.pairs == [(1, 100), (2, 100)]


def test_a_mark_that_leaps_ahead_ages_nothing_by_more_than_a_step():
    marks = TimeMarks([(1, 100)])
    marks.add(2, 72 * HOUR)
    assert marks.pairs == [(1, 100), (2, 100 + STEP_MS_MAX)]


def test_marks_are_saved_with_the_sessions_and_tables_without_them_can_be_read():
    table = TableSet()
    take(table, 7, TimeMark(70))
    table.as_of = 9
    assert TableSet.decode(table.encode()).marks.pairs == [(7, 70)]
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(table.encode())[:5])
    assert TableSet.decode(older).marks.pairs == []


# -- of a replica -------------------------------------------------------------------------------


def test_a_log_of_one_file_gets_no_marks(replica):
    replica.append(2)
    replica.pass_(5 * HOUR)
    assert replica.marks == []
    assert replica.log.end_index == 1


def test_a_closed_file_gets_its_mark_after_a_minute_and_grows_old_from_then_on(replica):
    replica.append(6)
    replica.pass_(59_000, step=1_000)
    assert replica.marks == []
    assert replica.time.age_ms(replica.first_file) is None
    replica.pass_(3_000, step=1_000)
    assert len(replica.marks) == 1
    assert replica.time.age_ms(replica.first_file) <= 2_000
    replica.pass_(70 * HOUR)
    assert 70 * HOUR <= replica.time.age_ms(replica.first_file) < 70 * HOUR + MINUTE
    replica.pass_(80 * HOUR)
    assert replica.time.age_ms(replica.first_file) > 72 * HOUR


def test_marks_end_once_the_marks_alone_prove_that_all_is_old(replica):
    replica.append(6)
    replica.pass_(200 * HOUR)
    assert 72 <= len(replica.marks) <= 75


def test_many_files_closed_in_a_minute_share_a_mark(replica):
    for _ in range(60):
        replica.append(5)
        replica.pass_(1_000, step=1_000)
    assert len(replica.marks) <= 1


def test_a_follower_writes_none(replica):
    replica.append(6)
    replica.core.role = Role.FOLLOWER
    replica.pass_(5 * HOUR)
    assert replica.marks == []


def test_a_mark_that_is_refused_is_tried_again(replica):
    replica.append(6)
    replica.takes = False
    replica.pass_(HOUR)
    replica.takes = True
    replica.pass_(MINUTE)
    assert len(replica.marks) == 1


def test_what_passed_while_nobody_ran_is_not_counted_and_little_else_is_lost(replica):
    replica.append(6)
    replica.pass_(10 * HOUR)
    before = replica.time.age_ms(replica.first_file)
    replica.opened.checkpoint()
    replica.now_ms += 30 * DAY
    replica.reopen()
    after = replica.time.age_ms(replica.first_file)
    assert before - HOUR - MINUTE <= after <= before


def test_a_mark_of_a_leader_that_counted_less_makes_time_begin_there_again(replica):
    """Else what follows that mark were older at once by all that its leader had not counted."""
    replica.append(6)
    replica.write(1_000)
    replica.pass_(50 * MINUTE)
    replica.append(6)
    replica.write(2_000)
    young = replica.log.end_index
    assert replica.time.age_ms(young) == 0
    replica.pass_(MINUTE)
    assert replica.time.age_ms(young) == MINUTE


def test_a_monotonic_clock_that_leaps_ages_nothing_by_more_than_a_step(replica):
    replica.append(6)
    replica.pass_(HOUR)
    before = replica.time.age_ms(replica.first_file)
    replica.now_ms += 30 * DAY
    replica.time.check()
    assert replica.time.age_ms(replica.first_file) <= before + STEP_MS_MAX


def test_a_mark_that_is_truncated_takes_its_time_with_it(replica):
    replica.append(6)
    replica.write(1_000)
    block, at = block_of(TimeMark(HOUR)), replica.log.end_index + 1
    replica.opened.submit(replica.log.append(block, 2)[0])
    replica.tables.appended(block, at)
    assert replica.time.now_ms() == HOUR
    replica.opened.truncate(at)
    replica.tables.truncated(at)
    assert replica.time.now_ms() == 1_000


# -- the wall clock -----------------------------------------------------------------------------


@pytest.mark.parametrize("step", [4 * DAY, -4 * DAY, STEP_MS + 1_001, 400 * DAY])
def test_a_step_of_the_wall_clock_is_told_once_and_mistrusted_for_a_while(step):
    watch = ClockWatch()
    wall = 1_700_000_000_000
    assert watch.check(0, wall) == 0
    assert watch.check(1_000, wall + 1_000 + step) == step
    assert watch.check(1_000, wall + 1_000 + step) == 0
    assert watch.mistrusted_ms(1_000, HOUR) == HOUR
    assert watch.check(HOUR, wall + HOUR + step + 500) == 0
    assert watch.mistrusted_ms(HOUR, HOUR) == 1_000
    assert watch.mistrusted_ms(1_000 + HOUR, HOUR) == 0


def test_drift_is_no_step():
    watch = ClockWatch()
    for number in range(1_000):
        assert watch.check(32_000 * number, int(32_000 * number * 1.0005)) == 0
    assert watch.mistrusted_ms(0, HOUR) == 0
