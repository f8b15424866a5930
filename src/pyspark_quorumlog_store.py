"""Found by Spark itself: makes `format("quorumlog-store")` work in any session."""

from quorumlog.spark.store_source import QuorumlogStoreSource


class DefaultSource(QuorumlogStoreSource):
    """The data source `quorumlog-store`; see `quorumlog.spark.store_source`."""
