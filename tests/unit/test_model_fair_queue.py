"""Owners take turns, however much one of them has waiting."""

from quorumlog.model.fair_queue import FairQueue


def all_of(queue):
    return [queue.pop() for _ in range(len(queue))]


def test_owners_take_turns_and_each_has_its_items_in_order():
    queue = FairQueue()
    for number in range(3):
        queue.add("a", f"a{number}")
    queue.add("b", "b0")
    queue.add(None, "n0")
    assert (len(queue), queue.count_of("a"), queue.count_of("c")) == (5, 3, 0)
    assert all_of(queue) == ["a0", "b0", "n0", "a1", "a2"]
    assert not queue


def test_whose_item_was_taken_comes_after_those_that_wait():
    queue = FairQueue()
    queue.add("a", "a0")
    queue.add("b", "b0")
    assert queue.pop() == "a0"
    queue.add("a", "a1")
    assert all_of(queue) == ["b0", "a1"]


def test_items_of_an_owner_are_dropped():
    queue = FairQueue()
    for owner in "aab":
        queue.add(owner, owner)
    queue.drop("a")
    queue.drop("c")
    assert (len(queue), all_of(queue)) == (1, ["b"])
