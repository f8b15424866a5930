"""Which snapshots peers are fetching: these are kept, and offered until they are complete."""

from dataclasses import dataclass

from quorumlog.model.messages.peer import SnapshotChunkRequest
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.storage.log.snapshots import SnapshotMeta
from quorumlog.transport.peers import UNKNOWN_PEERS_MAX

SILENT_OFFERS = 3
"""A peer that has asked for nothing for this many push time-outs is not fetching any more."""
FIRST_CHUNKS_MAX = 3
"""A snapshot whose first chunk is asked for more often is checked: it may be damaged here."""


@dataclass(slots=True)
class _Served:
    """A snapshot offered to a peer, when the peer last requested a chunk, and which.

    `first_chunks` counts how often it requested the first one.
    """

    meta: SnapshotMeta
    last_request_ms: int
    offset: int = 0
    first_chunks: int = 0


class ServedSnapshots:
    """The part of a replica that knows which peer fetches which of its snapshots."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._served: dict[str, _Served] = {}

    def fetched_by(self, peer_id: str) -> SnapshotMeta | None:
        """Return the snapshot that a peer is fetching; None if there is none that still helps it.

        The peer is offered the same one again, since with a newer one it would have to start over.
        """
        served = self._served.get(peer_id)
        if served is None or not self._is_fetched(served):
            return None
        reaches = served.meta.last_included_index >= self._context.log.before_begin_index
        return served.meta if reaches else None

    def offered(self, peer_id: str, meta: SnapshotMeta) -> None:
        """Record an offer to a peer. Of peers that are no members only the last are remembered."""
        context = self._context
        self._served.pop(peer_id, None)
        self._served[peer_id] = _Served(meta, context.environment.now_ms())
        members = context.core.membership.ids
        unknown = [peer for peer in self._served if peer not in members]
        for peer in unknown[:-UNKNOWN_PEERS_MAX]:
            del self._served[peer]

    def requested(self, request: SnapshotChunkRequest) -> bool:
        """Record a request for a chunk; return False if the peer starts over: the data may be bad.

        It is then offered a newer one, if there is one.
        """
        served = self._served.get(request.local_id)
        if served is None or served.meta.last_included_index != request.last_included_index:
            return True
        served.first_chunks += request.offset == 0
        if request.offset == 0 < served.offset or served.first_chunks > FIRST_CHUNKS_MAX:
            del self._served[request.local_id]
            return False
        served.last_request_ms, served.offset = self._context.environment.now_ms(), request.offset
        return True

    def forget(self, peer_id: str) -> None:
        """Forget what a peer was offered: it cannot be read."""
        self._served.pop(peer_id, None)

    def indexes(self) -> list[int]:
        """Return the snapshots that peers are fetching, which must be kept."""
        fetched = [served for served in self._served.values() if self._is_fetched(served)]
        return [served.meta.last_included_index for served in fetched]

    def _is_fetched(self, served: _Served) -> bool:
        silent_ms = self._context.environment.now_ms() - served.last_request_ms
        return silent_ms < SILENT_OFFERS * self._context.config.max_push_time_out_ms
