"""Metrics of a node in one table: names follow the path of one append (DESIGN section 4).

service (answers to clients) → replica (core and pending appends) → disk (group commit) →
peer_link (pushes) → store. Durations are in seconds, sizes in bytes.
"""

from collections.abc import Iterator
from functools import cache

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quorumlog.model.codes import Role
from quorumlog.node.node import Node
from quorumlog.node.replica.replica import Replica
from quorumlog.node.replica.status import status_of
from quorumlog.service.logs import dropped_lines
from quorumlog.storage.files.os_files import SPARES

LATENCY_BUCKETS = (
    *(0.0001, 0.0003, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.03, 0.05),
    *(0.1, 0.3, 0.5, 1.0, 3.0, 10.0),
)
SIZE_BUCKETS = tuple(float(4**exponent) for exponent in range(4, 14))

REPLICA_GAUGES = {
    "term": "Current term.",
    "begin_index": "First index kept.",
    "end_index": "Last index, durable or not.",
    "durable_index": "Last index known durable on this node.",
    "committed_index": "Last committed index.",
    "applied_index": "Last index handed to the state machine.",
    "pending_requests": "Appends waiting for a majority.",
    "pending_bytes": "Bytes of appends waiting for a majority.",
    "store_bytes": "Bytes of all entries kept.",
    "damaged_entries": "Entries quarantined as damaged and not yet repaired.",
    "scrub_passes": "Whole passes of the background check since the start.",
    "scrub_checked_index": "How far the present pass of the background check has come.",
}


