"""The coordinator of all consumer groups: the broker whose node leads `__cluster`.

It has groups in memory while it leads, and saves in `__cluster` what the next one needs to go on.
What it decides is applied only in the term in which it leads.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from quorumlog.auth.permits import Authorizer
from quorumlog.kafka.broker_view import BrokerView
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.expiry import ExpiryClock
from quorumlog.kafka.groups.consumer_protocol import (
    ProtocolGroup,
    ProtocolSettings,
)
from quorumlog.kafka.groups.consumer_saves import SavedAnswer
from quorumlog.kafka.groups.consumers import (
    JOINING,
    Answered,
    ConsumerHeartbeat,
    HeartbeatAnswer,
)
from quorumlog.kafka.groups.group import ConsumerGroup, GroupSettings, GroupState
from quorumlog.kafka.groups.group_saves import SAVE_MS, GroupSaves
from quorumlog.kafka.groups.members import JoinAnswer, Joined, JoinRequest
from quorumlog.kafka.groups.memory_use import NO_ROOM, MemoryUse
from quorumlog.kafka.groups.topic_patterns import TopicPatterns
from quorumlog.machine.cluster.commands import ForgetGroups, SaveConsumers, SaveGroup
from quorumlog.machine.cluster.consumer_groups import GROUPS_MAX, ConsumerGroupRecord, LogToRead
from quorumlog.model.topic_configs import (
    CONSUMER_ASSIGNORS,
    CONSUMER_INTERVAL,
    CONSUMER_MEMBERS_MAX,
    CONSUMER_SESSION,
    GROUP_INITIAL_DELAY,
    GROUP_SESSION_MAX,
    GROUP_SESSION_MIN,
    OFFSETS_RETENTION,
    cluster_default,
)

TICK_S: Final = 0.05
"""Pause between two looks at what is due."""
SAVE_AGAIN_MS: Final = 1_000
"""Pause before groups are saved again that could not be."""
EXPIRE_EVERY_MS: Final = 600_000
"""Pause between two looks for groups that nobody has used for long."""
FORGOTTEN_MAX: Final = 1_000
"""Groups that are forgotten with one command."""
TAKEN_PER_TICK: Final = 200
"""Groups that are taken over in one turn of the loop; those that are asked for are so at once."""
DUE_MIN: Final = 1_000
"""So many times may be noted that are over, beside two for each group."""
_MINUTE_MS: Final = 60_000
_BUSY: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
"""A group has no members any more, which is being saved: it may be joined in a moment."""


AnyGroup: TypeAlias = ConsumerGroup | ProtocolGroup
"""A group by the classic protocol, or by the consumer protocol."""


class GroupCoordinator:
    """All groups that have members, or had some lately.

    Times are in milliseconds: `now_ms` of a clock that never goes back, `wall_ms` in Unix time.
    `later` calls a function after some seconds, on the event loop's thread. `counters` gets the
    number of rebalances. `authorizer`: by whom it is judged which topics members may see that
    subscribe by regular expression; None: all.
    """

    def __init__(
        self,
        broker: BrokerView,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        unique: Callable[[], str],
        later: Callable[[float, Callable[[], None]], object],
        counters: KafkaCounters,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.term = -1
        self._broker = broker
        self.now_ms = now_ms
        self._expiry = ExpiryClock(now_ms, wall_ms)
        self.new_id = unique
        """Returns an id for a member by the consumer protocol that has none."""
        self._later = later
        self._counters = counters
        self.patterns = TopicPatterns(broker, authorizer)
        self._protocol_settings = -1, ProtocolSettings()  # of a version of the metadata
        self._groups: dict[str, AnyGroup] = {}
        self._due: list[tuple[int, str]] = []
        """When groups may have something to do; what is not the next time of its group is over."""
        self._saves = GroupSaves(broker, self.unsaved, self._save_ended)
        self.to_save: dict[str, None] = {}
        """Groups that are not saved as they are, as a disk was full, say: it is tried again."""
        self.held: set[str] = set()
        """Groups that nobody may join now, as it is not known yet what they consume."""
        self._to_take: list[str] = []
        """Groups with members that an earlier coordinator had."""
        self._use = MemoryUse(self._broker)
        self._expire_ms = self._save_ms = 0
        self._is_ticking = False
        self._has_ended = False

    # -- who coordinates ----------------------------------------------------------------------

    def is_current(self) -> bool:
        """Whether this node coordinates now; it takes or gives up the groups if that has changed.

        Another node may have taken over without this one knowing yet. It saves nothing then.
        """
        term = self._broker.coordinator_term
        if term != self.term:
            self._give_up(ErrorCode.NOT_COORDINATOR)
            self.term = term
            if term >= 0:
                self._take_over()
        return term >= 0

    def _take_over(self) -> None:
        self._expire_ms = self.now_ms() + EXPIRE_EVERY_MS
        self._expiry.begin()
        records = self._broker.consumer_groups
        self._to_take = [name for name, record in records.items() if record.member_count]
        self._tick_later()

    def _give_up(self, error: ErrorCode) -> None:
        groups, self._groups, self._due = list(self._groups.values()), {}, []
        self._use = MemoryUse(self._broker)
        self._to_take, self.to_save = [], {}
        for group in groups:
            group.end(error)

    def end(self) -> None:
        """Answer all who wait: the node stops."""
        self._has_ended = True
        self._give_up(ErrorCode.NOT_COORDINATOR)
        self.term = -1

    # -- groups -------------------------------------------------------------------------------

    @property
    def protocol_settings(self) -> ProtocolSettings:
        """What counts for all groups by the consumer protocol."""
        defaults, version = self._broker.defaults, self._broker.version
        if self._protocol_settings[0] != version:
            self._protocol_settings = version, _protocol_settings(defaults)
        return self._protocol_settings[1]

    def find(self, name: str) -> AnyGroup | None:
        """Return a group that there is, with members or without.

        One without members is made of its record each time, until somebody joins it.
        """
        found, record = self._groups.get(name), self._broker.consumer_groups.get(name)
        if isinstance(found, ConsumerGroup) and self.log_of(name) is not None:
            self.forget(name)  # it was joined while a command that has it read a log was late
            found = None
        if found is None and record is not None:
            if record.consumers is None:
                found = ConsumerGroup(name, _settings(self._broker.defaults), self)
                found.restore(record, self.now_ms())
            else:
                found = ProtocolGroup(record, self, self.protocol_settings, self.now_ms())
            if record.member_count:
                self._keep(found)
        if isinstance(found, ProtocolGroup):
            found.settings = self.protocol_settings
        return found

    def has_members(self, name: str) -> bool:
        """Whether a group has members, or may have, as nobody knows without looking at it."""
        record = self._broker.consumer_groups.get(name)
        return name in self._groups or (record is not None and record.member_count > 0)

    def _keep(self, group: AnyGroup) -> None:
        self._groups[group.name] = group
        self.touch(group)

    def names(self) -> list[str]:
        """Return the names of all groups that there are."""
        return list(dict.fromkeys([*self._broker.consumer_groups, *self._groups]))

    def join(self, name: str, request: JoinRequest, joined: Joined) -> None:
        """Have a consumer join a group by the classic protocol.

        It is made if there is none and the consumer is no member yet.
        """
        group, reads_log = self.find(name), self.log_of(name) is not None
        is_other = isinstance(group, ProtocolGroup) and not self.may_change(group)
        if name in self.held or reads_log or is_other:
            is_passing = name in self.held or (not reads_log and group and group.is_unused)
            joined(JoinAnswer(_BUSY if is_passing else ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        if group is None and request.member_id:
            joined(JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            return
        if group is None and self.is_full:
            joined(JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
            return
        if not isinstance(group, ConsumerGroup):
            generation = 0 if group is None else group.epoch
            group = ConsumerGroup(name, _settings(self._broker.defaults), self)
            group.generation = generation  # what is late counts neither before nor after a change
        if not self._use.has_room(group.members.growth_bytes(request)):
            joined(JoinAnswer(_no_room_for(group, request.member_id), request.member_id))
            return
        group.settings = _settings(self._broker.defaults)
        group.join(request, self.now_ms(), joined)
        if not group.is_unused:
            self._keep(group)

    def heartbeat(
        self, name: str, asked: ConsumerHeartbeat, done: Answered, log: LogToRead | None = None
    ) -> None:
        """Take what a consumer says by the consumer protocol; see `ProtocolGroup.heartbeat`.

        The group is made if there is none and it joins. `log`: what it reads; None: topics.
        """
        group, read = self.find(name), self.log_of(name)
        if name in self.held or read != log:
            done(HeartbeatAnswer(_BUSY) if name in self.held else _refused(asked, read))
            return
        if isinstance(group, ConsumerGroup) and not self.may_change(group):
            text = "the group has members of the classic protocol (group.protocol=classic)"
            error = _BUSY if group.is_unused else ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            done(HeartbeatAnswer(error, text=text))
            return
        if not isinstance(group, ProtocolGroup):
            if asked.epoch != JOINING:
                done(HeartbeatAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
                return
            if group is None and self.is_full:
                done(HeartbeatAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
                return
            record = self._broker.consumer_groups.get(name, ConsumerGroupRecord(name))
            if group is not None:
                record = replace(record, generation=max(record.generation, group.generation))
            record = replace(record, consumers={})
            group = ProtocolGroup(record, self, self.protocol_settings, self.now_ms())
        if not self._use.has_room(group.growth_bytes(asked)):
            done(HeartbeatAnswer(_no_room_for(group, asked.member_id), text=NO_ROOM))
            return
        self._groups[name] = group
        group.heartbeat(asked, self.now_ms(), done)
        if self._groups.get(name) is group:
            self.touch(group)
            self._drop_if_unused(name)

    def log_of(self, name: str) -> LogToRead | None:
        """Return the log that a group reads; None: it consumes topics, or there is no group."""
        record = self._broker.consumer_groups.get(name)
        return None if record is None else record.log

    def may_change(self, group: AnyGroup) -> bool:
        """Whether a group may become one of the other protocol: it has no members, for sure."""
        is_saving = group.saves.is_saving if isinstance(group, ProtocolGroup) else False
        return group.is_unused and not is_saving and not self._saves.is_saving(group.name)

    @property
    def is_full(self) -> bool:
        """Whether there are as many groups as there may be, saved or about to be."""
        records, groups = self._broker.consumer_groups, self._groups
        is_near = len(records) + len(groups) >= GROUPS_MAX
        return is_near and len(records.keys() | groups.keys()) >= GROUPS_MAX

    def forget(self, name: str) -> None:
        """Have a group no more: it was deleted. Who has joined it meanwhile shall join again."""
        group = self._groups.pop(name, None)
        self._use.count(name, 0)
        if group is not None:
            group.end(ErrorCode.UNKNOWN_MEMBER_ID)

    def _count(self, name: str) -> None:
        group, record = self._groups.get(name), self._broker.consumer_groups.get(name)
        self._use.count(name, 0 if group is None else group.unsaved_bytes(record))

    def touch(self, group: AnyGroup) -> None:
        """Something has happened to a group: look at it when it has something to do."""
        self._count(group.name)
        due_ms = group.due_ms
        if due_ms is not None and (group.looked_at_ms is None or due_ms < group.looked_at_ms):
            group.looked_at_ms = due_ms
            heapq.heappush(self._due, (due_ms, group.name))
            if len(self._due) > DUE_MIN + 2 * len(self._groups):
                self._due = [
                    (one.looked_at_ms, name)
                    for name, one in self._groups.items()
                    if one.looked_at_ms is not None
                ]
                heapq.heapify(self._due)

    def _drop_if_unused(self, name: str) -> None:
        """Have a group in memory no more if its record says all that there is to say of it."""
        self._count(name)
        group = self._groups.get(name)
        if group is None or not group.is_unused or self._saves.is_saving(name):
            return
        if _is_saved(group, self._broker.consumer_groups.get(name)):
            del self._groups[name]
            self._use.count(name, 0)
        else:
            self.to_save[name] = None

    # -- what groups need ---------------------------------------------------------------------

    def new_member_id(self, prefix: str) -> str:
        """See `GroupStore`."""
        return f"{prefix}-{self.new_id()}"

    def generation_began(self) -> None:
        """See `GroupStore`."""
        self._counters.rebalances += 1

    def save(self, group: SaveGroup, done: Callable[[ErrorCode], None]) -> None:
        """See `GroupStore`."""
        self.to_save.pop(group.group, None)
        self._saves.save(group, done)

    def _save_ended(self, command: SaveGroup | SaveConsumers) -> None:
        if command.term == self.term and not self._has_ended:
            self.find(command.group)  # it may have been forgotten meanwhile, and has members
            self._drop_if_unused(command.group)

    @property
    def topics(self) -> Mapping[str, Any]:
        """See `ProtocolStore`."""
        return self._broker.topics

    @property
    def topics_version(self) -> int:
        """See `ProtocolStore`."""
        return self._broker.version

    def saved_members(self, name: str) -> Collection[str]:
        """See `ProtocolStore`."""
        record = self._broker.consumer_groups.get(name)
        return () if record is None else record.consumers or ()

    def wait(self, size_bytes: int) -> bool:
        """See `ProtocolStore`."""
        return self._saves.wait(size_bytes)

    def waited(self, size_bytes: int) -> None:
        """See `ProtocolStore`."""
        self._saves.waited(size_bytes)

    def order(self, command: SaveConsumers, ended: SavedAnswer) -> None:
        """See `ProtocolStore`."""
        self.to_save.pop(command.group, None)
        self._saves.order(command, ended)

    def unsaved(self, name: str) -> None:
        """See `ProtocolStore`."""
        self.to_save[name] = None

    def give_up(self, name: str, error: ErrorCode) -> None:
        """See `ProtocolStore`."""
        self._use.count(name, 0)
        self._groups.pop(name).end(error)

    # -- time ---------------------------------------------------------------------------------

    def _tick_later(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self._later(TICK_S, self.tick)

    def tick(self) -> None:
        """Do what is due, as long as this node coordinates."""
        self._is_ticking = False
        if self._has_ended or not self.is_current():
            return
        self._tick_later()
        some, self._to_take = self._to_take[:TAKEN_PER_TICK], self._to_take[TAKEN_PER_TICK:]
        for name in some:
            self.find(name)
        now_ms = self.now_ms()
        if now_ms >= self._save_ms:
            self._save_ms = now_ms + SAVE_AGAIN_MS
            self._save_again()
        while self._due and self._due[0][0] <= now_ms:
            due_ms, name = heapq.heappop(self._due)
            group = self._groups.get(name)
            if group is None or group.looked_at_ms != due_ms:
                continue
            group.looked_at_ms = None
            if isinstance(group, ProtocolGroup):
                group.settings = self.protocol_settings
            group.tick(now_ms)
            self.touch(group)
            self._drop_if_unused(name)
        if now_ms >= self._expire_ms:
            self._expire_ms = now_ms + EXPIRE_EVERY_MS
            self._expire()

    def _save_again(self) -> None:
        for name in list(islice(self.to_save, TAKEN_PER_TICK)):
            del self.to_save[name]
            group = self._groups.get(name)
            if group is None:
                continue
            if isinstance(group, ProtocolGroup):
                group.saves.save()
            elif group.state in (GroupState.STABLE, GroupState.EMPTY):
                self.save(group.saved(), partial(self._saved_again, group))
            else:
                self.to_save[name] = None  # after the others

    def _saved_again(self, group: ConsumerGroup, error: ErrorCode) -> None:
        is_there = self._groups.get(group.name) is group
        if error is not ErrorCode.NONE and is_there and not self._saves.is_saving(group.name):
            self.to_save[group.name] = None

    def _expire(self) -> None:
        """Forget groups that have had no members, and committed nothing, for long."""
        minutes = int(cluster_default(OFFSETS_RETENTION, self._broker.defaults))
        before_ms = self._expiry.limit_ms(minutes * _MINUTE_MS)
        records = self._broker.consumer_groups
        old = [one for one in _unused_since(before_ms, records) if one not in self._groups]
        if old:
            command = ForgetGroups(self.term, old[:FORGOTTEN_MAX], before_ms)
            self._broker.order(command, SAVE_MS, lambda code, text, result: None)


def _no_room_for(group: AnyGroup, member_id: str) -> ErrorCode:
    """Return what somebody is told for whom there is no room; who is a member tries again."""
    if member_id in group.members.by_id:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.GROUP_MAX_SIZE_REACHED


def _settings(defaults: Mapping[str, str]) -> GroupSettings:
    """Return what counts for groups by the classic protocol."""
    names = (GROUP_SESSION_MIN, GROUP_SESSION_MAX, GROUP_INITIAL_DELAY)
    return GroupSettings(*(int(cluster_default(one, defaults)) for one in names))


def _unused_since(
    before_ms: int | None, records: Mapping[str, ConsumerGroupRecord]
) -> Iterable[str]:
    """Return the names of groups without members that have not changed since; None: of none."""
    for name, one in records.items():
        if before_ms is not None and one.changed_ms < before_ms and not one.member_count:
            yield name


def _protocol_settings(defaults: Mapping[str, str]) -> ProtocolSettings:
    """Return what counts for groups by the consumer protocol."""
    names = (CONSUMER_SESSION, CONSUMER_INTERVAL, CONSUMER_MEMBERS_MAX)
    session_ms, interval_ms, members_max = (int(cluster_default(one, defaults)) for one in names)
    # an earlier version let it be empty
    assignors = cluster_default(CONSUMER_ASSIGNORS, defaults).strip()
    assignors = assignors or cluster_default(CONSUMER_ASSIGNORS, {})
    found = tuple(one.strip() for one in assignors.split(","))
    return ProtocolSettings(session_ms, interval_ms, members_max, found)


def _is_saved(group: AnyGroup, record: ConsumerGroupRecord | None) -> bool:
    """Whether the record of a group without members says all that there is to say of it."""
    if isinstance(group, ProtocolGroup):
        return group.saves.is_saved
    return record is None or not (record.member_count or record.generation < group.generation)


def _refused(asked: ConsumerHeartbeat, read: LogToRead | None) -> HeartbeatAnswer:
    """Return the answer to a member of a group that reads something else than it wants to."""
    if asked.epoch != JOINING:
        return HeartbeatAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
    what = "topics" if read is None else f"{read.text}, by quorumlog's own Consumer"
    return HeartbeatAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text=f"the group consumes {what}")
