"""Writes the tables of docs that the code has already: of metrics, and of DLedger's keys.

Run as a program it writes the pages; tests check that they are current.
"""

from pathlib import Path

import msgspec

from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.dledger_keys import REFUSED
from quorumlog.service.metric_families import FAMILIES

DOCS = Path(__file__).parents[1] / "docs"
METRICS = DOCS / "reference" / "metrics.md"
DIFFERENCES = DOCS / "differences.md"
DLEDGER_DEFAULTS = {
    "group": "default",
    "selfId": "n0",
    "peers": "n0-localhost:20911",
    "storeBaseDir": "/tmp/dledgerstore",
    "dataStorePath": "below storeBaseDir",
    "readOnlyDataStoreDirs": "",
    "storeType": "FILE",
    "maxPendingRequestsNum": 10_000,
    "maxWaitAckTimeMs": 2_500,
    "maxPushTimeOutMs": 1_000,
    "enableLeaderElector": True,
    "heartBeatTimeIntervalMs": 2_000,
    "maxHeartBeatLeak": 3,
    "minVoteIntervalMs": 300,
    "maxVoteIntervalMs": 1_000,
    "minTakeLeadershipVoteIntervalMs": 30,
    "maxTakeLeadershipVoteIntervalMs": 100,
    "preferredLeaderIds": "",
    "preferredLeaderId": "",
    "maxLeadershipTransferWaitIndex": 1_000,
    "leadershipTransferWaitTimeout": 1_000,
    "fileReservedHours": 72,
    "deleteWhen": "04",
    "diskSpaceRatioToCheckExpired": 0.70,
    "diskSpaceRatioToForceClean": 0.85,
    "enableDiskForceClean": True,
    "flushFileInterval": 10,
    "checkPointInterval": 3_000,
    "mappedFileSizeForEntryData": 1_073_741_824,
    "mappedFileSizeForEntryIndex": 167_772_160,
    "enablePushToFollower": True,
    "peerPushThrottlePoint": 314_572_800,
    "peerPushQuota": 20_971_520,
    "isEnableBatchPush": False,
    "maxBatchPushSize": 4_096,
    "enableBatchAppend": False,
    "maxBatchAppendSize": 4_096,
    "maxBatchAppendIntervalMs": 1_000,
    "enableSnapshot": False,
    "snapshotThreshold": 1_000,
    "maxSnapshotReservedNum": 3,
    "snapshotEntryResetStrategy": "RESET_ALL_SYNC",
    "resetSnapshotEntriesDelayTime": 5_000,
    "resetSnapshotEntriesButKeepLastEntriesNum": 10,
    "enableFastAdvanceCommitIndex": False,
    "metricsExporterType": "DISABLE",
    "metricsGrpcExporterTarget": "",
    "metricsGrpcExporterHeader": "",
    "metricGrpcExporterTimeOutInMills": 3_000,
    "metricGrpcExporterIntervalInMills": 60_000,
    "metricLoggingExporterIntervalInMills": 10_000,
    "metricsPromExporterPort": 5_557,
    "metricsPromExporterHost": "",
}
"""The 53 keys of spec 70 section 1, and DLedger's defaults."""
OWN_KEYS = {
    field.encode_name: field
    for kind in (NodeConfig, GroupConfig)
    for field in msgspec.structs.fields(kind)
}


def metrics_table():
    """Return the table of all metrics, by name."""
    rows = [
        f"| `{family.shown_name}` | {family.kind} | {', '.join(family.labels)} "
        f"| {family.help_text.removesuffix('.')} |\n"
        for family in sorted(FAMILIES, key=lambda family: family.shown_name)
    ]
    return "| name | kind | labels | what it is |\n| --- | --- | --- | --- |\n" + "".join(rows)


def keys_table():
    """Return the table of what became of each key of DLedger."""
    rows = [
        f"| `{key}` | {_shown(default)} | {_here(key, default)} |\n"
        for key, default in DLEDGER_DEFAULTS.items()
    ]
    return "| key | DLedger's default | here |\n| --- | --- | --- |\n" + "".join(rows)


def _shown(value):
    if value == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else str(value)


def _here(key, default):
    """Return what a key does here, from the configuration itself."""
    if key in REFUSED:
        return f"refused: {REFUSED[key]}"
    own = OWN_KEYS[key].default
    if own is msgspec.NODEFAULT:
        return "taken; must be given"
    same = own == default or (own == "" and isinstance(default, str))
    return "taken" if same else f"taken; default {_shown(own)}"


TABLES = {"metrics": (METRICS, metrics_table), "dledger keys": (DIFFERENCES, keys_table)}


def page(name):
    """Return the page that has a table, as it should be."""
    path, table = TABLES[name]
    begin = f"<!-- {name}: written by tests/generated_tables.py -->\n"
    end = f"<!-- end of {name} -->\n"
    before, rest = path.read_text().split(begin)
    return f"{before}{begin}\n{table()}\n{end}{rest.split(end)[1]}"


if __name__ == "__main__":
    for name, (path, _) in TABLES.items():
        path.write_text(page(name))
