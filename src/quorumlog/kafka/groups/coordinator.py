"""The coordinator of all consumer groups: the broker whose node leads `__cluster`.

It has groups in memory while it leads, and saves in `__cluster` what the next one needs to go on.
What it decides is carried out only in the term in which it leads.
"""

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from quorumlog.kafka.broker_view import BrokerView
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.group import ConsumerGroup, GroupSettings, GroupState
from quorumlog.kafka.groups.members import JoinAnswer, Joined, JoinRequest
from quorumlog.machine.cluster.commands import ForgetGroups, GroupsChanged, SaveGroup
from quorumlog.machine.cluster.consumer_groups import GROUPS_MAX
from quorumlog.model.codes import ResponseCode
from quorumlog.model.topic_configs import (
    GROUP_INITIAL_DELAY,
    GROUP_SESSION_MAX,
    GROUP_SESSION_MIN,
    OFFSETS_RETENTION,
    cluster_default,
)

TICK_S: Final = 0.05
"""Pause between two looks at what is due."""
SAVE_MS: Final = 5_000
"""How long saving may take, as in Kafka (offsets.commit.timeout.ms)."""
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
_ERRORS: Final = {
    ResponseCode.SUCCESS: ErrorCode.NONE,
    ResponseCode.CLUSTER_FULL: ErrorCode.GROUP_MAX_SIZE_REACHED,
    ResponseCode.UNEXPECTED_ARGUMENT: ErrorCode.GROUP_MAX_SIZE_REACHED,
    ResponseCode.NOT_LEADER: ErrorCode.NOT_COORDINATOR,
    ResponseCode.INCONSISTENT_TERM: ErrorCode.NOT_COORDINATOR,
    ResponseCode.NODE_STOPPING: ErrorCode.NOT_COORDINATOR,
}
"""Why a group is not saved. After all others members try again later; they look for the coordinator
first, as for those of which another one may save it. On a full disk a group goes on unsaved."""


class _Save(NamedTuple):
    group: SaveGroup
    done: Callable[[ErrorCode], None]


