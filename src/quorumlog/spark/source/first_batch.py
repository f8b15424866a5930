"""The first batch of a new query, which is left empty so that the checkpoint says where it starts.

Until a batch is committed Spark keeps the end of the one that it planned, and asks for the initial
offset again when it is restarted. What retention removed meanwhile would be missed in silence.
"""

from typing import Final

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

_ROWS_MAX: Final = 1 << 62


def no_limit() -> ReadLimit:
    """Return the limit of a query without limits.

    It is not `ReadAllAvailable`: Spark gives that one if the trigger has one batch only (`once`).
    """
    return ReadMaxRows(_ROWS_MAX)


class FirstBatch:
    """Whether the next batch is the first one of a new query, by what Spark asks in one process.

    Spark asks a new query for its initial offset and then for the latest one. Of a query whose
    first batch is planned already it plans the tasks first.
    """

    def __init__(self) -> None:
        self._is_next = False
        self._is_over = False

    def begin(self) -> None:
        """Take note that Spark has asked for the initial offset."""
        self._is_next = not self._is_over

    def end(self) -> None:
        """Take note that a batch is planned."""
        self._is_next, self._is_over = False, True

    def is_left_empty(self, limit: ReadLimit) -> bool:
        """Whether the batch whose end is asked for is to be empty. It is then over.

        The only batch of a query is not.
        """
        is_next = self._is_next
        self.end()
        return is_next and not isinstance(limit, ReadAllAvailable)
