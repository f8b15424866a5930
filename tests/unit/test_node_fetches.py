"""Reads for clients: committed entries only, waiting fetches, and refusals."""

import numpy as np
import pytest

from quorumlog.model.block import HEADER_DTYPE, encode_block, parse_block
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import CorruptionError
from quorumlog.model.histogram import LATENCY_SECONDS, Histogram
from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import FetchRequest, StoreLocation
from quorumlog.node.replica.fetch_waiters import ANSWERED_PER_TURN, STALE_MAX, FetchWaiters
from quorumlog.node.replica.fetches import REJECTED_PER_FETCH_MAX, Fetches, View, gather
from quorumlog.node.replica.part_timers import PartTimers
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.log.memory_log import MemoryLog

LIMITS = Limits(fetch_waiters_max=10)
FIVE = {"count": 5, "entry_bytes_max": 1_000}


class ToyLog:
    """Entries of 100 bytes, in pieces of `piece` entries.

    The first `cold` are on disk, of which the first `resident` are in the page cache.
    """

    def __init__(self, count, piece=4, cold=0, before_begin=-1, resident=0):
        self.resident = resident
        self.before_begin_index = before_begin
        self.end_index = count - 1
        self.piece = piece
        self.cold = cold
        self.damaged = None

    def is_in_memory(self, index):
        return index >= self.cold

    def read_resident(self, first_index, last_index, bytes_max):
        if first_index >= self.resident:
            return None
        return self.read(first_index, last_index, bytes_max)

    def read(self, first_index, last_index, bytes_max):
        if self.damaged is not None and first_index <= self.damaged:
            raise CorruptionError("damaged", "00000", 0, self.damaged)
        end_of_piece = (first_index // self.piece + 1) * self.piece - 1
        last = min(last_index, end_of_piece, first_index + max(1, bytes_max // 100) - 1)
        count = last - first_index + 1
        return EntryRun(
            first_index,
            count,
            memoryview(bytes(100 * count)),
            memoryview(bytes(32 * count)),
            first_index >= self.cold,
        )


class World:
    """A `Fetches` with a view that the test sets, and cold reads that the test releases."""

    def __init__(self, log, committed=-1, role=Role.LEADER, location=None, limits=LIMITS):
        self.committed_index = self.durable_index = committed
        self.role = role
        self.cold = []
        self.clients = []
        self.answers = []
        self.damage = []
        self.deferred = []
        self.now_ms = 0
        self.timers = PartTimers(lambda: self.now_ms, lambda due_ms: None)
        self.seconds = Histogram(LATENCY_SECONDS)
        environment = {
            "defer": self.deferred.append,
            "location": location,
            "timers": self.timers,
            "now_us": lambda: self.now_ms * 1_000,
            "seconds": self.seconds,
        }
        self.fetches = Fetches(
            log, limits, self.view, self, self.run_cold, self.damage.append, **environment
        )
        self.stable_index = 1 << 62
        self.complete_from = 0
        self.rejected = []

    def view(self):
        return View(self.role, 7, "n0", self.committed_index, True, self.durable_index)

    def rejected_within(self, first, last, most):
        return [one for one in self.rejected if one[1] >= first and one[0] <= last][:most]

    def passes_until(self, now_ms):
        self.now_ms = now_ms
        self.timers.tick()

    def run_cold(self, work, done, failed, client):
        self.cold.append((work, done, failed))
        self.clients.append(client)

    def fetch(self, begin, now_ms=0, **fields):
        request = FetchRequest(group="g", begin_index=begin, **fields)
        self.fetches.fetch(request, self.answered, "client", now_ms)

    def answered(self, *answer):
        self.answers.append(answer)

    def last(self):
        return self.answers[-1][0]


def test_pieces_in_memory_are_gathered_up_to_the_bound():
    runs = gather(ToyLog(20), 1, 19, 1_000)
    assert [(run.first_index, run.count) for run in runs] == [(1, 3), (4, 4), (8, 3)]


def test_at_least_one_entry_even_if_it_is_larger_than_the_bound():
    assert [run.count for run in gather(ToyLog(20), 5, 19, 10)] == [1]


def test_gathering_from_memory_stops_before_a_disk_read():
    class Upside(ToyLog):
        def is_in_memory(self, index):
            return index < 8

        def read(self, first_index, last_index, bytes_max):
            run = super().read(first_index, last_index, bytes_max)
            return EntryRun(first_index, run.count, run.data, run.records, first_index < 8)

    assert gather(Upside(20), 0, 19, 10_000)[-1].last_index == 7


def test_130_nothing_above_committed_is_served():
    world = World(ToyLog(20), committed=5)
    world.fetch(0, bytes_max=100_000)
    assert (world.last().count, world.last().committed_index) == (6, 5)
    world.fetch(6)
    assert (world.last().code, world.last().count) == (ResponseCode.SUCCESS, 0)
    world.fetch(6, end_index=6)
    assert world.last().code == ResponseCode.INDEX_OUT_OF_RANGE


def test_one_reader_too_many_at_the_tail_is_told_to_come_back_later():
    """An empty answer would have it ask again at once, for ever."""
    world = World(ToyLog(20), committed=5)
    for _ in range(LIMITS.fetch_waiters_max):
        world.fetch(6, wait_ms=1_000)
    assert world.answers == []
    world.fetch(6, wait_ms=1_000)
    assert world.last().code == ResponseCode.LEADER_PENDING_FULL
    world.committed_index = 6
    world.fetches.committed()
    answers_turn_by_turn(world)
    assert [answer.code for answer, _ in world.answers[1:]] == [ResponseCode.SUCCESS] * 10


def test_of_transactions_only_what_has_ended_is_served_and_what_is_left_out_is_named():
    world = World(ToyLog(20), committed=15)
    world.stable_index, world.rejected = 9, [(1, 2), (5, 6), (8, 9)]
    world.fetch(0, bytes_max=100_000)
    assert (world.last().count, world.last().committed_index) == (16, 15)
    assert world.last().rejected == []
    world.fetch(2, bytes_max=500, read_committed=True)
    assert (world.last().count, world.last().committed_index) == (5, 9)
    assert world.last().rejected == [(1, 2), (5, 6)]
    world.fetch(10, read_committed=True)
    assert (world.last().count, world.last().committed_index) == (0, 9)
    world.fetch(10, end_index=10, read_committed=True)
    assert world.last().code == ResponseCode.INDEX_OUT_OF_RANGE


def test_where_it_is_not_known_what_was_rejected_only_uncommitted_readers_are_served():
    world = World(ToyLog(20), committed=15)
    world.complete_from = 6
    world.fetch(5, read_committed=True)
    assert world.last().code == ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
    world.fetch(1 << 62, read_committed=True)
    assert (world.last().begin_index, world.last().committed_index) == (6, 15)
    world.fetch(6, read_committed=True)
    assert (world.last().begin_index, world.last().first_index) == (6, 6)
    world.fetch(5)
    assert (world.last().begin_index, world.last().first_index) == (0, 5)


def test_a_reader_waits_for_the_end_of_a_transaction():
    world = World(ToyLog(20), committed=15)
    world.stable_index = 9
    world.fetch(10, wait_ms=1_000, read_committed=True)
    world.fetches.committed()
    assert world.answers == []
    world.stable_index = 15
    world.fetches.committed()
    assert world.last().first_index == 10


def test_an_answer_names_a_bounded_number_of_stretches():
    world = World(ToyLog(20_000, piece=20_000), committed=19_999)
    world.rejected = [(n, n) for n in range(0, 20_000, 2)]
    world.fetch(0, bytes_max=4_000_000, read_committed=True)
    assert len(world.last().rejected) == REJECTED_PER_FETCH_MAX
    assert world.last().count == 2 * REJECTED_PER_FETCH_MAX
    assert world.last().rejected[-1] == (2 * REJECTED_PER_FETCH_MAX - 2,) * 2


def test_a_reader_at_the_tail_waits_for_the_next_commit():
    world = World(ToyLog(20), committed=5)
    world.fetch(6, wait_ms=1_000)
    assert world.answers == []
    world.committed_index = 8
    world.fetches.committed()
    assert (world.last().first_index, world.last().count) == (6, 3)


def answers_turn_by_turn(world):
    """How many are answered at once, and then in each turn of the loop."""
    counts = [len(world.answers)]
    while world.deferred:
        (go_on,) = world.deferred
        world.deferred.clear()
        go_on()
        counts.append(len(world.answers) - sum(counts))
    return counts


@pytest.fixture
def crowd():
    world = World(ToyLog(20), committed=5, limits=Limits(fetch_waiters_max=200))
    for number in range(200):
        world.fetch(6, wait_ms=1_000 + number, leader_only=number % 2 == 0)
    assert world.answers == []
    return world


def commit(world):
    world.committed_index = 8
    world.fetches.committed()


def lose_leadership(world):
    world.role = Role.FOLLOWER
    world.fetches.committed()
    assert len(world.answers) == ANSWERED_PER_TURN
    commit(world)


def let_time_pass(world):
    world.passes_until(5_000)


@pytest.mark.parametrize("happens", [commit, lose_leadership, let_time_pass])
def test_of_those_that_wait_a_few_are_answered_in_a_turn_of_the_loop(crowd, happens):
    happens(crowd)
    crowd.fetch(0, leader_only=False)  # who asks now does not wait for them
    counts = answers_turn_by_turn(crowd)
    assert counts == [ANSWERED_PER_TURN + 1] + [ANSWERED_PER_TURN] * (200 // ANSWERED_PER_TURN - 1)
    crowd.passes_until(10_000)
    assert len(crowd.answers) == sum(counts), "each is answered once"
    assert crowd.timers.next_due_ms() == NEVER_MS


def test_linearizable_fetches_that_are_confirmed_together_are_answered_in_turns_of_their_clients():
    """The leader confirms the index for all of them at once, however many one client sent."""
    world = World(ToyLog(20), committed=5)
    world.as_of = 5
    request = FetchRequest(group="g", begin_index=0, bytes_max=1, linearizable=True)

    def confirm(client):
        def answer(*_):
            world.answers.append(client)

        world.fetches.fetch_linearizable(
            request, answer, client, lambda: world.now_ms, ResponseCode.SUCCESS, "", 5
        )

    for _ in range(100):
        confirm("hostile")
    confirm("good")
    assert world.answers == ["hostile"] * ANSWERED_PER_TURN
    (world.deferred.pop())()
    assert world.answers[ANSWERED_PER_TURN:].index("good") <= 1
    while world.deferred:
        (world.deferred.pop())()
    assert len(world.answers) == 101
    world.now_ms += 1
    confirm("good")
    assert len(world.answers) == 102, "where nobody waits it is answered at once"


def test_those_that_are_not_answered_yet_count_among_those_that_wait(crowd):
    commit(crowd)
    for _ in range(ANSWERED_PER_TURN):
        crowd.fetch(9, wait_ms=1_000)
    crowd.fetch(9, wait_ms=1_000)
    assert crowd.last().code == ResponseCode.LEADER_PENDING_FULL


def test_what_was_answered_by_its_deadline_is_forgotten_however_far_off_its_entry_is():
    world = World(ToyLog(20), committed=5)
    for number in range(3 * STALE_MAX):
        world.fetch(1 << 40, wait_ms=1)
        world.passes_until(number + 1)
        world.fetch(6, wait_ms=1_000)
        world.passes_until(2_000)
    assert len(world.answers) == 6 * STALE_MAX
    waiters = world.fetches._waiters
    assert len(waiters) == 0
    assert len(waiters._by_index[False]) <= STALE_MAX + 1


def test_waiting_ends_with_nothing_when_the_time_has_passed():
    world = World(ToyLog(20), committed=5)
    world.fetch(6, wait_ms=500)
    world.fetch(6, wait_ms=100)
    assert world.timers.next_due_ms() == 100
    world.passes_until(100)
    assert len(world.answers) == 1
    assert world.last().count == 0
    world.passes_until(10_000)
    assert len(world.answers) == 2
    assert world.timers.next_due_ms() == NEVER_MS


def test_78_a_follower_names_the_leader():
    world = World(ToyLog(20), committed=5, role=Role.FOLLOWER)
    world.fetch(0)
    assert (world.last().code, world.last().leader_id) == (ResponseCode.NOT_LEADER, "n0")
    world.fetch(0, leader_only=False)
    assert world.last().code == ResponseCode.SUCCESS


def test_waiting_readers_learn_that_leadership_is_gone():
    world = World(ToyLog(20), committed=5)
    world.fetch(6, wait_ms=1_000)
    world.role = Role.FOLLOWER
    world.fetches.committed()
    assert world.last().code == ResponseCode.NOT_LEADER


def test_removed_entries_are_named_with_the_first_index_kept():
    world = World(ToyLog(20, before_begin=9), committed=15)
    world.fetch(3)
    assert world.last().code == ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
    assert world.last().begin_index == 10
    assert "10" in world.last().text


def test_cold_reads_run_beside_the_loop():
    world = World(ToyLog(20, cold=10), committed=15)
    world.fetch(0)
    assert world.answers == []
    work, done, _ = world.cold.pop()
    done(work())
    assert world.last().count == 16


def test_a_read_that_waits_for_no_disk_is_answered_at_once():
    """A job for a thread would take the interpreter from the loop, and cost everybody more."""
    world = World(ToyLog(20, cold=10, resident=8), committed=15)
    world.fetch(0, bytes_max=300)
    assert (world.last().first_index, world.last().count) == (0, 3)
    assert world.cold == []
    world.fetch(8, bytes_max=300)
    assert len(world.answers) == 1
    assert world.clients == ["client"], "jobs of clients take turns"


def test_a_read_for_a_fetch_that_waited_is_its_clients():
    world = World(ToyLog(20, cold=20), committed=5)
    world.fetch(6, wait_ms=1_000)
    world.committed_index = 6
    world.fetches.committed()
    assert world.clients == ["client"]


def test_74_damaged_entries_in_the_page_cache_are_reported_not_served():
    log = ToyLog(20, cold=10, resident=10)
    log.damaged = 2
    world = World(log, committed=15)
    world.fetch(0)
    assert world.last().code == ResponseCode.DISK_ERROR
    assert (world.fetches.damaged_reads, len(world.damage)) == (1, 1)


def test_74_damaged_entries_are_reported_not_served():
    log = ToyLog(20, cold=10)
    log.damaged = 2
    world = World(log, committed=15)
    world.fetch(0)
    work, _, failed = world.cold.pop()
    with pytest.raises(CorruptionError) as caught:
        work()
    failed(caught.value)
    assert world.last().code == ResponseCode.DISK_ERROR
    assert world.fetches.damaged_reads == 1


def test_headers_come_without_their_bodies():
    log = MemoryLog()
    log.append(parse_block(memoryview(bytearray(encode_block([b"a" * 100] * 5))), **FIVE), 1)
    world = World(log, committed=4)
    world.fetch(1, headers_only=True)
    response, attachments = world.answers[-1]
    table = np.frombuffer(b"".join(attachments), HEADER_DTYPE)
    assert (response.count, table["index"].tolist()) == (4, [1, 2, 3, 4])
    assert set(table["body_size"].tolist()) == {100}


def test_index_records_come_in_front_of_the_entries():
    world = World(ToyLog(20), committed=9)
    world.fetch(2, index_records=True, bytes_max=100_000)
    response, attachments = world.answers[-1]
    assert response.index_bytes == 8 * 32
    sizes = [len(part) for part in attachments]
    assert sum(sizes) == 8 * 132
    assert sum(sizes[: len(sizes) // 2]) == response.index_bytes


def test_fetches_of_a_client_that_has_disconnected_are_dropped_wherever_they_wait():
    served, later = [], []
    waiters = FetchWaiters(
        lambda request, answer, client, _: served.append(client), later.append, lambda *_: {}
    )
    for client in ("gone", "here"):
        for index in (5, 900):
            request = FetchRequest(group="g", begin_index=index)
            waiters.add(request, lambda *_: None, client, 10_000, -1)
        for _ in range(2 * ANSWERED_PER_TURN):
            waiters.answer(lambda client=client: served.append(client), client, 0)
    served.clear()
    waiters.forget("gone")
    assert len(waiters) == 2 + 2 * ANSWERED_PER_TURN
    while later:
        later.pop()()
    assert served == ["here"] * 2 * ANSWERED_PER_TURN
    waiters.reached(1_000, 1_000)
    assert served == ["here"] * (2 * ANSWERED_PER_TURN + 2)
    assert (len(waiters), waiters.next_deadline_ms()) == (0, NEVER_MS)


def test_a_range_that_ends_before_it_begins_is_refused():
    world = World(ToyLog(20), committed=15)
    world.fetch(5, end_index=4)
    assert world.last().code == ResponseCode.UNEXPECTED_ARGUMENT


# -- where entries are stored ---------------------------------------------------------------------

HERE = StoreLocation("machine", [("/g", 1, 2)])


def test_a_reader_that_asks_is_told_which_entries_are_in_files_and_sent_none():
    world = World(ToyLog(2_000_000), committed=1_500_000, location=HERE)
    world.fetch(10, bytes_max=1, machine="machine", index_records=True)
    response, parts = world.answers[-1]
    assert (response.first_index, response.count) == (10, 1_499_991)
    assert (response.location, response.index_bytes, parts) == (HERE, 0, [])
    assert world.fetches.bytes_served == 0
    world.fetch(10, end_index=19, machine="machine")
    assert world.last().count == 10
    for machine in ("another machine", ""):
        world.fetch(10, end_index=19, machine=machine)
        answer = (world.last().count, world.last().location, len(world.answers[-1][1]))
        assert answer == (10, None, 3)


def test_only_what_is_on_its_own_disk_does_a_replica_locate():
    world = World(ToyLog(20), committed=15, location=HERE)
    world.durable_index = 12
    world.fetch(4, machine="machine")
    assert (world.last().count, world.last().location) == (9, HERE)
    world.fetch(13, machine="machine")  # a majority has it, this replica is still writing
    assert (world.last().count, world.last().location) == (3, None)


def test_only_what_may_be_seen_is_located_and_what_was_rejected_is_told():
    world = World(ToyLog(40), committed=30, location=HERE)
    world.stable_index, world.rejected = 25, [(2, 3), (8, 9)]
    world.fetch(5, machine="machine", read_committed=True)
    assert (world.last().count, world.last().rejected) == (21, [(8, 9)])
    world.fetch(31, machine="machine")
    assert (world.last().count, world.last().location) == (0, None)


def test_a_replica_with_damage_or_without_files_sends_the_entries():
    log = ToyLog(20)
    world = World(log, committed=15)
    world.fetch(4, machine="machine", bytes_max=200)
    assert (world.last().count, world.last().location) == (2, None)
    world = World(log, committed=15, location=HERE)
    log.damaged = 7
    world.fetch(10, machine="machine", bytes_max=200)
    assert (world.last().count, world.last().location) == (2, None)
