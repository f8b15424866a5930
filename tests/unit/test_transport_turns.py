"""Whose requests are handled in a turn of the loop, and how many."""

import asyncio

import pytest

from quorumlog.transport.turns import (
    BESIDE_PROMPT_S,
    PROMPT_FOR_S,
    SLICE_S,
    TURN_S,
    Kind,
    Turns,
)

REQUEST_S = SLICE_S * 0.51


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Sender:
    """A connection with requests; each takes half a slice."""

    def __init__(self, turns, clock, kind, count, said):
        self.turns, self.clock, self.kind, self.left, self.said = turns, clock, kind, count, said

    def arrive(self):
        """Its bytes are there."""
        if self.turns.begin(self.kind, self.clock()):
            self.handle()
        else:
            self.turns.wait(self)

    def have_turn(self):
        assert self.turns.begin(self.kind, self.clock())
        self.handle()
        return False

    def handle(self):
        while True:
            self.clock.now += REQUEST_S
            self.said.append(self)
            self.left -= 1
            if not self.left or self.turns.is_slice_over():
                break
        self.turns.end()
        if self.left:
            self.turns.wait(self)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def turns(clock):
    return Turns(asyncio.get_running_loop(), clock)


@pytest.fixture
def sender(turns, clock):
    said = []

    def make(kind, count):
        return Sender(turns, clock, kind, count, said)

    make.said = said
    return make


async def test_a_turn_has_an_end_and_who_could_not_have_it_goes_on_in_order(turns, sender):
    senders = [sender(Kind.BUSY, 20) for _ in range(4)]
    for one in senders:
        one.arrive()
    per_turn, before = [], len(sender.said)
    while turns:
        await asyncio.sleep(0)
        per_turn.append(len(sender.said) - before)
        before = len(sender.said)
    assert [one.left for one in senders] == [0] * 4
    assert max(per_turn) <= 2 * round((TURN_S[Kind.BUSY] + SLICE_S) / SLICE_S)
    for end in range(len(sender.said) - 8):  # who came first is ahead by one slice and the present
        counts = [sender.said[:end].count(one) for one in senders]
        assert max(counts) - min(counts) <= 4


async def test_a_prompt_client_waits_for_no_busy_one_and_no_stranger(turns, sender):
    crowd = [sender(kind, 1_000) for kind in (Kind.BUSY, Kind.STRANGER) for _ in range(100)]
    for one in crowd:
        one.arrive()
    await asyncio.sleep(0)
    prompt = sender(Kind.PROMPT, 1)
    prompt.arrive()
    assert prompt.left == 0


@pytest.mark.parametrize("kind", [Kind.BURST, Kind.BUSY])
async def test_others_have_less_of_each_turn_while_there_are_prompt_ones(
    turns, sender, clock, kind
):
    """How long a turn takes is what a prompt one waits."""
    others = [sender(kind, 10_000) for _ in range(20)]
    for one in others:
        one.arrive()

    async def turn_s():
        before = clock()
        await asyncio.sleep(0)
        return clock() - before

    alone = max([await turn_s() for _ in range(5)])
    sender(Kind.PROMPT, 1).arrive()
    await asyncio.sleep(0)
    assert max([await turn_s() for _ in range(5)]) <= BESIDE_PROMPT_S + 2 * SLICE_S
    clock.now += PROMPT_FOR_S
    assert max([await turn_s() for _ in range(5)]) == pytest.approx(alone, rel=0.1)
    assert alone >= TURN_S[kind]


async def test_no_number_of_prompt_clients_keeps_the_others_from_being_served(turns, sender):
    others = [sender(kind, 8) for kind in list(Kind)[1:]]
    for one in others:
        one.arrive()
    for _ in range(10):
        for _ in range(100):
            sender(Kind.PROMPT, 1).arrive()
        await asyncio.sleep(0)
    assert [one.left for one in others] == [0] * 4


async def test_strangers_have_a_smaller_share(turns, sender):
    busy, stranger = sender(Kind.BUSY, 1_000), sender(Kind.STRANGER, 1_000)
    busy.arrive()
    stranger.arrive()
    for _ in range(20):
        await asyncio.sleep(0)
    assert stranger.left < 1_000
    assert (1_000 - busy.left) >= 3 * (1_000 - stranger.left)


async def test_receiving_counts_as_time_and_who_waited_for_it_may_read(turns, clock):
    """A part of a frame costs the time to receive it, although there is nothing to handle."""

    class Reader:
        kind, granted = Kind.STRANGER, False

        def have_turn(self):
            self.granted = True
            return True

    def receive(reader):
        since = clock()
        clock.now += TURN_S[Kind.STRANGER]
        granted, reader.granted = reader.granted, False
        if turns.begin(reader.kind, since, is_granted=granted):
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
