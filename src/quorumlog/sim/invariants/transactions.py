"""What a transaction accepted is read once and whole, what it did not accept never is."""

from quorumlog.model.block import decode_entries
from quorumlog.sim.client_requests import Attempt
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.invariants.committed import READ_BYTES
from quorumlog.sim.views import ClusterView, NodeView

REJECTED_MAX = 100_000


class Transactions(Invariant):
    """Looks at what each member would give a read_committed reader, in the end."""

    name = "transactions"

    def ended(self, cluster: ClusterView) -> None:
        """See `Invariant`."""
        attempts = cluster.clients.attempts
        if attempts is None:
            return
        by_body = {body: one for one in attempts for _, body in one.rows}
        seen: dict[int, bytes] = {}
        for node in cluster.members():
            first, visible = node.log.before_begin_index + 1, _visible(node)
            for index, body in visible.items():
                known = seen.setdefault(index, body)
                self.require(known == body, f"{node.node_id} shows {body!r} at {index}")
            for index, body in seen.items():
                if first <= index <= node.running.tables.stable_index:
                    shown = visible.get(index) == body
                    self.require(shown, f"{node.node_id} does not show {body!r} at {index}")
            self._check(node, visible, by_body, attempts, first)

    def _check(
        self,
        node: NodeView,
        visible: dict[int, bytes],
        by_body: dict[bytes, Attempt],
        attempts: list[Attempt],
        first: int,
    ) -> None:
        rows = set()
        for index, body in visible.items():
            attempt = by_body.get(body)
            if attempt is None:
                continue  # a plain append
            self.require(attempt.named, f"{node.node_id} shows {body!r} at {index}, not accepted")
            row = body.split()[1:3]
            self.require(tuple(row) not in rows, f"{node.node_id} shows row {row} twice")
            rows.add(tuple(row))
        for attempt in attempts:
            if attempt.has_ended and attempt.first_index >= first:
                missing = [body for _, body in attempt.rows if body not in visible.values()]
                self.require(not missing, f"{node.node_id} does not show {missing}, accepted")


def _visible(node: NodeView) -> dict[int, bytes]:
    """Return index → body of everything that a reader of committed transactions is given."""
    log, tables = node.log, node.running.tables
    index, last = log.before_begin_index + 1, tables.stable_index
    hidden = {
        place
        for begin, end in tables.rejected_within(index, last, REJECTED_MAX)
        for place in range(begin, end + 1)
    }
    found: dict[int, bytes] = {}
    while index <= last:
        run = log.read(index, last, READ_BYTES)
        found |= {
            entry.index: entry.body
            for entry in decode_entries(run.block())
            if entry.is_data and entry.index not in hidden
        }
        index = run.last_index + 1
    return found
