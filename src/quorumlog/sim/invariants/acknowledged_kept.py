"""No acknowledged append is ever missing, and none is stored twice."""

from quorumlog.model.block import decode_entries
from quorumlog.sim.client_requests import Append
from quorumlog.sim.hook import unfilled
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.invariants.committed import READ_BYTES
from quorumlog.sim.views import ClusterView


class AcknowledgedKept(Invariant):
    """Every value is unique, so each must be at its index in every log, and nowhere else."""

    name = "acknowledged_kept"

    def __init__(self) -> None:
        self._values: dict[int, bytes] = {}

    def acknowledged(self, append: Append) -> None:
        """See `Invariant`."""
        for index, body in enumerate(append.bodies, append.first_index):
            known = self._values.setdefault(index, body)
            self.require(known == body, f"{known!r} and {body!r} were both acknowledged at {index}")

    def ended(self, cluster: ClusterView) -> None:
        """See `Invariant`."""
        clients = cluster.clients
        if clients.batches is not None:
            return  # see `Partitions`
        for node in cluster.members():
            log, seen = node.log, dict[bytes, int]()
            first = log.before_begin_index + 1
            while first <= log.end_index:
                run = log.read(first, log.end_index, READ_BYTES)
                for entry in decode_entries(run.block()):
                    if entry.is_data:
                        self._check(node.node_id, entry.index, unfilled(entry.body), seen)
                first = run.last_index + 1
            for index, body in self._values.items():
                if index > log.before_begin_index:
                    self.require(
                        seen.get(body) == index,
                        f"{body!r}, acknowledged at {index}, is not there on {node.node_id}",
                    )
            for body in seen:
                self.require(
                    body in clients.asked, f"{node.node_id} holds {body!r}, never appended"
                )
                self.require(
                    body not in clients.refused,
                    f"{node.node_id} holds {body!r}, of which a client was told it did not happen",
                )

    def _check(self, node_id: str, index: int, body: bytes, seen: dict[bytes, int]) -> None:
        before = seen.setdefault(body, index)
        self.require(before == index, f"{node_id} holds {body!r} at {before} and at {index}")
