"""Refusals of idempotent producers' batches are remembered, for a while and up to a bound."""

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.refused_batches import REFUSED_MAX, REFUSED_S, RefusedBatches

KEY = (4, "t", 0)
NOT_LEADER, GAP = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_what_is_out_of_order_without_a_refusal_before_it_says_so():
    refused = RefusedBatches()
    assert refused.error_for(KEY, GAP, 0.0) is GAP
    refused.error_for(KEY, NOT_LEADER, 0.0)
    assert refused.error_for((4, "t", 1), GAP, 0.0) is GAP
    assert refused.error_for((5, "t", 0), GAP, 0.0) is GAP


def test_a_refusal_is_forgotten_after_a_while_and_once_its_batch_was_appended():
    refused = RefusedBatches()
    refused.error_for(KEY, NOT_LEADER, 0.0)
    assert refused.error_for(KEY, GAP, REFUSED_S) is NOT_LEADER
    assert refused.error_for(KEY, GAP, REFUSED_S + 0.1) is GAP
    refused.error_for(KEY, NOT_LEADER, 9.0)
    refused.appended(KEY)
    assert refused.error_for(KEY, GAP, 9.0) is GAP


def test_an_error_that_is_no_reason_to_send_again_is_not_remembered():
    refused = RefusedBatches()
    refused.error_for(KEY, ErrorCode.MESSAGE_TOO_LARGE, 0.0)
    assert refused.error_for(KEY, GAP, 0.0) is GAP


def test_refusals_are_remembered_up_to_a_bound():
    refused = RefusedBatches()
    for number in range(REFUSED_MAX + 5):
        refused.error_for((number, "t", 0), NOT_LEADER, 0.0)
    assert len(refused) == REFUSED_MAX
    assert refused.error_for((0, "t", 0), GAP, 0.0) is GAP
