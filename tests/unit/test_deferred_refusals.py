"""Appends during a leadership transfer are answered with the new leader, once it is known."""

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode
from quorumlog.node.replica.deferred_refusals import DELAY_MS, DeferredRefusals

TRANSFERRING = ResponseCode.LEADER_TRANSFERRING


def test_refusals_come_in_order_and_are_counted():
    late = DeferredRefusals()
    for number in range(3):
        late.add(str(number), 10, TRANSFERRING, f"{number}", now_ms=number)
    assert (len(late), late.size_bytes, late.next_deadline_ms()) == (3, 30, DELAY_MS)
    assert late.take() == [(str(number), TRANSFERRING, f"{number}") for number in range(3)]
    assert (len(late), late.size_bytes, late.next_deadline_ms()) == (0, 0, NEVER_MS)


def test_nobody_waits_for_longer_than_the_bound():
    late = DeferredRefusals()
    late.add("first", 10, TRANSFERRING, "", now_ms=0)
    late.add("second", 20, TRANSFERRING, "", now_ms=5)
    assert late.take_due(DELAY_MS - 1) == []
    assert late.take_due(DELAY_MS) == [("first", TRANSFERRING, "")]
    assert (len(late), late.size_bytes) == (1, 20)
    assert late.take_due(DELAY_MS + 5) == [("second", TRANSFERRING, "")]
