"""Two memberships in a row are never decided by two groups of strangers (Raft 6)."""

from quorumlog.model.codes import Role
from quorumlog.model.membership import Membership
from quorumlog.raft.quorum import has_quorum
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.node import SimulatedNode


class MembershipSafety(Invariant):
    """Looks at each membership that a leader appends, and at the one before it."""

    name = "membership"

    def __init__(self) -> None:
        self._named: dict[tuple[int, int], Membership] = {}
        self._last: dict[str, tuple[int, int]] = {}

    def looked_at(self, node: SimulatedNode) -> None:
        """See `Invariant`."""
        core, name = node.core, node.node_id
        key = (core.membership_index, node.life)
        if self._last.get(name) == key:
            return
        before = self._last.get(name, (-1, -1))
        self._last[name] = key
        current = core.membership
        if core.role is Role.LEADER and before[1] == node.life and before[0] < key[0]:
            previous = self._named.get((before[0], 0))
            if previous is not None:
                self._overlap(previous, current, name)
        self._named[(key[0], 0)] = current

    def _overlap(self, one: Membership, two: Membership, name: str) -> None:
        """Require that whoever decides by the one leaves nobody to decide by the other."""
        ids = sorted({*one.ids, *two.ids})
        for chosen in range(1 << len(ids)):
            group = {ids[n] for n in range(len(ids)) if chosen >> n & 1}
            rest = set(ids) - group
            disjoint = has_quorum(one, group) and has_quorum(two, rest)
            self.require(
                not disjoint,
                f"under {name}, {sorted(group)} could decide by one membership and "
                f"{sorted(rest)} by the next",
            )
