"""Assignors of the consumer protocol: who gets which partitions, and how few of them move."""

import random
from collections import Counter

import pytest

from quorumlog.kafka.groups.assignors import Subscriber, assign_range, assign_uniform

A, B, C = (bytes(15) + bytes([number]) for number in (1, 2, 3))


def subscribed(*topics, **now):
    return Subscriber(frozenset(topics), **now)


def numbers(partitions, topic):
    return sorted(number for one, number in partitions if one == topic)


def after(targets, subscribers):
    """Return the members with what they were assigned."""
    return {
        name: one._replace(partitions=targets.get(name, frozenset()))
        for name, one in subscribers.items()
    }


def test_b4_range_gives_consecutive_numbers_and_cuts_topics_alike():
    members = {name: subscribed(A, B) for name in ("m2", "m1", "m3")}
    found = assign_range(members, {A: 7, B: 7})
    assert [numbers(found[name], A) for name in ("m1", "m2", "m3")] == [[0, 1, 2], [3, 4], [5, 6]]
    assert all(numbers(found[name], A) == numbers(found[name], B) for name in members)


def test_b4_range_does_not_change_when_a_static_member_restarts():
    before = {"x": subscribed(A, instance_id="i1"), "b": subscribed(A)}
    again = {"b": subscribed(A), "a": subscribed(A, instance_id="i1")}
    assert assign_range(before, {A: 4})["x"] == assign_range(again, {A: 4})["a"]


def test_b4_range_leaves_nobody_with_what_it_is_not_subscribed_to():
    members = {"m1": subscribed(A), "m2": subscribed(A, B), "m3": subscribed()}
    found = assign_range(members, {A: 2, B: 2})
    assert found == {"m1": {(A, 0)}, "m2": {(A, 1), (B, 0), (B, 1)}, "m3": frozenset()}


def test_b4_uniform_is_even_over_all_topics():
    members = {f"m{number}": subscribed(A, B, C) for number in range(4)}
    found = assign_uniform(members, {A: 1, B: 3, C: 6})
    assert sorted(map(len, found.values())) == [2, 2, 3, 3]
    assert len(frozenset().union(*found.values())) == 10


def test_b4_uniform_moves_only_what_a_newcomer_gets():
    members = {f"m{number}": subscribed(A) for number in range(3)}
    members = after(assign_uniform(members, {A: 12}), members)
    members["new"] = subscribed(A)
    found = assign_uniform(members, {A: 12})
    assert [len(one) for one in found.values()] == [3] * 4
    assert all(found[name] <= members[name].partitions for name in ("m0", "m1", "m2"))


def test_b4_uniform_leaves_everything_where_it_is_when_a_member_goes():
    members = {f"m{number}": subscribed(A) for number in range(4)}
    members = after(assign_uniform(members, {A: 12}), members)
    del members["m2"]
    found = assign_uniform(members, {A: 12})
    assert [len(one) for one in found.values()] == [4] * 3
    assert all(one.partitions <= found[name] for name, one in members.items())


def test_b4_uniform_does_not_take_one_that_another_has_for_its_own():
    both = frozenset({(A, 0), (A, 1)})
    members = {name: subscribed(A, partitions=both) for name in ("m1", "m2")}
    found = assign_uniform(members, {A: 2})
    assert sorted(map(len, found.values())) == [1, 1]
    assert found["m1"] | found["m2"] == both


@pytest.mark.parametrize("seed", range(60))
def test_b4_everything_is_assigned_once_to_a_subscriber_and_more_evenly_by_no_move(seed):
    chance = random.Random(seed)
    topics = [bytes(15) + bytes([number]) for number in range(5)]
    members, counts = {}, {}
    for round_number in range(8):
        counts = {one: chance.randint(1, 9) for one in topics if chance.random() < 0.9}
        for name in [one for one in members if chance.random() < 0.3]:
            del members[name]
        for number in range(chance.randint(1, 4)):
            wanted = frozenset(one for one in counts if chance.random() < 0.6)
            members[f"m{round_number}-{number}"] = Subscriber(wanted)
        members = {
            name: one._replace(topics=frozenset(one.topics & counts.keys()))
            for name, one in members.items()
        }
        for assign in (assign_range, assign_uniform):
            found = assign(members, counts)
            owners = Counter(one for some in found.values() for one in some)
            wanted = {one for member in members.values() for one in member.topics}
            assert set(owners) == {(one, n) for one in wanted for n in range(counts[one])}
            assert set(owners.values()) <= {1}
            for name, some in found.items():
                assert {one for one, _ in some} <= members[name].topics
        for some in found.values():
            for topic, _ in some:
                takers = [one for one, other in members.items() if topic in other.topics]
                assert len(some) - min(len(found[one]) for one in takers) < 2
        members = after(found, members)
        assert assign_uniform(members, counts) == found, "nothing moves without a reason"


def test_b4_many_members_and_partitions_take_some_milliseconds_and_are_even():
    members = {f"m{number}": subscribed(A, B) for number in range(1_000)}
    found = assign_uniform(members, {A: 4_000, B: 4_000})
    assert {len(one) for one in found.values()} == {8}
    members = after(found, members) | {"new": subscribed(A, B)}
    again = assign_uniform(members, {A: 4_000, B: 4_000})
    moved = sum(len(again[name] - one.partitions) for name, one in members.items())
    assert moved == len(again["new"]) == 7
