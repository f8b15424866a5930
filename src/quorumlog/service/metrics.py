"""Reads the metrics of a node when they are asked for.

Everything is kept where it happens, as counters and histograms that cost an addition; here it gets
the names of `metric_families`. What is read belongs to the event loop's thread: a value may be a
moment older than the one beside it.
"""

import platform
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import accumulate, islice
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from quorumlog.auth.quotas import THROTTLED
from quorumlog.auth.sasl import Reason
from quorumlog.broker.running import IN_SYNC_ENTRIES
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.machine.cluster.state import EMPTY_VIEW, ClusterView
from quorumlog.model.codes import Role
from quorumlog.model.features import names_of
from quorumlog.model.histogram import Histogram
from quorumlog.model.messages.client import StatusResponse
from quorumlog.node.node import Node
from quorumlog.node.replica.replica import Replica
from quorumlog.node.replica.status import status_of
from quorumlog.service.logs import dropped_lines
from quorumlog.service.metric_families import FAMILIES, STATUS_GAUGES, Family
from quorumlog.storage.files.os_files import SPARES
from quorumlog.transport.node_tls import NodeTls

VERSION: Final = version("quorumlog")
"""Read from a file, so once, when the process begins: later there may be no descriptor for it."""
GROUPS_WITH_HISTOGRAMS_MAX = 100
"""Groups of a node with histograms of their own; those of all further ones are added up."""
PARTITIONS_SHOWN_MAX = 1_000
"""Partitions of a node with figures of their own; a group that has more shows its sums only."""
LAGS_SHOWN_MAX = 1_000
"""Lags of consumer groups that are shown, each of one partition that the node leads."""
OTHER_GROUPS = "_others"
"""The label of these; no group can have that name."""
DIRECTORIES_MAX = 64
"""Directories whose disks are looked at."""
MACHINE_STATES = (
    *("ready", "recovering", "rebuilding", "waiting", "installing", "verifying", "loading"),
    "failed",
)


