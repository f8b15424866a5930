"""A connection that asks for offsets in vain is told to ask again, then where they are not."""

import gc

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.refused_fetches import MOVED_S, RefusedFetches

AGAIN, ELSEWHERE = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR


class Connection:
    pass


def test_a_connection_is_told_to_ask_again_until_its_member_has_heard_of_the_coordinator():
    refused, member, other = RefusedFetches(), Connection(), Connection()
    assert refused.error(member, 100) is AGAIN
    assert refused.error(member, 99.9 + MOVED_S) is AGAIN
    assert refused.error(other, 99.9 + MOVED_S) is AGAIN
    assert refused.error(member, 100 + MOVED_S) is ELSEWHERE
    assert refused.error(member, 101 + MOVED_S) is ELSEWHERE
    assert refused.error(other, 101 + MOVED_S) is AGAIN


def test_a_connection_that_asks_much_later_has_as_long_again():
    refused, member = RefusedFetches(), Connection()
    for at_s in (0, MOVED_S - 1, MOVED_S):
        last = refused.error(member, at_s)
    assert last is ELSEWHERE
    assert refused.error(member, 2 * MOVED_S) is AGAIN


def test_closed_connections_are_forgotten():
    refused = RefusedFetches()
    refused.error(Connection(), 0)
    gc.collect()
    assert not refused._asked
