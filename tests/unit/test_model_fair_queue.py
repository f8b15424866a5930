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


def test_what_is_put_back_is_the_next_one_in_the_order_it_was_taken():
    queue = FairQueue()
    for item in ("a0", "a1", "b0", "c0"):
        queue.add(item[0], item)
    taken = [queue.pop() for _ in range(2)]
    for item in reversed(taken):
        queue.put_back(item[0], item)
    assert (len(queue), all_of(queue)) == (4, ["a0", "b0", "c0", "a1"])


def test_items_are_taken_by_a_condition_and_the_others_keep_their_order():
    queue = FairQueue()
    for item in ("a0", "a1", "b0", "b1", "c0"):
        queue.add(item[0], item)
    assert queue.take_if(lambda item: item in ("a0", "b1", "c0")) == ["a0", "b1", "c0"]
    assert list(queue) == ["a1", "b0"]
    assert (queue.take_all(), len(queue), list(queue)) == (["a1", "b0"], 0, [])


def test_items_of_an_owner_are_dropped():
    queue = FairQueue()
    for owner in "aab":
        queue.add(owner, owner)
    queue.drop("a")
    queue.drop("c")
    assert (len(queue), all_of(queue)) == (1, ["b"])
