"""Memory of all connections under one bound: who waits, who goes on, who is ended."""

import asyncio
import itertools
import tracemalloc
from types import SimpleNamespace

import pytest

from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello, Response
from quorumlog.model.messages.client import AppendRequest
from quorumlog.model.messages.peer import ReadIndexRequest
from quorumlog.transport import budget as budgets
from quorumlog.transport.budget import AnswerMemory, FrameMemory, RequestMemory
from quorumlog.transport.classifier import BULK_AFTER_S, BULK_FOR_S, CLOSED_LOOP_AFTER, CREDIT_MAX
from quorumlog.transport.connection import Connection
from quorumlog.transport.scheduler import INTERACTIVE_FOR_S, SLICE_S, TrafficClass
from quorumlog.transport.shared_resources import RECEIVED_BYTES_MAX, SharedResources
from quorumlog.transport.stream import TransportCounters
from quorumlog.wire.frame import encode_frame

KIB = 1024
MIB = 1024 * KIB
RATE = 64 * KIB


class Holder:
    """A connection as its memory sees it."""

    def __init__(self):
        self.bytes_in = self.bytes_out = self.outbox_bytes = 0
        self.is_kept_waiting = False
        self.is_waiting = False
        self.told = []

    def go_on(self):
        self.is_waiting = False
        self.told.append("go on")

    def abort(self, reason):
        self.told.append(reason)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(budgets, "CHECK_S", 0.001)


async def test_what_does_not_fit_waits_until_another_has_finished(quick):
    memory = FrameMemory(100)
    first, second = Holder(), Holder()
    first.is_kept_waiting = True
    assert memory.hold(first, 80)
    assert not memory.hold(second, 40)
    assert memory.used == 80
    memory.forget(first)
    assert second.told == ["go on"]
    assert memory.used == 40
    memory.forget(second)
    assert memory.used == 0


async def test_the_oldest_frame_goes_on_or_all_would_wait_for_each_other(quick):
    memory = FrameMemory(100)
    older, younger = Holder(), Holder()
    older.is_kept_waiting = True
    assert memory.hold(older, 50)
    assert memory.hold(younger, 50)
    assert not memory.hold(younger, 60)
    assert memory.hold(older, 90)
    memory.forget(older)
    assert younger.told == ["go on"]


async def test_who_holds_memory_and_sends_nothing_is_ended_while_others_wait(quick):
    memory = FrameMemory(100)
    silent, waits = Holder(), Holder()
    assert memory.hold(silent, 90)
    assert not memory.hold(waits, 90)
    for _ in range(3):
        memory._check()
    assert "others wait" in silent.told[0]
    assert waits.told == ["go on"]
    assert memory.ended == 1


async def test_who_makes_progress_is_not_ended(quick):
    memory = FrameMemory(100)
    comes, waits = Holder(), Holder()
    assert memory.hold(comes, 90)
    assert not memory.hold(waits, 90)
    for _ in range(20):
        comes.bytes_in += budgets.PROGRESS_BYTES_MIN
        memory._check()
    assert comes.told == []
    memory.forget(comes)
    assert waits.told == ["go on"]


async def test_frames_wait_while_appends_hold_the_memory_and_go_on_when_these_are_answered():
    appends = RequestMemory(100)
    memory = FrameMemory(100, appends)
    first, second = Holder(), Holder()
    appends.hold(90)
    assert not memory.hold(first, 20)
    assert not memory.hold(second, 20)
    appends.release(10)
    assert first.told == ["go on"]
    assert second.told == []
    appends.release(20)
    assert second.told == ["go on"]
    appends.release(60)
    assert (memory.used, appends.used) == (40, 0)


async def test_while_appends_hold_half_not_even_the_oldest_frame_goes_beyond_the_bound():
    """Each would be an append in its turn, and the next one the oldest frame."""
    appends = RequestMemory(100)
    memory = FrameMemory(100, appends)
    oldest, other = Holder(), Holder()
    assert memory.hold(oldest, 30)
    assert memory.hold(other, 10)
    appends.hold(51)
    assert not memory.hold(oldest, 50)
    assert not memory.hold(other, 11), "or new ones could take the room of the oldest for ever"
    appends.release(1)
    assert oldest.told == ["go on"]


