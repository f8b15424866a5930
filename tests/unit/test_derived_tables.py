"""Tables derived from the log: one life cycle for all, digests that agree, repair from peers."""

import random
from types import SimpleNamespace

import pytest

from quorumlog.model import record_sum
from quorumlog.model.block import encode_block, headers, parse_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import GroupConfig
from quorumlog.model.messages.peer import RepairResponse
from quorumlog.model.record_sum import RecordSum
from quorumlog.node.replica.comparison_points import NOWHERE, POINTS_KEPT, Points
from quorumlog.node.replica.lost_tables import LostTables
from quorumlog.node.replica.status import status_of
from quorumlog.node.replica.tables import EVERYTHING, Tables
from quorumlog.raft.event_history import EventHistory
from quorumlog.sessions.entries import (
    EndTransaction,
    InitTransactions,
    SessionEntry,
    TimeMark,
    TransactionPart,
    encode_session_block,
    system_entry_of,
)
from quorumlog.sessions.table_set import TABLE_NAMES, TableSet
from quorumlog.sim.cluster import SimulatedCluster
from replica_context import Surroundings
from store_access import Opened, take

OK = ResponseCode.SUCCESS
ID, RUN = b"i" * 16, b"r" * 16


def session_block(producer_id, sequence, bodies):
    raw = encode_session_block(producer_id, sequence, bodies)
    return parse_block(memoryview(bytearray(raw)), count=len(bodies) + 1, entry_bytes_max=1 << 20)


def plain_block(bodies, channel=0):
    raw = encode_block(bodies, channel=channel)
    return parse_block(memoryview(bytearray(raw)), count=len(bodies), entry_bytes_max=1 << 20)


# -- digests ------------------------------------------------------------------------------------


def history(choice):
    """Return (index, entry) of a log with sessions, transactions and marks."""
    found, index = [(0, InitTransactions(ID, RUN, 1_000))], 1
    for batch in range(60):
        producer_id = choice.randrange(5)
        found.append((index, SessionEntry(producer_id, batch, 0, 2, choice.randrange(99))))
        part = TransactionPart(ID, 1, batch, 0)
        found.append((index + 3, SessionEntry(1_000 + batch, 0, 0, 2, 7, part=part)))
        found.append((index + 6, EndTransaction(ID, 1, batch, ())))
        found.append((index + 7, TimeMark(index * 10)))
        index += 8
    return found, index - 1


def test_f93_digests_are_equal_wherever_the_logs_begin():
    entries, last = history(random.Random(1))
    whole, cut = TableSet(), TableSet()
    for index, entry in entries:
        take(whole, index, entry)
        take(cut, index, entry)
        cut.as_of = index
        if index == 200:
            cut.removed(150)
        if index == 300:
            cut = TableSet.decode(cut.encode())
    whole.as_of = cut.as_of = last
    assert whole != cut
    assert whole.digests(200) == cut.digests(200)
    assert set(whole.digests(200)) == set(TABLE_NAMES)


def test_a_digest_that_would_need_removed_entries_is_not_known():
    entries, last = history(random.Random(1))
    tables = TableSet()
    for index, entry in entries:
        take(tables, index, entry)
    tables.removed(last - 10)
    known = tables.digests(last - 100)
    assert set(TABLE_NAMES) - set(known) == {"transactions.1"}


@pytest.mark.parametrize("left_out", range(240))
def test_a_digest_shows_each_entry_that_was_left_out(left_out):
    entries, _ = history(random.Random(2))
    whole, partial = TableSet(), TableSet()
    since = entries[left_out][0] - 1
    for number, (index, entry) in enumerate(entries):
        take(whole, index, entry)
        if number != left_out:
            take(partial, index, entry)
        if number == left_out:
            assert whole.digests(since) != partial.digests(since), entry


