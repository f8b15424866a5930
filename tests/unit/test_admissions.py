"""How many connections addresses and users may have, and strangers of one host."""

import asyncio
from itertools import count

import pytest

from quorumlog.auth.admissions import (
    ADDRESS_CONNECTIONS,
    ADDRESS_RATE,
    USER_CONNECTIONS,
    Admissions,
)
from quorumlog.auth.quotas import checked_entity
from quorumlog.auth.throttles import Throttles
from quorumlog.transport import strangers
from quorumlog.transport.member_hosts import MemberHosts
from quorumlog.transport.strangers import GRACE_S, Strangers

# -- quotas -------------------------------------------------------------------------------------


def admissions(*given):
    throttles = Throttles()
    quotas = {}
    for parts, key, value in given:
        quotas.setdefault(checked_entity(parts.items()), {})[key] = value
    throttles.use(quotas)
    return Admissions(throttles)


def came(found, number, address, now=0.0):
    return found.refusal_of_address(number, address, now)


def test_an_address_has_so_many_connections_and_room_again_when_some_have_ended():
    found = admissions(({"ip": None}, "connections", 2), ({"ip": "10.0.0.9"}, "connections", 1))
    assert (came(found, 1, "10.0.0.1"), came(found, 2, "10.0.0.1")) == ("", "")
    assert came(found, 3, "10.0.0.1") == "10.0.0.1 has used up its quota: connections 2"
    assert came(found, 4, "10.0.0.2") == came(found, 5, "10.0.0.9") == ""
    assert "connections 1" in came(found, 6, "10.0.0.9")
    found.left(3)
    found.left(1)
    found.left(1)
    assert came(found, 7, "::ffff:10.0.0.1") == ""
    assert came(found, 8, "10.0.0.1")
    assert found.refused[ADDRESS_CONNECTIONS] == 3


def test_a_network_of_ipv6_is_one_address_for_the_quota_of_all():
    found = admissions(({"ip": None}, "connections", 1), ({"ip": "2001:db8::9"}, "connections", 2))
    assert came(found, 1, "2001:db8::1") == ""
    assert came(found, 2, "2001:db8::2")
    assert came(found, 3, "2001:db8::9") == came(found, 4, "2001:db8::9") == ""
    assert came(found, 5, "2001:db8::9")


def test_an_address_makes_so_many_connections_a_second():
    found = admissions(({"ip": "10.0.0.1"}, "connection_creation_rate", 3))
    assert [bool(came(found, number, "10.0.0.1")) for number in range(5)] == [0, 0, 0, 1, 1]
    assert came(found, 6, "10.0.0.2") == ""
    assert came(found, 7, "10.0.0.1", now=0.5) == ""
    assert found.refused[ADDRESS_RATE] == 2


def test_a_rate_below_one_lets_some_in():
    found = admissions(({"ip": None}, "connection_creation_rate", 0.5))
    assert [bool(came(found, at, "10.0.0.1", now=at)) for at in range(6)] == [0, 1, 0, 1, 0, 1]


def test_a_user_has_so_many_connections_whatever_the_address():
    found = admissions(({"user": "alice"}, "connections", 1), ({"user": None}, "connections", 2))
    assert found.refusal_of_user(1, "User:alice") == found.refusal_of_user(1, "User:alice") == ""
    assert found.refusal_of_user(2, "User:alice") == "alice has used up its quota: connections 1"
    assert found.refusal_of_user(3, "User:bob") == found.refusal_of_user(4, "User:bob") == ""
    assert found.refusal_of_user(5, "User:bob")
    found.left(1)
    assert found.refusal_of_user(6, "User:alice") == ""
    assert found.refused[USER_CONNECTIONS] == 2


def test_who_becomes_another_user_is_counted_as_that_one_only():
    found = admissions(({"user": None}, "connections", 1))
    assert found.refusal_of_user(1, "User:ANONYMOUS") == found.refusal_of_user(1, "User:bob") == ""
    assert found.refusal_of_user(2, "User:ANONYMOUS") == ""
    assert found.refusal_of_user(2, "User:bob")
    assert found.refusal_of_user(3, "User:ANONYMOUS")
    found.left(1)
    found.left(2)
    assert found.refusal_of_user(3, "User:ANONYMOUS") == found.refusal_of_user(3, "User:bob") == ""


def test_without_quotas_everybody_comes_and_nothing_stays_of_who_has_left():
    found = admissions()
    for number in range(1_000):
        assert came(found, number, "10.0.0.1") == ""
        assert found.refusal_of_user(number, "User:alice") == ""
        found.left(number)
    assert not found._open
    assert not found._counted


# -- strangers ----------------------------------------------------------------------------------


class Connection:
    def __init__(self, world, address):
        self.world, self.remote_address = world, f"{address}:1"
        self.is_stranger, self.is_ended = True, False

    def abort(self, reason):
        self.is_ended = True
        self.world.strangers.left(self)


class World:
    def __init__(self, of_host_max=3, most=5, connections_max=48):
        self.now = 0.0
        self.members = MemberHosts()
        self.strangers = Strangers(
            of_host_max, most, connections_max, lambda: self.now, self.members
        )

    def come(self, address="10.0.0.1"):
        """Return the connection if it may be set up at once, its turn if it waits, or False."""
        place = self.strangers.place(address)
        return self.set_up(address) if place is True else place

    def set_up(self, address="10.0.0.1"):
        connection = Connection(self, address)
        self.strangers.came(connection)
        self.strangers.done(address)
        return connection


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(strangers, "CHECK_S", 0.001)
    return World()


