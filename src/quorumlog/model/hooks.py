"""What the program around a node is told about its groups, and the functions that it is told by."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from quorumlog.model.codes import Role


@dataclass(frozen=True, slots=True)
class AppendPlace:
    """Where an entry goes that a leader is about to append.

    Attributes:
        index: its index.
        term: the leader's term.
        position: where the entry starts in the leader's data files, in bytes from the start of the
            first one; its body starts 48 bytes later. It becomes the `pos` of the entry.
        channel: its channel.
    """

    index: int
    term: int
    position: int
    channel: int


@dataclass(frozen=True, slots=True)
class RoleChange:
    """A replica has another role, term or leader than before.

    Attributes:
        group: name of the group.
        role: the replica's role.
        term: the term in which it has it.
        leader_id: the leader of the term, None if it is not known (yet).
    """

    group: str
    role: Role
    term: int
    leader_id: str | None


AppendHook: TypeAlias = Callable[[AppendPlace, memoryview], None]
"""Called once with each entry that a user appends, on the leader, once its place is known and
before its CRCs are computed. It may change the bytes of the body, not their number. If it raises,
the whole append is refused with `HookRefusedError`."""
RoleListener: TypeAlias = Callable[[RoleChange], None]
"""Called on the event loop's thread while a replica takes its role: it raises nothing, calls
nothing of the node, and takes no time."""
