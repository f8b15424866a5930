"""How long the records of partitions are kept: what topics' configs say, told to replicas."""

from collections.abc import Callable, Mapping
from typing import Final

from quorumlog.machine.cluster.state import ClusterView
from quorumlog.model.topic_configs import retained
from quorumlog.node.replica.replica import Replica
from quorumlog.topics.retention import RetentionRule

RULES_MS: Final = 1_000
"""Replicas are told so often at most."""


class RetentionRules:
    """Tells the replicas of one node their rules; all methods run on the event loop's thread.

    All replicas are told, whoever leads: the leader gives records up.
    """

    def __init__(self, replicas: Mapping[str, Replica], now_ms: Callable[[], int]) -> None:
        self._replicas = replicas
        self._now_ms = now_ms
        self._due_ms = 0
        self._told: dict[str, tuple[int, Replica]] = {}
        """By group: the view and the replica whose rules were set last."""

    def tick(self, view: ClusterView) -> None:
        """Tell what may have changed since replicas were told last."""
        now_ms = self._now_ms()
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + RULES_MS
        for name in view.groups:
            replica = self._replicas.get(name)
            if replica is None:
                self._told.pop(name, None)
            elif self._told.get(name) != (view.version, replica):
                self._told[name] = view.version, replica
                replica.partition_retention.set_rules(rules_of(view, name))
        for name in self._told.keys() - view.groups.keys():
            del self._told[name]


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
    return RetentionRule(*retained(view.topics_by_id[topic_id].configs, view.defaults))
