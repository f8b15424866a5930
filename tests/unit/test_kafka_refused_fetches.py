"""A connection that asks for offsets in vain is told to ask again, then where they are not."""

import gc

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.refused_fetches import RETRY_S, RefusedFetches

AGAIN, ELSEWHERE = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR


class Connection:
    pass


def test_a_connection_is_told_to_ask_again_until_its_member_has_heard_of_the_coordinator():
    refused, member, other = RefusedFetches(), Connection(), Connection()
    assert refused.error(member, 100, None) is AGAIN
    assert refused.error(member, 99.9 + RETRY_S, None) is AGAIN
    assert refused.error(other, 99.9 + RETRY_S, None) is AGAIN
    assert refused.error(member, 100 + RETRY_S, None) is ELSEWHERE
    assert refused.error(member, 101 + RETRY_S, None) is ELSEWHERE
    assert refused.error(other, 101 + RETRY_S, None) is AGAIN


def test_a_connection_that_asks_now_and_then_is_told_where_the_offsets_are_not():
    refused, monitor = RefusedFetches(), Connection()
    assert refused.error(monitor, 0, None) is AGAIN
    assert refused.error(monitor, 2 * RETRY_S, None) is ELSEWHERE
    assert refused.error(monitor, 4 * RETRY_S, None) is ELSEWHERE


def test_who_is_refused_after_the_broker_has_coordinated_is_refused_for_the_first_time():
    refused, member = RefusedFetches(), Connection()
    refused.error(member, 0, None)
    refused.coordinates()
    assert refused.error(member, 2 * RETRY_S, None) is AGAIN


def test_a_member_that_is_named_is_always_told_to_ask_again():
    refused, member = RefusedFetches(), Connection()
    found = [refused.error(member, at_s, "member-1") for at_s in (0, RETRY_S, RETRY_S + 1)]
    assert found == [AGAIN] * 3


def test_closed_connections_are_forgotten():
    refused = RefusedFetches()
    refused.error(Connection(), 0, None)
    gc.collect()
    assert not refused._refused