class GroupCoordinator:
    """All groups that have members, or had some lately.

    Times are in milliseconds: `now_ms` of a clock that never goes back, `wall_ms` in Unix time.
    `later` calls a function after some seconds, on the event loop's thread. `counters` gets the
    number of rebalances.
    """

    def __init__(
        self,
        broker: BrokerView,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        unique: Callable[[], str],
        later: Callable[[float, Callable[[], None]], object],
        counters: KafkaCounters,
    ) -> None:
        self.term = -1
        self._broker = broker
        self.now_ms = now_ms
        self._wall_ms = wall_ms
        self._unique = unique
        self._later = later
        self._counters = counters
        self._groups: dict[str, ConsumerGroup] = {}
        self._due: list[tuple[int, str]] = []
        """When groups may have something to do; what is not the next time of its group is over."""
        self._saving: dict[str, list[_Save]] = {}
        """Groups of which a save is under way, with those that wait for its end."""
        self._unsaved: dict[str, None] = {}
        """Groups that are not saved as they are, as a disk was full, say: it is tried again."""
        self._to_take: list[str] = []
        """Groups with members that an earlier coordinator had."""
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
        records = self._broker.consumer_groups
        self._to_take = [name for name, record in records.items() if record.members]
        self._tick_later()

    def _give_up(self, error: ErrorCode) -> None:
        groups, self._groups, self._due = list(self._groups.values()), {}, []
        self._to_take, self._unsaved = [], {}
        for group in groups:
            group.end(error)

    def end(self) -> None:
        """Answer all who wait: the node stops."""
        self._has_ended = True
        self._give_up(ErrorCode.NOT_COORDINATOR)
        self.term = -1

    # -- groups -------------------------------------------------------------------------------

    def _settings(self) -> GroupSettings:
        names = (GROUP_SESSION_MIN, GROUP_SESSION_MAX, GROUP_INITIAL_DELAY)
        return GroupSettings(*(int(cluster_default(one, self._broker.defaults)) for one in names))

    def find(self, name: str) -> ConsumerGroup | None:
        """Return a group that there is, with members or without.

        One without members is made of its record each time, until somebody joins it.
        """
        found, record = self._groups.get(name), self._broker.consumer_groups.get(name)
        if found is None and record is not None:
            found = ConsumerGroup(name, self._settings(), self)
            found.restore(record, self.now_ms())
            if record.members:
                self._keep(found)
        return found

    def _keep(self, group: ConsumerGroup) -> None:
        self._groups[group.name] = group
        self.touch(group)

    def names(self) -> list[str]:
        """Return the names of all groups that there are."""
        return list(dict.fromkeys([*self._broker.consumer_groups, *self._groups]))

    def join(self, name: str, request: JoinRequest, joined: Joined) -> None:
        """Have a consumer join a group, which is made if there is none and it is no member yet."""
        group = self.find(name)
        if group is None:
            if request.member_id:
                joined(JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
                return
            if self._is_full():
                joined(JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))
                return
            group = ConsumerGroup(name, self._settings(), self)
        group.settings = self._settings()
        group.join(request, self.now_ms(), joined)
        if not group.is_unused:
            self._keep(group)

    def _is_full(self) -> bool:
        """Whether there are as many groups as there may be, saved or about to be."""
        records, groups = self._broker.consumer_groups, self._groups
        if len(records) + len(groups) < GROUPS_MAX:
            return False
        return len(records) + sum(name not in records for name in groups) >= GROUPS_MAX

    def forget(self, name: str) -> None:
        """Have a group no more: it was deleted. Who has joined it meanwhile shall join again."""
        group = self._groups.pop(name, None)
        if group is not None:
            group.end(ErrorCode.UNKNOWN_MEMBER_ID)

    def touch(self, group: ConsumerGroup) -> None:
        """Something has happened to a group: look at it when it has something to do."""
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
        group = self._groups.get(name)
        if group is None or not group.is_unused or name in self._saving:
            return
        record = self._broker.consumer_groups.get(name)
        if record is not None and (record.members or record.generation < group.generation):
            self._unsaved[name] = None
        else:
            del self._groups[name]

    # -- what groups need ---------------------------------------------------------------------

    def new_member_id(self, prefix: str) -> str:
        """See `GroupStore`."""
        return f"{prefix}-{self._unique()}"

    def generation_began(self) -> None:
        """See `GroupStore`."""
        self._counters.rebalances += 1

    def save(self, group: SaveGroup, done: Callable[[ErrorCode], None]) -> None:
        """See `GroupStore`.

        Saves of one group are not under way at the same time, as an earlier one might be carried
        out after a later one. Of those that wait meanwhile the last one says all.
        """
        self._unsaved.pop(group.group, None)
        if group.group in self._saving:
            self._saving[group.group].append(_Save(group, done))
        else:
            self._saving[group.group] = []
            self._order_save(group, [done])

    def _order_save(self, group: SaveGroup, done: Sequence[Callable[[ErrorCode], None]]) -> None:
        def ordered(code: ResponseCode, text: str, result: Any) -> None:
            outcome = result.code if isinstance(result, GroupsChanged) else code
            if outcome is ResponseCode.DISK_FULL:
                self._broker.ask_barrier(SAVE_MS, has_passed)
            else:
                ended(_ERRORS.get(outcome, ErrorCode.COORDINATOR_NOT_AVAILABLE))

        def has_passed(is_leader: bool) -> None:
            """Go on without saving if no other node coordinates: consumers read on full disks."""
            if is_leader and self._broker.coordinator_term == group.term:
                self._unsaved[group.group] = None
                ended(ErrorCode.NONE)
            else:
                ended(ErrorCode.COORDINATOR_NOT_AVAILABLE)

        def ended(error: ErrorCode) -> None:
            waiting, self._saving[group.group] = self._saving[group.group], []
            if waiting:
                self._order_save(waiting[-1].group, [one.done for one in waiting])
            else:
                del self._saving[group.group]
            for call in done:
                call(error)
            if group.term == self.term and not self._has_ended:
                self.find(group.group)  # it may have been forgotten meanwhile, and has members
                self._drop_if_unused(group.group)

        self._broker.order(group, SAVE_MS, ordered)

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
            group.tick(now_ms)
            self.touch(group)
            self._drop_if_unused(name)
        if now_ms >= self._expire_ms:
            self._expire_ms = now_ms + EXPIRE_EVERY_MS
            self._expire()

    def _save_again(self) -> None:
        for name in list(islice(self._unsaved, TAKEN_PER_TICK)):
            del self._unsaved[name]
            group = self._groups.get(name)
            if group is None:
                continue
            if group.state in (GroupState.STABLE, GroupState.EMPTY):
                self.save(group.saved(), partial(self._saved_again, group))
            else:
                self._unsaved[name] = None  # after the others

    def _saved_again(self, group: ConsumerGroup, error: ErrorCode) -> None:
        is_there = self._groups.get(group.name) is group
        if error is not ErrorCode.NONE and is_there and group.name not in self._saving:
            self._unsaved[group.name] = None

    def _expire(self) -> None:
        """Forget groups that have had no members, and committed nothing, for long."""
        minutes = int(cluster_default(OFFSETS_RETENTION, self._broker.defaults))
        before_ms = self._wall_ms() - minutes * _MINUTE_MS
        old = [
            name
            for name, record in self._broker.consumer_groups.items()
            if not record.members and record.changed_ms < before_ms and name not in self._groups
        ]
        if old:
            command = ForgetGroups(self.term, old[:FORGOTTEN_MAX], before_ms)
            self._broker.order(command, SAVE_MS, lambda code, text, result: None)
