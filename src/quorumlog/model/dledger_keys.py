"""Keys of DLedger's configuration that are refused here, and what to use instead.

docs/configuration.md lists them for readers; a test holds the two lists equal.
"""

from typing import Final

_ELECTION = "use electionTimeoutMinMs and electionTimeoutMaxMs"
_BATCHES = "leave it out: pushes and appends always travel in blocks ([limits] pushBytesMax)"
_SNAPSHOTS = "leave it out: a group has snapshots if it has a stateMachine"
_TRIMMING = (
    "leave it out: a snapshot removes the entries before it at once, up to "
    "resetSnapshotEntriesButKeepLastEntriesNum"
)
_PROMETHEUS = "use adminListen: its /metrics is for Prometheus"

REFUSED: Final[dict[str, str]] = {
    "preferredLeaderId": "use preferredLeaderIds",
    "maxPendingRequestsNum": "use pendingRequestsMax and pendingBytesMax in [limits]",
    "enableLeaderElector": "leave it out: every group elects its leader",
    "maxHeartBeatLeak": _ELECTION,
    "minVoteIntervalMs": _ELECTION,
    "maxVoteIntervalMs": _ELECTION,
    "minTakeLeadershipVoteIntervalMs": _ELECTION,
    "maxTakeLeadershipVoteIntervalMs": _ELECTION,
    "enablePushToFollower": "leave it out: DLedger never reads it either",
    "peerPushThrottlePoint": "leave it out: peerPushQuota limits all catching up from disk",
    "isEnableBatchPush": _BATCHES,
    "maxBatchPushSize": _BATCHES,
    "enableBatchAppend": _BATCHES,
    "maxBatchAppendSize": _BATCHES,
    "maxBatchAppendIntervalMs": _BATCHES,
    "enableSnapshot": _SNAPSHOTS,
    "snapshotEntryResetStrategy": _TRIMMING,
    "resetSnapshotEntriesDelayTime": _TRIMMING,
    "enableFastAdvanceCommitIndex": (
        "leave it out: each term begins with a NOOP, which commits what came before it"
    ),
    "metricsExporterType": (
        "leave it out: adminListen is for Prometheus, metricsGrpcExporterTarget for OTLP"
    ),
    "metricLoggingExporterIntervalInMills": (
        "leave it out: the log has a line of watermarks every 3 s; use adminListen for metrics"
    ),
    "metricsPromExporterPort": _PROMETHEUS,
    "metricsPromExporterHost": _PROMETHEUS,
}
"""Key → what to do instead."""
