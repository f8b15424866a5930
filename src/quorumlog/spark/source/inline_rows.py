"""Small batches of a stream travel to Spark along with their plan (decision 0018).

A task in Python costs Spark some 70 ms, whatever it reads. The process that plans batches can read
a few entries itself meanwhile; Spark keeps them where its tasks find them, and starts no Python.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource_internal
from pyspark.sql.datasource import DataSourceStreamReader

ENTRIES_MAX = 1_000
"""A batch of more entries is read by tasks."""
BYTES_MAX = 1024 * 1024
"""A batch of more stored bytes is read by tasks."""

_TAKES_ROWS: type | None = getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)
"""The only readers of which Spark takes rows along with a plan; None: this Spark takes none."""


class InlineRows(DataSourceStreamReader):
    """A stream reader that may hand over a batch of a single partition with its plan.

    Spark takes rows along from one kind of reader only, a private one that reports no latest
    offset, so that nobody would know how far a query is behind. Hence a reader is of that kind from
    the moment in which rows are put in until Spark takes them, in the same call.
    """

    _along: list[pa.RecordBatch] | None = None

    @property
    def takes_rows(self) -> bool:
        """Whether this Spark takes rows along."""
        return _TAKES_ROWS is not None

    def send_along(self, batches: list[pa.RecordBatch]) -> None:
        """Have Spark take the rows of the batch whose plan is about to be returned."""
        self._along = batches

    @property  # type: ignore[misc]  # object's can be set, too
    def __class__(self) -> Any:
        """What `isinstance` takes the reader for."""
        return type(self) if self._along is None else _TAKES_ROWS

    def getCache(self, start: object, end: object) -> Iterator[pa.RecordBatch]:  # noqa: N802
        """Return the rows put in, once; Spark's name."""
        batches, self._along = self._along, None
        return iter(batches or ())