async def test_who_sends_slowly_is_not_ended_because_appends_take_the_memory(quick):
    appends = RequestMemory(100)
    memory = FrameMemory(100, appends)
    slow, waits = Holder(), Holder()
    assert memory.hold(slow, 10)
    appends.hold(90)
    assert not memory.hold(waits, 10)
    for _ in range(5):
        memory._check()
    assert slow.told == []
    appends.release(90)
    assert waits.told == ["go on"]


async def test_of_unread_answers_those_go_that_nobody_has_read_for_longest():
    memory = AnswerMemory(100, 60.0, RATE)
    reads, sleeps = Holder(), Holder()
    sleeps.bytes_out = sleeps.outbox_bytes = 70
    memory.sent(sleeps)
    await asyncio.sleep(0.001)
    for _ in range(5):  # it has always something to read, and reads
        reads.bytes_out += 40
        reads.outbox_bytes = 40
        memory.sent(reads)
    assert len(sleeps.told) == 1
    assert reads.told == []
    assert memory.used == 40


async def test_who_reads_nothing_for_long_is_ended():
    memory = AnswerMemory(100, 0.0, RATE)
    sleeps = Holder()
    sleeps.bytes_out = sleeps.outbox_bytes = 1
    memory.sent(sleeps)
    await asyncio.sleep(0.001)
    memory.check()
    assert len(sleeps.told) == 1
    assert memory.used == 0