def test_only_what_changed_is_hashed_again_and_the_sum_is_that_of_all(monkeypatch):
    choice, records, kept = random.Random(3), {}, RecordSum()
    for _ in range(200):
        for _ in range(choice.randrange(5)):
            key = choice.randrange(30)
            kept.changed(key)
            if choice.random() < 0.3:
                records.pop(key, None)
            else:
                records[key] = choice.randrange(1_000)
        assert kept.of(records) == RecordSum().of(records)
    monkeypatch.setattr(record_sum, "CHANGED_MAX", 3)
    for key in range(30):
        kept.changed(key)
        records[key] = -key
    assert kept._changed is None or len(kept._changed) <= 3
    assert kept.of(records) == RecordSum().of(records)


def test_points_are_the_last_of_each_so_many_entries():
    points = Points(10)
    assert [points.after(index) for index in (-1, 8, 9, 10)] == [9, 9, 19, 19]
    assert [index for index in range(30) if points.is_one(index)] == [9, 19, 29]
    assert list(points.newest(9, 35)) == [9, 19, 29]
    assert list(points.newest(9, 8)) == []
    many = points.newest(9, 10_000_000)
    assert len(many) == POINTS_KEPT
    assert many[-1] == 9_999_999
    assert Points(0).after(5) == NOWHERE
    assert not Points(0).is_one(9)


# -- any table ----------------------------------------------------------------------------------


