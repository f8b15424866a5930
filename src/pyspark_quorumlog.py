"""Found by Spark itself: makes `format("quorumlog")` work in any session, without registering."""

from quorumlog.spark.data_source import QuorumlogSource


class DefaultSource(QuorumlogSource):
    """The data source `quorumlog`; see `quorumlog.spark.data_source`."""