class NodeMetrics(Collector):
    """Gauges and counters read from the node when scraped, histograms observed as things happen."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._node: Node | None = None
        append = Histogram(
            "quorumlog_service_append_seconds",
            "From acceptance of an append to its acknowledgement.",
            ["group"],
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._append_of = cache(append.labels)  # by group
        self._commit = Histogram(
            "quorumlog_disk_commit_seconds",
            "One group commit: writes and fsync.",
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._commit_bytes = Histogram(
            "quorumlog_disk_commit_bytes",
            "Bytes of one group commit.",
            buckets=SIZE_BUCKETS,
            registry=self.registry,
        )
        self.registry.register(self)

    def attach(self, node: Node) -> None:
        """Read gauges and counters from this node from now on."""
        self._node = node

    def append_answered(self, group: str, seconds: float, entries: int, size_bytes: int) -> None:
        """See `Observer`."""
        self._append_of(group).observe(seconds)

    def disk_committed(self, seconds: float, size_bytes: int) -> None:
        """Record a group commit."""
        self._commit.observe(seconds)
        self._commit_bytes.observe(size_bytes)

    def collect(self) -> Iterator[Metric]:
        """Yield everything that is read rather than observed."""
        if self._node is None:
            return
        yield from _replica_gauges(self._node)
        yield from _peer_gauges(self._node)
        yield from _replica_counters(self._node)
        yield from _node_counters(self._node)


def _replica_gauges(node: Node) -> Iterator[Metric]:
    labels = ["group", "self_id"]
    families = {
        name: GaugeMetricFamily(f"quorumlog_replica_{name}", text, labels=labels)
        for name, text in REPLICA_GAUGES.items()
    }
    full = GaugeMetricFamily(
        "quorumlog_replica_disk_full", "1 while appends are answered DISK_FULL.", labels=labels
    )
    scrubbed = GaugeMetricFamily(
        "quorumlog_replica_scrub_last_pass_seconds",
        "When the last whole pass of the background check ended (seconds since 1970, 0: never).",
        labels=labels,
    )
    resting = GaugeMetricFamily(
        "quorumlog_replica_cleaning_by_age_rests",
        "1 while nothing is removed by age, since the wall clock was set.",
        labels=labels,
    )
    leader = GaugeMetricFamily("quorumlog_replica_is_leader", "1 on the leader.", labels=labels)
    healthy = GaugeMetricFamily("quorumlog_replica_healthy", "1 if trusted.", labels=labels)
    for group, replica in list(node.replicas.items()):
        key = [group, node.config.self_id]
        status = status_of(replica, node.config.self_id)
        for name, family in families.items():
            family.add_metric(key, getattr(status, name))
        leader.add_metric(key, float(status.role == Role.LEADER.value))
        healthy.add_metric(key, float(status.healthy))
        full.add_metric(key, float(bool(status.disk_text)))
        resting.add_metric(key, float(bool(status.retention_text)))
        scrubbed.add_metric(key, status.scrub_last_pass_ms / 1_000)
    for group in node.failed_groups:
        healthy.add_metric([group, node.config.self_id], 0.0)
    yield from (*families.values(), leader, healthy, full, scrubbed, resting)


def _peer_gauges(node: Node) -> Iterator[Metric]:
    labels = ["group", "self_id", "remote_id"]
    lag = GaugeMetricFamily(
        "quorumlog_peer_link_lag_entries", "Entries the peer is behind the leader.", labels=labels
    )
    in_flight = GaugeMetricFamily(
        "quorumlog_peer_link_in_flight_bytes", "Pushed and not yet acknowledged.", labels=labels
    )
    for group, replica in list(node.replicas.items()):
        if replica.core.role is not Role.LEADER:
            continue
        for peer in replica.core.peer_progress():
            key = [group, node.config.self_id, peer.peer_id]
            lag.add_metric(key, peer.lag)
            in_flight.add_metric(key, peer.in_flight_bytes)
    yield from (lag, in_flight)


def _counter_values(replica: Replica) -> dict[str, tuple[str, float]]:
    """Name → (help, value) of what a replica counts."""
    counters, fetches = replica.counters, replica.fetches
    return {
        "service_append_requests": ("Append requests staged.", counters.append_requests),
        "service_append_entries": ("Entries acknowledged.", counters.append_entries),
        "service_append_bytes": ("Bytes acknowledged, headers included.", counters.append_bytes),
        "service_fetch_entries": ("Entries sent to clients.", fetches.entries_served),
        "service_fetch_bytes": ("Bytes of entries sent to clients.", fetches.bytes_served),
        "service_located_entries": (
            "Entries that clients on the same machine were to read from the files.",
            fetches.entries_located,
        ),
        "replica_role_changes": ("Changes of role, term or leader.", counters.role_changes),
        "replica_alarms": ("Things that must never happen.", counters.alarms),
        "peer_link_pushes_sent": ("Pushes with entries sent.", counters.pushes_sent),
        "peer_link_push_bytes_sent": ("Bytes of entries pushed.", counters.push_bytes_sent),
        "peer_link_pushes_received": ("Pushes received.", counters.pushes_received),
        "peer_link_malformed_pushes": ("Pushes dropped as malformed.", counters.malformed_pushes),
        "store_damaged_found": ("Damaged entries found.", counters.entries_damaged),
        "store_entries_repaired": ("Entries repaired from peers.", counters.entries_repaired),
        "store_scrub_found": (
            "Damage that the scrub found.",
            replica.repairer.scrubber.damage_found,
        ),
        "append_blocks_repeated": (
            "Blocks of producers that came again and were in the log already.",
            counters.blocks_repeated,
        ),
        "tables_rebuilt": (
            "Times derived tables differed from a majority's, and a peer's took their place.",
            counters.tables_rebuilt,
        ),
        "log_resets": (
            "Times this log was reset, as the leader had removed what it needed.",
            counters.log_resets,
        ),
        "machine_rebuilds": (
            "Times the state machine was damaged, or unlike those of a majority, and rebuilt.",
            counters.machine_rebuilds,
        ),
        "store_snapshots_damaged": (
            "Snapshots that the scrub found damaged.",
            counters.snapshots_damaged,
        ),
        "store_segments_removed": ("Files removed by retention.", counters.segments_removed),
        "store_bytes_removed": ("Bytes removed by retention.", counters.bytes_removed),
        "store_damaged_reads": ("Reads that found damaged entries.", fetches.damaged_reads),
    }


def _replica_counters(node: Node) -> Iterator[Metric]:
    labels = ["group", "self_id"]
    families: dict[str, CounterMetricFamily] = {}
    refused = CounterMetricFamily(
        "quorumlog_service_appends_refused", "Appends not acknowledged.", labels=[*labels, "code"]
    )
    for group, replica in list(node.replicas.items()):
        key = [group, node.config.self_id]
        for name, (text, value) in _counter_values(replica).items():
            if name not in families:
                families[name] = CounterMetricFamily(f"quorumlog_{name}", text, labels=labels)
            families[name].add_metric(key, value)
        for code, count in list(replica.counters.appends_refused.items()):
            refused.add_metric([*key, code], count)
    yield from (*families.values(), refused)


def _node_counters(node: Node) -> Iterator[Metric]:
    inbox = node.inbox_counters
    strange = CounterMetricFamily(
        "quorumlog_transport_foreign_messages",
        "Peer messages that were not for this node, by reason.",
        labels=["reason"],
    )
    strange.add_metric(["unknown_group"], inbox.unknown_group)
    strange.add_metric(["unknown_member"], inbox.unknown_member)
    strange.add_metric(["not_a_peer_message"], inbox.not_a_peer_message)
    connections = GaugeMetricFamily("quorumlog_transport_connections", "Accepted and open.")
    connections.add_metric([], len(node.listener.connections))
    yield from _transport_metrics(node)
    garbage = CounterMetricFamily(
        "quorumlog_transport_garbage", "Connections closed because of bytes that are no frame."
    )
    garbage.add_metric([], node.listener.counters.garbage)
    resting = GaugeMetricFamily(
        "quorumlog_groups_resting",
        "Groups whose replica here relies on the heartbeats between nodes.",
    )
    resting.add_metric([], node.liveness.quiescent_count)
    steps = CounterMetricFamily(
        "quorumlog_clock_steps", "Times the wall clock was seen to be set by more than a minute."
    )
    steps.add_metric([], node.clocks.steps)
    yield from (strange, connections, garbage, resting, steps)


def _transport_metrics(node: Node) -> Iterator[Metric]:
    listener, lag = node.listener, node.lag
    counters, budgets = listener.counters, listener.shared.budgets
    gauges = {
        "transport_connections_max": (
            "As many clients as file descriptors and connectionsMax allow.",
            node.descriptors.connections,
        ),
        "transport_receive_bytes": (
            "Unfinished frames of clients.",
            budgets.unproven.used + budgets.clients.used,
        ),
        "transport_peer_receive_bytes": ("Unfinished frames of members.", budgets.members.used),
        "transport_send_bytes": ("Answers that clients have not read.", budgets.answers.used),
        "loop_lag_max_seconds": (
            "By how much the event loop was late at most in the last minute.",
            lag.recent_max_s,
        ),
    }
    for name, (text, value) in gauges.items():
        gauge = GaugeMetricFamily(f"quorumlog_{name}", text)
        gauge.add_metric([], value)
        yield gauge
    ended = CounterMetricFamily(
        "quorumlog_transport_ended",
        "Connections ended or refused because of what they take, by reason.",
        labels=["reason"],
    )
    for reason, count in {
        "late_frame": counters.late_frames,
        "memory": budgets.unproven.ended + budgets.clients.ended + budgets.members.ended,
        "unread": budgets.answers.ended,
        "idle_place": counters.ended_for_places,
        "no_place": counters.refused_places,
    }.items():
        ended.add_metric([reason], count)
    stalls = CounterMetricFamily(
        "quorumlog_loop_stalls", "Times the event loop was late by 0.1 s or more."
    )
    stalls.add_metric([], lag.stalls)
    failures = CounterMetricFamily(
        "quorumlog_transport_accept_failures", "Times no descriptor was free for a connection."
    )
    failures.add_metric([], counters.accept_failures)
    waits = CounterMetricFamily(
        "quorumlog_store_descriptor_waits", "Times storage waited for a free descriptor."
    )
    waits.add_metric([], SPARES.waits)
    lines = CounterMetricFamily(
        "quorumlog_log_lines_dropped", "Log lines that standard error did not take in time."
    )
    lines.add_metric([], dropped_lines())
    yield from (ended, stalls, failures, waits, lines)
