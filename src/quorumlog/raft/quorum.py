"""Majorities, as pure arithmetic. A joint membership needs a majority of both sets (Raft 6)."""

from collections.abc import Collection, Mapping, Sequence
from itertools import repeat

from quorumlog.model.membership import Membership

_NONE = repeat(-1)


def majority(members: int) -> int:
    """Return the smallest number of members that is a majority of `members`."""
    return members // 2 + 1


def majority_index(values: Sequence[int]) -> int:
    """Return the largest value that a majority has reached; one value for each member."""
    return sorted(values, reverse=True)[len(values) // 2]


def quorum_index(membership: Membership, values: Mapping[str, int]) -> int:
    """Return the largest value that a quorum of voters has reached; those without one have -1."""
    index = majority_index(list(map(values.get, membership.voters, _NONE)))
    if membership.outgoing:
        index = min(index, majority_index(list(map(values.get, membership.outgoing, _NONE))))
    return index


def has_quorum(membership: Membership, ids: Collection[str]) -> bool:
    """Whether these members are enough for a decision."""
    return quorum_index(membership, dict.fromkeys(ids, 1)) == 1
