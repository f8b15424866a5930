"""Readers of one channel: what a replica selects, how it waits, and clients of earlier servers."""

import pytest

from quorumlog.client.client import Client
from quorumlog.model.block import decode_entries, encode_block, parse_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.histogram import LATENCY_SECONDS, Histogram
from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import FetchRequest
from quorumlog.node.replica import channel_reads, fetches
from quorumlog.node.replica.channel_reads import entries_on_channel
from quorumlog.node.replica.fetches import Fetches, View, gather
from quorumlog.node.replica.part_timers import PartTimers
from quorumlog.storage.log.bodies import read_bodies
from quorumlog.storage.log.memory_log import MemoryLog
from store_access import Opened, block_of

OK = ResponseCode.SUCCESS


def append(log, bodies, channel=0):
    raw = memoryview(bytearray(encode_block(bodies, channel=channel)))
    log.append(parse_block(raw, count=len(bodies), entry_bytes_max=1 << 22), 1)


@pytest.fixture
def log():
    """Entry n is on channel n % 3 and says so; every tenth is the group's own."""
    made = MemoryLog()
    for number in range(60):
        if number % 10 == 9:
            append(made, [b"own"], SYSTEM_CHANNEL)
        else:
            append(made, [b"%d on %d" % (number, number % 3)], number % 3)
    return made


def entries(runs):
    return [entry for run in runs for entry in decode_entries(run.block())]


def runs_of(log, first=0, last=None):
    return gather(log, first, log.end_index if last is None else last, 1 << 20)


def test_f93_entries_of_one_channel_are_found_and_how_far_was_looked(log):
    found, until = entries_on_channel(runs_of(log), 1, (), 1 << 20)
    expected = [n for n in range(60) if n % 3 == 1 and n % 10 != 9]
    assert [entry.index for entry in entries(found)] == expected
    assert all(entry.body == b"%d on 1" % entry.index for entry in entries(found))
    assert until == 59
    assert sum(run.count for run in found) == len(expected)


def test_neither_rejected_entries_nor_the_groups_own_are_found(log):
    found, until = entries_on_channel(runs_of(log), 2, [(0, 40)], 1 << 20)
    assert min(entry.index for entry in entries(found)) > 40
    found, until = entries_on_channel(runs_of(log), 7, (), 1 << 20)
    assert (found, until) == ([], 59)


def test_what_does_not_fit_is_left_for_the_next_answer(log, monkeypatch):
    found, until = entries_on_channel(runs_of(log), 0, (), 1)
    assert [entry.index for entry in entries(found)] == [0]
    assert until == 2, "what comes before the next entry on the channel was looked at"
    seen, begin = [], 0
    while begin < 60:
        found, until = entries_on_channel(runs_of(log, begin), 0, (), 150)
        seen += [entry.index for entry in entries(found)]
        begin = until + 1
    assert seen == [n for n in range(60) if n % 3 == 0 and n % 10 != 9]
    monkeypatch.setattr(channel_reads, "CHANNEL_ENTRIES_MAX", 4)
    found, until = entries_on_channel(runs_of(log), 0, (), 1 << 20)
    assert len(entries(found)) == 4


def test_single_entries_are_not_looked_at_one_by_one(log, monkeypatch):
    """Each step of numpy costs as much for one entry as for a thousand: 256 of them took 10 ms."""
    steps, rows = [], channel_reads.data_rows

    def counted(table, rejected):
        steps.append(len(table))
        return rows(table, rejected)

    monkeypatch.setattr(channel_reads, "data_rows", counted)
    runs = runs_of(log)
    assert len(runs) == 60
    entries_on_channel(runs, 1, [(3, 3)], 1 << 20)
    assert steps == [60]


# -- of a replica -------------------------------------------------------------------------------


