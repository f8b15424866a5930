"""Leaders are eligible: their disk answers, they are voters, and transfers end in time."""

from quorumlog.model.codes import Role
from quorumlog.node.node import PREPARE_STOP_MS
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView

SLACK_MS = 1_000
"""Above the bound that the configuration names, on the node's own clock."""


class LeaderEligibility(Invariant):
    """Records since when each leader is in a state that must not last.

    A process that was paused has as much time again: it may handle whatever arrived meanwhile
    before its own timers, and so before it can notice that it is late.
    """

    name = "leader_eligibility"
    watches_time = True

    def __init__(self) -> None:
        self._since: dict[tuple[str, int, str], int] = {}

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        core, group = node.core, node.config.groups[0]
        leads = core.role is Role.LEADER
        is_committed = core.membership_index <= core.committed_index
        voter = core.membership.is_voter(node.node_id)
        self._bound(
            node,
            "its disk does not answer",
            group.election_timeout_max_ms,
            leads and node.disk_waits_ms > group.election_timeout_max_ms,
        )
        # who is about to stop asks one after the other, until the node stops in any case
        handing_ms = PREPARE_STOP_MS if core.is_stopping else group.leadership_transfer_wait_timeout
        handing = leads and core.is_transferring
        self._bound(node, "leadership is being transferred", handing_ms, handing)
        self._bound(node, "it is no voter any more", 0, leads and is_committed and not voter)

    def _bound(self, node: NodeView, what: str, limit_ms: int, holds: bool) -> None:
        key = (node.node_id, node.life, what)
        if not holds:
            self._since.pop(key, None)
            return
        now_ms = node.clock.now_ms
        lasted_ms = now_ms - max(node.clock.went_on_ms, self._since.setdefault(key, now_ms))
        self.require(
            lasted_ms <= limit_ms + SLACK_MS,
            f"{node.node_id} leads although for {lasted_ms} ms {what}",
        )
