"""Which partitions the members of a group by the consumer protocol shall have."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from quorumlog.kafka.groups.assignors import ASSIGNORS, NOTHING, Partitions, Subscriber, Targets
from quorumlog.kafka.groups.consumers import Consumer, Consumers, Subscription
from quorumlog.kafka.groups.topic_patterns import TopicPatterns
from quorumlog.kafka.groups.visible_topics import Viewer

SMALL: Final = 2_000
"""Members, topics and partitions of a group whose target is made again at once. Larger ones wait a
tenth of a millisecond for each beyond, so that the coordinator spends little of its time with that.
"""


class TopicStore(Protocol):
    """The topics that there are."""

    @property
    def topics(self) -> Mapping[str, Any]:
        """All topics by name."""
        ...

    @property
    def topics_version(self) -> int:
        """Rises whenever there are other topics, or more partitions."""
        ...

    @property
    def patterns(self) -> TopicPatterns:
        """Which topics regular expressions match."""
        ...


class TargetAssignment:
    """The target of the group epoch `epoch`, and the topics that it is of."""

    def __init__(self, epoch: int, members: Consumers, store: TopicStore) -> None:
        self.epoch = epoch
        self.assignor = ""
        self._targets: Targets = {one.member_id: one.held.assigned for one in members}
        self._members = members
        self._store = store
        self._topics: dict[str, frozenset[bytes]] = {}
        """The topics of each member by its id, as they were when they were looked at."""
        self._counts: dict[bytes, int] = {}
        self._topics_version: int | None = None
        """None: members or subscriptions have changed since."""
        self._visible_version: int | None = None
        """The version of `VisibleTopics` that the topics were looked up with."""
        self._viewers: set[str] = set()
        """The ids of members that may see others of the topics since."""
        self._next_ms = 0

    def of(self, member_id: str) -> Partitions:
        """Return what a member shall have; nothing if it has come since."""
        return self._targets.get(member_id, NOTHING)

    def rename(self, before: str, after: str) -> None:
        """A static member has another id."""
        self._targets[after] = self._targets.pop(before, NOTHING)
        self._topics[after] = self._topics.pop(before, frozenset())

    def members_changed(self) -> None:
        """Members or subscriptions have changed: look which topics these are before the next."""
        self._topics_version = None

    def viewer_changed(self, member: Consumer) -> None:
        """A member may see other topics than before: look them up before the next target."""
        if self._store.patterns.visible.are_judged:
            self._viewers.add(member.member_id)

    def look_at_topics(self) -> bool:
        """Look which topics there are; return whether they are others, for the same members."""
        before = self._topics_version, self._visible_version
        visible, known = self._store.patterns.visible, self._store.topics
        now = self._store.topics_version, visible.version
        is_seen_anew = self._is_seen_anew()
        if before == now and not is_seen_anew:
            return False
        self._topics_version, self._visible_version = now
        topics: dict[str, frozenset[bytes]] = {}
        counts: dict[bytes, int] = {}
        of_same: dict[tuple[Subscription, Viewer | None], frozenset[bytes]] = {}
        for member in self._members:
            is_judged = visible.are_judged and bool(member.subscription.pattern)
            key = member.subscription, member.viewer if is_judged else None
            # of whom nothing has been heard yet, each has topics of its own
            ids = None if is_judged and member.principal is None else of_same.get(key)
            if ids is None:
                found = [known[name] for name in self.names_of(member) if name in known]
                ids = of_same[key] = frozenset(topic.topic_id for topic in found)
                counts.update((topic.topic_id, len(topic.partitions)) for topic in found)
            topics[member.member_id] = ids
        is_other = (topics, counts) != (self._topics, self._counts)
        self._topics, self._counts = topics, counts
        if is_other and (is_seen_anew or before[1] != now[1]):
            self.hurry()  # until then a member would be told partitions of what it may not see
        return is_other and before[0] is not None

    def _is_seen_anew(self) -> bool:
        """Whether any of those that may see others of the topics does.

        After a change of the coordinator all members come to be known, one after the other: as a
        rule they see what they saw, so the topics of the others are not looked at for each.
        """
        changed, self._viewers = self._viewers, set()
        known, by_id = self._store.topics, self._members.by_id
        return any(
            frozenset(known[name].topic_id for name in self.names_of(by_id[one]) if name in known)
            != self._topics.get(one)
            for one in changed
            if one in by_id
        )

    def names_of(self, member: Consumer) -> frozenset[str]:
        """Return the names of the topics that a member is subscribed to and may know of.

        Of whom nothing has been heard yet it is not known what it may see: it has the same topics
        as an earlier coordinator gave it.
        """
        names, pattern = member.subscription
        if not pattern:
            return frozenset(names)
        patterns, known = self._store.patterns, self._store.topics
        matched = patterns.matched(pattern)
        if member.principal is None and patterns.visible.are_judged:
            held = {topic_id for topic_id, _ in member.held.assigned}
            had = (name for name in matched if name in known and known[name].topic_id in held)
            return frozenset(had).union(names)
        return patterns.visible.of(member.viewer, matched).union(names)

    def is_due(self, epoch: int, now_ms: int) -> bool:
        """Whether another target is to be made for a group epoch, and not too soon."""
        return epoch > self.epoch and now_ms >= self._next_ms

    def hurry(self) -> None:
        """Let the next target come at once, however large the group is."""
        self._next_ms = 0

    def is_as_before(self, assignors: Sequence[str]) -> bool:
        """Whether another target would be the same."""
        return self._made(assignors) == self._targets

    def make(self, epoch: int, assignors: Sequence[str], now_ms: int) -> None:
        """Make the target of a group epoch; `assignors`: that members may ask for, the default
        first. The topics are those that there were at the last look.
        """
        self._targets, self.epoch = self._made(assignors), epoch
        topics = sum(map(len, self._topics.values()))
        size = len(self._members) + topics + sum(self._counts.values())
        self._next_ms = now_ms + max(0, size - SMALL) // 10

    def _made(self, assignors: Sequence[str]) -> Targets:
        votes = Counter(member.assignor for member in self._members if member.assignor)
        allowed = [one for one in votes if one in assignors]
        self.assignor = max(allowed, key=lambda one: (votes[one], one), default=assignors[0])
        subscribers = {
            member.member_id: Subscriber(
                self._topics[member.member_id],
                self._targets.get(member.member_id, member.held.assigned),
                member.instance_id,
            )
            for member in self._members
        }
        return ASSIGNORS[self.assignor](subscribers, self._counts)