class World:
    """`Fetches` of a log whose committed index the test sets."""

    def __init__(self, log, committed):
        self.committed_index, self.now_ms = committed, 0
        self.as_of, self.complete_from, self.stable_index = 1 << 62, 0, 1 << 62
        self.timers = PartTimers(lambda: self.now_ms, lambda due_ms: None)
        self.answers = []
        self.fetches = Fetches(
            log,
            Limits(),
            lambda: View(Role.LEADER, 7, "n0", self.committed_index, True, self.committed_index),
            self,
            lambda work, done, failed, client: done(work()),
            lambda error: None,
            defer=lambda call: call(),
            timers=self.timers,
            now_us=lambda: 0,
            seconds=Histogram(LATENCY_SECONDS),
        )

    def rejected_within(self, first, last, most):
        return []

    def fetch(self, begin, channel, **fields):
        request = FetchRequest(group="g", begin_index=begin, channel=channel, **fields)
        self.fetches.fetch(request, lambda *answer: self.answers.append(answer), "client", 0)

    def commits(self, index):
        self.committed_index = index
        self.fetches.committed()

    def seen(self, number=-1):
        """Return (code, count, up to where it looked) of an answer."""
        answer = self.answers[number][0]
        return answer.code, answer.count, answer.looked_until


def test_f93_a_reader_of_a_silent_channel_waits_and_each_commit_looks_at_new_entries_only(log):
    world = World(log, 20)
    world.fetch(0, 7, wait_ms=1_000)
    assert world.answers == []
    append(log, [b"here"], 7)
    for index in (30, 40, 59):
        world.commits(index)
        assert world.answers == []
    world.commits(60)
    assert world.seen() == (OK, 1, 60)
    assert world.answers[0][0].committed_index == 60


def test_a_commit_is_looked_through_once_however_many_readers_of_silent_channels_wait(
    log, monkeypatch
):
    """With 100 of them appends took three times as long; with 500 the leader was deposed."""
    looked, served = [], []
    rows, one = channel_reads.data_rows, fetches.entries_on_channel

    def counted(table, rejected=()):
        looked.append(len(table))
        return rows(table, rejected)

    def noted(*given):
        served.append(given[1])
        return one(*given)

    monkeypatch.setattr(channel_reads, "data_rows", counted)
    monkeypatch.setattr(fetches, "entries_on_channel", noted)
    world = World(log, 20)
    for number in range(500):
        world.fetch(21, 100 + number % 50, wait_ms=1_000, leader_only=False)
    append(log, [b"here"], 103)
    for index in (30, 40, 59):
        world.commits(index)
    assert (looked, served, world.answers) == ([10, 10, 19], [], [])
    world.commits(60)
    assert [world.seen(number) for number in range(10)] == [(OK, 1, 60)] * 10
    assert served == [103] * 10
    assert len(world.answers) == 10
    world.now_ms = 1_000
    world.timers.tick()
    assert len(world.answers) == 500
    assert {world.seen(number) for number in range(10, 500)} == {(OK, 0, 60)}
    assert served == [103] * 10, "what was looked through is not looked through again"


def test_a_channels_readers_look_again_at_what_fell_below_the_limit_meanwhile(log):
    """The stable index falls when a replica doubts its tables."""
    world = World(log, 59)
    world.stable_index = 59
    world.fetch(60, 1, wait_ms=1_000, read_committed=True)
    world.stable_index = 10
    world.fetch(11, 1, wait_ms=1_000, read_committed=True)
    world.stable_index = 59
    world.commits(59)
    assert world.answers[0][0].first_index == 11
    assert len(world.answers) == 1


def test_a_channels_readers_look_themselves_at_what_is_not_in_memory(log, monkeypatch):
    world = World(log, 20)
    world.fetch(21, 7, wait_ms=1_000)
    world.fetch(21, 2, wait_ms=1_000)
    with monkeypatch.context() as patch:
        patch.setattr(log, "is_in_memory", lambda index: False)
        assert world.fetches._channels_in(21, 30) is None
    for waiters in world.fetches._waiters._by_channel.values():
        monkeypatch.setattr(waiters, "_channels_in", lambda first, last: None)
    world.commits(30)
    assert len(world.answers) == 1
    assert world.answers[0][0].looked_until == 30
    world.now_ms = 1_000
    world.timers.tick()
    assert world.seen() == (OK, 0, 30)


