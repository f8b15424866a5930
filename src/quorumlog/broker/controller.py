"""What the leader of `__cluster` does beyond applying commands: it has partition groups made.

It decides which groups there shall be, and of which brokers; the brokers make them (`group_keeper`)
as soon as their view of `__cluster` has them. Everything follows from the state and from who leads
what, so another leader goes on from there.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from quorumlog.broker.leaders import Leaders
from quorumlog.log_events import log_event
from quorumlog.machine.cluster.commands import (
    AddGroups,
    AnyCommand,
    CreatePartitions,
    CreateTopics,
    GroupsLed,
    NewGroup,
    ReplaceGroup,
)
from quorumlog.machine.cluster.state import GROUPS_MAX, ClusterView
from quorumlog.machine.cluster.topics import classes_of
from quorumlog.model.codes import ResponseCode
from quorumlog.model.retention_classes import MIXED, class_text
from quorumlog.model.topic_configs import REPLICATION_DEFAULT, cluster_default
from quorumlog.model.wording import counted

logger = logging.getLogger(__name__)

UNLED_MS: Final = 30_000
"""A new partition group that has no leader after this time is given up, and made elsewhere."""
DOUBLINGS_MAX: Final = 3
"""That time doubles with each time that no group has got a leader since: to 4 minutes."""
REPEAT_MS: Final = 1_000
"""Pause before the same is asked for again, if nothing came of it."""
DEFAULT_SETTINGS: Final = {"mappedFileSizeForEntryData": str(256 * 1024 * 1024)}
"""Of new partition groups, unless the configuration of the node says otherwise: the room of records
that were given up comes back with whole data files."""
HELD_MAX: Final = 1_024
"""Commands that wait for brokers, or for partition groups."""


class ControllerNode(Protocol):
    """What the controller needs of its node."""

    def now_ms(self) -> int:
        """Return the time of a monotonic clock."""
        ...

    def view(self) -> ClusterView:
        """Return what `__cluster` holds, as far as is known here."""
        ...

    def controls(self) -> bool:
        """Whether this node leads `__cluster`, and knows all that is committed there."""
        ...

    def voters(self) -> int:
        """Return how many nodes vote in `__cluster`."""
        ...

    def ask_for(self, command: AnyCommand) -> None:
        """Have `__cluster` apply a command; what comes of it shows in the view."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of new partition groups."""
        ...


Go: TypeAlias = Callable[[ResponseCode, str], None]
"""Called once: with SUCCESS when a command may be appended, or with why it may not."""


@dataclass(slots=True)
class _Held:
    """A command that waits until there are partition groups of some retention classes."""

    classes: frozenset[int]
    deadline_ms: int
    go: Go


def replicas_of_new_groups(view: ClusterView, voters: int) -> int:
    """Return how many replicas new partition groups get, if so many nodes vote in `__cluster`."""
    wanted = int(cluster_default(REPLICATION_DEFAULT, view.defaults))
    return max(1, min(wanted, voters))


def replicas_at_least(view: ClusterView, voters: int) -> int:
    """Return how many replicas a new partition has at least: as its partition group, now or soon.

    There are no groups before the first topic.
    """
    members = [len(group.members) for group in view.groups.values()]
    return min(members) if members else replicas_of_new_groups(view, voters)


