"""Chain CRCs of pushes: damage is not compared, what nobody knows any more is left to the terms."""

from types import SimpleNamespace

import pytest

from quorumlog.model.codes import PushType
from quorumlog.model.config import GroupConfig
from quorumlog.node.replica.peer_messages import PeerMessages
from raft_messages import push
from replica_context import Surroundings


def compare_at(index, chain=0):
    return push(PushType.COMPARE, "n0", "n1", 6, (index, 4), prev_chain_crc=chain)


@pytest.fixture
def side():
    """A log of the entries 544 to 546; the chain CRC before it is lost, and 545 is damaged."""
    log = SimpleNamespace(
        before_begin_index=543, end_index=546, chain_crc_at={544: 77, 546: 99}.get
    )
    group = GroupConfig(group="g", peers="n0-h:1;n1-h:2")
    side = Surroundings(group, log=log)
    side.checked = []
    side.check_entry = side.checked.append
    side.messages = PeerMessages(side.context)
    return side


def test_a_log_that_begins_after_an_unknown_entry_is_compared_all_the_same(side):
    """Seed 138: both copies of the checkpoint were lost, and no follower was ever compared with."""
    assert side.messages.with_chain(compare_at(543)).prev_chain_crc == 0
    assert not side.alarms
    assert side.messages.push_matches(compare_at(544, chain=0)), "the terms decide"


def test_a_damaged_entry_is_not_compared(side):
    assert side.messages.with_chain(compare_at(545)) is None
    assert side.alarms
    assert side.checked == [545]


def test_chain_crcs_that_both_know_are_compared(side):
    assert side.messages.with_chain(compare_at(544)).prev_chain_crc == 77
    assert side.messages.push_matches(compare_at(544, chain=77))
    assert not side.messages.push_matches(compare_at(544, chain=78))
