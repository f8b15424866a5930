"""What configs mean for a Produce is read again only if they have changed."""

from types import SimpleNamespace

from quorumlog.kafka import topic_policies
from quorumlog.kafka.topic_policies import TopicPolicies


def test_policies_are_kept_until_the_configs_of_the_topic_or_the_cluster_change():
    topic = SimpleNamespace(topic_id=b"t" * 16, configs={"max.message.bytes": "1000"})
    policies = TopicPolicies()
    first = policies.of(topic, {"log.message.timestamp.type": "LogAppendTime"})
    assert (first.batch_bytes_max, first.gets_append_time) == (1_000, True)
    again = policies.of(topic, {"log.message.timestamp.type": "LogAppendTime"})
    assert again is first, "each command makes a new table of the same defaults"
    assert not policies.of(topic, {}).gets_append_time
    topic.configs = {}
    assert policies.of(topic, {}).batch_bytes_max > 1_000


def test_the_policies_that_are_kept_are_bounded(monkeypatch):
    monkeypatch.setattr(topic_policies, "TOPICS_MAX", 2)
    policies = TopicPolicies()
    topics = [SimpleNamespace(topic_id=bytes([n]) * 16, configs={}) for n in range(3)]
    found = [policies.of(one, {}) for one in topics[:2]]
    assert [policies.of(one, {}) for one in topics[:2]] == found
    assert policies.of(topics[0], {}) is found[0]
    policies.of(topics[2], {})
    assert policies.of(topics[0], {}) is not found[0]
