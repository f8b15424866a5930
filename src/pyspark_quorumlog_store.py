"""Found by Spark itself: makes `format("quorumlog-store")` work in any session."""

from quorumlog.spark.store.source import QuorumlogStoreSource


class DefaultSource(QuorumlogStoreSource):
    """The data source `quorumlog-store`; see `quorumlog.spark.store.source`."""
