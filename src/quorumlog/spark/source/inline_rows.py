"""Inline rows: small batches of a stream travel to Spark with their plan (decision 0018).

A task in Python costs Spark some 70 ms, however little it reads. The process that plans batches can
read a few entries itself in that time; Spark passes them to its tasks, which then need no Python.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource_internal
from pyspark.sql.datasource import DataSourceStreamReader

ENTRIES_MAX = 1_000
"""A batch of more entries is read by tasks."""
BYTES_MAX = 1024 * 1024
"""A batch of more bytes on disk is read by tasks."""

_TAKES_ROWS: type | None = getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)
"""The only kind of reader from which Spark takes inline rows; None: this Spark takes none."""


class InlineRows(DataSourceStreamReader):
    """A stream reader that can return the rows of a small batch with its plan.

    Spark takes inline rows from one kind of reader only: a private class that reports no latest
    offset, so that nobody could see how far a query lags. So a reader belongs to that class only
    from the moment in which rows are attached until Spark takes them, within the same call.
    """

    _inline_rows: list[pa.RecordBatch] | None = None

    @property
    def takes_rows(self) -> bool:
        """Whether this Spark takes inline rows."""
        return _TAKES_ROWS is not None

    def attach_rows(self, batches: list[pa.RecordBatch]) -> None:
        """Attach the rows of the batch whose plan is about to be returned."""
        self._inline_rows = batches

    @property  # type: ignore[misc]  # object's can be set, too
    def __class__(self) -> Any:
        """What `isinstance` takes the reader for."""
        return type(self) if self._inline_rows is None else _TAKES_ROWS

    def getCache(self, start: object, end: object) -> Iterator[pa.RecordBatch]:  # noqa: N802
        """Return the attached rows, once; the name is Spark's."""
        batches, self._inline_rows = self._inline_rows, None
        return iter(batches or ())