class Offsets:
    """A table of what users append: how many entries each channel has. As partitions will be."""

    name, reads_users = "offsets.1", True

    def __init__(self, counts=()):
        self.counts = dict(counts)

    def found_in(self, block, first_index, entries):
        return [(first_index + at, int(c)) for at, c in enumerate(headers(block)["channel"])]

    def apply(self, index, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def removed(self, before_begin_index):
        pass

    def fields(self):
        return ()

    def digest(self, since):
        return repr(sorted(self.counts.items())).encode()


@pytest.fixture
def with_offsets(monkeypatch):
    listed, copied = TableSet.__post_init__, TableSet.copy

    def post_init(self):
        listed(self)
        self.tables = (*self.tables, Offsets())

    def copy(self):
        made = copied(self)
        made.tables = (*made.tables[:-1], Offsets(self.tables[-1].counts))
        return made

    monkeypatch.setattr(TableSet, "__post_init__", post_init)
    monkeypatch.setattr(TableSet, "copy", copy)


def test_f93_a_table_of_users_entries_goes_through_the_same_life(with_offsets, tmp_path):
    """Appended, truncated, committed, compared and read again at the start."""
    opened = Opened(tmp_path / "g")
    log, reached = opened.log, []
    tables = Tables(log, -1, None, digest_entries=4)
    tables.reached = lambda index, digests: reached.append((index, digests["offsets.1"]))

    def append(block, has_system_entries=True):
        first = log.end_index + 1
        opened.submit(log.append(block, 1)[0])
        tables.appended(block, first, has_system_entries=has_system_entries)

    def counts(of):
        return of.tables[-1].counts

    append(plain_block([b"a", b"b"], channel=3), has_system_entries=False)
    append(session_block(7, 0, [b"c"]))
    append(plain_block([b"d"] * 3, channel=4), has_system_entries=False)
    assert counts(tables._current) == {3: 2, 0: 1, 0xFFFF_FFFF: 1, 4: 3}
    assert counts(tables._base) == {}
    opened.submit(log.truncate(5))
    tables.truncated(5)
    assert counts(tables._current) == {3: 2, 0: 1, 0xFFFF_FFFF: 1, 4: 1}
    tables.committed(4)
    assert counts(tables._base) == counts(tables._current)
    assert reached == [(3, repr([(0, 1), (3, 2), (0xFFFF_FFFF, 1)]).encode())]
    again = Tables(log, 3, None)
    assert counts(again._base) == {}, "what is before the committed index was to be saved"
    again = Tables(log, 4, TableSet().encode())
    assert counts(again._base) == counts(tables._base)
    opened.close()


# -- of a replica that differs -------------------------------------------------------------------


def test_tables_in_doubt_are_not_believed_given_or_saved(tmp_path):
    opened = Opened(tmp_path / "g")
    tables = Tables(opened.log, -1, None)
    for number in range(4):
        block = session_block(7, number, [b"x"])
        first = opened.log.end_index + 1
        opened.submit(opened.log.append(block, 1)[0])
        tables.appended(block, first)
    opened.log.note_committed(7)
    tables.committed(7)
    right = tables.encode()
    assert tables.is_trusted
    tables.doubt(3)
    assert (tables.as_of, tables.stable_index, tables.known_until) == (3, 3, 3)
    assert not tables.is_trusted
    assert tables.to_save() is None
    assert not tables.replaced(b"garbage", 7)
    assert tables.replaced(right, 7)
    assert (tables.as_of, tables.stable_index, tables.known_until) == (7, 7, EVERYTHING)
    assert tables.to_save() is not None
    opened.close()


class Asking(Surroundings):
    """The part that asks peers, with tables of no log."""

    def __init__(self):
        core = SimpleNamespace(
            self_id="n0",
            term=1,
            committed_index=99,
            history=EventHistory(),
            membership=SimpleNamespace(ids=("n0", "n1", "n2"), voters=("n0", "n1", "n2")),
        )
        config = GroupConfig(group="g", peers="n0-h:1;n1-h:2;n2-h:3")
        super().__init__(config, core=core, log=SimpleNamespace(before_begin_index=-1))
        self.taken = []
        self.tables = SimpleNamespace(
            is_lost=False, is_trusted=False, replaced=lambda raw, index: self.taken.append(raw) or 1
        )
        self.part = LostTables(self.context, self.tables)

    def answer(self, table, agreed, raw=b"tables"):
        code = ResponseCode.INDEX_OUT_OF_RANGE
        message = self.answer_to(RepairResponse, code=code, agreed=[(table, agreed)])
        assert self.part.answered(message, memoryview(raw))


def test_only_tables_that_agreed_since_take_the_place_of_those_that_differ():
    asking = Asking()
    asking.part.doubted("sessions.1", 79, "it differs")
    asking.tick()
    asking.answer("sessions.1", 39)
    assert asking.taken == []
    for table, agreed in (("marks.1", 79), ("sessions.1", 78)):
        asking.now_ms += 500
        asking.tick()
        asking.answer(table, agreed)
    assert asking.taken == []
    assert "sessions.1 differ from a majority's" in asking.part.text
    asked = len(asking.sent)
    asking.now_ms += 500
    asking.tick()
    assert len(asking.sent) == asked + 1
    asking.answer("sessions.1", 79)
    assert len(asking.taken) == 1
    assert asking.part.text == ""
    assert asking.context.counters.tables_rebuilt == 1
    lines = [text for _, text in asking.context.core.history.lines()]
    assert lines == [
        "it differs; peers are asked for theirs",
        "sessions.1 replaced by the tables of n1",
    ]


class Group(SimulatedCluster):
    """Producers of the test append to it; replicas compare after every 8 entries."""

    def __init__(self, count=3, **settings):
        super().__init__(1, count, digest_entries=8, **settings)
        self.invariants = []
        self.sequences = {}
        for node in self.nodes.values():
            node.start()
        self.until(lambda: self.leader() is not None and self.leader().core.is_ready)

    def until(self, condition, limit_ms=30_000):
        end_ms = self.clock.now_ms + limit_ms
        while not condition():
            assert self.clock.now_ms < end_ms, self.describe()
            self.run_until(self.clock.now_ms + 10)

    def append(self, producer_id):
        """Return the code with which the producer's next entry was answered."""
        self.until(lambda: self.leader() is not None and self.leader().core.is_ready)
        answers, node = [], self.leader()
        sequence = self.sequences.get(producer_id, 0)
        block = session_block(producer_id, sequence, [b"x"])
        entry = system_entry_of(block)
        node.enter(lambda: node.running.propose(block, lambda r, _: answers.append(r.code), entry))
        self.until(lambda: answers)
        if answers[0] is OK:
            self.sequences[producer_id] = sequence + 1
        return answers[0]

    def fill(self, count):
        for number in range(count):
            for _ in range(20):
                if self.append(number % 3) is OK:
                    break

    def is_equal(self):
        found = [node.running.tables for node in self.nodes.values()]
        whole = all(tables.is_trusted for tables in found)
        return whole and len({tables.encode() for tables in found}) == 1

    def rebuilt(self):
        nodes = self.nodes.items()
        return {name for name, node in nodes if node.running.counters.tables_rebuilt}


def spoil(node):
    """Have a replica remember another block of producer 1 than was appended."""
    sessions = node.running.tables._base.sessions
    known = sessions.sessions[1]
    wrong = SessionEntry(1, known.epoch, known.next_sequence, 5, 1)
    sessions.apply(node.running.tables.as_of, wrong)
    node.running.tables._derive()


def test_tables_that_are_equal_are_found_equal():
    group = Group()
    group.fill(20)
    group.until(group.is_equal)
    for node in group.nodes.values():
        comparisons = node.running.derived
        group.until(lambda one=comparisons: min(dict(one.agreed()).values()) >= 31)
        assert status_of(node.running, node.node_id).tables_compared_index >= 31
        assert node.running.counters.alarms == 0
    assert group.rebuilt() == set()


@pytest.mark.parametrize("whose", ["follower", "leader"])
def test_r38_a_replica_with_another_table_than_a_majority_takes_that_of_a_peer(whose):
    group = Group()
    group.fill(10)
    group.until(group.is_equal)
    is_leader = whose == "leader"
    node = next(one for one in group.nodes.values() if (one is group.leader()) == is_leader)
    spoil(node)
    assert not group.is_equal()
    group.fill(10)
    group.until(group.is_equal)
    assert group.rebuilt() == {node.node_id}
    replica = node.running
    assert replica.counters.alarms >= 1
    told = [text for _, text in replica.history()]
    assert any("the table sessions.1 after entry" in text for text in told), told
    assert any("sessions.1 replaced by the tables of" in text for text in told), told
    if is_leader:
        assert any("LEADER" in text or "steps down" in text for text in told), told
    assert status_of(replica, node.node_id).tables_rebuilt == 1
    assert status_of(replica, node.node_id).healthy


def test_digests_of_tables_that_were_replaced_start_no_doubt_any_more():
    """A point may be reached, and compared, while a peer is asked for its tables."""
    group = Group()
    group.fill(10)
    group.until(group.is_equal)
    node = next(one for one in group.nodes.values() if one is not group.leader())
    comparison = node.running.derived._by_name["sessions.1"]
    spoil(node)
    group.fill(10)
    group.until(group.is_equal)
    assert group.rebuilt() == {node.node_id}
    right = group.leader().running.derived._by_name["sessions.1"]._own
    for index, digest in right.items():
        comparison._take_result(digest, index, is_majority=True)
    assert node.running.tables.is_trusted
    assert status_of(node.running, node.node_id).healthy


def test_a_replica_whose_tables_differ_does_not_lead_and_says_so():
    group = Group()
    group.fill(10)
    group.until(group.is_equal)
    leader = group.leader()
    others = [node for node in group.nodes.values() if node is not leader]
    for node in others:  # nobody is there to help
        node.running.tables.encode = lambda: b"garbage"
    spoil(leader)
    group.fill(8)
    group.until(lambda: leader.core.role is not Role.LEADER)
    group.until(lambda: not leader.running.tables.is_trusted)
    status = status_of(leader.running, leader.node_id)
    assert not status.healthy
    assert "differ from a majority's" in status.health_text
    assert leader.running.tables.stable_index <= max(dict(leader.running.derived.agreed()).values())
    group.fill(6)
    assert group.leader() is not leader
    for node in others:
        del node.running.tables.encode
    group.until(group.is_equal)


def test_two_that_differ_without_a_majority_say_so_and_go_on():
    group = Group(count=2)
    group.fill(10)
    group.until(group.is_equal)
    follower = next(node for node in group.nodes.values() if node is not group.leader())
    spoil(follower)
    group.fill(8)
    group.until(lambda: all(node.running.counters.alarms for node in group.nodes.values()))
    assert group.rebuilt() == set()
    assert all(node.running.tables.is_trusted for node in group.nodes.values())
    group.fill(3)


def test_who_compares_never_is_never_in_doubt():
    group = Group()
    for node in group.nodes.values():
        node.running.tables._next_point = NOWHERE
    group.fill(5)
    spoil(group.leader())
    group.fill(10)
    assert group.rebuilt() == set()
