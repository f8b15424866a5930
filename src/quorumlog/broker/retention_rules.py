"""How long the records of partitions are kept: what topics' configs say, told to replicas."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from quorumlog.machine.cluster.state import ClusterView
from quorumlog.model.topic_configs import retained
from quorumlog.node.replica.replica import Replica
from quorumlog.topics.retention import RetentionRule

RULES_MS: Final = 1_000
"""Replicas are told so often at most."""
CONFIRM_MS: Final = 5_000
"""How long `__cluster` may take to say that a rule is still the newest."""


class RetentionRules:
    """Tells the replicas of one node their rules; all methods run on the event loop's thread.

    All replicas are told, whoever leads: the leader gives records up. It asks before it does: this
    node may not have heard of longer times yet, as it starts or is cut off from `__cluster`.
    """

    def __init__(
        self,
        replicas: Mapping[str, Replica],
        view: Callable[[], ClusterView],
        barrier: Callable[[int, Callable[[bool], None]], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._replicas = replicas
        self._view = view
        self._barrier = barrier
        self._now_ms = now_ms
        self._due_ms = 0
        self._told: dict[str, tuple[int, Replica]] = {}
        """By group: the view and the replica whose rules were set last."""

    def tick(self) -> None:
        """Tell what may have changed since replicas were told last."""
        now_ms = self._now_ms()
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + RULES_MS
        view = self._view()
        for name in view.groups:
            self._tell(view, name)
        for name in self._told.keys() - view.groups.keys():
            del self._told[name]

    def _tell(self, view: ClusterView, name: str) -> None:
        replica = self._replicas.get(name)
        if replica is None:
            self._told.pop(name, None)
        elif self._told.get(name) != (view.version, replica):
            self._told[name] = view.version, replica
            confirm = partial(self._confirm, name)
            replica.partition_retention.set_rules(rules_of(view, name), confirm)

    def _confirm(self, name: str, done: Callable[[bool], None]) -> None:
        """Tell a group its rules as of now, unless `__cluster` does not answer."""

        def passed(has_passed: bool) -> None:
            view = self._view()
            if has_passed and name in view.groups:
                self._tell(view, name)
            done(has_passed)

        self._barrier(CONFIRM_MS, passed)


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
