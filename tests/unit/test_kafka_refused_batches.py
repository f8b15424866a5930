"""Refusals of idempotent producers' batches are remembered, for a while and up to a bound."""

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.refused_batches import (
    GAP_S,
    REFUSED_MAX,
    REFUSED_S,
    REFUSED_S_MAX,
    RefusedBatches,
)

KEY = (4, "t", 0)
NOT_LEADER, TOO_LARGE = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.MESSAGE_TOO_LARGE


def refused_at(sequence, error=NOT_LEADER):
    refused = RefusedBatches()
    refused.refused(KEY, 0, sequence, error, 0.0)
    return refused


def test_batches_after_a_refused_one_have_its_error_and_others_none():
    refused = refused_at(10)
    found = [refused.error_for(KEY, 0, sequence, 0.0) for sequence in (9, 10, 11, 400)]
    assert found == [None, None, NOT_LEADER, NOT_LEADER]
    assert refused.error_for(KEY, 1, 11, 0.0) is None, "another epoch"
    assert refused.error_for((4, "t", 1), 0, 11, 0.0) is None
    assert refused.error_for((5, "t", 0), 0, 11, 0.0) is None


def test_sequences_wrap():
    assert refused_at((1 << 31) - 1).error_for(KEY, 0, 0, 0.0) is NOT_LEADER
    assert refused_at(0).error_for(KEY, 0, (1 << 31) - 1, 0.0) is None


def test_a_refusal_is_forgotten_after_a_while_and_once_its_batch_is_taken():
    refused = refused_at(10)
    assert refused.error_for(KEY, 0, 11, REFUSED_S) is NOT_LEADER
    assert refused.error_for(KEY, 0, 11, REFUSED_S + 0.1) is None
    refused.taken(KEY, 0, 8)
    assert refused.error_for(KEY, 0, 11, 0.0) is NOT_LEADER, "an earlier one came twice"
    refused.taken(KEY, 0, 10)
    assert refused.error_for(KEY, 0, 11, 0.0) is None


def test_a_later_batch_that_was_taken_says_that_the_refused_one_was():
    refused = refused_at(10)
    refused.taken(KEY, 0, 12)
    assert refused.error_for(KEY, 0, 14, 0.0) is None


def test_batches_that_keep_coming_are_refused_alike_up_to_a_bound():
    refused, now_s = refused_at(10), 0.0
    while now_s <= REFUSED_S_MAX:
        assert refused.error_for(KEY, 0, 12, now_s) is NOT_LEADER
        refused.refused(KEY, 0, 12, NOT_LEADER, now_s)
        now_s += REFUSED_S
    assert refused.error_for(KEY, 0, 12, now_s) is None


def test_the_first_refusal_counts_until_an_earlier_batch_is_refused():
    refused = refused_at(10)
    refused.refused(KEY, 0, 12, NOT_LEADER, 1.0)
    assert refused.error_for(KEY, 0, 11, 1.0) is NOT_LEADER
    refused.refused(KEY, 0, 8, NOT_LEADER, 1.0)
    assert refused.error_for(KEY, 0, 10, 1.0) is NOT_LEADER


def test_a_batch_has_waited_once_it_was_refused_for_a_while_however_seldom_it_comes():
    refused = refused_at(10)
    assert not refused.has_waited(KEY, 0, 10, GAP_S)
    for now_s in (1.0, GAP_S, 3 * GAP_S):
        refused.judged(KEY, 0, 10)
        refused.refused(KEY, 0, 10, NOT_LEADER, now_s)
    assert refused.has_waited(KEY, 0, 10, GAP_S + 0.1)
    assert not refused.has_waited(KEY, 0, 11, GAP_S + 0.1)
    assert not refused.has_waited(KEY, 1, 10, GAP_S + 0.1)


def test_batches_after_one_that_is_judged_again_are_judged_until_it_is_refused_again():
    refused = refused_at(10)
    refused.judged(KEY, 0, 10)
    assert refused.error_for(KEY, 0, 11, 0.0) is None
    refused.refused(KEY, 0, 10, NOT_LEADER, 1.0)
    assert refused.error_for(KEY, 0, 11, 1.0) is NOT_LEADER
    refused.judged(KEY, 0, 12)
    assert refused.error_for(KEY, 0, 11, 1.0) is NOT_LEADER, "that may be refused, too"


def test_a_producer_that_sends_several_batches_at_once_has_waited_after_as_long():
    refused, now_s = refused_at(100), 0.0
    while now_s <= GAP_S + 1:
        assert refused.has_waited(KEY, 0, 100, now_s) is (now_s > GAP_S)
        for sequence in (100, 101, 102):  # the answers come once all are judged
            refused.judged(KEY, 0, sequence)
        for sequence in (100, 101, 102):
            refused.refused(KEY, 0, sequence, NOT_LEADER, now_s)
        now_s += 1.0


def test_an_error_that_is_no_reason_to_send_again_is_not_remembered():
    assert refused_at(10, TOO_LARGE).error_for(KEY, 0, 11, 0.0) is None


def test_refusals_are_remembered_up_to_a_bound():
    refused = RefusedBatches()
    for number in range(REFUSED_MAX + 5):
        refused.refused((number, "t", 0), 0, 1, NOT_LEADER, 0.0)
    assert len(refused) == REFUSED_MAX
    assert refused.error_for((0, "t", 0), 0, 2, 0.0) is None