def test_a_reader_who_finds_nothing_in_time_learns_how_far_was_looked(log):
    world = World(log, 20)
    world.fetch(0, 7, wait_ms=1_000)
    world.commits(45)
    world.now_ms = 1_000
    world.timers.tick()
    assert world.seen() == (OK, 0, 45)
    world.fetch(46, 7)
    assert world.seen() == (OK, 0, 45)


def test_one_answer_looks_at_so_many_bytes(log, monkeypatch):
    monkeypatch.setattr("quorumlog.node.replica.fetches.SCAN_BYTES_IN_MEMORY", 600)
    world = World(log, 59)
    begin = 0
    while begin < 60:
        world.fetch(begin, 7)
        code, count, until = world.seen()
        assert (code, count) == (OK, 0)
        assert begin <= until < begin + 13
        begin = until + 1
    assert len(world.answers) > 3


def test_a_range_that_was_looked_through_is_over(log):
    world = World(log, 59)
    world.fetch(0, 7, end_index=10, wait_ms=1_000)
    assert world.seen() == (OK, 0, 10)


def test_a_reader_of_a_range_that_waits_for_its_last_entry_learns_how_far_was_looked(log):
    world = World(log, 59)
    world.fetch(0, 7, end_index=60, wait_ms=1_000)
    assert world.answers == []
    world.now_ms = 1_000
    world.timers.tick()
    assert world.seen() == (OK, 0, 59)


# -- of a client --------------------------------------------------------------------------------


async def test_f93_a_server_of_before_sends_everything_and_the_client_selects(world):
    """It does not know the field; entries of the scripted servers are all on channel 0."""
    world.stored += [b"a", b"b"]
    async with Client(world.addresses, "g") as client:
        seen = [entry.body async for entry in client.read(0, follow=False, channel=0)]
        assert seen == [b"a", b"b"]
        assert [entry async for entry in client.read(0, follow=False, channel=1)] == []


@pytest.mark.parametrize("channel", [-1, SYSTEM_CHANNEL, True, "1", 1.0])
async def test_f93_impossible_channels_are_refused_before_anything_is_sent(world, channel):
    async with Client(world.addresses, "g") as client:
        with pytest.raises(UnexpectedArgumentError, match="channel"):
            client.append(b"x", channel=channel)
        with pytest.raises(UnexpectedArgumentError, match="channel"):
            client.append_batch([b"x"], channel=channel)
        with pytest.raises(UnexpectedArgumentError, match="channel"):
            client.read(channel=channel)
    assert world.requests == 0


# -- bodies by place ----------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [1, 1 << 20])
def test_bodies_of_given_entries_come_from_memory_and_files(tmp_path, cache):
    opened = Opened(tmp_path / "g", cache=cache, data_file=4_096, index_file=32 * 64)
    bodies = [b"%d" % number * (number % 40 + 1) for number in range(300)]
    for start in range(0, 300, 10):
        opened.submit(opened.log.append(block_of(bodies[start : start + 10]), 1)[0])
    asked = [0, 1, 2, 7, 40, 41, 99, 100, 298, 299]
    found = read_bodies(opened.log, asked, 1 << 20)
    assert [bytes(body) for body in found] == [bodies[index] for index in asked]
    assert read_bodies(opened.log, [], 100) == []
    few = read_bodies(opened.log, asked, len(bodies[0]) + len(bodies[1]))
    assert [bytes(body) for body in few] == bodies[:2]
    assert len(read_bodies(opened.log, [39], 1)) == 1, "one body is always returned"
    cached = opened.log.tail.bodies(asked)
    assert (cached is None) is (cache == 1), "none of those that are in files"
    if cached is not None:
        assert [bytes(body) for body in cached] == [bodies[index] for index in asked]
        opened.log.note_committed(299)
        opened.submit(opened.log.reset(40))
        assert opened.log.tail.bodies([40, 41]) is None, "removed, though it is in the run of 41"
        assert [bytes(body) for body in opened.log.tail.bodies([41])] == [bodies[41]]
    opened.close()
