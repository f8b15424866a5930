"""Heartbeats of many groups: replicas are ticked together, and their messages are joined."""

from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.peer import (
    HEART_BEATS_MAX,
    HeartBeatRequest,
    HeartBeatResponse,
    HeartBeats,
    VoteRequest,
)
from quorumlog.node.heartbeat_batching import HeartBeatCoalescer
from quorumlog.node.timers import STALE_MAX, TICKS_MAX, TimerQueue


def beat(group, peer="b"):
    return HeartBeatRequest(group=group, local_id="a", remote_id=peer, term=3, round=1)


def answer(group, peer="b"):
    code = ResponseCode.SUCCESS
    return HeartBeatResponse(
        group=group, local_id="a", remote_id=peer, term=3, code=code, round=1, end_index=4
    )


class Network:
    """What was sent, and what is to happen soon."""

    def __init__(self):
        self.sent = []
        self.soon = []
        self.joined = HeartBeatCoalescer("a", self, self.soon.append)

    def send(self, peer_id, message, attachments=(), *, bulk=False):
        self.sent.append((peer_id, message))
        return True

    def turn(self):
        """Let the present turn of the loop end."""
        soon, self.soon[:] = list(self.soon), []
        for action in soon:
            action()


def test_what_one_turn_brings_for_a_peer_goes_in_one_message():
    network = Network()
    for message in (beat("g"), beat("h"), beat("g", "c"), answer("i"), beat("h", "c")):
        network.joined.send(message.remote_id, message)
    assert not network.sent
    network.turn()
    assert network.sent == [
        (
            "b",
            HeartBeats(
                local_id="a",
                remote_id="b",
                requests=[beat("g"), beat("h")],
                responses=[answer("i")],
            ),
        ),
        (
            "c",
            HeartBeats(
                local_id="a",
                remote_id="c",
                requests=[beat("g", "c"), beat("h", "c")],
                responses=[],
            ),
        ),
    ]


def test_one_alone_goes_as_it_is_and_the_next_turn_begins_anew():
    network = Network()
    for _ in range(2):
        network.joined.send("b", beat("g"))
        network.turn()
    assert network.sent == [("b", beat("g"))] * 2


def test_what_is_no_heartbeat_goes_at_once():
    network = Network()
    vote = VoteRequest(
        group="g", local_id="a", remote_id="b", term=3, ledger_end_index=1, ledger_end_term=1
    )
    assert network.joined.send("b", vote)
    assert network.sent == [("b", vote)]


def test_no_message_grows_beyond_its_bound_and_none_is_lost():
    network = Network()
    count = 2 * HEART_BEATS_MAX + 5
    for number in range(count):
        network.joined.send("b", beat(f"g{number}"))
    network.turn()
    messages = [message for _, message in network.sent]
    assert [len(message.requests) for message in messages] == [HEART_BEATS_MAX] * 2 + [5]
    groups = [request.group for message in messages for request in message.requests]
    assert groups == [f"g{number}" for number in range(count)]


class Loop:
    """A loop whose time stands still until it is told to go on."""

    def __init__(self):
        self.now_ms = 1_000
        self.calls = []
        self.failures = []
        self.wakes = TimerQueue(self, lambda: self.now_ms, self.failures.append)

    class Handle:
        cancelled = False

        def cancel(self):
            self.cancelled = True

    def call_later(self, delay, action):
        handle = self.Handle()
        self.calls.append((self.now_ms + round(delay * 1_000), action, handle))
        return handle

    def pending(self):
        return [call for call in self.calls if not call[2].cancelled]

    def turn(self):
        """Let what is due happen; return how often the loop called."""
        due = [call for call in self.pending() if call[0] <= self.now_ms]
        self.calls = [call for call in self.pending() if call[0] > self.now_ms]
        for _, action, _ in due:
            action()
        return len(due)

    def wake(self, told, name):
        wake = self.wakes.new()
        wake.tick = lambda: told.append(name)
        return wake


def test_all_that_is_due_at_one_moment_is_woken_in_one_turn():
    loop, told = Loop(), []
    for name, deadline in (("a", 1_100), ("b", 1_100), ("c", 1_200), ("d", 1_050)):
        loop.wake(told, name).wake_at(deadline)
    assert len(loop.pending()) == 1, "one timer for all"
    loop.now_ms = 1_050
    loop.turn()
    assert told == ["d"]
    loop.now_ms = 1_100
    assert loop.turn() == 1
    assert told == ["d", "a", "b"]
    loop.now_ms = 1_200
    loop.turn()
    assert told == ["d", "a", "b", "c"]
    assert not loop.pending()


def test_an_earlier_deadline_replaces_a_later_and_a_later_does_not_replace_an_earlier():
    loop, told = Loop(), []
    wake = loop.wake(told, "a")
    for deadline in (1_500, 1_200, 1_900):
        wake.wake_at(deadline)
    for loop.now_ms in (1_199, 1_200, 1_500, 1_900):
        loop.turn()
    assert told == ["a"]
    wake.wake_at(1_950)
    loop.now_ms = 1_950
    loop.turn()
    assert told == ["a", "a"]


def test_sockets_are_looked_at_between_many_that_are_due():
    loop, told = Loop(), []
    for number in range(TICKS_MAX + 3):
        loop.wake(told, number).wake_at(1_100)
    loop.now_ms = 1_100
    loop.turn()
    assert told == list(range(TICKS_MAX))
    loop.turn()
    assert told == list(range(TICKS_MAX + 3))


def test_one_that_raises_keeps_nobody_from_being_woken():
    loop, told = Loop(), []
    first = loop.wake(told, "first")
    bad = loop.wakes.new()
    bad.tick = lambda: 1 / 0
    for wake in (first, bad, loop.wake(told, "last")):
        wake.wake_at(1_100)
    loop.now_ms = 1_100
    loop.turn()
    assert told == ["first", "last"]
    assert [type(failure) for failure in loop.failures] == [ZeroDivisionError]


def test_deadlines_that_were_replaced_are_forgotten():
    loop, told = Loop(), []
    wake = loop.wake(told, "a")
    for deadline in range(1_000_000, 1_000_000 - 10 * STALE_MAX, -1):
        wake.wake_at(deadline)
    assert len(loop.wakes._heap) <= STALE_MAX + 1
    loop.now_ms = deadline
    loop.turn()
    assert told == ["a"]


def test_stopped_it_wakes_nobody():
    loop, told = Loop(), []
    wake = loop.wake(told, "a")
    wake.wake_at(1_100)
    loop.wakes.stop()
    wake.wake_at(1_010)
    loop.now_ms = 2_000
    loop.turn()
    assert not told
