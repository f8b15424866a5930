"""The log's order respects real time: an append that started after another ended comes after it."""

from quorumlog.sim.client_requests import Append
from quorumlog.sim.invariants.base import Invariant


class AcknowledgedOrder(Invariant):
    """Each append knows the highest index acknowledged to anybody before it was sent."""

    name = "acknowledged_order"

    def acknowledged(self, append: Append) -> None:
        """See `Invariant`."""
        self.require(
            append.first_index > append.floor,
            f"an append sent after {append.floor} was acknowledged was given {append.first_index}",
        )
