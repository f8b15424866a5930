"""Spark on top of the log: sessions, data sources, and jobs on whole logs.

What is named here is loaded when it is first used: Spark's workers import this package for every
task, and need none of the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumlog.spark.data_source import QuorumlogSource, register
    from quorumlog.spark.jobs.archive.archive import archive
    from quorumlog.spark.jobs.archives import read_archive
    from quorumlog.spark.jobs.audit.audit import audit
    from quorumlog.spark.jobs.export.export import export
    from quorumlog.spark.jobs.replay.replay import replay
    from quorumlog.spark.jobs.stats.stats import stats
    from quorumlog.spark.jobs.topics.archive import archive_topics
    from quorumlog.spark.jobs.topics.audit import audit_topics
    from quorumlog.spark.jobs.topics.iceberg.archive import archive_topics_to_iceberg
    from quorumlog.spark.jobs.topics.replay import replay_topics
    from quorumlog.spark.jobs.topics.stats import topic_stats
    from quorumlog.spark.runtime.session import session
    from quorumlog.spark.source.listener import LagListener, PositionListener
    from quorumlog.spark.store.source import QuorumlogStoreSource
    from quorumlog.storage.offline.replica_files import StoreDirectory

_MODULES = {
    "LagListener": ".source.listener",
    "PositionListener": ".source.listener",
    "QuorumlogSource": ".data_source",
    "QuorumlogStoreSource": ".store.source",
    "StoreDirectory": "..storage.offline.replica_files",
    "archive": ".jobs.archive.archive",
    "archive_topics": ".jobs.topics.archive",
    "archive_topics_to_iceberg": ".jobs.topics.iceberg.archive",
    "audit": ".jobs.audit.audit",
    "audit_topics": ".jobs.topics.audit",
    "export": ".jobs.export.export",
    "read_archive": ".jobs.archives",
    "register": ".data_source",
    "replay": ".jobs.replay.replay",
    "replay_topics": ".jobs.topics.replay",
    "session": ".runtime.session",
    "stats": ".jobs.stats.stats",
    "topic_stats": ".jobs.topics.stats",
}

__all__ = [
    "LagListener",
    "PositionListener",
    "QuorumlogSource",
    "QuorumlogStoreSource",
    "StoreDirectory",
    "archive",
    "archive_topics",
    "archive_topics_to_iceberg",
    "audit",
    "audit_topics",
    "export",
    "read_archive",
    "register",
    "replay",
    "replay_topics",
    "session",
    "stats",
    "topic_stats",
]


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(module, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
