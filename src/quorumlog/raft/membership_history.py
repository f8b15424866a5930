"""The memberships that a log names: the newest counts, committed or not (Raft 6)."""

from collections.abc import Sequence

from quorumlog.model.errors import check
from quorumlog.model.membership import Membership


class MembershipHistory:
    """The memberships that still matter. Before the log names one, the `founders` count.

    Invariants: indexes rise; memberships older than the newest committed one are forgotten.
    """

    def __init__(self, founders: Membership, known: Sequence[tuple[int, Membership]]) -> None:
        self._founders = founders
        self._known = list(known)
        self.index = -1
        """Index of the entry that names the present membership; -1 before the group is founded."""
        self.current = founders
        """The present membership."""
        self.ids: frozenset[str] = frozenset()
        """The members of the present one."""
        self._find_current()

    def _find_current(self) -> None:
        self.index, self.current = self._known[-1] if self._known else (-1, self._founders)
        self.ids = frozenset(self.current.ids)

    @property
    def is_founded(self) -> bool:
        """Whether the log names a membership; until then all founders must agree, no majority."""
        return bool(self._known)

    def committed_at(self, committed_index: int) -> int:
        """Return the index of the newest membership that is committed; -1 if none is."""
        if self.index <= committed_index:
            return self.index
        return max((index for index, _ in self._known if index <= committed_index), default=-1)

    def identity_at(self, committed_index: int) -> bytes:
        """Return the group's identity as the newest committed membership has it; empty: none.

        One that was given to the group from the beginning counts without an entry, too.
        """
        if 0 <= self.index <= committed_index:
            return self.current.identity
        committed = [one for index, one in self._known if index <= committed_index]
        return committed[-1].identity if committed else self._founders.identity

    def counts_voter(self, node_id: str, committed_index: int) -> bool:
        """Whether a member may be needed to win elections.

        A voter that the newest membership leaves out may be needed until that is committed, because
        it may be the only one that has the entry (thesis 4.2.2).
        """
        if self.current.is_voter(node_id):
            return True
        earlier = self._known[-2][1] if len(self._known) > 1 else self._founders
        return self.index > committed_index and earlier.is_voter(node_id)

    def append(self, index: int, membership: Membership) -> None:
        """The log got an entry that names a membership."""
        self._known.append((index, membership))
        self._find_current()

    def truncate(self, from_index: int) -> None:
        """The log lost from_index and everything after it."""
        while self._known and self._known[-1][0] >= from_index:
            self._known.pop()
        self._find_current()

    def committed(self, index: int) -> None:
        """Forget the memberships that can no longer count."""
        while len(self._known) > 1 and self._known[1][0] <= index:
            self._known.pop(0)

    def installed(self, index: int, membership: Membership) -> bool:
        """The log starts after a membership that it does not hold; return whether that is newer."""
        if index <= self.index:
            return False
        self._known = [(index, membership)]
        self._find_current()
        return True

    def validate(self, committed_index: int) -> None:
        """Raise `InvariantViolation` unless the invariants hold."""
        indexes = [index for index, _ in self._known]
        check(indexes == sorted(set(indexes)), "memberships in order", indexes)
        kept = len(indexes) <= 1 or indexes[1] > committed_index
        check(kept, "memberships before the committed one are forgotten", indexes, committed_index)
