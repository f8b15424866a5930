"""No two memberships that may still count can be decided by groups of strangers (Raft 6)."""

from quorumlog.model.codes import Role
from quorumlog.model.membership import Membership
from quorumlog.model.wording import entries_text
from quorumlog.raft.membership_change import PROMOTE_LAG_MAX
from quorumlog.raft.quorum import has_quorum
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.invariants.committed import Committed
from quorumlog.sim.views import NodeView


class MembershipSafety(Invariant):
    """Looks whenever a node takes a membership, at all that may still decide something."""

    name = "membership"

    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        self._indexes: set[int] = set()
        self._last: dict[str, tuple[int, int]] = {}
        self._voters: dict[tuple[int, int], tuple[str, ...]] = {}

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        core, name = node.core, node.node_id
        key = (core.membership_index, node.life)
        if self._last.get(name) == key:
            return
        before = self._last.get(name, (-1, -1))
        self._last[name] = key
        if core.role is Role.LEADER and before[1] == node.life and before[0] < key[0]:
            self._caught_up(node, self._voters.get(before, ()), core.membership)
        self._voters[key] = (*core.membership.voters, *core.membership.outgoing)
        self._all_overlap(node)

    def _all_overlap(self, node: NodeView) -> None:
        """Compare what all running nodes go by, unless it is known to be superseded."""
        self._indexes.add(node.core.membership_index)
        committed = [index for index in self._indexes if index <= self._committed.last_index]
        latest = max(0, *committed) if committed else 0
        named = [
            other.core.membership
            for other in node.cluster.nodes.values()
            if other.is_up and other.core.membership_index >= latest
        ]
        for position, one in enumerate(named):
            for two in named[position + 1 :]:
                if one != two:
                    self._overlap(one, two)

    def _caught_up(self, node: NodeView, before: tuple[str, ...], current: Membership) -> None:
        """Require that new voters hold nearly all entries: else no majority could serve (R16)."""
        end_index = node.log.end_index - 1  # without the entry that makes it one
        for voter in current.voters if before else ():
            if voter in before:
                continue
            other, member = node.cluster.nodes[voter], current.member(voter)
            if member is None or member.incarnation != other.incarnation:
                continue  # its disk was emptied since it said what it holds
            held = other.log.end_index if other.is_up else end_index
            self.require(
                end_index - held <= PROMOTE_LAG_MAX,
                f"{node.node_id} made {voter} a voter at {held} of {entries_text(end_index)}",
            )

    def _overlap(self, one: Membership, two: Membership) -> None:
        """Require that whoever decides by the one leaves nobody to decide by the other."""
        ids = sorted({*one.ids, *two.ids})
        for chosen in range(1 << len(ids)):
            group = {ids[n] for n in range(len(ids)) if chosen >> n & 1}
            rest = set(ids) - group
            disjoint = has_quorum(one, group) and has_quorum(two, rest)
            self.require(
                not disjoint,
                f"{sorted(group)} could decide by {one.voters} (before {one.outgoing}) and "
                f"{sorted(rest)} by {two.voters} (before {two.outgoing})",
            )
