"""Simulated links are bounded: what a slow one does not take waits in order, or is refused."""

from types import SimpleNamespace

import pytest

from quorumlog.model.limits import KIB, Limits
from quorumlog.model.messages.peer import ReadIndexRequest
from quorumlog.sim.finding import Finding
from quorumlog.sim.links import STEP_US, SimulatedLinks

MOST = 64 * KIB
LIMITS = Limits(
    entry_bytes_max=4 * KIB,
    block_bytes_max=8 * KIB,
    message_bytes_max=8 * KIB,
    push_bytes_max=8 * KIB,
    frame_bytes_max=MOST,
    outbox_bytes_max=MOST,
)


def query(number):
    return ReadIndexRequest(group="g", local_id="a", remote_id="b", term=1, request_id=number)


class Wires:
    """A network with one connection from a to b; `came` are the numbers of what it carried."""

    def __init__(self):
        self.paces, self.epoch, self.came, self.later = {}, 1, [], []
        process = SimpleNamespace(node_id="a", later=self._later)
        self.links = SimulatedLinks(process, self, LIMITS)

    def _later(self, delay_us, action):
        assert delay_us == STEP_US
        self.later.append(action)

    def step(self):
        actions, self.later = self.later, []
        for action in actions:
            action()

    def connection(self, sender, receiver):
        return self.epoch

    def takes_joined(self, receiver):
        return True

    def sent(self, sender, parts):
        pass

    def carry(self, sender, receiver, message, data):
        self.came.append(message.request_id)


@pytest.fixture
def wires():
    return Wires()


def test_a_link_that_is_not_slow_takes_everything_at_once(wires):
    for number in range(3):
        assert wires.links.send("b", query(number), [bytes(MOST)], bulk=True)
    assert wires.came == [0, 1, 2]
    assert wires.links.joined_room("b", bulk=True) == MOST


def test_a_link_that_stands_still_fills_and_then_delivers_in_order(wires):
    wires.paces["a", "b", True] = 0
    assert wires.links.send("b", query(1), [bytes(MOST // 2)], bulk=True)
    assert 0 < wires.links.joined_room("b", bulk=True) < MOST // 2
    assert not wires.links.send("b", query(2), [bytes(MOST // 2)], bulk=True)
    assert wires.links.send("b", query(3), [bytes(MOST // 4)], bulk=True)
    assert wires.links.send("b", query(4)), "the other link is not slow"
    wires.step()
    assert wires.came == [4]
    wires.paces.clear()
    assert wires.links.send("b", query(5), bulk=True)
    wires.step()
    assert wires.came == [4, 1, 3, 5]
    assert wires.links.joined_room("b", bulk=True) == MOST


def test_a_slow_link_takes_as_much_as_its_pace(wires):
    wires.paces["a", "b", True] = 8 * KIB
    for number in range(3):
        wires.links.send("b", query(number), [bytes(12 * KIB)], bulk=True)
    counts = []
    for _ in range(5):
        wires.step()
        counts.append(len(wires.came))
    # the next one leaves once what was taken beyond the pace is made up for
    assert counts == [1, 2, 2, 3, 3]
    assert wires.came == [0, 1, 2]


def test_what_waits_is_lost_with_its_connection(wires):
    wires.paces["a", "b", True] = 0
    wires.links.send("b", query(1), [bytes(MOST)], bulk=True)
    wires.epoch = 2
    wires.paces.clear()
    assert wires.links.joined_room("b", bulk=True) == MOST
    assert wires.links.send("b", query(2), bulk=True)
    wires.step()
    assert wires.came == [2]
    wires.epoch = None
    assert wires.links.joined_room("b", bulk=True) is None
    assert not wires.links.send("b", query(3), bulk=True)


def test_what_was_accepted_beyond_the_bound_is_a_finding(wires):
    wires.paces["a", "b", True] = 0
    wires.links.send("b", query(1), [bytes(MOST)], bulk=True)
    wires.links.send("b", query(2), bulk=True, has_room=True)
    with pytest.raises(Finding, match="link_bound"):
        wires.links.send("b", query(3), [bytes(1)], bulk=True, has_room=True)
