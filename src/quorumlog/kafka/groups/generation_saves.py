"""What was saved last of a group by the classic protocol, and ids that are saved before the next.

A generation is saved once it is assigned. A static member may get a new id before that; the next
coordinator would take it for a former member with its instance id, and fence it. So the last
generation is saved again, with the new id.
"""

from collections.abc import Callable

from msgspec.structs import replace

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.members import Member
from quorumlog.machine.cluster.commands import SaveGroup

Save = Callable[[SaveGroup, Callable[[ErrorCode], None]], None]
"""(what is to be saved, what is called once with NONE or with why it was not)"""


class GenerationSaves:
    """Saves of one group. `last`: what was to be saved last, maybe by an earlier coordinator."""

    def __init__(self, save: Save) -> None:
        self._save = save
        self.last: SaveGroup | None = None

    def save(self, group: SaveGroup, done: Callable[[ErrorCode], None]) -> None:
        """Have a group saved; `done` is called once."""
        before, self.last = self.last, group

        def ended(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE and self.last is group:
                self.last = before
            done(error)

        self._save(group, ended)

    def with_new_id(self, member: Member, term: int) -> SaveGroup | None:
        """Return the last generation with the new id of a static member, to be saved in a term.

        None: no other member with its instance id was saved.
        """
        if self.last is None or member.instance_id is None:
            return None
        for one in self.last.members:
            if one.instance_id == member.instance_id and one.member_id != member.member_id:
                old_id = one.member_id
                break
        else:
            return None
        new_id = member.member_id
        members = [
            replace(one, member_id=new_id) if one.member_id == old_id else one
            for one in self.last.members
        ]
        leader = new_id if self.last.leader == old_id else self.last.leader
        return replace(self.last, term=term, leader=leader, members=members)
