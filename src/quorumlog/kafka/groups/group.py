"""One consumer group, as its coordinator has it: Kafka's classic protocol, as a state machine.

A group gets a new *generation* whenever its members change. Members join, one of them leads and
assigns partitions to all, and each is told its part when it syncs. The assignment is saved before
anybody is told, so that whoever coordinates next has it. So is the new id of a static member.

Rules are Kafka's (KIP-62, 134, 345, 394, 814): a group without members waits a little for more of
them to come; later ones join within the longest rebalance time-out of the members; who does not is
removed, unless it is static; a static member that comes back has the assignment that it had.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.generation_saves import GenerationSaves
from quorumlog.kafka.groups.members import (
    JoinAnswer,
    Joined,
    JoinedMember,
    JoinRequest,
    Member,
    SyncAnswer,
    Synced,
    SyncRequest,
)
from quorumlog.kafka.groups.membership import (
    Membership,
    common_protocols,
    size_of,
    size_of_protocols,
)
from quorumlog.machine.cluster.commands import MEMBERS_MAX, SaveGroup
from quorumlog.machine.cluster.consumer_groups import ConsumerGroupRecord

BYTES_MAX: Final = 768 * 1024
"""What the members of a group say of themselves, and are assigned: it is saved as one command."""


class GroupState(StrEnum):
    """States, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupSettings(NamedTuple):
    """Times in milliseconds. `initial_delay_ms`: how long an empty group waits for more members."""

    session_min_ms: int = 6_000
    session_max_ms: int = 1_800_000
    initial_delay_ms: int = 3_000


class GroupStore(Protocol):
    """What a group needs of its coordinator."""

    @property
    def term(self) -> int:
        """The term of `__cluster` in which it coordinates."""
        ...

    def now_ms(self) -> int:
        """Return the time, of the same clock as that of the calls."""
        ...

    def new_member_id(self, prefix: str) -> str:
        """Return an id that no member has had."""
        ...

    def generation_began(self) -> None:
        """A group has a new generation with members: it has rebalanced."""
        ...

    def save(self, group: SaveGroup, done: Callable[[ErrorCode], None]) -> None:
        """Have a group saved; call `done` once, with NONE or with why it was not."""
        ...


