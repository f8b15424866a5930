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
    """Saves of one group. `saved`: what was saved last, maybe by an earlier coordinator.

    Many saves may be under way for long: those who wait for them hold only their numbers.
    """

    def __init__(self, save: Save) -> None:
        self._save = save
        self.saved: SaveGroup | None = None
        self._number = 0
        self._pending: list[tuple[int, SaveGroup]] = []
        """By their numbers, the oldest save that has not ended, which may be the one under way, and
        the newest one, which is saved after that in place of those between them."""

    @property
    def last(self) -> SaveGroup | None:
        """What is to be saved last, as far as no save of it has failed."""
        return self._pending[-1][1] if self._pending else self.saved

    def save(self, group: SaveGroup, done: Callable[[ErrorCode], None]) -> None:
        """Have a group saved; `done` is called once."""
        self._number += 1
        number = self._number

        def ended(error: ErrorCode) -> None:
            self._end(number, error)
            done(error)

        self._pending.append((number, group))
        self._save(group, ended)  # if it is refused, the one before it remains the newest
        del self._pending[1:-1]

    def _end(self, number: int, error: ErrorCode) -> None:
        for at, (one, group) in enumerate(self._pending):
            if one != number:
                continue
            if error is ErrorCode.NONE:
                self.saved = group
                del self._pending[: at + 1]
            else:
                del self._pending[at]
            return

    def with_new_id(self, member: Member, term: int) -> SaveGroup | None:
        """Return the last generation with the new id of a static member, to be saved in a term.

        None: no other member with its instance id was saved.
        """
        last = self.last
        if last is None or member.instance_id is None:
            return None
        for one in last.members:
            if one.instance_id == member.instance_id and one.member_id != member.member_id:
                old_id = one.member_id
                break
        else:
            return None
        new_id = member.member_id
        members = [
            replace(one, member_id=new_id) if one.member_id == old_id else one
            for one in last.members
        ]
        leader = new_id if last.leader == old_id else last.leader
        return replace(last, term=term, leader=leader, members=members)
