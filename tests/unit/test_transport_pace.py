"""How a client is told from one that sends faster than it is answered."""

import pytest

from quorumlog.transport.pace import (
    BUSY_AFTER_S,
    BUSY_FOR_MAX_S,
    BUSY_FOR_S,
    CLEAN_SLICES,
    CREDIT_AT_FIRST,
    CREDIT_MAX,
    CREDIT_PER_SLICE,
    KNOWN_AFTER,
    Pace,
)
from quorumlog.transport.turns import Kind


class Client:
    """One client's slices; the time passes between them."""

    def __init__(self):
        self.now_s = 100.0
        self.pace = Pace(lambda: self.now_s)

    @property
    def kind(self):
        return self.pace.kind

    def slices(self, pattern, each_s=0.0):
        """Have slices end: C leaves nothing over, L something. Return the kind after each."""
        kinds = []
        for letter in pattern:
            self.pace.slice_ended(leaves_something=letter == "L")
            kinds.append(self.kind)
            self.now_s += each_s
        return kinds


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def known(client):
    client.slices("C" * KNOWN_AFTER)
    return client


@pytest.fixture
def busy(client):
    client.slices("L" * 10, BUSY_AFTER_S)
    assert client.kind is Kind.BUSY
    return client


def test_a_client_that_connects_may_have_some_requests_waiting(client):
    most = CREDIT_AT_FIRST // CREDIT_PER_SLICE
    assert client.slices("L" * most) == [Kind.PROMPT] * most
    assert client.slices("LC") == [Kind.BURST, Kind.PROMPT]


def test_the_rest_of_a_burst_waits_among_bursts_and_the_next_one_begins_as_prompt(client):
    client.slices("L" * CREDIT_AT_FIRST + "C")
    kinds = client.slices("LLLC" * 100)
    assert kinds[3::4] == [Kind.PROMPT] * 100
    assert kinds.count(Kind.BURST) >= 250, "of two bursts one slice more is paid for"


def test_bursts_of_two_slices_do_not_pay_for_themselves(client):
    client.slices("LC" * 2 * CREDIT_AT_FIRST)
    assert client.slices("LC" * 100).count(Kind.BURST) >= 50


def test_a_client_known_to_wait_for_its_answers_catches_up_as_prompt(known):
    """The loop stood still for a moment; a second later it may have done so again."""
    most = CREDIT_MAX // CREDIT_PER_SLICE
    assert known.slices("L" * most, each_s=0.02) == [Kind.PROMPT] * most
    assert known.slices("L") == [Kind.BURST]
    known.slices("C" * 40)
    assert known.slices("L" * (40 // CREDIT_PER_SLICE))[-1] is Kind.PROMPT


def test_credit_for_being_known_is_given_once(known):
    known.slices("L" * CREDIT_MAX)
    known.slices("C" * KNOWN_AFTER)
    assert Kind.BURST in known.slices("L" * KNOWN_AFTER)


def test_two_requests_that_take_longer_than_a_slice_make_nobody_busy(client):
    """On a slow processor they do, whenever they arrive together."""
    assert Kind.BUSY not in client.slices("LC" * 1_000, each_s=BUSY_AFTER_S / 4)


def test_who_sends_a_burst_without_a_pause_is_busy(client):
    client.slices("L" * CREDIT_AT_FIRST)
    client.now_s += 0.99 * BUSY_AFTER_S
    assert client.slices("L") == [Kind.BURST]
    client.now_s += 0.02 * BUSY_AFTER_S
    assert client.slices("L") == [Kind.BUSY]


def test_a_busy_client_may_show_again_and_again_but_ever_less_often_that_it_is_none(busy):
    """So a good client that was taken for a busy one has its chance, and 300 pipelines have few."""
    seconds = []
    for _ in range(10):
        since = busy.now_s
        while busy.kind is Kind.BUSY:
            busy.now_s += 0.1
        seconds.append(busy.now_s - since)
        busy.slices("L" * 3, BUSY_AFTER_S)
        assert busy.kind is Kind.BUSY
    assert seconds[0] < 2 * BUSY_FOR_S
    doubled = [BUSY_FOR_S * 2**number for number in range(1, 6)]
    assert seconds[1:6] == pytest.approx(doubled, abs=BUSY_AFTER_S + 0.2)
    assert seconds[-1] == pytest.approx(BUSY_FOR_MAX_S, abs=0.5)


def test_a_busy_client_with_nothing_to_be_read_now_and_then_stays_busy(busy):
    assert set(busy.slices(("C" * (CLEAN_SLICES - 1) + "L") * 2)) == {Kind.BUSY}


def test_a_busy_client_that_waits_for_its_answers_from_now_on_is_prompt(busy):
    assert busy.slices("C" * CLEAN_SLICES)[-1] is Kind.PROMPT


def test_whose_large_frames_pass_is_busy_for_a_second(known):
    known.pace.passed_large_frame()
    known.now_s += 0.99 * BUSY_FOR_S
    assert known.kind is Kind.BUSY
    known.now_s += 0.02 * BUSY_FOR_S
    assert known.kind is Kind.PROMPT
