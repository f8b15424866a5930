"""What the configs of topics mean for how long the records of their partitions are kept."""

from quorumlog.machine.cluster.state import ClusterView
from quorumlog.model.topic_configs import effective
from quorumlog.topics.retention import RetentionRule


def rules_of(view: ClusterView, group: str) -> dict[int, RetentionRule]:
    """Return the rule of each partition of a group, by channel."""
    rules: dict[bytes, RetentionRule] = {}
    found: dict[int, RetentionRule] = {}
    for channel, one in view.assignments.get(group, {}).items():
        rule = rules.get(one.topic_id)
        if rule is None:
            rule = rules[one.topic_id] = _rule_of(view, one.topic_id)
        found[channel] = rule
    return found


def _rule_of(view: ClusterView, topic_id: bytes) -> RetentionRule:
    configs = view.topics_by_id[topic_id].configs
    policy = effective("cleanup.policy", configs, view.defaults)
    if "delete" not in [part.strip() for part in policy.split(",")]:
        return RetentionRule()  # of a compacted topic nothing is given up
    age_ms = int(effective("retention.ms", configs, view.defaults))
    size = int(effective("retention.bytes", configs, view.defaults))
    return RetentionRule(None if age_ms < 0 else age_ms, None if size < 0 else size)
