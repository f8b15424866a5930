"""One group by the consumer protocol (KIP-848), as its coordinator has it: a state machine.

Members say in heartbeats what they are subscribed to and which partitions they use, and are told
which they may use. The group has an *epoch*, which rises when its members, their subscriptions or
their topics change. For each the coordinator makes a *target assignment*, and each member comes to
it by itself (`reconciliation`), which its own epoch says. What a member is told is saved before, so
that whoever coordinates next knows it; targets are not saved, but made anew.
"""

from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.assignors import NOTHING, Partitions
from quorumlog.kafka.groups.consumer_saves import TRY_AGAIN, ConsumerSaves, SaveStore, Waiting
from quorumlog.kafka.groups.consumers import (
    AWAY,
    JOINING,
    LEAVING,
    Answered,
    Consumer,
    ConsumerHeartbeat,
    Consumers,
    HeartbeatAnswer,
)
from quorumlog.kafka.groups.log_topics import LogTopics
from quorumlog.kafka.groups.reconciliation import Held, next_held
from quorumlog.kafka.groups.target_assignment import TargetAssignment, TopicStore
from quorumlog.machine.cluster.consumer_groups import (
    MEMBER_BYTES,
    ConsumerGroupRecord,
    size_of_said,
)

PATTERNS_MAX: Final = 10
"""Different regular expressions that the members of a group may have: a new one is tried on the
names of all topics, in the event loop."""
SAID_MAX: Final = 512 * 1024
"""Bytes of what the members of a group are subscribed to: with what they have, which is at most
all partitions of a cluster, it is saved as one command if need be."""


LOG_ASSIGNORS: Final = ("uniform",)
"""Assignors of groups that read a log, whatever the cluster's default is."""


