"""Tables derived from the log agree: after the same committed entry all replicas hold the same.

A replica looks at its own tables only when it comes to a point at which replicas compare. Here they
are looked at whenever the committed index has moved.
"""

from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView

ENTRIES = 100
"""Of what depends on where a log starts, only what the newest entries did is compared."""


class TableAgreement(Invariant):
    """Compares the digests of each table, as far as a replica knows that its tables are whole."""

    name = "table_agreement"

    def __init__(self) -> None:
        self._digests: dict[tuple[int, str], tuple[bytes, str]] = {}
        self._seen: dict[str, tuple[int, int]] = {}

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        tables = node.running.tables
        now = (node.life, tables.as_of)
        if self._seen.get(node.node_id) == now or tables.is_incomplete or not tables.is_trusted:
            return
        self._seen[node.node_id] = now
        index = tables.as_of
        for name, digest in tables.digests(max(-1, index - ENTRIES)).items():
            first, who = self._digests.setdefault((index, name), (digest, node.node_id))
            self.require(
                first == digest,
                f"{node.node_id} and {who} have another table {name} after the entry {index}",
            )
