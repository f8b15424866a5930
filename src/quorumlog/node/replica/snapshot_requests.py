"""Asking peers for a snapshot when a replica's machine cannot go on without one."""

from quorumlog.model.messages.peer import InstallSnapshotRequest, SnapshotOfferRequest
from quorumlog.node.replica.context import ReplicaContext


class SnapshotRequests:
    """The part of a replica that asks for snapshots, and knows which offer is the answer.

    `least_index`: the snapshot must include this entry.
    """

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._request: tuple[str, int] | None = None
        self.least_index = -1

    def ask(self, peer_id: str, least_index: int = -1) -> None:
        """Ask a peer for a snapshot: the machine needs entries that are damaged or removed here."""
        context = self._context
        self._request, self.least_index = (peer_id, context.environment.nonce()), least_index
        message = SnapshotOfferRequest(
            **context.envelope_to(peer_id),
            request_id=self._request[1],
            least_index=least_index,
        )
        context.environment.network.send(peer_id, message)

    def are_answered_by(self, offer: InstallSnapshotRequest) -> bool:
        """Whether an offer answers the last request."""
        return self._request == (offer.local_id, offer.request_id)

    def fulfilled(self) -> None:
        """Forget the last request: an offer was taken."""
        self._request = None
