"""Whose requests are handled in a turn of the loop, and how many."""

import asyncio

import pytest

from quorumlog.transport.scheduler import (
    BESIDE_INTERACTIVE_S,
    CLASS_TIME_S,
    INTERACTIVE_FOR_S,
    SLICE_S,
    Scheduler,
    TrafficClass,
)

REQUEST_S = SLICE_S * 0.51


class Timer:
    """A timer that only the test fires."""

    def __init__(self, timers):
        self.timers = timers

    def cancel(self):
        self.timers.clear()


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Sender:
    """A connection with requests; each takes half a slice."""

    def __init__(self, turns, clock, kind, count, said):
        self.scheduler, self.clock, self.traffic_class, self.left, self.said = (
            turns,
            clock,
            kind,
            count,
            said,
        )

    def arrive(self):
        """Its bytes are there."""
        if self.scheduler.begin(self, self.traffic_class, self.clock()):
            self.handle()
        else:
            self.scheduler.wait(self)

    def run_slice(self):
        assert self.scheduler.begin(self, self.traffic_class, self.clock())
        self.handle()
        return False

    def handle(self):
        while True:
            self.clock.now += REQUEST_S
            self.said.append(self)
            self.left -= 1
            if not self.left or self.scheduler.is_slice_over():
                break
        self.scheduler.end()
        if self.left:
            self.scheduler.wait(self)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def turns(clock):
    return Scheduler(asyncio.get_running_loop(), clock)


@pytest.fixture
def sender(turns, clock):
    said = []

    def make(kind, count):
        return Sender(turns, clock, kind, count, said)

    make.said = said
    return make


async def test_a_turn_has_an_end_and_who_could_not_have_it_goes_on_in_order(turns, sender):
    senders = [sender(TrafficClass.BULK, 20) for _ in range(4)]
    for one in senders:
        one.arrive()
    per_turn, before = [], len(sender.said)
    while turns.has_waiting:
        await asyncio.sleep(0)
        per_turn.append(len(sender.said) - before)
        before = len(sender.said)
    assert [one.left for one in senders] == [0] * 4
    assert max(per_turn) <= 2 * round((CLASS_TIME_S[TrafficClass.BULK] + SLICE_S) / SLICE_S)
    for end in range(len(sender.said) - 8):  # who came first is ahead by one slice and the present
        counts = [sender.said[:end].count(one) for one in senders]
        assert max(counts) - min(counts) <= 4


async def test_an_interactive_client_waits_for_no_bulk_and_no_unproven_one(turns, sender):
    crowd = [
        sender(kind, 1_000)
        for kind in (TrafficClass.BULK, TrafficClass.UNPROVEN)
        for _ in range(100)
    ]
    for one in crowd:
        one.arrive()
    await asyncio.sleep(0)
    interactive = sender(TrafficClass.INTERACTIVE, 1)
    interactive.arrive()
    assert interactive.left == 0


@pytest.mark.parametrize("kind", [TrafficClass.BURST, TrafficClass.BULK])
async def test_others_have_less_of_each_turn_while_there_are_interactive_ones(
    turns, sender, clock, kind
):
    """How long a turn takes is what an interactive one waits."""
    others = [sender(kind, 10_000) for _ in range(20)]
    for one in others:
        one.arrive()

    async def turn_s():
        before = clock()
        await asyncio.sleep(0)
        return clock() - before

    alone = max([await turn_s() for _ in range(5)])
    sender(TrafficClass.INTERACTIVE, 1).arrive()
    await asyncio.sleep(0)
    assert max([await turn_s() for _ in range(5)]) <= BESIDE_INTERACTIVE_S + 2 * SLICE_S
    clock.now += INTERACTIVE_FOR_S
    assert max([await turn_s() for _ in range(5)]) == pytest.approx(alone, rel=0.1)
    assert alone >= CLASS_TIME_S[kind]


async def test_bulk_clients_wait_while_the_log_is_crowded_and_interactive_clients_are_there(
    turns, sender, clock
):
    """What they append would have the appends of interactive clients wait."""
    bulk, crowded = sender(TrafficClass.BULK, 1_000), [True]
    turns._is_crowded = lambda: crowded[0]
    later = []
    turns._call_later = lambda delay_s, function: later.append(function) or Timer(later)
    sender(TrafficClass.INTERACTIVE, 1).arrive()
    bulk.arrive()
    for _ in range(10):
        await asyncio.sleep(0)
    assert (bulk.left, len(later)) == (1_000, 1), "it is checked again later, not all the time"
    sender(TrafficClass.INTERACTIVE, 1).arrive()
    await asyncio.sleep(0)
    assert len(later) == 1, "an interactive client does not wait for that"
    crowded[0] = False
    later.pop()()
    await asyncio.sleep(0)
    assert bulk.left < 1_000
    crowded[0], left = True, bulk.left
    clock.now += INTERACTIVE_FOR_S
    await asyncio.sleep(0)
    assert bulk.left < left, "nobody is there who would wait"


async def test_no_number_of_interactive_clients_keeps_the_others_from_being_served(turns, sender):
    others = [sender(kind, 8) for kind in list(TrafficClass)[1:]]
    for one in others:
        one.arrive()
    for _ in range(10):
        for _ in range(100):
            sender(TrafficClass.INTERACTIVE, 1).arrive()
        await asyncio.sleep(0)
    assert [one.left for one in others] == [0] * 4


async def test_unproven_clients_have_a_smaller_share(turns, sender):
    bulk, unproven = sender(TrafficClass.BULK, 1_000), sender(TrafficClass.UNPROVEN, 1_000)
    bulk.arrive()
    unproven.arrive()
    for _ in range(20):
        await asyncio.sleep(0)
    assert unproven.left < 1_000
    assert (1_000 - bulk.left) >= 3 * (1_000 - unproven.left)


async def test_receiving_counts_as_time_and_who_waited_for_it_may_read(turns, clock):
    """A part of a frame costs the time to receive it, although there is nothing to handle."""

    class Reader:
        traffic_class, granted = TrafficClass.UNPROVEN, False

        def run_slice(self):
            self.granted = True
            return True

    def receive(reader):
        since = clock()
        clock.now += CLASS_TIME_S[TrafficClass.UNPROVEN]
        granted, reader.granted = reader.granted, False
        if turns.begin(reader, reader.traffic_class, since, is_granted=granted):
            turns.end()
            return True
        turns.wait(reader)
        return False

    readers = [Reader() for _ in range(3)]
    assert [receive(one) for one in readers] == [True, False, False]
    await asyncio.sleep(0)
    assert [one.granted for one in readers] == [False, True, False]
    assert receive(readers[1])
    await asyncio.sleep(0)
    assert receive(readers[2])
