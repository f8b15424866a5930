"""The invariant of leaders finds a state that must not last, and forgives a paused process."""

from types import SimpleNamespace

import pytest

from quorumlog.model.codes import Role
from quorumlog.node.node import PREPARE_STOP_MS
from quorumlog.sim.finding import Finding
from quorumlog.sim.invariants.leader_eligibility import SLACK_MS, LeaderEligibility

LONGEST_MS = PREPARE_STOP_MS + SLACK_MS


@pytest.fixture
def node():
    """A leader that is about to stop, and transfers its leadership."""
    group = SimpleNamespace(election_timeout_max_ms=1_000, leadership_transfer_wait_timeout=1_000)
    core = SimpleNamespace(
        role=Role.LEADER,
        membership_index=0,
        committed_index=5,
        is_stopping=True,
        is_transferring=True,
        membership=SimpleNamespace(is_voter=lambda node_id: True),
    )
    return SimpleNamespace(
        node_id="n0",
        life=1,
        core=core,
        config=SimpleNamespace(groups=[group]),
        clock=SimpleNamespace(now_ms=10_000, went_on_ms=0),
        disk_waits_ms=0,
    )


def test_a_leader_that_transfers_for_too_long_is_found(node):
    invariant = LeaderEligibility()
    invariant.after_event(node)
    node.clock.now_ms += LONGEST_MS
    invariant.after_event(node)
    node.clock.now_ms += 1
    with pytest.raises(Finding, match="being transferred"):
        invariant.after_event(node)


def test_a_leader_that_was_paused_has_as_much_time_again(node):
    """Seed 24,000,740: messages came before the timer that would have ended the process."""
    invariant = LeaderEligibility()
    invariant.after_event(node)
    node.clock.now_ms += LONGEST_MS + 1_000
    node.clock.went_on_ms = node.clock.now_ms
    invariant.after_event(node)
    node.clock.now_ms += LONGEST_MS
    invariant.after_event(node)
    node.clock.now_ms += 1
    with pytest.raises(Finding):
        invariant.after_event(node)
