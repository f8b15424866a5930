"""The metrics of a node: name, kind, meaning and labels of each, in one table.

Both exporters, Prometheus and OTLP, and docs/reference/metrics.md are made from it. Names follow
the path of one append (DESIGN section 4): service (requests and answers), replica (core, blocks,
pending appends), disk (group commit), peer_link (pushes), machine, snapshot, store. Durations are
in seconds and sizes in bytes.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

PREFIX = "quorumlog_"
NODE: Final = ()
REPLICA: Final = ("group", "self_id")
PARTITION: Final = (*REPLICA, "topic", "partition")
PEER: Final = (*REPLICA, "remote_id")


class Family(NamedTuple):
    """One metric. `kind` is counter, gauge or histogram; `instead`: what replaces a deprecated one.

    `name` is without the prefix; that of a counter ends with `_total`.
    """

    name: str
    kind: str
    text: str
    labels: tuple[str, ...] = REPLICA
    instead: str = ""

    @property
    def shown_name(self) -> str:
        """The name as it is shown."""
        return PREFIX + self.name

    @property
    def help_text(self) -> str:
        """What it is, as it is shown."""
        return f"{self.text} Deprecated: use {PREFIX}{self.instead}." if self.instead else self.text


def _gauges(labels: tuple[str, ...], texts: Mapping[str, str]) -> list[Family]:
    return [Family(name, "gauge", text, labels) for name, text in texts.items()]


def _counters(labels: tuple[str, ...], texts: Mapping[str, str]) -> list[Family]:
    return [Family(f"{name}_total", "counter", text, labels) for name, text in texts.items()]


def _histograms(labels: tuple[str, ...], texts: Mapping[str, str]) -> list[Family]:
    return [Family(name, "histogram", text, labels) for name, text in texts.items()]


STATUS_GAUGES: Final = {
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
    "scrub_checked_index": "How far the present pass of the background check has come.",
}
"""Gauges of a replica that are fields of its status."""

_REPLICA_GAUGES = {
    **{f"replica_{name}": text for name, text in STATUS_GAUGES.items()},
    "replica_entries": "Entries kept.",
    "replica_is_leader": "1 on the leader.",
    "replica_healthy": "1 if trusted.",
    "replica_disk_full": "1 while appends are answered DISK_FULL.",
    "replica_scrub_last_pass_timestamp_seconds": (
        "When the last whole pass of the background check ended (seconds since 1970, 0: never)."
    ),
    "replica_cleaning_by_age_rests": (
        "1 while nothing is removed by age, since the wall clock was set."
    ),
    "replica_partitions": "Partitions of topics in a group of kind partitions.",
    "replica_partition_records": "Records that may be read of all its partitions.",
    "replica_under_replicated": "1 on a leader one of whose members is away or not caught up.",
    "machine_checked_timestamp_seconds": (
        "When the state of the machine was last checked (seconds since 1970, 0: never)."
    ),
    "snapshot_last_index": "Last entry that the newest snapshot covers (-1: there is none).",
    "snapshot_last_bytes": "Size of the newest snapshot.",
    "snapshots_kept": "Snapshots on disk.",
}
_DEPRECATED = (
    Family(
        "groups_resting",
        "gauge",
        "Groups whose replica here relies on the heartbeats between nodes.",
        labels=(),
        instead="groups_quiescent",
    ),
    Family(
        "replica_scrub_last_pass_seconds",
        "gauge",
        "When the last whole pass of the background check ended (seconds since 1970, 0: never).",
        instead="replica_scrub_last_pass_timestamp_seconds",
    ),
    Family(
        "replica_scrub_passes",
        "gauge",
        "Whole passes of the background check since the start.",
        instead="store_scrub_passes_total",
    ),
)
_REPLICA_COUNTERS = {
    "service_append_requests": "Append requests staged.",
    "service_append_entries": "Entries acknowledged.",
    "service_append_bytes": "Bytes acknowledged, headers included.",
    "service_fetch_entries": "Entries sent to clients.",
    "service_fetch_bytes": "Bytes of entries sent to clients.",
    "service_located_entries": (
        "Entries that clients on the same machine were to read from the files."
    ),
    "replica_role_changes": "Changes of role, term or leader.",
    "replica_alarms": "Things that must never happen.",
    "peer_link_pushes_sent": "Pushes with entries sent.",
    "peer_link_push_bytes_sent": "Bytes of entries pushed.",
    "peer_link_pushes_received": "Pushes received.",
    "peer_link_push_entries_received": "Entries received in pushes, repeated ones included.",
    "peer_link_push_bytes_received": "Bytes of entries received in pushes, repeated ones included.",
    "peer_link_malformed_pushes": "Pushes dropped as malformed.",
    "store_damaged_found": "Damaged entries found.",
    "store_entries_repaired": "Entries repaired from peers.",
    "store_scrub_found": "Damage that the scrub found.",
    "store_scrub_passes": "Whole passes of the background check.",
    "append_blocks_repeated": "Blocks of producers that came again and were in the log already.",
    "tables_rebuilt": (
        "Times derived tables differed from a majority's, and a peer's took their place."
    ),
    "log_resets": "Times this log was reset, as the leader had removed what it needed.",
    "machine_rebuilds": (
        "Times the state machine was damaged, or unlike those of a majority, and rebuilt."
    ),
    "snapshots_saved": "Snapshots saved.",
    "store_snapshots_damaged": "Snapshots that the scrub found damaged.",
    "store_segments_removed": "Files removed by retention.",
    "store_bytes_removed": "Bytes removed by retention.",
    "store_damaged_reads": "Reads that found damaged entries.",
}
_NODE_GAUGES = {
    "transport_connections": "Accepted and open.",
    "transport_connections_max": "As many clients as file descriptors and connectionsMax allow.",
    "transport_receive_bytes": "Unfinished frames of clients.",
    "transport_peer_receive_bytes": "Unfinished frames of members.",
    "transport_send_bytes": "Answers that clients have not read.",
    "tls_reload_failed": "1: newer files of TLS cannot be used; those from before still are.",
    "audit_failing": "1 while the audit log cannot be written.",
    "loop_lag_max_seconds": "By how much the event loop was late at most in the last minute.",
    "groups_quiescent": "Groups whose replica here relies on the heartbeats between nodes.",
}
_NODE_COUNTERS = {
    "transport_garbage": "Connections closed because of bytes that are no frame.",
    "transport_accept_failures": "Times no descriptor was free for a connection.",
    "store_descriptor_waits": "Times storage waited for a free descriptor.",
    "clock_steps": "Times the wall clock was seen to be set by more than a minute.",
    "loop_stalls": "Times the event loop was late by 0.1 s or more.",
    "audit_lines": "Lines of the audit log that are durable.",
    "audit_lost": "Events that the audit log lost, as its disk took nothing until the node ended.",
    "log_lines_dropped": "Log lines that standard error did not take in time.",
    "otlp_sends_failed": "Times the OpenTelemetry receiver did not take what was sent.",
    "traces_dropped": "Traces of appends that waited too long to be sent.",
}
_HISTOGRAMS = {
    "service_append_seconds": "From acceptance of an append to its acknowledgement.",
    "service_fetch_seconds": (
        "Reading the entries of one answer to a fetch, from when there were some."
    ),
    "replica_block_entries": "Entries of the blocks that a leader appended.",
    "replica_block_bytes": "Bytes of the blocks that a leader appended, headers included.",
    "machine_apply_seconds": "Applying one batch of entries to the state machine.",
    "machine_apply_entries": "Entries of one batch that the state machine applied.",
    "snapshot_save_seconds": "Saving a snapshot, until it was durable.",
    "snapshot_load_seconds": "Loading a snapshot into the state machine.",
}
_KAFKA_GAUGES = {
    "kafka_connections": "Open connections of Kafka clients.",
    "kafka_request_bytes": "Requests of Kafka clients that wait for their answers.",
    "kafka_compacted_topics": "Topics with cleanup.policy compact, which removes nothing here.",
    "kafka_consumer_groups": "Consumer groups of the cluster.",
    "kafka_consumer_group_members": "Members of all consumer groups, as they were assigned last.",
}
_KAFKA_COUNTERS = {
    "kafka_bytes_in": "Bytes of requests of Kafka clients.",
    "kafka_bytes_out": "Bytes of answers to Kafka clients.",
    "kafka_malformed": "Connections of Kafka clients closed because of what is no request.",
    "kafka_produces_waited": "Produce requests that waited, as their group had no room.",
    "kafka_paused": "Times a connection was not read, as requests took too much memory.",
    "kafka_rebalances": (
        "Generations, or target assignments, of consumer groups that began while it coordinated."
    ),
    "kafka_transactions_committed": "Transactions that producers committed, while it coordinated.",
    "kafka_transactions_aborted": (
        "Transactions aborted by their producers, or because another producer took the id."
    ),
    "kafka_transactions_timed_out": "Transactions that were aborted since they took too long.",
}
_KAFKA_HISTOGRAMS = {
    "kafka_produce_seconds": "From the arrival of a Produce to its answer.",
    "kafka_fetch_seconds": "From the arrival of a Fetch to its answer, waits included.",
}

FAMILIES: Final = (
    *_gauges(REPLICA, _REPLICA_GAUGES),
    *_DEPRECATED,
    *_counters(REPLICA, _REPLICA_COUNTERS),
    *_counters((*REPLICA, "code"), {"service_appends_refused": "Appends not acknowledged."}),
    *_gauges((*REPLICA, "state"), {"machine_state": "1 for the state that the machine is in."}),
    *_gauges(
        PARTITION,
        {
            "partition_high_watermark": "Offset after the last record that consumers may see.",
            "partition_log_start_offset": "Smallest offset that may be read.",
            "partition_size_bytes": "Bytes of the record batches that may be read.",
            "partition_appended_bytes": "Bytes of all record batches since it was opened.",
        },
    ),
    *_gauges(
        ("consumer_group", "topic", "partition"),
        {
            "consumer_group_lag_records": (
                "Records of a partition, or entries of a log, that this node leads and that come "
                "after the committed offset."
            ),
        },
    ),
    *_gauges(
        PEER,
        {
            "peer_link_lag_entries": "Entries the peer is behind the leader.",
            "peer_link_in_flight_bytes": "Pushed and not yet acknowledged.",
            "peer_link_match_index": "Last index known to be durable on the peer (-1: none).",
        },
    ),
    *_histograms(REPLICA, _HISTOGRAMS),
    *_histograms(
        (*REPLICA, "read_mode"),
        {"service_read_seconds": "From a query of the state machine to its answer."},
    ),
    *_histograms(
        PEER,
        {
            "peer_link_push_seconds": "From a push of entries to its acknowledgement by the peer.",
            "peer_link_push_entries": "Entries of one push that the peer acknowledged.",
            "peer_link_push_bytes": "Bytes of one push that the peer acknowledged.",
            "snapshot_install_seconds": "Fetching a snapshot from the peer, until it was durable.",
        },
    ),
    *_histograms(
        NODE,
        {
            "disk_commit_seconds": "One group commit: writes and fsync.",
            "disk_commit_bytes": "Bytes of one group commit.",
        },
    ),
    *_gauges(NODE, _NODE_GAUGES),
    *_counters(NODE, _NODE_COUNTERS),
    *_gauges(NODE, _KAFKA_GAUGES),
    *_counters(NODE, _KAFKA_COUNTERS),
    *_histograms(NODE, _KAFKA_HISTOGRAMS),
    *_counters(
        ("request", "error"),
        {"kafka_requests": "Answered requests of Kafka clients, by request and Kafka's error."},
    ),
    *_counters(
        ("reason",),
        {
            "transport_ended": "Connections ended or refused because of what they take, by reason.",
            "transport_foreign_messages": "Peer messages that were not for this node, by reason.",
            "login_refused": "Logins that were refused, by reason, which clients are not told.",
        },
    ),
    *_counters(
        ("quota",),
        {
            "throttled_waits": "Times a connection was told to wait, by the key of the quota.",
            "throttled_seconds": (
                "Seconds that connections were told to wait, by the key of the quota."
            ),
        },
    ),
    *_counters(
        NODE,
        {
            "login_accepted": "Logins of clients on either port.",
            "login_busy": (
                "Logins put off: too many at once, or the node did not know its users yet."
            ),
        },
    ),
    *_gauges(
        ("directory",),
        {
            "disk_free_bytes": "Free on the disk of a directory of this node.",
            "disk_size_bytes": "Size of the disk of a directory of this node.",
        },
    ),
    *_gauges(
        ("file",),
        {
            "certificate_expires_seconds": (
                "Until what is in a file of TLS expires, by the file's key in the configuration; "
                "negative: it has."
            ),
        },
    ),
    *_gauges(
        ("self_id", "remote_id", "release", "wire_version", "features"),
        {
            "peer_link_info": (
                "1 for each peer; the labels say what it runs (empty: an earlier release, which "
                "does not say so), and which version and features of the wire are used with it."
            ),
        },
    ),
    *_gauges(("version", "python"), {"build_info": "1; the labels say what runs."}),
)
"""All metrics but those of the process, which prometheus_client makes."""
