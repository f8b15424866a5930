"""What the configs of a topic mean for a Produce, read once for each change of them."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from quorumlog.kafka.broker_view import TopicView
from quorumlog.model.codes import WriteLevel

BATCH_BYTES_DEFAULT: Final = 1_048_588
"""`max.message.bytes` of a topic that does not set it, as with Kafka."""
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


def _policy(configs: Mapping[str, str]) -> TopicPolicy:
    least = _LEVELS.get(configs.get("quorumlog.write.level", ""), WriteLevel.ONE_WAY)
    is_received = configs.get("quorumlog.acks.one") == WriteLevel.RECEIVE.word
    return TopicPolicy(
        int(configs.get("max.message.bytes", BATCH_BYTES_DEFAULT)),
        configs.get("message.timestamp.type") == "LogAppendTime",
        WriteLevel.RECEIVE if is_received else WriteLevel.PERSISTENCE,
        least,
        int(configs.get("min.insync.replicas", 1)),
    )


class TopicPolicies:
    """The policies of topics."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Mapping[str, str], TopicPolicy]] = {}

    def of(self, topic: TopicView) -> TopicPolicy:
        """Return how batches of a topic are taken."""
        configs = topic.configs
        known = self._known.get(topic.topic_id)
        if known is not None and known[0] is configs:
            return known[1]
        if len(self._known) >= TOPICS_MAX:
            self._known.clear()
        policy = _policy(configs)
        self._known[topic.topic_id] = (configs, policy)
        return policy