@pytest.fixture
def clock(monkeypatch):
    loop = SimpleNamespace(seconds=0.0, time=lambda: loop.seconds)
    monkeypatch.setattr(budgets, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    return loop


def test_who_reads_a_byte_now_and_then_goes_before_one_that_pauses(clock):
    memory = AnswerMemory(10 * MIB, 60.0, RATE)
    drips, reads = Holder(), Holder()
    drips.bytes_out = drips.outbox_bytes = 5 * MIB
    memory.sent(drips)
    for _ in range(100):
        clock.seconds += 0.01
        drips.outbox_bytes -= 1
        if clock.seconds < 0.95:
            reads.bytes_out += RATE
            reads.outbox_bytes = KIB
        memory.sent(drips)
        memory.sent(reads)
    reads.bytes_out += 6 * MIB
    reads.outbox_bytes += 6 * MIB
    memory.sent(reads)
    assert len(drips.told) == 1
    assert reads.told == []


@pytest.mark.parametrize(("bytes_per_second", "is_ended"), [(100, True), (RATE, False)])
def test_who_reads_slower_than_the_least_rate_is_ended_in_the_end(
    clock, bytes_per_second, is_ended
):
    memory = AnswerMemory(100 * MIB, 30.0, RATE)
    reads = Holder()
    reads.bytes_out = reads.outbox_bytes = 10 * MIB
    memory.sent(reads)
    for _ in range(40):
        clock.seconds += 1.0
        reads.outbox_bytes -= bytes_per_second
        memory.check()
    assert bool(reads.told) is is_ended


# -- connections ----------------------------------------------------------------------------


class Transport:
    """Takes everything; says whether it reads."""

    def __init__(self):
        self.is_read, self.closed, self.unsent = True, False, 0

    def get_extra_info(self, name):
        return None if name == "peername" else self

    def setsockopt(self, *_):
        pass

    def set_write_buffer_limits(self, high):
        pass

    def get_write_buffer_size(self):
        return self.unsent

    def write(self, data):
        pass

    def writelines(self, parts):
        pass

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.is_read = False

    def resume_reading(self):
        self.is_read = True

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = True


class Client:
    """A connection of a client, with what it asked."""

    def __init__(self, shared, limits):
        self.asked = []
        self.transport = Transport()
        hello = Hello(cluster="c", node_id="n0", role="node")
        counters = TransportCounters()
        self.connection = Connection(hello, lambda _: self, limits, counters, shared=shared)
        self.connection.connection_made(self.transport)

    def opened(self, connection, hello):
        pass

    def frame_received(self, connection, frame):
        self.asked.append(frame)

    def closed(self, connection, reason):
        pass

    def receive(self, raw):
        """Take bytes as from a socket; return how many were taken."""
        space = self.connection.get_buffer(-1)
        count = min(len(space), len(raw))
        space[:count] = raw[:count]
        self.connection.buffer_updated(count)
        return count

    async def send(self, raw):
        """Send as much as is read; return the rest."""
        raw, unread = memoryview(raw), 0
        while raw and unread < 200:
            if not self.transport.is_read:
                unread += 1
                await asyncio.sleep(0)
                continue
            raw = raw[self.receive(raw) :]
        return raw


async def all_turns(shared):
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert not shared.scheduler.has_waiting


async def connected(shared, limits):
    client = Client(shared, limits)
    await client.send(b"".join(encode_frame(Hello(cluster="c", node_id="", role="client"))))
    return client


@pytest.fixture
def limits():
    return Limits(receive_bytes_max=16 * MIB, frame_ms=1, handshake_ms=60_000)


@pytest.fixture
async def shared(limits):
    made = SharedResources(limits, lambda hello: hello.role != "client")
    look_at_the_clock_every(SLICE_S / 250, made)
    return made


def look_at_the_clock_every(seconds, shared):
    """Have each look at the clock of the turns find so much later, however busy the machine is."""
    ticks = itertools.count()
    shared.scheduler.now = lambda: next(ticks) * seconds


def append(size):
    return b"".join(encode_frame(AppendRequest(group="g", count=1), attachments=[bytes(size)]))


async def test_unproven_clients_with_all_but_one_byte_of_a_frame_hold_no_more_than_their_share(
    shared, limits
):
    large = append(4 * MIB)[:-1]
    tracemalloc.start()
    try:
        clients = [await connected(shared, limits) for _ in range(20)]
        for client in clients:
            await client.send(large)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert shared.budgets.unproven.used <= limits.receive_bytes_max // 4 + 8 * MIB
    assert held < 2 * limits.receive_bytes_max


async def test_frames_that_wait_do_not_each_become_the_one_that_goes_on(shared, limits):
    """A frame's time begins later by as long as nothing was read of it."""
    memory, left = shared.budgets.unproven, {}
    for _ in range(20):
        left[await connected(shared, limits)] = memoryview(append(4 * MIB)[:-1])
    for number in range(2_000):
        for client, rest in left.items():
            if client.transport.is_read and rest and not client.transport.closed:
                left[client] = rest[client.receive(rest[: 64 * KIB]) :]
        await asyncio.sleep(0)
        if number % 5 == 0:
            memory._check()
        held = sum(one.connection._decoder.held_bytes for one in left if not one.transport.closed)
        assert held <= memory.used <= limits.receive_bytes_max // 4 + limits.frame_bytes_max
    assert memory.ended == len(left)  # none came to its last byte, and each gave way to the others


async def test_who_sends_one_frame_after_the_other_comes_after_those_that_wait(shared, limits):
    shared.scheduler.is_slice_over = lambda: True
    look_at_the_clock_every(SLICE_S, shared)  # one has its turn at a time
    many, one = await connected(shared, limits), await connected(shared, limits)
    await all_turns(shared)
    many.receive(append(10) * 5)
    one.receive(append(1 * MIB)[: 40 * KIB])
    memory = shared.budgets.unproven
    assert list(memory._came) == [many.connection, one.connection]
    await asyncio.sleep(0)
    assert list(memory._came) == [one.connection, many.connection]


@pytest.mark.parametrize("ends", ["is closed", "is lost"])
async def test_what_came_of_a_frame_is_freed_with_its_connection(shared, limits, ends):
    """Requests that wait may keep the object of a connection that has ended."""
    client = await connected(shared, limits)
    tracemalloc.start()
    try:
        await client.send(append(4 * MIB)[:-1])
        assert tracemalloc.get_traced_memory()[0] > 4 * MIB
        if ends == "is closed":
            client.connection.close("test")
        else:
            client.connection.connection_lost(None)
        assert tracemalloc.get_traced_memory()[0] < 1 * MIB
    finally:
        tracemalloc.stop()


async def test_only_connections_with_an_unfinished_frame_are_checked_for_late_ones(shared, limits):
    """With thousands of connections the loop would stand still for a check of all of them."""
    clients, frame = [await connected(shared, limits) for _ in range(3)], append(10)
    assert shared.unfinished == set()
    for client in clients:
        await client.send(frame + frame[:20])
    await all_turns(shared)
    assert shared.unfinished == {client.connection for client in clients}
    first, second, third = clients
    await first.send(frame[20:])
    await all_turns(shared)
    second.connection.connection_lost(None)
    assert shared.unfinished == {third.connection}


async def test_memory_for_a_frame_is_at_most_twice_what_came_of_it(shared, limits):
    client = await connected(shared, limits)
    await client.send(append(4 * MIB)[:200])
    assert shared.budgets.unproven.used <= 128 * KIB


async def test_the_first_request_of_a_client_may_be_large(shared, limits):
    client = await connected(shared, limits)
    assert not await client.send(append(4 * MIB))
    await all_turns(shared)
    (asked,) = client.asked
    assert bytes(asked.attachment) == bytes(4 * MIB)
    assert shared.budgets.unproven.used == 0


async def test_a_frame_that_does_not_arrive_in_time_is_late_and_a_slow_one_is_not(shared, limits):
    client = await connected(shared, limits)
    connection = client.connection
    await client.send(append(1 * MIB)[: 256 * KIB])
    rate = limits.frame_bytes_per_second_min
    assert not connection.is_late(connection._unfinished.began + 0.001)
    assert not connection.is_late(connection._unfinished.began + 128 * KIB / rate)
    assert connection.is_late(connection._unfinished.began + 512 * KIB / rate)


async def test_requests_are_not_handled_while_their_answers_are_not_read(shared, limits):
    client = await connected(shared, limits)
    client.connection.pause_writing()
    assert not client.transport.is_read
    client.connection.resume_writing()
    await asyncio.sleep(0)
    assert client.transport.is_read


async def test_requests_of_many_clients_share_the_turns_of_the_loop(shared, limits):
    """Whoever sends more than there is time for goes on later, with nothing lost."""
    clients = [await connected(shared, limits) for _ in range(3)]
    shared.scheduler.is_slice_over = lambda: True
    for number, client in enumerate(clients):
        await client.send(append(10 + number) * 50)
    await all_turns(shared)
    assert [[len(one.attachment) for one in client.asked] for client in clients] == [
        [10] * 50,
        [11] * 50,
        [12] * 50,
    ]


MORE_THAN_A_SLICE = append(10) * (RECEIVED_BYTES_MAX // len(append(10)) + 1)


async def answered(shared, limits, now_s):
    """Return a client of which a request was answered."""
    shared.now = lambda: now_s[0]
    client = await connected(shared, limits)
    assert client.connection.traffic_class is TrafficClass.UNPROVEN
    assert client.connection.send(Response(), correlation_id=1)
    assert client.connection.traffic_class is TrafficClass.INTERACTIVE
    return client


async def bulk_from_the_first_request(shared, limits, now_s):
    """Return a client that leaves requests over from the beginning."""
    client, unsent = await answered(shared, limits, now_s), MORE_THAN_A_SLICE * 100
    while client.connection.traffic_class is not TrafficClass.BULK:
        assert now_s[0] < 100.0 + 2 * BULK_AFTER_S
        unsent = unsent[client.receive(unsent) :]  # as much as is received at once
        await all_turns(shared)
        now_s[0] += BULK_AFTER_S / 10
    return client


async def closed_loop(shared, limits, now_s):
    client = await answered(shared, limits, now_s)
    for _ in range(CLOSED_LOOP_AFTER):
        await client.send(append(10))
    return client


async def test_who_begins_with_a_backlog_is_bulk_for_a_while(shared, limits):
    now_s = [100.0]
    connection = (await bulk_from_the_first_request(shared, limits, now_s)).connection
    now_s[0] += 0.89 * BULK_FOR_S
    assert connection.traffic_class is TrafficClass.BULK
    now_s[0] += 0.12 * BULK_FOR_S
    assert connection.traffic_class is TrafficClass.INTERACTIVE


async def test_who_waits_for_its_answers_may_catch_up(shared, limits):
    now_s = [100.0]
    client = await closed_loop(shared, limits, now_s)
    for _ in range(CREDIT_MAX // 10):
        shared.scheduler.is_slice_over = lambda: True
        await client.send(append(10) * 5)
        assert client.connection.traffic_class is TrafficClass.INTERACTIVE
        await all_turns(shared)
        shared.scheduler.is_slice_over = lambda: False
        now_s[0] += BULK_AFTER_S


async def test_a_request_that_takes_longer_than_a_slice_leaves_nothing_over(shared, limits):
    """A client that waits for each answer is interactive, however long each takes."""
    now_s = [100.0]
    client = await answered(shared, limits, now_s)
    shared.scheduler.is_slice_over = lambda: True
    for _ in range(10 * CLOSED_LOOP_AFTER):
        await client.send(append(10))
        assert client.connection.traffic_class is TrafficClass.INTERACTIVE
        assert not shared.scheduler.has_waiting, "it need not wait for a turn"
    assert client.connection.is_closed_loop


@pytest.mark.parametrize("size", [128 * KIB, 10])
async def test_whose_answers_are_large_is_bulk_for_a_while(shared, limits, size):
    """Each takes longer than a slice, and how many there will be cannot be seen."""
    now_s = [100.0]
    client = await closed_loop(shared, limits, now_s)
    assert client.connection.send(Response(), correlation_id=2, attachments=[bytes(size)])
    assert client.connection.traffic_class is (
        TrafficClass.BULK if size > RECEIVED_BYTES_MAX else TrafficClass.INTERACTIVE
    )


async def test_who_is_not_interactive_yields_while_interactive_clients_ask(shared, limits):
    now_s = [100.0]
    shared.scheduler.now = shared.now = lambda: now_s[0]
    bulk = await bulk_from_the_first_request(shared, limits, now_s)
    other = await answered(shared, limits, now_s)
    now_s[0] += INTERACTIVE_FOR_S
    assert not bulk.connection.yields_to_interactive, "nobody else asks"
    await other.send(append(10))
    assert bulk.connection.yields_to_interactive
    assert not other.connection.yields_to_interactive
    now_s[0] += INTERACTIVE_FOR_S
    assert not bulk.connection.yields_to_interactive


async def test_who_reads_much_does_not_yield_to_itself(shared, limits):
    """A reader is interactive until its first large answer: it would begin with small ones."""
    now_s = [100.0]
    shared.scheduler.now = shared.now = lambda: now_s[0]
    reader = await answered(shared, limits, now_s)
    await reader.send(append(10))
    assert shared.scheduler.has_interactive
    reader.connection.send(Response(), correlation_id=2, attachments=[bytes(128 * KIB)])
    assert not shared.scheduler.has_interactive
    assert not reader.connection.yields_to_interactive
    other = await answered(shared, limits, now_s)
    await other.send(append(10))
    await reader.send(append(10))
    assert reader.connection.yields_to_interactive


class ByHand:
    """Turns of the loop one by one; each look at the clock finds `step_s` later."""

    def __init__(self, shared, step_s):
        self.shared, self.now_s = shared, 100.0
        shared.scheduler._call_soon = lambda function: None

        def now():
            self.now_s += step_s
            return self.now_s

        shared.now = shared.scheduler.now = now

    def turn(self):
        """Return how long it took."""
        before_s = self.now_s
        self.shared.scheduler._is_called = False
        self.shared.scheduler._next_turn()
        return self.now_s - before_s

    async def clients(self, count, limits):
        """Return clients of which a request was answered each."""
        made = [await connected(self.shared, limits) for _ in range(count)]
        for client in made:
            client.connection.send(Response(), correlation_id=1)
        return made


async def test_a_turn_has_an_end_however_long_bulk_clients_waited_for_it(shared, limits):
    """They are bulk no longer then, but it is as bulk clients that they are served."""
    hand = ByHand(shared, SLICE_S / 250)
    clients = await hand.clients(40, limits)
    unsent = dict.fromkeys(clients, MORE_THAN_A_SLICE * 20)
    while not all(client.connection.traffic_class is TrafficClass.BULK for client in clients):
        assert hand.now_s < 100.0 + 10 * BULK_AFTER_S
        for client in clients:
            if client.transport.is_read:
                unsent[client] = unsent[client][client.receive(unsent[client]) :]
        hand.turn()
    hand.now_s += 1.01 * BULK_FOR_S
    assert hand.turn() < 10 * SLICE_S


async def test_a_turn_has_an_end_however_many_clients_become_proven_meanwhile(shared, limits):
    hand = ByHand(shared, SLICE_S / 250)
    clients = [await connected(shared, limits) for _ in range(40)]
    shared.scheduler._spent = dict.fromkeys(TrafficClass, 1.0)
    for client in clients:
        client.receive(MORE_THAN_A_SLICE)
        client.connection.send(Response(), correlation_id=1)
    assert hand.turn() < 10 * SLICE_S


async def test_a_pipeline_that_its_handler_pauses_after_each_request_is_bulk(shared, limits):
    """As one whose appends are beyond its share; it always leaves something behind."""
    hand = ByHand(shared, SLICE_S / 4)
    (client,) = await hand.clients(1, limits)
    take = client.frame_received

    def pause(connection, frame):
        take(connection, frame)
        connection.pause_reading()

    client.frame_received = pause
    while client.connection.traffic_class is not TrafficClass.BULK:
        assert hand.now_s < 100.0 + 2 * BULK_AFTER_S
        hand.turn()
        if client.transport.is_read:
            client.receive(MORE_THAN_A_SLICE)
        else:
            client.connection.resume_reading()
            client.connection._read_again()


async def test_who_sends_a_large_frame_is_bulk_for_a_while(shared, limits):
    """What is left behind of large frames cannot be seen, and each takes longer than a slice."""
    hand = ByHand(shared, 0.0)
    (client,) = await hand.clients(1, limits)
    for unsent in (append(10), append(256 * KIB)):
        assert client.connection.traffic_class is TrafficClass.INTERACTIVE
        while unsent := unsent[client.receive(unsent) :]:
            hand.turn()
    assert client.connection.traffic_class is TrafficClass.BULK
    hand.now_s += 1.01 * BULK_FOR_S
    assert client.connection.traffic_class is TrafficClass.INTERACTIVE


async def test_a_connection_that_turns_out_a_member_waits_for_no_turn(shared, limits):
    client = Client(shared, limits)
    assert client.connection.traffic_class is TrafficClass.HANDSHAKE
    shared.scheduler.is_slice_over = lambda: True
    hello = b"".join(encode_frame(Hello(cluster="c", node_id="n1", role="bulk")))
    said = ReadIndexRequest(group="g", local_id="n1", remote_id="n0", term=1, request_id=1)
    await client.send(hello + b"".join(encode_frame(said)) * 50)
    assert len(client.asked) == 50


async def test_a_client_whose_request_was_answered_is_proven(shared, limits):
    client = await connected(shared, limits)
    await client.send(append(10))
    assert client.connection.send(Response(), correlation_id=1)
    await client.send(append(10) + append(1 * MIB)[:-1])
    assert shared.budgets.clients.used >= 1 * MIB
    assert shared.budgets.unproven.used == 0
