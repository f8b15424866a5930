"""Spark on top of the log: sessions, data sources, and jobs on whole logs.

What is named here is loaded when it is first used: Spark's workers import this package for every
task, and need none of the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumlog.spark.listener import LagListener, PositionListener
    from quorumlog.spark.local_session import session
    from quorumlog.spark.pipelines.archive import archive, read_archive
    from quorumlog.spark.pipelines.audit import audit
    from quorumlog.spark.pipelines.export import export
    from quorumlog.spark.pipelines.replay import replay
    from quorumlog.spark.pipelines.replica_files import StoreDirectory
    from quorumlog.spark.pipelines.stats import stats
    from quorumlog.spark.source import QuorumlogSource
    from quorumlog.spark.store.source import QuorumlogStoreSource

_MODULES = {
    "LagListener": "listener",
    "PositionListener": "listener",
    "QuorumlogSource": "source",
    "QuorumlogStoreSource": "store.source",
    "StoreDirectory": "pipelines.replica_files",
    "archive": "pipelines.archive",
    "audit": "pipelines.audit",
    "export": "pipelines.export",
    "read_archive": "pipelines.archive",
    "replay": "pipelines.replay",
    "session": "local_session",
    "stats": "pipelines.stats",
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
    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
