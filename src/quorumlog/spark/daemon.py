"""Spark's Python daemon, with what the data sources need loaded before workers are forked from it.

Spark starts several workers to plan a query, and each would load pyarrow, numpy and this package
again: a third of the time of a small query. `session()` names it in spark.python.daemon.module.
"""

import pyarrow.compute  # noqa: F401
import pyspark.sql.worker.create_data_source
import pyspark.sql.worker.data_source_pushdown_filters
import pyspark.sql.worker.plan_data_source_read  # noqa: F401
from pyspark import daemon

import quorumlog.spark.source
import quorumlog.spark.store.source  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
