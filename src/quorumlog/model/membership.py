"""Who belongs to a group: voters, learners, and both sets of voters while they change (Raft 6).

A membership is the body of a CONFIG_CHANGE entry; it counts from the moment it is in a log.
"""

import hashlib
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from quorumlog.model.errors import UnexpectedArgumentError

MEMBERS_MAX = 16
"""Members of one group, learners included: more voters only make it slower."""
IDENTITY_BYTES = 16
"""Of a group's identity."""
_FORMAT = 1
_NODE_ID = attrgetter("node_id")


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One replica.

    `incarnation` numbers its data directory (0: not known yet). With an emptied disk it counts as
    another replica, since it has forgotten its votes and lost its entries. `joining`: a learner
    that becomes a voter as soon as it has caught up.
    """

    node_id: str
    address: str = ""
    incarnation: int = 0
    joining: bool = False

    def may_be(self, incarnation: int) -> bool:
        """Whether a data directory of this number may be this member's (0: not known)."""
        return 0 in (self.incarnation, incarnation) or self.incarnation == incarnation


class Membership(msgspec.Struct, frozen=True, array_like=True):
    """All members; those in neither set of voters are learners.

    While the voters change, `outgoing` holds the voters before the change, and every decision needs
    a majority of each set (joint consensus); else it is empty. `identity` is made when the group
    is founded and never changes; empty: an earlier version founded it. `original_compatible`: the
    group's own entries are written so that DLedger reads them (decision 0034); it never changes
    either.
    """

    members: tuple[Member, ...]
    voters: tuple[str, ...]
    outgoing: tuple[str, ...] = ()
    format: int = _FORMAT
    identity: bytes = b""
    original_compatible: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all members."""
        return tuple(map(_NODE_ID, self.members))

    @property
    def learners(self) -> tuple[str, ...]:
        """The ids of members that receive entries and do not vote."""
        return tuple(name for name in self.ids if not self.is_voter(name))

    @property
    def is_joint(self) -> bool:
        """Whether the voters are changing."""
        return bool(self.outgoing)

    def member(self, node_id: str) -> Member | None:
        """Return a member, or None."""
        for member in self.members:
            if member.node_id == node_id:
                return member
        return None

    def is_voter(self, node_id: str) -> bool:
        """Whether a member votes, in the old or in the new set of voters."""
        return node_id in self.voters or node_id in self.outgoing

    # -- what follows from it -----------------------------------------------------------------

    def with_member(self, member: Member) -> "Membership":
        """Return this membership with one more learner, or with a member's details replaced."""
        others = [known for known in self.members if known.node_id != member.node_id]
        return msgspec.structs.replace(self, members=(*others, member))

    def with_voters(self, voters: Sequence[str]) -> "Membership":
        """Return the joint membership on the way to other voters."""
        return msgspec.structs.replace(self, voters=tuple(voters), outgoing=self.voters)

    def without(self, node_id: str) -> "Membership":
        """Return this membership without one learner."""
        kept = tuple(member for member in self.members if member.node_id != node_id)
        return msgspec.structs.replace(self, members=kept)

    def final(self, removed: Sequence[str] = ()) -> "Membership":
        """Return the membership that a joint one leads to, without the members that are removed."""
        kept = tuple(member for member in self.members if member.node_id not in removed)
        return msgspec.structs.replace(self, members=kept, outgoing=())

    # -- as bytes -----------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the body of a CONFIG_CHANGE entry."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> "Membership":
        """Read the body of a CONFIG_CHANGE entry.

        Raises `UnexpectedArgumentError` if it is not a membership, or has a newer format.
        """
        try:
            found = _MEMBERSHIPS.decode(body)
        except msgspec.MsgspecError as error:
            raise UnexpectedArgumentError(f"no membership: {error}") from error
        if found.format != _FORMAT:
            raise UnexpectedArgumentError(
                f"a membership of format {found.format}; this version reads format {_FORMAT}"
            )
        ids = set(found.ids)
        if not found.voters or not {*found.voters, *found.outgoing} <= ids:
            raise UnexpectedArgumentError(f"voters {found.voters} are not all members {found.ids}")
        if len(found.identity) not in (0, IDENTITY_BYTES):
            raise UnexpectedArgumentError(f"an identity of {len(found.identity)} bytes")
        if len(ids) != len(found.members) or len(ids) > MEMBERS_MAX:
            raise UnexpectedArgumentError(f"members {found.ids}: each once, at most {MEMBERS_MAX}")
        return found


_MEMBERSHIPS: Final = msgspec.msgpack.Decoder(Membership)


def addresses_of(membership: Membership) -> dict[str, str]:
    """Return member id → address."""
    return {member.node_id: member.address for member in membership.members}


def peers_text(addresses: Mapping[str, str]) -> str:
    """Return members and addresses as `peers` of a configuration has them."""
    return ";".join(f"{node_id}-{address}" for node_id, address in addresses.items() if address)


def founding(
    addresses: dict[str, str], *, original_compatible: bool = False, identity: bytes = b""
) -> Membership:
    """Return the membership of a group that is not founded yet: everyone votes.

    A group that was made while nodes run has its `identity` from the beginning.
    """
    members = tuple(Member(node_id, address) for node_id, address in addresses.items())
    return Membership(
        members, tuple(addresses), original_compatible=original_compatible, identity=identity
    )


def identity_of(group: str, membership: Membership) -> bytes:
    """Return the identity of a group founded by these members; empty if one has no number.

    The numbers of their data directories are random, so no other group has this identity, nor has
    the same group if it is founded again.
    """
    numbers = sorted((member.node_id, member.incarnation) for member in membership.members)
    if not all(number for _, number in numbers):
        return b""
    return hashlib.sha256(msgspec.msgpack.encode((group, numbers))).digest()[:IDENTITY_BYTES]
