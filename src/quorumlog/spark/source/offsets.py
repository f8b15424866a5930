"""The position of a read in each group, as Spark keeps it, and whether the log still matches it.

An offset in a checkpoint is {"<group>": {"index": i, "term": t}}: i is the first entry not read, t
the term of entry i - 1, -1 if that is not known. The term shows whether the log was rewritten.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from quorumlog.client import Isolation
from quorumlog.model.errors import IndexRemovedError, QuorumlogError
from quorumlog.spark.source.clusters import Bounds, Cluster

logger = logging.getLogger(__name__)

UNKNOWN_TERM = -1
SERVERS, READER = "servers", "reader"
"""Beside index and term in the latest offset of a query's progress; never in a checkpoint."""
SKIP_ADVICE = "to go on with what is there, set failOnDataLoss=false"


class DataLossError(QuorumlogError):
    """Entries that were to be read are gone, or are not those that were read before."""


@dataclass(frozen=True, slots=True)
class OffsetPosition:
    """The first entry not read, and the term of the one before it (-1: not known)."""

    index: int
    term: int


Offset: TypeAlias = dict[str, OffsetPosition]
"""A position in each group."""


def parse_offset(written: Mapping[str, Any]) -> Offset:
    """Return the positions that an offset of a checkpoint names. Raises `QuorumlogError`."""
    try:
        return {
            group: OffsetPosition(int(position["index"]), int(position["term"]))
            for group, position in written.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise QuorumlogError(
            f"{written} is no offset of this source; was the checkpoint written by another one?"
        ) from None


def format_offset(offset: Offset) -> dict[str, dict[str, int]]:
    """Return what is written in a checkpoint, always the same for the same positions."""
    return {
        group: {"index": offset[group].index, "term": offset[group].term}
        for group in sorted(offset)
    }


def position_at(cluster: Cluster, group: str, index: int, bounds: Bounds) -> OffsetPosition:
    """Return the position before entry `index`; its term is not known if the one before is gone."""
    if not bounds.begin < index <= bounds.beyond:
        return OffsetPosition(index, UNKNOWN_TERM)
    try:
        return OffsetPosition(index, cluster.record(group, index - 1).term)
    except IndexRemovedError:  # since the bounds were asked for
        return OffsetPosition(index, UNKNOWN_TERM)


@dataclass(frozen=True, slots=True)
class DataLossPolicy:
    """What happens when entries are gone: an error, or (`fail=False`) a logged skip."""

    fail: bool

    def lose(self, text: str) -> None:
        """Raise `DataLossError`, or log what was skipped."""
        if self.fail:
            raise DataLossError(f"{text}; {SKIP_ADVICE}")
        logger.warning("%s; going on, as failOnDataLoss=false", text)

    def first_kept(self, group: str, first: int, last: int, begin: int) -> int:
        """Return `first`, or the first kept of entries first … last if some were removed.

        Returns last + 1 if all of them were.
        """
        if first >= begin or first > last:
            return first
        kept = min(begin, last + 1)
        self.lose(
            f"group {group}: entries {first} to {kept - 1} ({kept - first} of them) were removed "
            f"by retention before they were read; the first kept is {begin}"
        )
        return kept

    def check_position(
        self, cluster: Cluster, group: str, position: OffsetPosition, bounds: Bounds
    ) -> None:
        """See that the entry before a position is the one that was there when it was written."""
        if position.term == UNKNOWN_TERM:
            return
        term = position_at(cluster, group, position.index, bounds).term
        if term not in (position.term, UNKNOWN_TERM):
            self.lose(
                f"group {group} was rewritten: entry {position.index - 1} was read in term "
                f"{position.term} and is of term {term} now; what was read before may not be in "
                "the log any more, and other entries may have been missed"
            )

    def end_below(
        self,
        cluster: Cluster,
        group: str,
        position: OffsetPosition,
        bounds: Bounds,
        isolation: Isolation,
    ) -> bool:
        """Whether the log ends before a position that was read; then that was reported.

        Entries that wait for a transaction to end are there.
        """
        beyond = bounds.beyond
        if isolation == "read_committed" and beyond < position.index:
            beyond = cluster.bounds(group, "read_uncommitted").beyond
        if beyond >= position.index:
            return False
        self.lose(
            f"group {group} ends before entry {beyond}, but was read up to {position.index - 1}: "
            "was it replaced, or restored from an older copy?"
        )
        return True
