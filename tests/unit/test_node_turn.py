"""A turn of the loop: what is put off, and what is sent at its end."""

import pytest

from quorumlog.node.turn import Turn


class Loop:
    def __init__(self):
        self.soon, self.did = [], []
        self.turn = Turn(self.soon.append)

    def does(self, name):
        return lambda: self.did.append(name)

    def next(self):
        soon, self.soon[:] = list(self.soon), []
        for action in soon:
            action()


@pytest.fixture
def loop():
    return Loop()


def test_all_that_is_put_off_is_one_call_of_the_loop_and_the_end_comes_last(loop):
    loop.turn.at_end(loop.does("end"))
    loop.turn.defer(loop.does("a"))
    loop.turn.defer(loop.does("b"))
    assert (len(loop.soon), loop.did) == (1, [])
    loop.next()
    assert loop.did == ["a", "b", "end"]
    assert not loop.soon


def test_what_is_put_off_in_a_turn_waits_for_the_next_and_what_is_to_be_sent_does_not(loop):
    def deferred():
        loop.turn.defer(loop.does("later"))
        loop.turn.at_end(loop.does("end"))

    loop.turn.defer(deferred)
    loop.next()
    assert loop.did == ["end"]
    loop.next()
    assert loop.did == ["end", "later"]


def test_work_of_others_ends_the_turn_at_once(loop):
    loop.turn.defer(loop.does("before"))
    loop.turn.run(lambda name: loop.turn.at_end(loop.does(name)), "sent")
    assert loop.did == ["before", "sent"]
    loop.next()
    assert loop.did == ["before", "sent"]
    assert not loop.soon


@pytest.mark.parametrize("where", ["work", "defer", "at_end"])
def test_what_raises_keeps_nothing_from_being_done(loop, where):
    def wrong():
        raise ZeroDivisionError

    def work():
        if where == "work":
            wrong()

    for name in ("a", "b"):
        if where == "defer":
            loop.turn.defer(wrong)
        loop.turn.defer(loop.does(name))
        if where == "at_end":
            loop.turn.at_end(wrong)
        loop.turn.at_end(loop.does(f"end {name}"))
    raised = 0
    try:
        loop.turn.run(work)
    except ZeroDivisionError:
        raised += 1
    while loop.soon:
        try:
            loop.next()
        except ZeroDivisionError:
            raised += 1
    assert loop.did == ["a", "b", "end a", "end b"]
    assert raised == (1 if where == "work" else 2)
