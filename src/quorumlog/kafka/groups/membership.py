"""The members of a consumer group, static ones by their instance ids, and pending ones."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.members import (
    GroupProtocol,
    JoinAnswer,
    JoinRequest,
    Member,
    SyncAnswer,
)
from quorumlog.machine.cluster.commands import SavedMember
from quorumlog.machine.cluster.consumer_groups import (
    GROUP_BYTES,
    MEMBER_BYTES,
    ConsumerGroupRecord,
    size_of_texts,
)


class Membership:
    """Who is in a group. `pending`: ids that were given to those who have not come back with them,
    and until when they may.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        """The ids of static members, by their instance ids."""
        self.pending: dict[str, int] = {}
        self.size_bytes = 0
        """About how many bytes it takes; see `size_of`."""
        self._saved: tuple[object, int] = None, 0
        """Members of a record, and how many bytes it takes."""

    def __len__(self) -> int:
        return len(self.by_id) + len(self.pending)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_id.values())

    # -- who is in it -------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Take a member."""
        self.by_id[member.member_id] = member
        self.size_bytes += size_of((member,))
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def drop(self, member: Member) -> None:
        """Remove a member; what it waits for is answered."""
        del self.by_id[member.member_id]
        self.size_bytes -= size_of((member,))
        if member.instance_id is not None:
            del self.static[member.instance_id]
        member.answer_join(JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))
        member.answer_sync(SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))

    def take_over(self, instance_id: str, member_id: str) -> Member:
        """Give a static member another id; whoever has the old one is fenced."""
        old_id = self.static[instance_id]
        member = self.by_id.pop(old_id)
        self.size_bytes -= size_of((member,))
        member.answer_join(JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, old_id))
        member.answer_sync(SyncAnswer(ErrorCode.FENCED_INSTANCE_ID))
        member.member_id = member_id
        self.add(member)
        return member

    def expect(self, member_id: str, until_ms: int) -> None:
        """Note an id that was given to somebody, who may come back with it until then."""
        self.pending[member_id] = until_ms
        self.size_bytes += _size_of_pending(member_id)

    def no_longer_expect(self, member_id: str) -> bool:
        """Forget an id that was given to somebody; return whether it was one."""
        is_one = self.pending.pop(member_id, None) is not None
        self.size_bytes -= _size_of_pending(member_id) if is_one else 0
        return is_one

    def forget_late(self, now_ms: int) -> None:
        """Forget ids that nobody has come back with in time."""
        for member_id, until_ms in list(self.pending.items()):
            if until_ms <= now_ms:
                self.no_longer_expect(member_id)

    def fault_of(
        self, member_id: str, instance_id: str | None, generation: tuple[int, int] | None = None
    ) -> ErrorCode:
        """Return why a request is not one of a present member.

        `generation`: the one that it says, and the one that there is.
        """
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.by_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation is not None and (
            generation[0] != generation[1] or self.by_id[member_id].is_absent
        ):
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def others(self, member_id: str, instance_id: str | None) -> list[Member]:
        """Return all but one, which may be known by its instance id."""
        own = self.static.get(instance_id or "", member_id)
        return [one for one in self.by_id.values() if one.member_id != own]

    # -- what they say, and are assigned ------------------------------------------------------

    def update(self, member: Member, request: JoinRequest) -> None:
        """Take what a member says of itself now."""
        self.size_bytes -= size_of((member,))
        member.update(request)
        self.size_bytes += size_of((member,))

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Note what members are assigned, by their ids; all others nothing."""
        for member in self.by_id.values():
            assignment = assignments.get(member.member_id, b"")
            self.size_bytes += len(assignment) - len(member.assignment)
            member.assignment = assignment

    def growth_bytes(self, request: JoinRequest) -> int:
        """Return about how many bytes more it takes once somebody has joined."""
        own = self.by_id.get(self.static.get(request.instance_id or "", request.member_id))
        texts = size_of_texts(
            request.member_id, request.instance_id, request.client_id, request.client_host
        )
        more = MEMBER_BYTES + texts + size_of_protocols(request.protocols)
        return more - (0 if own is None else size_of((own,)) - len(own.assignment))

    def selected(self) -> str:
        """Return the protocol that most members like best of those that all of them know."""
        members = list(self.by_id.values())
        common = common_protocols(members)
        votes = Counter(
            next(one.name for one in each.protocols if one.name in common) for each in members
        )
        return max(votes.items(), key=lambda vote: (vote[1], vote[0]))[0]

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance may take: as long as any member says."""
        return max((one.rebalance_timeout_ms for one in self.by_id.values()), default=0)

    @property
    def have_all_joined(self) -> bool:
        """Whether nobody is waited for."""
        return not self.pending and all(one.has_joined for one in self.by_id.values())

    @property
    def due_ms(self) -> int | None:
        """When a session, or the time of a pending member, is over; None: there are none."""
        due = [one.seen_ms + one.session_timeout_ms for one in self.by_id.values()]
        return min([*due, *self.pending.values()], default=None)

    def unsaved_bytes(self, name: str, record: ConsumerGroupRecord | None) -> int:
        """Return about how many bytes a group of this name takes beyond its record, if any."""
        size_bytes = GROUP_BYTES + size_of_texts(name) + self.size_bytes
        if record is None:
            return size_bytes
        if self._saved[0] is not record.members:
            self._saved = record.members, record.member_bytes
        return max(0, size_bytes - self._saved[1])

    # -- as a whole ---------------------------------------------------------------------------

    def saved(self, protocol: str | None) -> list[SavedMember]:
        """Return the members as they are saved."""
        return [
            SavedMember(
                one.member_id,
                one.instance_id,
                one.client_id,
                one.client_host,
                one.session_timeout_ms,
                one.rebalance_timeout_ms,
                one.metadata(protocol),
                one.assignment,
            )
            for one in self.by_id.values()
        ]

    def restore(self, members: Iterable[SavedMember], protocol: str, now_ms: int) -> None:
        """Take members that were saved, as if they had been seen now."""
        for one in members:
            self.add(
                Member(
                    one.member_id,
                    one.instance_id,
                    one.client_id,
                    one.client_host,
                    one.session_timeout_ms,
                    one.rebalance_timeout_ms,
                    (GroupProtocol(protocol, one.metadata),),
                    one.assignment,
                    now_ms,
                )
            )


def common_protocols(members: Iterable[Member]) -> set[str]:
    """Return the protocols that all of some members know."""
    return set.intersection(*({one.name for one in each.protocols} for each in members))


def size_of(members: Iterable[Member]) -> int:
    """Return about how many bytes members say of themselves, and are assigned."""
    return sum(
        MEMBER_BYTES
        + size_of_texts(each.member_id, each.instance_id, each.client_id, each.client_host)
        + size_of_protocols(each.protocols)
        + len(each.assignment)
        for each in members
    )


def _size_of_pending(member_id: str) -> int:
    return MEMBER_BYTES + size_of_texts(member_id)


def size_of_protocols(protocols: Iterable[GroupProtocol]) -> int:
    """Return how many bytes somebody says for some protocols."""
    return sum(len(one.name.encode()) + len(one.metadata) for one in protocols)
