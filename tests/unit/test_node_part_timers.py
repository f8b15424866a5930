"""Timers of a replica's parts: each is called when it asked to be, and no time is lost."""

import pytest

from quorumlog.node.replica.part_timers import PartTimers


class Node:
    """Keeps only the earliest time that it was asked for, and forgets it when that has come."""

    def __init__(self):
        self.now_ms = 0
        self.due_ms = None
        self.timers = PartTimers(lambda: self.now_ms, self.wake_at)
        self.ticks = 0

    def wake_at(self, due_ms):
        self.due_ms = due_ms if self.due_ms is None else min(self.due_ms, due_ms)

    def passes_until(self, end_ms):
        while self.due_ms is not None and self.due_ms <= end_ms:
            self.now_ms, self.due_ms = max(self.now_ms, self.due_ms), None
            self.ticks += 1
            self.timers.tick()
        self.now_ms = end_ms


@pytest.fixture
def node():
    return Node()


def timer_of(node, **options):
    called = []
    timer = node.timers.new(called.append, **options)
    return timer, called


def test_each_part_is_called_when_it_asked_to_be_and_then_no_more(node):
    one, calls_one = timer_of(node)
    two, calls_two = timer_of(node)
    two.set(200)
    one.set(100)
    node.passes_until(1_000)
    assert (calls_one, calls_two) == ([100], [200]), "the earlier one hides no other"
    assert node.ticks == 2


def test_a_part_that_sets_its_timer_when_it_is_called_is_called_again(node):
    timer = node.timers.new(lambda now_ms: timer.set(now_ms + 100))
    other, calls = timer_of(node)
    timer.set(100)
    other.set(250)
    node.passes_until(1_000)
    assert node.timers.next_due_ms() == 1_100
    assert calls == [250]


def test_a_time_that_was_replaced_by_a_later_one_is_not_used(node):
    timer, calls = timer_of(node)
    timer.set(100)
    timer.set(300)
    node.passes_until(299)
    assert calls == []
    node.passes_until(300)
    assert calls == [300]


def test_of_two_times_the_earlier_one_is_used_if_the_part_says_so(node):
    timer, calls = timer_of(node)
    timer.set_earlier(300)
    timer.set_earlier(500)
    timer.set_earlier(200)
    node.passes_until(1_000)
    assert calls == [200]


def test_a_part_that_changes_its_mind_is_not_called(node):
    timer, calls = timer_of(node)
    timer.set(100)
    timer.clear()
    node.passes_until(1_000)
    assert calls == []
    assert node.due_ms is None


def test_after_a_failed_write_only_parts_that_write_nothing_are_called(node):
    writing, calls_writing = timer_of(node, is_for_writes=True)
    other, calls_other = timer_of(node)
    writing.set(100)
    other.set(100)
    node.timers.stop_writes()
    writing.set(200)
    node.passes_until(1_000)
    assert (calls_writing, calls_other) == ([], [100])
    assert node.due_ms is None
