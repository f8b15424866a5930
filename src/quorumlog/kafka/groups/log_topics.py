"""The log that a consumer group reads, as a topic, which is all that the coordinator knows."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from quorumlog.kafka.groups.topic_patterns import TopicPatterns
from quorumlog.machine.cluster.consumer_groups import LogToRead


class LogTopic(NamedTuple):
    """A topic with the name, the id and as many partitions as a log has for its consumer group."""

    name: str
    topic_id: bytes
    partitions: range


def topic_of(log: LogToRead) -> LogTopic:
    """Return a log as a topic."""
    return LogTopic(log.topic, log.topic_id, range(log.partitions))


class LogTopics:
    """The topics of a group that reads a log (see `TopicStore`): just that, which never changes."""

    topics_version = 0

    def __init__(self, log: LogToRead, patterns: TopicPatterns) -> None:
        self.topics: Mapping[str, Any] = {log.topic: topic_of(log)}
        self.patterns = patterns
