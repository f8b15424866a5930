"""Turns of TLS handshakes: little of the loop's time, and no host before the others."""

import asyncio

import pytest

from quorumlog.auth.hosts import host_of
from quorumlog.transport.handshake_turns import BUSY_PAUSE, PAUSE_S, TURN_S, HandshakeTurns
from quorumlog.transport.member_hosts import MEMBER_HOSTS_MAX, MemberHosts


class World:
    """Connections whose handshakes take half of a turn each."""

    def __init__(self):
        self.now = self.computed = 0.0
        self.done = []
        self.is_pausing = False
        self.busy = 0.0
        """What share of the time the loop's thread computes for others."""
        self.members = MemberHosts()
        self.turns = HandshakeTurns(lambda: self.now, self.used, self.members)

    def used(self):
        """It is asked for at the beginning and at the end of a pause."""
        self.is_pausing = not self.is_pausing
        if not self.is_pausing:
            self.now += PAUSE_S
            self.computed += self.busy * PAUSE_S
        return self.computed

    def wait(self, address, name):
        world = self

        class Connection:
            def go_on(self):
                world.now += TURN_S / 2
                world.done.append(name)

        self.turns.wait(address, Connection())

    async def finish(self):
        async with asyncio.timeout(60):
            while len(self.turns):  # noqa: ASYNC110
                await asyncio.sleep(PAUSE_S)
        return self.done


async def test_a_turn_of_the_loop_has_little_time_for_handshakes():
    world = World()
    for number in range(5):
        world.wait("192.0.2.1", number)
    await asyncio.sleep(0)
    assert world.done == [0, 1]
    await asyncio.sleep(0)
    assert world.done == [0, 1], "others have a turn in between"
    assert await world.finish() == [0, 1, 2, 3, 4]
    world.wait("192.0.2.1", 5)
    await asyncio.sleep(0)
    assert world.done[-1] == 5


@pytest.mark.parametrize(("busy", "share"), [(1.0, 0.25), (0.7, 0.25), (0.4, 0.5), (0.0, 0.5)])
async def test_who_is_served_keeps_three_quarters_of_a_busy_loop(busy, share):
    world = World()
    world.busy = busy
    for number in range(100):
        world.wait("192.0.2.1", number)
    assert len(await world.finish()) == 100
    handshakes = 100 * TURN_S / 2
    assert handshakes / world.now == pytest.approx(share, rel=0.15)


async def test_what_logins_take_after_their_handshakes_counts():
    world = World()
    world.busy = 1.0
    login = TURN_S / 4
    world.turns.spend(1_000)  # nobody waits for a turn: nobody has to wait for this
    for number in range(100):
        world.wait("192.0.2.1", number)
    done = 0
    while len(world.turns):
        await asyncio.sleep(0)
        for _ in world.done[done:]:
            world.now += login
            world.computed += login
            world.turns.spend(login)
        done = len(world.done)
    assert 100 * (TURN_S / 2 + login) / world.now == pytest.approx(0.25, rel=0.2)


async def test_logins_that_take_most_of_the_loop_stop_no_handshakes():
    world = World()
    world.busy = 1.0
    for number in range(20):
        world.wait("192.0.2.1", number)
    while len(world.turns):
        world.turns.spend(10 * TURN_S)  # each pause would be longer than the one before
        await asyncio.sleep(0)
    assert world.now < 20 * (TURN_S + 2 * BUSY_PAUSE * (TURN_S + PAUSE_S))


async def test_a_handshake_that_waits_again_at_once_waits_for_the_next_turn():
    world, steps = World(), []

    class Connection:
        def go_on(self):
            world.now += TURN_S / 2
            steps.append(world.now)
            if len(steps) < 6:
                world.turns.wait("192.0.2.1", self)

    world.turns.wait("192.0.2.1", Connection())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(steps) == 2, "others have a turn in between"
    await world.finish()
    assert len(steps) == 6


async def test_hosts_take_turns_and_members_come_first():
    world = World()
    for number in range(3):
        world.wait("192.0.2.1", f"a{number}")
    for number in range(3):  # one network is one host
        world.wait(f"2001:db8::{number}", f"b{number}")
    world.wait("192.0.2.9", "member")
    world.members.note("192.0.2.9")
    assert await world.finish() == ["member", "a0", "b0", "a1", "b1", "a2", "b2"]


async def test_the_hosts_of_members_are_bounded():
    world = World()
    for number in range(MEMBER_HOSTS_MAX + 1):
        world.members.note(f"10.0.{number // 256}.{number % 256}")
    for address in ("192.0.2.1", "10.0.0.0", "10.0.0.1"):
        world.wait(address, address)
    assert await world.finish() == ["10.0.0.1", "192.0.2.1", "10.0.0.0"]


def test_what_stands_for_a_host():
    assert host_of("192.0.2.1") == host_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert host_of("2001:db8::1") == host_of("2001:db8::ffff:2") != host_of("2001:db8:0:1::1")
    assert host_of("fe80::1%eth0") == host_of("fe80::2%eth0")
    assert host_of("?") == "?"