class ConsumerGroup:
    """A group and its members. `due_ms`: when `tick` is to be called, in the time of a clock that
    never goes back; None: nothing is due.
    """

    def __init__(self, name: str, settings: GroupSettings, store: GroupStore) -> None:
        self.name = name
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str = ""
        self.members = Membership()
        self.settings = settings
        self.looked_at_ms: int | None = None
        """When its coordinator looks at it next."""
        self._store = store
        self._rebalance_due_ms = 0
        self._initial_end_ms: int | None = None
        """While the members of an empty group gather: the latest end of that."""
        self._saves = GenerationSaves(store.save)
        self._assignments = 0
        """Assignments that were made or given up: only the last one counts once it is saved."""

    # -- joining ------------------------------------------------------------------------------

    def join(self, request: JoinRequest, now_ms: int, joined: Joined) -> None:
        """Take a consumer as a member; `joined` is called once, when the generation is complete."""
        error = _refusal(request, self.members, self.settings, self.protocol_type)
        if error is not ErrorCode.NONE:
            joined(JoinAnswer(error, request.member_id))
        elif not request.member_id:
            self._join_anew(request, now_ms, joined)
        else:
            self._join_again(request, now_ms, joined)

    def _join_anew(self, request: JoinRequest, now_ms: int, joined: Joined) -> None:
        if request.instance_id is not None:
            member_id = self._store.new_member_id(request.instance_id)
            if request.instance_id in self.members.static:
                self._replace_static(request, member_id, now_ms, joined)
            else:
                self._add(request, member_id, now_ms, joined)
            return
        member_id = self._store.new_member_id(request.client_id)
        if request.knows_ids:
            # so that one whose answer was lost does not become another member each time (KIP-394)
            self.members.expect(member_id, now_ms + request.session_timeout_ms)
            joined(JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(request, member_id, now_ms, joined)

    def _join_again(self, request: JoinRequest, now_ms: int, joined: Joined) -> None:
        member_id = request.member_id
        if self.members.no_longer_expect(member_id):
            self._add(request, member_id, now_ms, joined)
            return
        error = self.members.fault_of(member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            joined(JoinAnswer(error, member_id))
            return
        member = self.members.by_id[member_id]
        member.seen_ms = now_ms
        is_changed = member.protocols != request.protocols
        if (self.state is GroupState.COMPLETING and not is_changed) or (
            # a leader that joins again wants to assign anew; others have missed the answer
            self.state is GroupState.STABLE and not is_changed and member_id != self.leader
        ):
            member.is_absent = False
            joined(self._joined(member))
            return
        self.members.update(member, request)
        self._wait_for_join(member, joined)
        self._rebalance(now_ms)

    def _add(self, request: JoinRequest, member_id: str, now_ms: int, joined: Joined) -> None:
        member = Member.joining(request, member_id, now_ms)
        if not self.members.by_id:
            self.protocol_type = request.protocol_type
        self.members.add(member)
        self._wait_for_join(member, joined)
        self._save_new_id(member)
        self._rebalance(now_ms, has_newcomer=True)

    def _replace_static(
        self, request: JoinRequest, member_id: str, now_ms: int, joined: Joined
    ) -> None:
        """A static member has come back: it gets another id, and whoever has the old one is out."""
        instance_id = request.instance_id or ""
        old_id = self.members.static[instance_id]
        was_leader = old_id == self.leader
        member = self.members.take_over(instance_id, member_id)
        member.seen_ms, member.is_absent = now_ms, False
        self.members.update(member, request)
        self.leader = member_id if was_leader else self.leader
        if self.state is not GroupState.STABLE or self.members.selected() != self.protocol:
            self._wait_for_join(member, joined)
            self._save_new_id(member)
            self._rebalance(now_ms)
            return
        may_skip = request.may_skip  # who waits shall not hold the request, which may be large

        def saved(error: ErrorCode) -> None:
            member = self.members.by_id.get(member_id)
            if self.state is GroupState.DEAD:
                error = error or ErrorCode.NOT_COORDINATOR
            if error or member is None:
                joined(JoinAnswer(error or ErrorCode.UNKNOWN_MEMBER_ID, member_id))
            elif not was_leader:
                joined(self._joined(member))
            elif may_skip:
                joined(self._joined(member)._replace(skips_assignment=True))
            else:  # it must not take itself for the leader, as it would assign
                joined(self._joined(member)._replace(leader=old_id, members=()))

        self._saves.save(self.saved(), saved)

    def _save_new_id(self, member: Member) -> None:
        """Have a static member's new id saved before it is told (`generation_saves`)."""
        member_id = member.member_id
        renamed = self._saves.with_new_id(member, self._store.term)
        if renamed is None:
            return

        def saved(error: ErrorCode) -> None:
            member = self.members.by_id.get(member_id)  # held by nobody else once it has left
            if member is None or self.state is GroupState.DEAD:
                return  # it has been answered
            member.is_unsaved = False
            if error is not ErrorCode.NONE:
                member.answer_join(JoinAnswer(error, member_id))
            else:
                self._rebalance(self._store.now_ms())

        member.is_unsaved = True
        self._saves.save(renamed, saved)

    @staticmethod
    def _wait_for_join(member: Member, joined: Joined) -> None:
        member.answer_join(JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.joined = joined

    def _joined(self, member: Member) -> JoinAnswer:
        is_leader = member.member_id == self.leader
        told = [
            JoinedMember(one.member_id, one.instance_id, one.metadata(self.protocol))
            for one in (self.members if is_leader else ())
        ]
        return JoinAnswer(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            told,
        )

    # -- rebalancing --------------------------------------------------------------------------

    def _rebalance(self, now_ms: int, *, has_newcomer: bool = False) -> None:
        """Have all members join again, or go on with that."""
        if self.state is GroupState.COMPLETING:
            self._forget_assignment(ErrorCode.REBALANCE_IN_PROGRESS)
        if self.state is GroupState.EMPTY:
            self._initial_end_ms = now_ms + self.members.rebalance_timeout_ms
            self._rebalance_due_ms = now_ms
        elif self.state is not GroupState.PREPARING:
            self._rebalance_due_ms = now_ms + self.members.rebalance_timeout_ms
        self.state = GroupState.PREPARING
        if self._initial_end_ms is not None and has_newcomer:
            self._rebalance_due_ms = min(
                now_ms + self.settings.initial_delay_ms, self._initial_end_ms
            )
        self._complete_join_if_all_are_there(now_ms)

    def _complete_join_if_all_are_there(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING:
            return
        if self._initial_end_ms is not None:
            if not self.members.by_id or now_ms >= self._rebalance_due_ms:
                self._complete_join(now_ms)
        elif self.members.have_all_joined:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Begin a generation with those who have joined."""
        self._initial_end_ms = None
        for member in list(self.members):
            if member.joined is None and member.instance_id is None:
                self.members.drop(member)
        joined = [one.member_id for one in self.members if one.has_joined]
        if self.members.by_id and not joined:
            self._rebalance_due_ms = now_ms + self.members.rebalance_timeout_ms
            return  # all are static, and none has come back yet
        self.generation += 1
        if not joined:
            self._become_empty()
            return
        self._store.generation_began()
        self.protocol = self.members.selected()
        if self.leader not in joined:
            self.leader = joined[0]
        self.state = GroupState.COMPLETING
        self._rebalance_due_ms = now_ms + self.members.rebalance_timeout_ms
        self.members.assign({})
        for member in self.members:
            member.seen_ms, member.is_absent = now_ms, not member.has_joined
        for member in list(self.members):
            if member.has_joined:
                member.answer_join(self._joined(member))

    def _become_empty(self) -> None:
        self.state, self.protocol, self.leader = GroupState.EMPTY, None, ""
        self._saves.save(self.saved(), lambda error: None)

    def _forget_assignment(self, error: ErrorCode) -> None:
        self._assignments += 1
        self.members.assign({})
        for member in list(self.members):
            member.answer_sync(SyncAnswer(error))

    # -- syncing ------------------------------------------------------------------------------

    def sync(self, request: SyncRequest, now_ms: int, synced: Synced) -> None:
        """Tell a member what it is assigned, once that is known; `synced` is called once."""
        error = self._fault_of(request.member_id, request.instance_id, request.generation)
        if error is ErrorCode.NONE and (
            request.protocol_type not in (None, self.protocol_type)
            or request.protocol not in (None, self.protocol)
        ):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is ErrorCode.NONE and self.state is GroupState.PREPARING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            synced(SyncAnswer(error))
            return
        member = self.members.by_id[request.member_id]
        member.seen_ms = now_ms
        if self.state is GroupState.STABLE:
            synced(self._synced(member))
            return
        member.answer_sync(SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        member.synced = synced
        if member.member_id == self.leader:
            self._assign(request.assignments, now_ms)

    def _assign(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        self.members.assign(assignments)
        if size_of(self.members) > BYTES_MAX:
            self._forget_assignment(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self._assignments += 1
        number = self._assignments

        def saved(error: ErrorCode) -> None:
            if number != self._assignments:
                return
            if error is not ErrorCode.NONE:
                self._forget_assignment(error)
                return
            self.state = GroupState.STABLE
            for member in list(self.members):
                if member.synced is not None:
                    member.seen_ms = max(member.seen_ms, now_ms)
                member.answer_sync(self._synced(member))

        self._saves.save(self.saved(), saved)

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    # -- members that are there, and that leave -----------------------------------------------

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Note that a member is alive; return what it has to know."""
        error = self._fault_of(member_id, instance_id, generation)
        if error is ErrorCode.NONE:
            self.members.by_id[member_id].seen_ms = now_ms
            if self.state is GroupState.PREPARING:
                return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def may_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Return why offsets must not be committed; NONE: they may be.

        Who names no generation may as long as there are no members, whatever its id: clients that
        have one before they join say it. While the members join again, they commit what they have
        done so far; once there is a new generation, its partitions may be others'.
        """
        if generation < 0 and not self.members.by_id:
            return ErrorCode.NONE
        error = self._fault_of(member_id, instance_id, generation)
        if error is ErrorCode.NONE:
            self.members.by_id[member_id].seen_ms = now_ms
            if self.state is GroupState.COMPLETING:
                return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> ErrorCode:
        """Remove a member, or whoever has this instance id if no member is named."""
        if instance_id is not None and not member_id:
            member_id = self.members.static.get(instance_id, "")
        if instance_id is None and self.members.no_longer_expect(member_id):
            self._complete_join_if_all_are_there(now_ms)
            return ErrorCode.NONE
        error = self.members.fault_of(member_id, instance_id)
        if error is ErrorCode.NONE:
            self._remove(self.members.by_id[member_id], now_ms)
        return error

    def _fault_of(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        return self.members.fault_of(member_id, instance_id, (generation, self.generation))

    def _remove(self, member: Member, now_ms: int) -> None:
        self.members.drop(member)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._rebalance(now_ms)
        else:
            self._complete_join_if_all_are_there(now_ms)

    # -- time ---------------------------------------------------------------------------------

    @property
    def due_ms(self) -> int | None:
        """When something may be due; None: never, as things are."""
        due = self.members.due_ms
        if self.state in (GroupState.PREPARING, GroupState.COMPLETING):
            due = min(self._rebalance_due_ms, self._rebalance_due_ms if due is None else due)
        return due

    @property
    def is_unused(self) -> bool:
        """Whether it has no members, and nobody is about to be one."""
        return self.state is GroupState.EMPTY and not len(self.members)

    def tick(self, now_ms: int) -> None:
        """Do what is due."""
        self.members.forget_late(now_ms)
        for member in list(self.members):
            if now_ms - member.seen_ms < member.session_timeout_ms:
                continue
            if member.waits:
                member.seen_ms = now_ms  # it has nothing to say until it is answered
            elif member.member_id in self.members.by_id:
                self._remove(member, now_ms)
        self._complete_join_if_all_are_there(now_ms)
        if now_ms < self._rebalance_due_ms:
            return
        if self.state is GroupState.PREPARING:
            self._complete_join(now_ms)
        elif self.state is GroupState.COMPLETING:
            self._end_sync(now_ms)

    def _end_sync(self, now_ms: int) -> None:
        """Remove those who joined and did not sync in time: without the leader nobody goes on."""
        late = [one for one in self.members if one.synced is None and not one.is_absent]
        self._rebalance_due_ms = now_ms + self.members.rebalance_timeout_ms
        for member in late:
            if member.member_id in self.members.by_id:
                self._remove(member, now_ms)

    # -- as a whole ---------------------------------------------------------------------------

    def unsaved_bytes(self, record: ConsumerGroupRecord | None) -> int:
        """Return about how many bytes it takes in memory beyond its record; None: it has none."""
        return self.members.unsaved_bytes(self.name, record)

    def saved(self) -> SaveGroup:
        """Return what the next coordinator has to know."""
        return SaveGroup(
            self._store.term,
            self.name,
            self.generation,
            self.protocol_type or "",
            self.protocol or "",
            self.leader,
            self.members.saved(self.protocol),
        )

    def restore(self, saved: ConsumerGroupRecord, now_ms: int) -> None:
        """Go on from what an earlier coordinator has saved; members have a whole session time."""
        self.generation = saved.generation
        self.protocol_type, self.protocol = saved.protocol_type or None, saved.protocol or None
        self.leader = saved.leader
        self.members.restore(saved.members, saved.protocol, now_ms)
        self.state = GroupState.STABLE if self.members.by_id else GroupState.EMPTY
        self._saves.saved = self.saved()

    def end(self, error: ErrorCode) -> None:
        """Answer all who wait: this node coordinates the group no more, or the group is deleted."""
        self.state = GroupState.DEAD
        self._assignments += 1
        for member in self.members:
            member.answer_join(JoinAnswer(error, member.member_id))
            member.answer_sync(SyncAnswer(error))


def _refusal(
    request: JoinRequest, members: Membership, settings: GroupSettings, protocol_type: str | None
) -> ErrorCode:
    """Return why a consumer cannot be a member of a group, with these members; NONE: it can."""
    if not settings.session_min_ms <= request.session_timeout_ms <= settings.session_max_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    others = members.others(request.member_id, request.instance_id)
    names = {one.name for one in request.protocols}
    if not names or not request.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if others and (request.protocol_type != protocol_type or not names & common_protocols(others)):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    is_known = request.member_id in members.by_id or request.member_id in members.pending
    is_new = not is_known and request.instance_id not in members.static
    said = size_of_protocols(request.protocols)
    if (is_new and len(members) >= MEMBERS_MAX) or said + size_of(others) > BYTES_MAX:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    return ErrorCode.NONE
