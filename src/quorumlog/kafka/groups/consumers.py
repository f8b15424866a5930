"""Members of a group by the consumer protocol (KIP-848): what they say, are told, and have."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.assignors import Partitions
from quorumlog.kafka.groups.reconciliation import NO_EPOCH, Held
from quorumlog.kafka.groups.visible_topics import Viewer
from quorumlog.machine.cluster.commands import SavedConsumer
from quorumlog.machine.cluster.consumer_groups import Partition, size_of_said

JOINING: Final = NO_EPOCH
LEAVING: Final = -1
AWAY: Final = -2
"""Epochs in heartbeats: of a member that joins, that leaves, and of a static one that comes back;
the last one is that of the absent member, too."""
UNCHANGED_MS: Final = -1
"""Instead of a time: it has not changed since the last heartbeat."""


class Subscription(NamedTuple):
    """What a member is subscribed to; `pattern`: a regular expression, empty: none."""

    topics: tuple[str, ...] = ()
    pattern: str = ""


NO_SUBSCRIPTION: Final = Subscription()
NOTHING_HELD: Final = Held()


class ConsumerHeartbeat(NamedTuple):
    """What a member says of itself. What is None, or `UNCHANGED_MS`, is as it was.

    `owned`: the partitions that it uses. `number`: rises from one heartbeat of the member to the
    next, copies have the same one; None: the protocol has none (Kafka's), so no copy is known.
    `principal`: who it has proved to be.
    """

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED_MS
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    number: int | None = None
    principal: str = ""

    @property
    def says_all(self) -> bool:
        """Whether it says everything, as it does not know whether the coordinator knows it."""
        is_told = self.topics is not None or self.pattern is not None
        is_whole = self.rebalance_timeout_ms != UNCHANGED_MS and self.owned is not None
        return self.epoch == JOINING or (is_told and is_whole)


class HeartbeatAnswer(NamedTuple):
    """The answer to a heartbeat. `assigned` None: as it was; `text`: about an error, for people.

    `session_ms`: the member is not removed for this time, counted from its heartbeat, unless it has
    to give something up.
    """

    error: ErrorCode
    member_id: str = ""
    epoch: int = NO_EPOCH
    assigned: Partitions | None = None
    text: str = ""
    session_ms: int = 0


Answered: TypeAlias = Callable[[HeartbeatAnswer], None]


@dataclass(slots=True)
class Consumer:
    """A member. `change`: the number of its last change that is to be saved. `revoke_by_ms`: until
    when it has to give up what it is asked to; None: nothing. `has_confirmed`: it has said that it
    uses what it was told, all of it and nothing else. `session_ends_ms`: when it is removed unless
    it says something. At its last heartbeat that was after `session_ms`, which is to be saved.
    `number`: that of its newest heartbeat; None: an earlier coordinator had that.
    `principal`: who it has proved to be; None: an earlier coordinator knew.
    """

    member_id: str
    instance_id: str | None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    subscription: Subscription = NO_SUBSCRIPTION
    assignor: str = ""
    held: Held = NOTHING_HELD
    previous_epoch: int = NO_EPOCH
    session_ends_ms: int = 0
    session_ms: int = 0
    revoke_by_ms: int | None = None
    change: int = 0
    has_confirmed: bool = False
    number: int | None = -1
    principal: str | None = ""

    @property
    def is_away(self) -> bool:
        """Whether it is static and has said that it comes back."""
        return self.held.epoch == AWAY

    @property
    def viewer(self) -> Viewer:
        """Who it is, for whoever judges which topics it may see."""
        return Viewer(self.principal, self.client_host.strip("[]"))

    @property
    def said_bytes(self) -> int:
        """About how many bytes its subscription takes."""
        return size_of_said(self.subscription.topics, self.subscription.pattern, self.assignor)

    def update(self, asked: ConsumerHeartbeat) -> bool:
        """Take what the member says of itself; return whether anything is different.

        Its principal is none of that: it is not saved.
        """
        self.principal = asked.principal
        topics, pattern = self.subscription
        topics = topics if asked.topics is None else asked.topics
        pattern = pattern if asked.pattern is None else asked.pattern
        timeout_ms = asked.rebalance_timeout_ms
        now = (
            Subscription(topics, pattern),
            self.assignor if asked.assignor is None else asked.assignor,
            self.rack_id if asked.rack_id is None else asked.rack_id,
            self.rebalance_timeout_ms if timeout_ms == UNCHANGED_MS else timeout_ms,
            asked.client_id,
            asked.client_host,
        )
        before = (
            self.subscription,
            self.assignor,
            self.rack_id,
            self.rebalance_timeout_ms,
            self.client_id,
            self.client_host,
        )
        if now == before:
            return False
        self.subscription, self.assignor, self.rack_id, self.rebalance_timeout_ms = now[:4]
        self.client_id, self.client_host = now[4:]
        return True

    def seen(self, session_ms: int, now_ms: int) -> bool:
        """Note that it is there; return whether this has to be saved before it is told.

        It may have been told a longer time before, and may not get to know the present one.
        """
        self.session_ends_ms = max(self.session_ends_ms, now_ms + session_ms)
        before, self.session_ms = self.session_ms, self.session_ends_ms - now_ms
        return self.session_ms > before

    def is_news(self, number: int | None) -> bool:
        """Take the number of a heartbeat; return whether it is newer than all before for sure.

        A copy that comes late says what the member used before it was answered.
        """
        if number is None:
            return True
        before = self.number
        self.number = number if before is None else max(before, number)
        return before is not None and number > before

    def saved(self) -> SavedConsumer:
        """Return the member as it is saved."""
        return SavedConsumer(
            self.member_id,
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            list(self.subscription.topics),
            self.subscription.pattern,
            self.assignor,
            self.held.epoch,
            self.previous_epoch,
            by_topic(self.held.assigned),
            by_topic(self.held.revoking),
            self.session_ms,
        )

    @classmethod
    def restored(cls, saved: SavedConsumer, session_ms: int, now_ms: int) -> "Consumer":
        """Return a member that was saved, as if it had been seen now.

        `session_ms`: its session time if it was saved without one.
        """
        revoking = flat(saved.revoking)
        return cls(
            saved.member_id,
            saved.instance_id,
            saved.rack_id,
            saved.client_id,
            saved.client_host,
            saved.rebalance_timeout_ms,
            Subscription(tuple(saved.topics), saved.pattern),
            saved.assignor,
            Held(saved.epoch, flat(saved.assigned), revoking),
            saved.previous_epoch,
            now_ms + (saved.session_ms or session_ms),
            saved.session_ms,
            now_ms + saved.rebalance_timeout_ms if revoking else None,
            number=None,
            principal=None,
        )


class Consumers:
    """The members of a group, static ones by their instance ids, and who has which partition."""

    def __init__(self) -> None:
        self.by_id: dict[str, Consumer] = {}
        self.static: dict[str, str] = {}
        """The ids of static members, by their instance ids."""
        self.owners: dict[Partition, str] = {}
        """Who has a partition, or has not yet given it up."""
        self.said_bytes = 0

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self.by_id.values())

    def add(self, member: Consumer) -> None:
        """Take a member, with what it has."""
        self.by_id[member.member_id] = member
        self.said_bytes += member.said_bytes
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        for one in member.held.assigned | member.held.revoking:
            self.owners[one] = member.member_id

    def drop(self, member: Consumer) -> None:
        """Remove a member; nobody has then what it had."""
        del self.by_id[member.member_id]
        self.said_bytes -= member.said_bytes
        if member.instance_id is not None:
            del self.static[member.instance_id]
        for one in member.held.assigned | member.held.revoking:
            del self.owners[one]

    def hold(self, member: Consumer, held: Held) -> None:
        """Have a member have other partitions, or another epoch."""
        before, now = (one.assigned | one.revoking for one in (member.held, held))
        for one in before - now:
            del self.owners[one]
        for one in now - before:
            self.owners[one] = member.member_id
        member.held = held

    def update(self, member: Consumer, asked: ConsumerHeartbeat) -> bool:
        """Take what a member says of itself; return whether anything is different."""
        self.said_bytes -= member.said_bytes
        is_changed = member.update(asked)
        self.said_bytes += member.said_bytes
        return is_changed

    def is_free(self, one: Partition, member_id: str) -> bool:
        """Whether nobody but this member has a partition."""
        return self.owners.get(one, member_id) == member_id


def by_topic(partitions: Iterable[Partition]) -> dict[bytes, list[int]]:
    """Return partitions as their numbers by topic, in order."""
    found: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        found.setdefault(topic_id, []).append(number)
    return found


def flat(partitions: Mapping[bytes, Iterable[int]]) -> Partitions:
    """Return partitions that are given as their numbers by topic."""
    return frozenset((one, number) for one, numbers in partitions.items() for number in numbers)
