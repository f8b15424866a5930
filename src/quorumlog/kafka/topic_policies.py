"""What the configs of a topic mean for a Produce, read once for each change of them."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from quorumlog.kafka.broker_view import TopicView
from quorumlog.model.codes import WriteLevel
from quorumlog.model.topic_configs import effective

TOPICS_MAX: Final = 10_000
"""Topics whose policies are kept; above it, all are made again."""
_LEVELS: Final[dict[str, WriteLevel]] = {level.word: level for level in WriteLevel}


class TopicPolicy(NamedTuple):
    """How batches of a topic are taken.

    `acks_one`: the level that acks=1 means. `least_level`: no batch is answered at a lower one,
    unless the client wants no answer. `in_sync_min`: replicas that must be in sync for acks=all.
    """

    batch_bytes_max: int
    gets_append_time: bool
    acks_one: WriteLevel
    least_level: WriteLevel
    in_sync_min: int


def _policy(configs: Mapping[str, str], defaults: Mapping[str, str]) -> TopicPolicy:
    def value(name: str) -> str:
        return effective(name, configs, defaults)

    return TopicPolicy(
        int(value("max.message.bytes")),
        value("message.timestamp.type") == "LogAppendTime",
        _LEVELS[value("quorumlog.acks.one")],
        _LEVELS[value("quorumlog.write.level")],
        int(value("min.insync.replicas")),
    )


class TopicPolicies:
    """The policies of topics, as their configs and the defaults of the cluster say."""

    def __init__(self) -> None:
        self._defaults: Mapping[str, str] = {}
        self._known: dict[bytes, tuple[Mapping[str, str], TopicPolicy]] = {}

    def of(self, topic: TopicView, defaults: Mapping[str, str]) -> TopicPolicy:
        """Return how batches of a topic are taken."""
        configs = topic.configs
        if defaults is not self._defaults:  # a new table with each command, mostly with the same
            if defaults != self._defaults:
                self._known = {}
            self._defaults = defaults
        if len(self._known) >= TOPICS_MAX and topic.topic_id not in self._known:
            self._known = {}
        known = self._known.get(topic.topic_id)
        if known is not None and known[0] is configs:
            return known[1]
        policy = _policy(configs, defaults)
        self._known[topic.topic_id] = (configs, policy)
        return policy
