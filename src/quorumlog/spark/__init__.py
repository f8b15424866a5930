"""Spark on top of the log: sessions, data sources, and jobs on whole logs.

What is named here is loaded when it is first used: Spark's workers import this package for every
task, and need none of the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumlog.spark.data_source import QuorumlogSource
    from quorumlog.spark.jobs.archive.archive import archive, read_archive
    from quorumlog.spark.jobs.audit.audit import audit
    from quorumlog.spark.jobs.export.export import export
    from quorumlog.spark.jobs.replay.replay import replay
    from quorumlog.spark.jobs.stats.stats import stats
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
    "audit": ".jobs.audit.audit",
    "export": ".jobs.export.export",
    "read_archive": ".jobs.archive.archive",
    "replay": ".jobs.replay.replay",
    "session": ".runtime.session",
    "stats": ".jobs.stats.stats",
}

__all__ = [
    "LagListener",
    "PositionListener",
    "QuorumlogSource",
    "QuorumlogStoreSource",
    "StoreDirectory",
    "archive",
    "audit",
    "export",
    "read_archive",
    "replay",
    "session",
    "stats",
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
