"""How a client is told from one that sends faster than it is answered."""

import pytest

from quorumlog.transport.classifier import (
    BULK_AFTER_S,
    BULK_FOR_MAX_S,
    BULK_FOR_S,
    CLEAN_SLICES,
    CLOSED_LOOP_AFTER,
    CREDIT_AT_FIRST,
    CREDIT_MAX,
    CREDIT_PER_SLICE,
    Classifier,
)
from quorumlog.transport.scheduler import TrafficClass


class Client:
    """One client's slices; the time passes between them."""

    def __init__(self):
        self.now_s = 100.0
        self.classifier = Classifier(lambda: self.now_s)

    @property
    def kind(self):
        return self.classifier.traffic_class

    def slices(self, pattern, each_s=0.0):
        """Have slices end: C leaves nothing over, L something. Return the kind after each."""
        kinds = []
        for letter in pattern:
            self.classifier.slice_ended(leaves_something=letter == "L")
            kinds.append(self.kind)
            self.now_s += each_s
        return kinds


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def known(client):
    client.slices("C" * CLOSED_LOOP_AFTER)
    return client


@pytest.fixture
def bulk(client):
    client.slices("L" * 10, BULK_AFTER_S)
    assert client.kind is TrafficClass.BULK
    return client


def test_a_client_that_connects_may_have_some_requests_waiting(client):
    most = CREDIT_AT_FIRST // CREDIT_PER_SLICE
    assert client.slices("L" * most) == [TrafficClass.INTERACTIVE] * most
    assert client.slices("LC") == [TrafficClass.BURST, TrafficClass.INTERACTIVE]


def test_the_rest_of_a_burst_waits_among_bursts_and_the_next_one_begins_as_interactive(client):
    client.slices("L" * CREDIT_AT_FIRST + "C")
    kinds = client.slices("LLLC" * 100)
    assert kinds[3::4] == [TrafficClass.INTERACTIVE] * 100
    assert kinds.count(TrafficClass.BURST) >= 250, "of two bursts one slice more is paid for"


def test_bursts_of_two_slices_do_not_pay_for_themselves(client):
    client.slices("LC" * 2 * CREDIT_AT_FIRST)
    assert client.slices("LC" * 100).count(TrafficClass.BURST) >= 50


def test_a_client_known_to_wait_for_its_answers_catches_up_as_interactive(known):
    """The loop stood still for a moment; a second later it may have done so again."""
    most = CREDIT_MAX // CREDIT_PER_SLICE
    assert known.slices("L" * most, each_s=0.02) == [TrafficClass.INTERACTIVE] * most
    assert known.slices("L") == [TrafficClass.BURST]
    known.slices("C" * 40)
    assert known.slices("L" * (40 // CREDIT_PER_SLICE))[-1] is TrafficClass.INTERACTIVE


def test_a_client_waits_for_its_answers_until_its_credit_is_used_up(client):
    assert not client.classifier.is_closed_loop, "it has credit, but nothing is known of it"
    client.slices("C" * CLOSED_LOOP_AFTER)
    assert client.classifier.is_closed_loop
    client.slices("L" * CREDIT_MAX)
    assert not client.classifier.is_closed_loop


def test_credit_for_being_known_is_given_once(known):
    known.slices("L" * CREDIT_MAX)
    known.slices("C" * CLOSED_LOOP_AFTER)
    assert TrafficClass.BURST in known.slices("L" * CLOSED_LOOP_AFTER)


def test_two_requests_that_take_longer_than_a_slice_make_nobody_bulk(client):
    """On a slow processor they do, whenever they arrive together."""
    assert TrafficClass.BULK not in client.slices("LC" * 1_000, each_s=BULK_AFTER_S / 4)


def test_who_sends_a_burst_without_a_pause_is_bulk(client):
    client.slices("L" * CREDIT_AT_FIRST)
    client.now_s += 0.99 * BULK_AFTER_S
    assert client.slices("L") == [TrafficClass.BURST]
    client.now_s += 0.02 * BULK_AFTER_S
    assert client.slices("L") == [TrafficClass.BULK]


def test_a_bulk_client_may_show_again_and_again_but_ever_less_often_that_it_is_none(bulk):
    """So a good client that was taken for a bulk one has its chance, and 300 pipelines have few."""
    seconds = []
    for _ in range(10):
        since = bulk.now_s
        while bulk.kind is TrafficClass.BULK:
            bulk.now_s += 0.1
        seconds.append(bulk.now_s - since)
        bulk.slices("L" * 3, BULK_AFTER_S)
        assert bulk.kind is TrafficClass.BULK
    assert seconds[0] < 2 * BULK_FOR_S
    doubled = [BULK_FOR_S * 2**number for number in range(1, 6)]
    assert seconds[1:6] == pytest.approx(doubled, abs=BULK_AFTER_S + 0.2)
    assert seconds[-1] == pytest.approx(BULK_FOR_MAX_S, abs=0.5)


def test_a_bulk_client_with_nothing_to_be_read_now_and_then_stays_bulk(bulk):
    assert set(bulk.slices(("C" * (CLEAN_SLICES - 1) + "L") * 2)) == {TrafficClass.BULK}


def test_a_bulk_client_that_waits_for_its_answers_from_now_on_is_interactive(bulk):
    assert bulk.slices("C" * CLEAN_SLICES)[-1] is TrafficClass.INTERACTIVE


def test_whose_large_frames_pass_is_bulk_for_a_second(known):
    known.classifier.saw_large_frame()
    known.now_s += 0.99 * BULK_FOR_S
    assert known.kind is TrafficClass.BULK
    known.now_s += 0.02 * BULK_FOR_S
    assert known.kind is TrafficClass.INTERACTIVE
