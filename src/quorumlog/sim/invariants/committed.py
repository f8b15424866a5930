"""What nodes called committed, entry by entry: shared by the invariants that speak of it."""

from quorumlog.model.block import headers
from quorumlog.model.errors import CorruptionError
from quorumlog.sim.views import NodeView
from quorumlog.storage.entries.entry_runs import EntryRun

READ_BYTES = 1 << 20


class Committed:
    """Index → (term, chain CRC) of every entry that any node ever called committed."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[int, int]] = {}
        self.last_index = -1
        self._seen: dict[str, tuple[int, int]] = {}

    def news_of(self, node: NodeView) -> list[tuple[int, tuple[int, int]]]:
        """Return the entries that a node called committed since it was last asked."""
        log, committed = node.log, node.core.committed_index
        life, seen = self._seen.get(node.node_id, (-1, -1))
        seen = seen if life == node.life else log.before_begin_index
        self._seen[node.node_id] = (node.life, max(committed, seen))
        first = max(seen, log.before_begin_index) + 1
        found: list[tuple[int, tuple[int, int]]] = []
        while first <= committed:
            try:
                run = log.read(first, committed, READ_BYTES)
            except CorruptionError as error:
                first = (first if error.index is None else error.index) + 1
                continue
            found += entries_of(run)
            first = run.last_index + 1
        return found

    def add(self, index: int, identity: tuple[int, int]) -> tuple[int, int]:
        """Record an entry; return what was known at its index, itself if nothing was."""
        self.last_index = max(self.last_index, index)
        return self.entries.setdefault(index, identity)


def entries_of(run: EntryRun) -> list[tuple[int, tuple[int, int]]]:
    """Return (index, (term, chain CRC)) of each entry of a run."""
    table = headers(run.block())
    terms, chains = table["term"].tolist(), table["chain_crc"].tolist()
    pairs = zip(terms, chains, strict=True)
    return list(zip(range(run.first_index, run.first_index + run.count), pairs, strict=True))
