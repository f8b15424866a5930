"""Which partitions the members of a group by the consumer protocol shall have."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from quorumlog.kafka.groups.assignors import ASSIGNORS, NOTHING, Partitions, Subscriber, Targets
from quorumlog.kafka.groups.consumers import Consumers, Subscription
from quorumlog.kafka.groups.topic_patterns import TopicPatterns

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
        self._topics: dict[Subscription, frozenset[bytes]] = {}
        """The topics of each subscription, as they were when they were looked at."""
        self._counts: dict[bytes, int] = {}
        self._topics_version: int | None = None
        """None: members or subscriptions have changed since."""
        self._next_ms = 0

    def of(self, member_id: str) -> Partitions:
        """Return what a member shall have; nothing if it has come since."""
        return self._targets.get(member_id, NOTHING)

    def rename(self, before: str, after: str) -> None:
        """A static member has another id."""
        self._targets[after] = self._targets.pop(before, NOTHING)

    def members_changed(self) -> None:
        """Members or subscriptions have changed: look which topics these are before the next."""
        self._topics_version = None

    def look_at_topics(self) -> bool:
        """Look which topics there are; return whether they are others, for the same members."""
        have_members_changed = self._topics_version is None
        if self._topics_version == self._store.topics_version:
            return False
        self._topics_version = self._store.topics_version
        known, patterns = self._store.topics, self._store.patterns
        topics: dict[Subscription, frozenset[bytes]] = {}
        counts: dict[bytes, int] = {}
        for one in {member.subscription for member in self._members}:
            names = patterns.matched(one.pattern) if one.pattern else frozenset()
            found = [known[name] for name in {*one.topics, *names} if name in known]
            topics[one] = frozenset(topic.topic_id for topic in found)
            counts.update((topic.topic_id, len(topic.partitions)) for topic in found)
        is_other = (topics, counts) != (self._topics, self._counts)
        self._topics, self._counts = topics, counts
        return is_other and not have_members_changed

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
                self._topics[member.subscription],
                self._targets.get(member.member_id, member.held.assigned),
                member.instance_id,
            )
            for member in self._members
        }
        return ASSIGNORS[self.assignor](subscribers, self._counts)