async def test_clients_of_one_address_that_are_quick_are_all_served_in_the_order_they_came(world):
    served = [world.come() for _ in range(3)]
    turns = [world.come() for _ in range(3)]
    assert not any(turn.done() for turn in turns)
    served[0].is_stranger = False
    await turns[0]
    world.set_up()
    assert not turns[1].done()
    served[1].is_stranger = served[2].is_stranger = False
    await turns[1]
    await turns[2]
    assert (world.strangers.ended, world.strangers.refused, world.strangers.waiting) == (0, 0, 0)
    assert not any(one.is_ended for one in served)


async def test_who_says_nothing_for_a_second_makes_room_for_one_that_waits(world):
    silent = [world.come() for _ in range(3)]
    turn = world.come()
    world.now += GRACE_S
    await turn
    assert [one.is_ended for one in silent] == [True, False, False]
    assert world.strangers.ended == 1


async def test_other_addresses_do_not_wait_for_one_that_is_full(world):
    for _ in range(4):
        world.come()
    assert isinstance(world.come("10.0.0.2"), Connection)


async def test_all_addresses_together_have_a_bound_and_the_one_with_most_makes_room(world):
    many = [world.come() for _ in range(3)]
    for address in ("10.0.0.2", "10.0.0.3"):
        world.come(address)
    turn = world.come("10.0.0.4")
    assert not turn.done()
    world.now += GRACE_S
    await turn
    assert [one.is_ended for one in many] == [True, False, False]


async def test_those_that_wait_have_a_bound_too(world):
    for _ in range(3):
        world.come()
    waiting = [world.come() for _ in range(3)]
    assert world.come() is False
    assert world.strangers.refused == 1
    assert all(isinstance(one, asyncio.Future) for one in waiting)


async def test_one_that_gave_up_waiting_leaves_its_turn_to_the_next(world):
    served = [world.come() for _ in range(3)]
    first, second = world.come(), world.come()
    first.cancel()
    served[0].abort("it has left")
    await second


async def test_members_have_no_bound(world):
    world.members.note("10.0.0.1")
    assert all(isinstance(world.come(), Connection) for _ in range(10))


async def test_a_network_of_ipv6_is_one_host(world):
    addresses = (f"2001:db8::{number}" for number in count(1))
    assert all(isinstance(world.come(next(addresses)), Connection) for _ in range(3))
    assert isinstance(world.come(next(addresses)), asyncio.Future)


async def test_who_has_said_who_it_is_or_has_left_takes_no_place(world):
    for _ in range(20):
        world.come().is_stranger = False
    for _ in range(20):
        world.come().abort("it has left")
    world.strangers.place("10.0.0.1")
    world.strangers.done("10.0.0.1")
    assert (world.strangers.refused, world.strangers.ended) == (0, 0)


async def test_hosts_take_turns_though_one_has_silent_ones_to_spare(monkeypatch):
    """Whoever sends strangers without end makes room for others, not for more of its own."""
    monkeypatch.setattr(strangers, "CHECK_S", 3_600)
    world = World(of_host_max=2, most=4, connections_max=480)
    for address in ("10.0.0.1", "10.0.0.2") * 2:
        assert isinstance(world.come(address), Connection)
    hostile = [world.come(address) for address in ("10.0.0.1", "10.0.0.2") * 8]
    honest = world.come("10.0.0.3")
    world.now += GRACE_S
    world.strangers._look()
    assert honest.done()
    assert sum(turn.done() for turn in hostile) == 3
    world.strangers._timer.cancel()


async def test_a_look_at_those_that_wait_looks_at_each_known_one_once(monkeypatch):
    """However many hosts wait: the loop has members and clients to serve."""
    monkeypatch.setattr(strangers, "CHECK_S", 3_600)
    world, known, waiting, looked = World(most=64, connections_max=4_096), 64, 256, []

    class Watched(Connection):
        @property
        def is_stranger(self):
            looked.append(self)
            return True

        @is_stranger.setter
        def is_stranger(self, value):
            pass

    addresses = (f"10.0.{number // 256}.{number % 256}" for number in count())
    for _ in range(known):
        address = next(addresses)
        assert world.strangers.place(address) is True
        world.strangers.came(Watched(world, address))
        world.strangers.done(address)
    turns = [world.come(next(addresses)) for _ in range(waiting)]
    for ended in (0, known):
        looked.clear()
        world.strangers._look()
        assert len(looked) == known
        assert (sum(turn.done() for turn in turns), world.strangers.ended) == (ended, ended)
        assert world.strangers.waiting == waiting - ended
        world.now += GRACE_S
    world.strangers._timer.cancel()


async def test_one_that_waits_can_be_turned_away_until_its_turn_has_come(world):
    served = [world.come() for _ in range(3)]
    first, second, third = (world.come() for _ in range(3))
    assert world.strangers.turn_away("10.0.0.1", second)
    assert (second.cancelled(), world.strangers.waiting, world.strangers.refused) == (True, 2, 1)
    served[0].abort("it has left")
    await first
    assert not world.strangers.turn_away("10.0.0.1", first)
    world.set_up()
    assert world.strangers.turn_away("10.0.0.1", third)
    assert world.strangers.waiting == 0