class _Page:
    """The families of one scrape, filled with samples."""

    def __init__(self) -> None:
        self._families = {family.name: _empty(family) for family in FAMILIES}
        self._histograms: dict[str, dict[tuple[str, ...], Histogram]] = {}

    def add(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """Add a sample; `labels` are the values of the family's labels."""
        family = self._families[name]
        if isinstance(family, CounterMetricFamily | GaugeMetricFamily):
            family.add_metric(labels, value)

    def observe(self, name: str, labels: tuple[str, ...], histogram: Histogram) -> None:
        """Add what was observed, if anything was, to what has these labels already."""
        counts = list(histogram.counts)
        if any(counts):
            found = self._histograms.setdefault(name, {}).setdefault(
                labels, Histogram(histogram.bounds)
            )
            found.counts = [one + more for one, more in zip(found.counts, counts, strict=True)]
            found.total += histogram.total

    def finished(self) -> Iterator[Metric]:
        """Yield all families, each dropped when the next is asked for.

        To free all samples of a thousand groups at once would hold up the event loop.
        """
        for name, found in self._histograms.items():
            family = self._families[name]
            if isinstance(family, HistogramMetricFamily):
                for labels, histogram in found.items():
                    family.add_metric(labels, _buckets(histogram), histogram.total)
        for name in list(self._families):
            yield self._families.pop(name)


def _empty(family: Family) -> Metric:
    name, labels = family.shown_name, family.labels
    if family.kind == "counter":
        return CounterMetricFamily(name.removesuffix("_total"), family.help_text, labels=labels)
    kind = GaugeMetricFamily if family.kind == "gauge" else HistogramMetricFamily
    return kind(name, family.help_text, labels=labels)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return (upper bound, values up to there) of each bucket, the last one without a bound."""
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))


class NodeMetrics(Collector):
    """Everything about one node that has a name in `metric_families`, and about its process."""

    def __init__(
        self,
        node: Node,
        kafka: KafkaCounters | None = None,
        view: Callable[[], ClusterView] = lambda: EMPTY_VIEW,
    ) -> None:
        self._node = node
        self._kafka = kafka
        self._view = view
        self._build = (VERSION, platform.python_version())
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all families, as they are now."""
        page, node, shown = _Page(), self._node, 0
        for number, (group, replica) in enumerate(list(node.replicas.items())):
            labels = (group, node.config.self_id)
            try:
                _add_group(page, labels, replica, has_own=number < GROUPS_WITH_HISTOGRAMS_MAX)
                shown += _add_partitions(page, labels, replica, PARTITIONS_SHOWN_MAX - shown)
            except Exception:
                if node.replicas.get(group) is replica:
                    raise
                # else it was deleted meanwhile, and its files are closed
        for group in node.failed_groups:
            page.add("replica_healthy", (group, node.config.self_id), 0.0)
        page.add("build_info", self._build, 1)
        _add_node(page, node)
        _add_transport(page, node)
        _add_tls(page, node.tls)
        _add_disks(page, node)
        _add_logins(page, node)
        if self._kafka is not None:
            _add_kafka(page, self._kafka)
            _add_consumer_groups(page, node, self._view())
        yield from page.finished()


def _add_group(page: _Page, labels: tuple[str, str], replica: Replica, *, has_own: bool) -> None:
    """Add one group; `has_own`: its histograms are shown by themselves."""
    status = status_of(replica, labels[1])
    _add_gauges(page, labels, status)
    _add_machine(page, labels, replica, status)
    _add_peers(page, labels, status)
    _add_counters(page, labels, replica)
    _add_histograms(page, labels if has_own else (OTHER_GROUPS, labels[1]), replica)


def _add_gauges(page: _Page, labels: tuple[str, ...], status: StatusResponse) -> None:
    for name in STATUS_GAUGES:
        page.add(f"replica_{name}", labels, getattr(status, name))
    page.add("replica_entries", labels, status.end_index - status.begin_index + 1)
    page.add("replica_is_leader", labels, float(status.role == Role.LEADER.value))
    page.add("replica_healthy", labels, float(status.healthy))
    page.add("replica_disk_full", labels, float(bool(status.disk_text)))
    page.add("replica_cleaning_by_age_rests", labels, float(bool(status.retention_text)))
    last_pass = status.scrub_last_pass_ms / 1_000
    page.add("replica_scrub_last_pass_timestamp_seconds", labels, last_pass)
    page.add("replica_scrub_last_pass_seconds", labels, last_pass)
    page.add("replica_scrub_passes", labels, status.scrub_passes)


def _add_machine(
    page: _Page, labels: tuple[str, ...], replica: Replica, status: StatusResponse
) -> None:
    state = replica.applier.state
    if state.machine is None:
        return
    present = "failed" if state.failed_text else status.install_state
    for name in MACHINE_STATES:
        page.add("machine_state", (*labels, name), float(name == present))
    newest = state.newest
    page.add("machine_checked_timestamp_seconds", labels, status.machine_checked_ms / 1_000)
    page.add("snapshot_last_index", labels, status.snapshot_index)
    page.add("snapshot_last_bytes", labels, 0 if newest is None else newest.size_bytes)
    page.add("snapshots_kept", labels, replica.applier.snapshots_kept)


def _add_peers(page: _Page, labels: tuple[str, ...], status: StatusResponse) -> None:
    for peer in status.peers:
        key = (*labels, peer.peer_id)
        page.add("peer_link_lag_entries", key, peer.lag)
        page.add("peer_link_in_flight_bytes", key, peer.in_flight_bytes)
        page.add("peer_link_match_index", key, peer.match_index)


def _add_partitions(page: _Page, labels: tuple[str, ...], replica: Replica, room: int) -> int:
    """Add the partitions of a group, each by itself if there is room; return how many are shown."""
    if replica.config.kind != "partitions":
        return 0
    by_channel = replica.tables.partitions.partitions.copy()
    partitions = by_channel.values()
    page.add("replica_partitions", labels, len(partitions))
    records = sum(one.next_offset - one.log_start for one in partitions)
    page.add("replica_partition_records", labels, records)
    peers = replica.core.peer_progress() if replica.core.role is Role.LEADER else []
    is_short = any(not peer.live or not 0 <= peer.lag <= IN_SYNC_ENTRIES for peer in peers)
    page.add("replica_under_replicated", labels, float(is_short))
    if len(partitions) > room:
        return 0
    # while a topic that was deleted is made again, both may be there
    channels = {(one.topic, one.number): channel for channel, one in by_channel.items()}
    for channel in channels.values():
        one = by_channel[channel]
        key = (*labels, one.topic, str(one.number))
        page.add("partition_high_watermark", key, one.next_offset)
        page.add("partition_log_start_offset", key, one.log_start)
        size_bytes = replica.partition_retention.known_bytes(channel)
        if size_bytes is not None:
            page.add("partition_size_bytes", key, size_bytes)
        page.add("partition_appended_bytes", key, one.appended_bytes)
    return len(partitions)


def _add_counters(page: _Page, labels: tuple[str, ...], replica: Replica) -> None:
    counters, fetches = replica.counters, replica.fetches
    scrubber = replica.repairer.scrubber
    values = {
        "service_append_requests": counters.append_requests,
        "service_append_entries": counters.append_entries,
        "service_append_bytes": counters.append_bytes,
        "service_fetch_entries": fetches.entries_served,
        "service_fetch_bytes": fetches.bytes_served,
        "service_located_entries": fetches.entries_located
        + replica.partitions.locations.entries_located,
        "replica_role_changes": counters.role_changes,
        "replica_alarms": counters.alarms,
        "peer_link_pushes_sent": counters.pushes_sent,
        "peer_link_push_bytes_sent": counters.push_bytes_sent,
        "peer_link_pushes_received": counters.received.pushes,
        "peer_link_push_entries_received": counters.received.entries,
        "peer_link_push_bytes_received": counters.received.size_bytes,
        "peer_link_malformed_pushes": counters.malformed_pushes,
        "store_damaged_found": counters.entries_damaged,
        "store_entries_repaired": counters.entries_repaired,
        "store_scrub_found": scrubber.damage_found,
        "store_scrub_passes": scrubber.passes,
        "append_blocks_repeated": counters.blocks_repeated,
        "tables_rebuilt": counters.tables_rebuilt,
        "log_resets": counters.log_resets,
        "machine_rebuilds": counters.machine_rebuilds,
        "snapshots_saved": replica.applier.snapshotter.saved,
        "store_snapshots_damaged": counters.snapshots_damaged,
        "store_segments_removed": counters.segments_removed,
        "store_bytes_removed": counters.bytes_removed,
        "store_damaged_reads": fetches.damaged_reads,
    }
    for name, value in values.items():
        page.add(f"{name}_total", labels, value)
    for code, count in list(counters.appends_refused.items()):
        page.add("service_appends_refused_total", (*labels, code), count)


def _add_histograms(page: _Page, labels: tuple[str, ...], replica: Replica) -> None:
    found = replica.context.histograms
    for name, histogram in {
        "service_append_seconds": found.append_seconds,
        "service_fetch_seconds": found.fetch_seconds,
        "replica_block_entries": found.block_entries,
        "replica_block_bytes": found.block_bytes,
        "machine_apply_seconds": found.apply_seconds,
        "machine_apply_entries": found.apply_entries,
        "snapshot_save_seconds": found.snapshot_save_seconds,
        "snapshot_load_seconds": found.snapshot_load_seconds,
    }.items():
        page.observe(name, labels, histogram)
    for mode, histogram in found.read_seconds.items():
        page.observe("service_read_seconds", (*labels, mode), histogram)
    for peer_id, pushes in list(found.pushes.items()):
        key = (*labels, peer_id)
        page.observe("peer_link_push_seconds", key, pushes.seconds)
        page.observe("peer_link_push_entries", key, pushes.entries)
        page.observe("peer_link_push_bytes", key, pushes.size_bytes)
    for peer_id, histogram in list(found.installs.items()):
        page.observe("snapshot_install_seconds", (*labels, peer_id), histogram)


def _add_node(page: _Page, node: Node) -> None:
    instruments = node.instruments
    page.observe("disk_commit_seconds", (), instruments.commits.seconds)
    page.observe("disk_commit_bytes", (), instruments.commits.size_bytes)
    page.add("otlp_sends_failed_total", (), instruments.sends_failed)
    dropped = 0 if instruments.tracer is None else instruments.tracer.dropped
    page.add("traces_dropped_total", (), dropped)
    page.add("groups_quiescent", (), node.liveness.quiescent_count)
    page.add("groups_resting", (), node.liveness.quiescent_count)
    page.add("clock_steps_total", (), node.clocks.steps)
    page.add("loop_lag_max_seconds", (), node.lag.recent_max_s)
    page.add("loop_stalls_total", (), node.lag.stalls)
    page.add("store_descriptor_waits_total", (), SPARES.waits)
    page.add("log_lines_dropped_total", (), dropped_lines())
    audit = instruments.audit.counters
    page.add("audit_failing", (), audit.is_failing)
    page.add("audit_lines_total", (), audit.lines)
    page.add("audit_lost_total", (), audit.lost)


def _add_tls(page: _Page, tls: NodeTls | None) -> None:
    if tls is None:
        return
    page.add("tls_reload_failed", (), float(tls.has_failed))
    for file, seconds in tls.seconds_left.items():
        page.add("certificate_expires_seconds", (file,), seconds)


def _add_transport(page: _Page, node: Node) -> None:
    for peer_id, spoken in node.links.spoken.copy().items():
        features = ",".join(names_of(spoken.features))
        labels = (node.config.self_id, peer_id, spoken.release, str(spoken.wire_version), features)
        page.add("peer_link_info", labels, 1)
    counters, shared = node.listener.counters, node.listener.shared
    budgets, throttled = shared.budgets, shared.admissions.throttles.counters
    receiving = budgets.unproven.used + budgets.clients.used
    page.add("transport_connections", (), len(node.listener.connections))
    page.add("transport_connections_max", (), node.descriptors.connections)
    page.add("transport_receive_bytes", (), receiving)
    page.add("transport_peer_receive_bytes", (), budgets.members.used)
    page.add("transport_send_bytes", (), budgets.answers.used)
    page.add("transport_garbage_total", (), counters.garbage)
    page.add("transport_accept_failures_total", (), counters.accept_failures)
    memory = budgets.unproven.ended + budgets.clients.ended + budgets.members.ended
    for reason, count in {
        "late_frame": counters.late_frames,
        "memory": memory,
        "unread": budgets.answers.ended,
        "idle_place": counters.ended_for_places,
        "no_place": counters.refused_places,
        "stranger": shared.strangers.ended + shared.strangers.refused,
        **shared.admissions.refused,
    }.items():
        page.add("transport_ended_total", (reason,), count)
    for key in THROTTLED:
        page.add("throttled_waits_total", (key,), throttled.waits[key])
        page.add("throttled_seconds_total", (key,), throttled.seconds[key])
    strange = node.inbox_counters
    for reason, count in {
        "unknown_group": strange.unknown_group,
        "unknown_member": strange.unknown_member,
        "not_a_peer_message": strange.not_a_peer_message,
        "malformed_part": strange.malformed_part,
    }.items():
        page.add("transport_foreign_messages_total", (reason,), count)


def _add_logins(page: _Page, node: Node) -> None:
    logins = node.instruments.logins
    page.add("login_accepted_total", (), logins.accepted)
    page.add("login_busy_total", (), logins.busy)
    for reason in Reason:
        page.add("login_refused_total", (reason.value,), logins.refused.get(reason, 0))


def _add_kafka(page: _Page, counters: KafkaCounters) -> None:
    page.add("kafka_connections", (), counters.connections)
    page.add("kafka_request_bytes", (), counters.request_bytes)
    page.add("kafka_compacted_topics", (), counters.compacted_topics)
    for name, value in {
        "kafka_bytes_in": counters.bytes_in,
        "kafka_bytes_out": counters.bytes_out,
        "kafka_malformed": counters.malformed,
        "kafka_produces_waited": counters.waited_for_room,
        "kafka_paused": counters.paused,
        "kafka_rebalances": counters.rebalances,
        "kafka_transactions_committed": counters.transactions_committed,
        "kafka_transactions_aborted": counters.transactions_aborted,
        "kafka_transactions_timed_out": counters.transactions_timed_out,
    }.items():
        page.add(f"{name}_total", (), value)
    for request_and_error, count in list(counters.requests.items()):
        page.add("kafka_requests_total", request_and_error, count)
    page.observe("kafka_produce_seconds", (), counters.produce_seconds)
    page.observe("kafka_fetch_seconds", (), counters.fetch_seconds)


def _add_consumer_groups(page: _Page, node: Node, view: ClusterView) -> None:
    """Add consumer groups, and how far they lag in the partitions that this node leads."""
    records = view.consumer_groups.values()
    page.add("kafka_consumer_groups", (), len(records))
    page.add("kafka_consumer_group_members", (), sum(one.member_count for one in records))
    logs, ends = _ends_of_logs(node, view), dict[tuple[bytes, int], tuple[str, int]]()
    for group, assignments in view.assignments.items():
        replica = node.replicas.get(group)
        if replica is not None and replica.core.role is Role.LEADER:
            found = replica.tables.partitions.partitions.copy()
            for channel, one in assignments.items():
                if channel in found:
                    ends[one.topic_id, one.number] = one.topic, found[channel].next_offset
    lags = (
        (record.name, place[1], end, offset.offset)
        for record in records
        for place, offset in record.offsets.items()
        if offset.offset >= 0  # consumers take one below 0 for none
        and (end := logs.get(place[0]) or ends.get(place)) is not None
    )
    for name, number, (topic, last), committed in islice(lags, LAGS_SHOWN_MAX):
        lag = max(0, last - committed)
        page.add("consumer_group_lag_records", (name, topic, str(number)), lag)


def _ends_of_logs(node: Node, view: ClusterView) -> dict[bytes, tuple[str, int]]:
    """Return the names and ends of the logs that consumer groups read and this node leads.

    By their ids among those of topics: all partitions of a log end with it.
    """
    ends: dict[bytes, tuple[str, int]] = {}
    for log in {one.log for one in view.consumer_groups.values() if one.log is not None}:
        replica = node.replicas.get(log.log)
        if replica is None or replica.core.role is not Role.LEADER:
            continue
        if replica.core.identity == log.identity:
            end = min(replica.core.committed_index, replica.tables.stable_index) + 1
            ends[log.topic_id] = log.topic, end
    return ends


def _add_disks(page: _Page, node: Node) -> None:
    """Look at the disks of the node's directories, on the thread that asks."""
    directories = dict.fromkeys([node.config.store_base_dir])
    for group in [replica.config for replica in list(node.replicas.values())]:
        directories.update(dict.fromkeys(group.data_directories + group.read_only_directories))
    for directory in islice(directories, DIRECTORIES_MAX):
        try:
            usage = shutil.disk_usage(directory)
        except OSError:  # it is not there; who needs it says so
            continue
        page.add("disk_free_bytes", (directory,), usage.free)
        page.add("disk_size_bytes", (directory,), usage.total)
