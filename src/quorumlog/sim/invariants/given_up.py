"""Partitions give up what their rules say or a client asked for, no more and not less."""

from collections.abc import Iterable

from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.invariants.no_early_removal import RATE_MAX
from quorumlog.sim.partition_history import PartitionHistory, PartitionPast
from quorumlog.sim.views import ClusterView, NodeView
from quorumlog.topics.retention import RetentionRule


class GivenUp(Invariant):
    """Judges each log start that the committed log has moved, and at the end what is still there.

    `history` is what the committed log says of partitions, which somebody else reads.
    """

    name = "given_up"

    def __init__(self, history: PartitionHistory) -> None:
        self._history = history
        self._index = -1
        self._judged: dict[int, int] = {}
        self.moves = 0
        """Log starts that rules have moved."""

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        history = self._history
        if history.index == self._index:
            return
        self._index = history.index
        for channel, past in history.past.items():
            for index, offset in past.starts[self._judged.get(channel, 1) :]:
                self._judge(node.cluster, channel, past, index, offset)
            self._judged[channel] = len(past.starts)

    def _judge(
        self, cluster: ClusterView, channel: int, past: PartitionPast, index: int, offset: int
    ) -> None:
        clients = cluster.clients
        if (channel, offset) in clients.starts_asked:
            return
        self.moves += 1
        rule = cluster.rules.get(channel, RetentionRule())
        self.require(
            self._is_above(rule, past, index, offset) or self._is_old(cluster, rule, past, offset),
            f"channel {channel} starts at {offset} after the entry {index}, which {rule} does not "
            "ask for, nor did a client",
        )

    @staticmethod
    def _is_above(rule: RetentionRule, past: PartitionPast, index: int, offset: int) -> bool:
        """Whether the batches that stay have as many bytes as are to be kept."""
        if rule.retention_bytes is None:
            return False
        return past.size_between(offset, index) >= rule.retention_bytes

    @staticmethod
    def _is_old(
        cluster: ClusterView, rule: RetentionRule, past: PartitionPast, offset: int
    ) -> bool:
        """Whether the newest batch that is given up, and is whole, can be as old as it must be."""
        given_up = [batch for batch in past.batches if batch.base_offset < offset]
        batches = cluster.clients.batches
        if rule.retention_ms is None or not given_up or batches is None:
            return False
        newest = given_up[-1]
        age_ms = cluster.clock.now_ms - batches[newest.number].made_ms
        is_whole = newest.base_offset + newest.count == offset
        return is_whole and age_ms * RATE_MAX >= rule.retention_ms

    def ended(self, cluster: ClusterView) -> None:
        """See `Invariant`: nothing has been appended for some time."""
        if cluster.clients.batches is None or not cluster.rules:
            return
        first_needed = self._history.index
        for channel, past in self._history.past.items():
            if past.closed_at is not None:
                continue
            start, rule = past.starts[-1][1], cluster.rules.get(channel, RetentionRule())
            kept = [batch for batch in past.batches if batch.base_offset + batch.count > start]
            if not kept:
                continue
            first_needed = min(first_needed, kept[0].index)
            bound, rest = rule.retention_bytes, sum(batch.size for batch in kept[1:])
            self.require(
                bound is None or rest < bound,
                f"channel {channel} has {rest} bytes after its first batch, and may keep {bound}",
            )
        self._check_files(cluster.members(), first_needed)

    def _check_files(self, nodes: Iterable[NodeView], first_needed: int) -> None:
        """Check that each replica has removed the files in which nothing is offered."""
        for node in nodes:
            segments, tables = node.log.segments(), node.running.tables
            if segments and tables.is_trusted and not tables.is_incomplete:
                self.require(
                    segments[0].last_index >= first_needed,
                    f"{node.node_id} has the entries up to {segments[0].last_index} in a file of "
                    f"their own; partitions offer what follows {first_needed}",
                )