class ProtocolGroupState(StrEnum):
    """States, by Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ProtocolSettings(NamedTuple):
    """Times in milliseconds. `assignors`: those that members may ask for, the default first."""

    session_ms: int = 45_000
    interval_ms: int = 1_000
    members_max: int = 1_000
    assignors: tuple[str, ...] = ("uniform", "range")


class ProtocolStore(SaveStore, TopicStore, Protocol):
    """What a group needs of its coordinator."""

    def generation_began(self) -> None:
        """A group has another target assignment."""
        ...


class ProtocolGroup:
    """A group and its members. `due_ms`: when `tick` is to be called, in the time of a clock that
    never goes back, or before that; None: nothing is due. `log`: what it reads instead of topics.
    """

    def __init__(
        self,
        record: ConsumerGroupRecord,
        store: ProtocolStore,
        settings: ProtocolSettings,
        now_ms: int,
    ) -> None:
        self.name = record.name
        self.epoch = record.generation
        self.members = Consumers()
        self.settings = settings
        self.looked_at_ms: int | None = None
        """When its coordinator looks at it next."""
        self.due_ms: int | None = None
        self._store = store
        for saved in (record.consumers or {}).values():
            self.members.add(Consumer.restored(saved, settings.session_ms, now_ms))
        self._saved_bytes = self._size_bytes
        self._is_restored = not self.is_unused
        """It goes on from what an earlier coordinator has saved, and has no target yet."""
        if self._is_restored:
            self._due_at(now_ms)
        self.log = record.log
        topics = store if record.log is None else LogTopics(record.log, store.patterns)
        self.target = TargetAssignment(self.epoch, self.members, topics)
        self.saves = ConsumerSaves(
            self.name, record.version, self.members, store, lambda: self.epoch, self._rise_unsaved
        )

    # -- heartbeats ---------------------------------------------------------------------------

    def heartbeat(self, asked: ConsumerHeartbeat, now_ms: int, done: Answered) -> None:
        """Take what a member says; `done` is called once, when what it is told is saved."""
        problem = self._problem_of(asked)
        if problem is not None:
            done(problem)
        elif asked.epoch in (LEAVING, AWAY):
            self._leave(asked, now_ms, done)
        else:
            found = self._joined(asked) if asked.epoch == JOINING else self._known(asked)
            if isinstance(found, HeartbeatAnswer):
                done(found)
            else:
                self._take(found, asked, now_ms, done)

    def _problem_of(self, asked: ConsumerHeartbeat) -> HeartbeatAnswer | None:
        if asked.assignor and asked.assignor not in self.assignors:
            text = f"there is no assignor {asked.assignor!r}, but {', '.join(self.assignors)}"
            return HeartbeatAnswer(ErrorCode.UNSUPPORTED_ASSIGNOR, text=text)
        problem = self._problem_of_pattern(asked.pattern) if asked.pattern else ""
        if problem:
            return HeartbeatAnswer(ErrorCode.INVALID_REGULAR_EXPRESSION, text=problem)
        return None

    def _problem_of_pattern(self, pattern: str) -> str:
        """Return what is wrong with a regular expression; empty: nothing."""
        others = {one.subscription.pattern for one in self.members} - {"", pattern}
        if len(others) >= PATTERNS_MAX:
            return f"a group has at most {PATTERNS_MAX} different regular expressions"
        return self._store.patterns.problem_of(pattern)

    def _known(self, asked: ConsumerHeartbeat) -> Consumer | HeartbeatAnswer:
        """Return the member that has this epoch, or had it before.

        One that has not been told its new epoch yet uses nothing that is not its own. What it says
        of that is not taken for an answer to what it was asked to give up since.
        """
        error = self._fault_of(asked.member_id, asked.instance_id)
        if error is not ErrorCode.NONE:
            return HeartbeatAnswer(error)
        member = self.members.by_id[asked.member_id]
        held, owned = member.held, asked.owned
        if asked.epoch == held.epoch:
            return member
        is_late = asked.epoch == member.previous_epoch and not member.is_away
        if is_late and owned is not None and owned <= held.assigned | held.revoking:
            return member
        text = f"the member has epoch {held.epoch}, and not {asked.epoch}: it joins again"
        return HeartbeatAnswer(ErrorCode.FENCED_MEMBER_EPOCH, text=text)

    def _fault_of(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            current = self.members.static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members.by_id else ErrorCode.UNKNOWN_MEMBER_ID

    def _joined(self, asked: ConsumerHeartbeat) -> Consumer | HeartbeatAnswer:
        """Return the member that joins: a new one, one that comes back, or that joins again."""
        instance_id, member_id = asked.instance_id, asked.member_id
        static_id = None if instance_id is None else self.members.static.get(instance_id)
        if static_id is not None and self.members.by_id[static_id].is_away:
            return self._taken_over(static_id, asked)
        if static_id is not None and static_id != member_id:
            text = f"another member has the instance id {instance_id!r} and has not left"
            return HeartbeatAnswer(ErrorCode.UNRELEASED_INSTANCE_ID, text=text)
        known = self.members.by_id.get(member_id)
        if known is not None and known.instance_id == instance_id:
            return known
        if known is not None:
            text = f"the member has the instance id {known.instance_id!r}"
            return HeartbeatAnswer(ErrorCode.INVALID_REQUEST, text=text)
        member = Consumer(member_id, instance_id)
        member.update(asked)
        is_full = len(self.members) >= self.settings.members_max
        if is_full or self.members.said_bytes + member.said_bytes > SAID_MAX:
            return HeartbeatAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED)
        self.members.add(member)
        self.saves.note(member)
        self._rise()
        return member

    def _taken_over(self, old_id: str, asked: ConsumerHeartbeat) -> Consumer:
        """Give a static member that has come back another id, with the partitions that it had."""
        member = self.members.by_id[old_id]
        self.members.drop(member)
        self.saves.note_removed(old_id)
        self.target.rename(old_id, asked.member_id)
        member.member_id = asked.member_id
        member.held = Held(JOINING, member.held.assigned)
        member.previous_epoch = JOINING
        self.members.add(member)
        self.saves.note(member)
        return member

    def _take(
        self, member: Consumer, asked: ConsumerHeartbeat, now_ms: int, done: Answered
    ) -> None:
        """Have a member come nearer to its target, and answer it."""
        before = member.held
        is_new = not before.epoch
        depends_on, viewer = (member.subscription, member.assignor), member.viewer
        is_changed = self.members.update(member, asked)
        if viewer != member.viewer and member.subscription.pattern:
            self.target.viewer_changed(member)
        if is_changed:
            if self.members.said_bytes > SAID_MAX:
                self._remove(member)
                self.saves.save()
                done(HeartbeatAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
                return
            self.saves.note(member)
            if depends_on != (member.subscription, member.assignor):
                self._rise()
        self._seen(member, now_ms)
        self._renew_target(now_ms)
        is_news = member.is_news(asked.number)
        owned = asked.owned if is_news and asked.epoch == before.epoch else None
        gives_up_all = is_news and asked.epoch == JOINING
        if not self._reconcile(member, NOTHING if gives_up_all else owned, now_ms):
            self.saves.save()
            done(TRY_AGAIN)
            return
        held = member.held
        if owned is not None:
            member.has_confirmed = owned == held.assigned
        elif held.assigned != before.assigned:
            member.has_confirmed = False
        # Until it confirms what it was told, the answer may have got lost: it is told again.
        is_told = asked.says_all or asked.epoch != before.epoch or not member.has_confirmed
        assigned = held.assigned if is_told else None
        answer = HeartbeatAnswer(
            ErrorCode.NONE,
            member.member_id,
            held.epoch,
            assigned,
            session_ms=self.settings.session_ms,
        )
        self.saves.answer(Waiting(member.change, answer, done, is_new))

    def _seen(self, member: Consumer, now_ms: int) -> None:
        if member.seen(self.settings.session_ms, now_ms):
            self.saves.note(member)
        self._due_at(member.session_ends_ms)

    def _reconcile(self, member: Consumer, owned: Partitions | None, now_ms: int) -> bool:
        """Have a member come nearer to its target; False: there is no room for it to be told so."""
        if member.is_away:
            return True
        before, member_id = member.held, member.member_id
        target = self.target.of(member_id)
        held = next_held(
            before,
            target,
            self.target.epoch,
            owned,
            lambda one: self.members.is_free(one, member_id),
        )
        if held is before:
            return True
        if not self.saves.may_wait(len(held.assigned)):
            return False
        if held.epoch != before.epoch:
            member.previous_epoch = before.epoch
        self.members.hold(member, held)
        member.revoke_by_ms = now_ms + member.rebalance_timeout_ms if held.revoking else None
        if member.revoke_by_ms is not None:
            self._due_at(member.revoke_by_ms)
        self.saves.note(member)
        return True

    def _leave(self, asked: ConsumerHeartbeat, now_ms: int, done: Answered) -> None:
        """Remove a member, or note that a static one comes back."""
        error = self._fault_of(asked.member_id, asked.instance_id)
        if error is not ErrorCode.NONE:
            done(HeartbeatAnswer(error))
            return
        member = self.members.by_id[asked.member_id]
        if asked.epoch == AWAY and member.instance_id is not None:
            member.revoke_by_ms = None
            self._seen(member, now_ms)
            self.members.hold(member, Held(AWAY, member.held.assigned))
            self.saves.note(member)
        else:
            self._remove(member)
        answer = HeartbeatAnswer(ErrorCode.NONE, asked.member_id, asked.epoch)
        self.saves.answer(Waiting(self.saves.changes, answer, done))

    def _remove(self, member: Consumer) -> None:
        self.members.drop(member)
        self.saves.note_removed(member.member_id)
        self._rise()

    # -- offsets ------------------------------------------------------------------------------

    def may_commit(
        self, member_id: str, instance_id: str | None, epoch: int, now_ms: int
    ) -> ErrorCode:
        """Return why offsets must not be committed; NONE: they may be.

        Who names no epoch may as long as there are no members, whatever its id: clients that have
        one before they join say it.
        """
        if epoch < 0 and not len(self.members):
            return ErrorCode.NONE
        error = self._fault_of(member_id, instance_id)
        if error is ErrorCode.NONE and self.members.by_id[member_id].held.epoch != epoch:
            return ErrorCode.STALE_MEMBER_EPOCH
        return error

    def may_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Return why offsets must not be fetched; NONE: they may be, as by whoever is no member."""
        if not member_id and epoch < 0:
            return ErrorCode.NONE
        return self.may_commit(member_id or "", None, epoch, 0)

    # -- target assignment --------------------------------------------------------------------

    def _rise(self) -> None:
        """What the target depends on has changed."""
        self.epoch += 1
        self.target.members_changed()

    def _rise_unsaved(self) -> None:
        """Have the epoch rise that members are told from now on, as it is not saved."""
        self._rise()
        self.target.hurry()  # until then members would get partitions with the epoch of before

    def _renew_target(self, now_ms: int) -> None:
        """Make another target if members, subscriptions or topics have changed.

        After another coordinator, the epoch that it has saved stays if all members have what they
        shall have.
        """
        if self.target.look_at_topics():
            self.epoch += 1
        assignors = self.assignors
        if self._is_restored:
            self._is_restored = False
            epochs = {member.held.epoch for member in self.members if not member.is_away}
            if epochs - {self.epoch} or not self.target.is_as_before(assignors):
                self.epoch += 1
        elif not self.target.is_due(self.epoch, now_ms):
            return
        self.target.make(self.epoch, assignors, now_ms)
        self._store.generation_began()

    @property
    def assignors(self) -> tuple[str, ...]:
        """Those that members may ask for, the default first.

        A log is assigned uniformly, so that who joins takes no partition from the one that has it.
        """
        return self.settings.assignors if self.log is None else LOG_ASSIGNORS

    @property
    def subscribed(self) -> frozenset[str]:
        """The names of the topics that members are subscribed to."""
        return frozenset[str]().union(*map(self.target.names_of, self.members))

    # -- time ---------------------------------------------------------------------------------

    @property
    def state(self) -> ProtocolGroupState:
        """Its state, by Kafka's name."""
        if not len(self.members):
            return ProtocolGroupState.EMPTY
        if self._is_restored or self.epoch > self.target.epoch:
            return ProtocolGroupState.ASSIGNING
        there = [one.held for one in self.members if not one.is_away]
        is_stable = all(one.epoch == self.target.epoch and not one.waits for one in there)
        return ProtocolGroupState.STABLE if is_stable else ProtocolGroupState.RECONCILING

    @property
    def is_unused(self) -> bool:
        """Whether it has no members."""
        return not len(self.members)

    def growth_bytes(self, asked: ConsumerHeartbeat) -> int:
        """Return about how many bytes more it takes once a member has said this."""
        if asked.topics is None and asked.pattern is None:
            return 0
        said = size_of_said(asked.topics or (), asked.pattern or "", asked.assignor or "")
        member = self.members.by_id.get(asked.member_id)
        return said + MEMBER_BYTES if member is None else said - member.said_bytes

    def unsaved_bytes(self, record: ConsumerGroupRecord | None) -> int:
        """Return about how many bytes it has come to take since it was saved, with its `record`."""
        size_bytes = self._size_bytes
        if self.saves.is_saved:
            self._saved_bytes = size_bytes
        return max(0, size_bytes - self._saved_bytes)

    @property
    def _size_bytes(self) -> int:
        return MEMBER_BYTES * len(self.members) + self.members.said_bytes

    def _due_at(self, at_ms: int) -> None:
        self.due_ms = at_ms if self.due_ms is None else min(self.due_ms, at_ms)

    def tick(self, now_ms: int) -> None:
        """Remove members that say nothing, or do not give up what they are asked to, for too long.

        They join again as new ones.
        """
        self.due_ms = None
        for member in list(self.members):
            ends = member.session_ends_ms
            if member.revoke_by_ms is not None:
                ends = min(ends, member.revoke_by_ms)
            if ends <= now_ms:
                self._remove(member)
            else:
                self._due_at(ends)
        self.saves.save()

    def end(self, error: ErrorCode) -> None:
        """Answer all who wait: this node does not have the group in memory any more."""
        self.saves.end(error)