class Controller:
    """The duties of the leader of `__cluster`. All methods run on the event loop's thread."""

    def __init__(self, node: ControllerNode, leaders: Leaders) -> None:
        self._node = node
        self._leaders = leaders
        self._held: list[_Held] = []
        self._asked: dict[str, int] = {}
        self._unled: dict[str, int] = {}
        self._doublings = 0

    # -- commands -----------------------------------------------------------------------------

    def admit(self, command: AnyCommand, timeout_ms: int, go: Go) -> None:
        """Call `go` once a command can be appended: partitions need groups to be on.

        These are groups of the retention classes of their topics. If such groups cannot be made
        now, others do, as far as there are any. No group is made for a topic that will be refused.
        """
        if not isinstance(command, CreateTopics | CreatePartitions):
            go(ResponseCode.SUCCESS, "")
            return
        if not self._node.controls():
            go(ResponseCode.LEADER_NOT_READY, "the leader of __cluster does not know all of it yet")
            return
        classes = classes_of(self._node.view(), command)
        if self._has_groups_for(classes):
            go(ResponseCode.SUCCESS, "")
        elif len(self._held) >= HELD_MAX:
            text = f"{HELD_MAX} commands wait for brokers or partition groups already"
            go(ResponseCode.LEADER_PENDING_FULL, text)
        else:
            self._held.append(_Held(classes, self._node.now_ms() + timeout_ms, go))

    def _has_groups_for(self, classes: frozenset[int]) -> bool:
        """Whether topics of some classes have groups; those that are lacking are ordered."""
        groups = self._node.view().groups
        lacking = classes - {group.retention_class for group in groups.values()}
        if not lacking:
            return True
        if not self._is_enough() or len(groups) >= GROUPS_MAX:
            return bool(groups)
        self._add_groups(lacking)
        return False

    def _is_enough(self) -> bool:
        return len(self._connected()) >= self._factor()

    def _factor(self) -> int:
        return replicas_of_new_groups(self._node.view(), self._node.voters())

    def _connected(self) -> list[int]:
        """Return the brokers whose nodes are connected, as far as is known here."""
        brokers, is_connected = self._node.view().brokers.values(), self._leaders.is_connected
        return sorted(one.broker_id for one in brokers if is_connected(one.node_id))

    def _able(self) -> list[int]:
        """Return the brokers that new groups are made of: connected, and able, if these suffice."""
        view, connected = self._node.view(), self._connected()
        makes_groups = self._leaders.makes_groups
        able = [one for one in connected if makes_groups(view.brokers[one].node_id)]
        return able if len(able) >= self._factor() else connected

    # -- reconciling --------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is to be done, if this node is the controller."""
        self.release()
        if not self._node.controls():
            self._unled.clear()
            self._doublings = 0
            return
        view, now_ms = self._node.view(), self._node.now_ms()
        making = {name for name, group in view.groups.items() if group.phase == "making"}
        self._unled = {name: self._unled.get(name, now_ms) for name in making}
        led = sorted(name for name in making if self._leaders.of(name).node_id is not None)
        if led and self._may_ask("led"):
            self._doublings = 0
            self._node.ask_for(GroupsLed(led))
        self._replace(
            [
                name
                for name, since_ms in self._unled.items()
                if name not in led and now_ms - since_ms >= UNLED_MS << self._doublings
            ]
        )
        self._add_groups({group.retention_class for group in view.groups.values()} - {MIXED})

    def _may_ask(self, what: str) -> bool:
        """Whether something may be ordered now: not again and again before it can be seen."""
        now_ms = self._node.now_ms()
        if now_ms - self._asked.get(what, -REPEAT_MS) < REPEAT_MS:
            return False
        self._asked[what] = now_ms
        return True

    def release(self) -> None:
        """Let commands go on that can, and refuse those that have waited for too long."""
        held, self._held = self._held, []
        now_ms = self._node.now_ms()
        for one in held:
            if not self._node.controls():
                one.go(ResponseCode.NOT_LEADER, "another node leads __cluster")
            elif self._has_groups_for(one.classes):
                one.go(ResponseCode.SUCCESS, "")
            elif now_ms >= one.deadline_ms:
                one.go(ResponseCode.TIMEOUT, self._why_none())
            else:
                self._held.append(one)

    def _why_none(self) -> str:
        if self._is_enough():
            return "the partition groups that it needs were ordered, and are not there yet"
        return (
            f"a partition group is made of {counted(self._factor(), 'broker')}, and there are "
            f"{len(self._connected())}: start others (kafkaListen), or set "
            "default.replication.factor"
        )

    def _add_groups(self, classes: Collection[int]) -> None:
        """Have a group of each class made for each connected broker that is preferred for none."""
        view, factor = self._node.view(), self._factor()
        connected = self._able()
        if len(connected) < factor:
            return
        led = {(group.members[0], group.retention_class) for group in view.groups.values()}
        pairs = [
            (one, each) for one in connected for each in sorted(classes) if (one, each) not in led
        ]
        pairs = pairs[: max(0, GROUPS_MAX - len(view.groups))]
        if pairs and self._may_ask(f"groups {view.groups_made}"):
            load = self._loads()
            load.update(first for first, _ in pairs)
            added = [self._new_group(*pair, connected, factor, load) for pair in pairs]
            self._asked = {
                what: at_ms
                for what, at_ms in self._asked.items()
                if not what.startswith("groups ") or what == f"groups {view.groups_made}"
            }
            texts = ", ".join(class_text(one) for one in sorted({one for _, one in pairs}))
            log_event(
                logger,
                logging.INFO,
                "partition groups ordered",
                groups=len(added),
                retention_classes=texts,
            )
            self._node.ask_for(AddGroups(view.groups_made, added))

    def _loads(self) -> Counter[int]:
        """Return how many groups each broker is a member of."""
        groups = self._node.view().groups.values()
        return Counter(member for group in groups for member in group.members)

    def _new_group(
        self,
        first: int,
        retention_class: int,
        connected: Iterable[int],
        factor: int,
        load: Counter[int],
    ) -> NewGroup:
        """Return a group that `first` shall lead, with the others that have the fewest groups.

        Of those with equally many, the ones after `first` in the order of their ids. `load` counts
        the group for `first` already; the others are added to it.
        """
        ring = sorted(connected, key=lambda one: (one <= first, one))
        others = [one for one in ring if one != first]
        followers = sorted(others, key=lambda one: load[one])[: factor - 1]
        load.update(followers)
        chosen = [first, *followers]
        brokers = self._node.view().brokers
        node_ids = [brokers[one].node_id for one in chosen]
        peers = ";".join(f"{brokers[one].node_id}-{brokers[one].address}" for one in chosen)
        settings = {**DEFAULT_SETTINGS, **self._node.settings, "kind": "partitions"}
        settings["preferredLeaderIds"] = node_ids[0]
        return NewGroup(chosen, peers, settings, retention_class)

    def _replace(self, names: Sequence[str]) -> None:
        """Give up groups that got no leader, and have others made of connected brokers.

        Each is to be led by the connected broker that is preferred as the leader of the fewest.
        """
        connected, factor = self._able(), self._factor()
        if not names or len(connected) < factor or not self._may_ask("replacements"):
            return
        self._doublings = min(self._doublings + 1, DOUBLINGS_MAX)
        kept = [group for name, group in self._node.view().groups.items() if name not in names]
        load = Counter(member for group in kept for member in group.members)
        led = Counter(group.members[0] for group in kept)
        for name in names:
            first = min(connected, key=lambda one: (led[one], load[one], one))
            led[first] += 1
            load[first] += 1
            retention_class = self._node.view().groups[name].retention_class
            replacement = self._new_group(first, retention_class, connected, factor, load)
            self._node.ask_for(ReplaceGroup(name, replacement))

    def end(self) -> None:
        """Refuse what waits: the node stops."""
        held, self._held = self._held, []
        for one in held:
            one.go(ResponseCode.NODE_STOPPING, "the node stops")
