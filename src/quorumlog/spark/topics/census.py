"""What several brokers say of partitions, so that none of them has to be believed alone.

A broker that stood still, or is cut off from the others, may name leaders that were, not know a
partition that was made, and take itself for the only broker. Raft elects a leader by a majority of
a partition's replicas: of any other majority of them one at least knows of that election. It may
not know either that a topic was deleted and made again, and name leaders of the former one: the
topic is the one whose id a majority of the brokers name.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from quorumlog.spark.topics.part import Part


class NamedLeader(NamedTuple):
    """Who leads a partition, as a broker says: epoch, leader (-1: none), and the replicas' brokers.

    Of two the one with the higher epoch is greater. `topic_id` is the topic's id (KIP-516) as text;
    empty: the broker names none.
    """

    epoch: int
    broker_id: int
    replicas: tuple[int, ...] = ()
    topic_id: str = ""


@dataclass(slots=True)
class Census:
    """The answers about some partitions, of one broker after the other."""

    wanted: frozenset[Part] | None = None
    """The partitions that are asked about; None: all that any answer names."""
    addresses: dict[int, str] = field(default_factory=dict)
    """All brokers that any answer names."""
    _answers: dict[str, Mapping[Part, NamedLeader]] = field(default_factory=dict)

    def take(
        self, address: str, brokers: Mapping[int, str], leaders: Mapping[Part, NamedLeader]
    ) -> None:
        """Take what the broker at an address says."""
        self.addresses |= brokers
        self._answers[address] = leaders

    @property
    def parts(self) -> frozenset[Part]:
        """The partitions that are asked about, as far as they are known."""
        if self.wanted is not None:
            return self.wanted
        return frozenset().union(*self._counted)

    @property
    def _known(self) -> set[str]:
        return set(self.addresses.values())

    @property
    def _counted(self) -> list[Mapping[Part, NamedLeader]]:
        """The answers of brokers, each once: not those that came by other names of theirs."""
        return [self._answers[one] for one in self._known if one in self._answers]

    @property
    def has_majority(self) -> bool:
        """Whether a majority of the brokers that are known of have answered."""
        return 2 * len(self._counted) > len(self._known)

    def there(self) -> set[Part]:
        """Return the partitions of which no majority of the brokers say that they are gone."""
        counted, majority = self._counted, len(self._known) // 2 + 1
        return {part for part in self.parts if sum(part not in one for one in counted) < majority}

    def topic_ids(self) -> dict[str, str]:
        """Return the ids of topics that a majority of the brokers name; the others are left out."""
        topics = {part.topic for part in self.parts}
        votes: dict[str, Counter[str]] = {topic: Counter() for topic in topics}
        for answer in self._counted:
            named = {part.topic: one.topic_id for part, one in answer.items()}
            for topic in topics & named.keys():
                votes[topic][named[topic]] += 1
        majority, found = len(self._known) // 2 + 1, {}
        for topic, count in votes.items():
            for topic_id, most in count.most_common(1):
                if most >= majority:
                    found[topic] = topic_id
        return found

    def leaders(self) -> dict[Part, NamedLeader]:
        """Return who leads partitions, as those say who know of the last elections.

        If brokers name topics of several ids, only what is said of the majority's counts.
        """
        found: dict[Part, NamedLeader] = {}
        parts, topic_ids = self.parts, self.topic_ids()
        for one in self._counted:
            for part in parts & one.keys():
                leader = one[part]
                if leader.topic_id == topic_ids.get(part.topic, leader.topic_id):
                    found[part] = max(found.get(part, leader), leader)
        return found

    def unsure(self) -> set[Part]:
        """Return the partitions that are there, but of which too few replicas say who leads."""
        leaders = self.leaders()
        return {
            part
            for part in self.there()
            if part not in leaders or not self._is_sure(part, leaders[part])
        }

    def _is_sure(self, part: Part, leader: NamedLeader) -> bool:
        asked = (self._answers.get(self.addresses.get(one, ""), {}) for one in leader.replicas)
        named = [one[part].topic_id for one in asked if part in one]
        return 2 * named.count(leader.topic_id) > len(leader.replicas)

    def is_enough(self, others: int, *, of_leaders: bool) -> bool:
        """Whether no further answer is needed; `of_leaders`: to know who leads, too.

        `others` more brokers may be there, which nobody has named yet.
        """
        counted, majority = self._counted, (len(self._known) + others) // 2 + 1
        if len(counted) < majority:  # they may not know of a partition that was made
            return False
        for part in self.parts:
            votes = Counter(one[part].topic_id if part in one else None for one in counted)
            if max(votes.values()) < majority:
                return False
        return not (of_leaders and self.unsure())
