"""Every queue, window and table keeps within its bound, and the core's own checks hold."""

from quorumlog.model.wording import counted
from quorumlog.node.replica.pending_requests import ASKED_MAX
from quorumlog.raft.event_history import HISTORY_LINES_MAX
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView


class Bounds(Invariant):
    """Looks at what can grow."""

    name = "bounds"

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        replica, limits = node.running, node.config.limits
        replica.core.validate()
        pending = replica.appends.pending
        self.require(
            len(pending) <= limits.pending_requests_max, f"{counted(len(pending), 'append')} wait"
        )
        self.require(
            pending.size_bytes <= limits.pending_bytes_max + limits.block_bytes_max,
            f"{pending.size_bytes} bytes of appends wait",
        )
        waiting = replica.pending_requests.count
        self.require(waiting <= ASKED_MAX, f"{counted(waiting, 'request')} wait")
        self.require(
            len(replica.core.history.lines()) <= HISTORY_LINES_MAX, "the history is bounded"
        )
        for peer in replica.core.peer_progress():
            self.require(
                peer.in_flight_requests <= limits.push_window_requests
                and peer.in_flight_bytes <= limits.push_window_bytes + limits.entry_bytes_max,
                f"{peer.in_flight_bytes} bytes, {peer.in_flight_requests} pushes to {peer.peer_id}",
            )
