"""Conditions that Spark offers to a reader, as bounds of whole numbers."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

FILTER_PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module Spark runs, in a process of its own, to offer filters to a reader."""


@dataclass(frozen=True, slots=True)
class IndexInterval:
    """Whole numbers from `least` on, below `beyond`; None: without bound."""

    least: int | None = None
    beyond: int | None = None

    def narrowed(self, least: int | None, beyond: int | None) -> "IndexInterval":
        """Return the numbers that are within other bounds, too."""
        leasts = [bound for bound in (self.least, least) if bound is not None]
        beyonds = [bound for bound in (self.beyond, beyond) if bound is not None]
        return IndexInterval(max(leasts, default=None), min(beyonds, default=None))

    def within(self, first: int, last: int) -> tuple[int, int]:
        """Return the first and the last of these numbers; none if the last is below the first."""
        if self.least is not None:
            first = max(first, self.least)
        if self.beyond is not None:
            last = min(last, self.beyond - 1)
        return first, last


class PushedFilters:
    """What filters say of the columns in `bounded`.

    `nullable`: whether any other column may be null.
    """

    def __init__(self, *bounded: str, nullable: bool) -> None:
        self._intervals = {name: IndexInterval() for name in bounded}
        self._nullable = nullable

    def on(self, column: str) -> IndexInterval:
        """Return the bounds of a column."""
        return self._intervals[column]

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Use what filters say; return those that Spark must check itself."""
        return [pushed for pushed in filters if not self._takes(pushed)]

    def _takes(self, pushed: Filter) -> bool:
        """Use what a filter says; return whether that is all it says."""
        column = ".".join(getattr(pushed, "attribute", ()))
        if isinstance(pushed, IsNotNull):
            return column in self._intervals or not self._nullable
        value: Any = getattr(pushed, "value", None)
        values = list(value) if isinstance(pushed, In) else [value]
        if column not in self._intervals or not all(type(value) is int for value in values):
            return False
        bounds = _bounds_of(pushed, values)
        if bounds is not None:
            self._intervals[column] = self._intervals[column].narrowed(*bounds)
        # of the values of a list only the least and the largest are used
        return bounds is not None and not isinstance(pushed, In)


def _bounds_of(pushed: Filter, values: list[int]) -> tuple[int | None, int | None] | None:
    """Return the least value that passes a filter and the one after the largest."""
    if isinstance(pushed, EqualTo | EqualNullSafe | In) and values:
        return min(values), max(values) + 1
    if isinstance(pushed, GreaterThan):
        return values[0] + 1, None
    if isinstance(pushed, GreaterThanOrEqual):
        return values[0], None
    if isinstance(pushed, LessThan):
        return None, values[0]
    if isinstance(pushed, LessThanOrEqual):
        return None, values[0] + 1
    return None


def offers_filters() -> bool:
    """Whether Spark is about to offer filters to a reader.

    It does so if spark.sql.python.filterPushdown.enabled is set, and otherwise refuses any reader
    that takes filters. The process that makes the reader does not see that setting; but to offer
    filters, Spark runs a module of its own there.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return FILTER_PLANNER in sys.modules or (main is not None and main.name == FILTER_PLANNER)
