"""Whether what a broker does not have is lost: others are asked before it counts as such.

A broker that stood still, or is cut off from the others, may take itself for the leader that it
was, or know less than they do.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from quorumlog.model.errors import NetworkError
from quorumlog.spark.topics.brokers import Brokers, FetchedBatches
from quorumlog.spark.topics.errors import OffsetOutOfRangeError, UnknownTopicError
from quorumlog.spark.topics.part import LATEST, Part
from quorumlog.spark.topics.planning import Bounds, OffsetRange, bounds_of, offsets_text

AGAIN_MAX: Final = 10
AGAIN_S: Final = 0.3
"""How often, and after which pauses, offsets are asked for again that should be there."""


class OffsetsLostError(OffsetOutOfRangeError):
    """The first offset of a range is gone; `bounds` are what its partition has."""

    def __init__(self, one: OffsetRange, bounds: Bounds) -> None:
        super().__init__(
            f"partition {one.part} has {offsets_text(bounds)}, and no offset {one.first} any more"
        )
        self.bounds = bounds


def confirmed_bounds(
    brokers: Brokers,
    parts: Iterable[Part],
    read_to: Mapping[Part, int],
    *,
    reads_committed: bool,
    unconfirmed: bool = False,
) -> dict[Part, Bounds]:
    """Return what can be read of partitions, in their order; those that are gone are left out.

    `unconfirmed` as in `Brokers.offsets`, unless a partition is not as it was. `read_to`: ends that
    partitions had. One that ends before is asked for again a few times, of whoever leads it then.
    One that was read further, with uncommitted records, than its ongoing transactions let now has
    its former end: nothing is lost.
    """
    left, tries = list(dict.fromkeys(parts)), AGAIN_MAX
    while True:
        try:
            found = bounds_of(
                brokers, left, reads_committed=reads_committed, unconfirmed=unconfirmed
            )
        except UnknownTopicError:
            there = brokers.existing(left)
            if len(there) == len(left):  # the brokers do not agree yet
                if not tries:
                    raise
                tries -= 1
                time.sleep(AGAIN_S)
            left = [part for part in left if part in there]
            continue
        behind = _behind(found, read_to)
        if behind and reads_committed:
            waiting = _not_lost(brokers, behind, read_to, unconfirmed=unconfirmed)
            found |= {part: Bounds(found[part].begin, read_to[part]) for part in waiting}
            behind -= waiting
        if not behind or not tries:
            return found
        tries -= 1
        if not unconfirmed:
            time.sleep(AGAIN_S)
        unconfirmed = False  # who leads them now


def _behind(found: Mapping[Part, Bounds], read_to: Mapping[Part, int]) -> set[Part]:
    return {part for part, at in found.items() if at.beyond < read_to.get(part, 0)}


def _not_lost(
    brokers: Brokers, parts: Iterable[Part], read_to: Mapping[Part, int], *, unconfirmed: bool
) -> set[Part]:
    """Return the partitions whose ends are as they were, if uncommitted records count."""
    ends_of = partial(brokers.offsets, reads_committed=False, unconfirmed=unconfirmed)
    try:
        ends = ends_of(dict.fromkeys(parts, LATEST))
    except UnknownTopicError:  # which is found when they are asked for again
        return set()
    return {part for part, end in ends.items() if (end or 0) >= read_to[part]}


def batches_there(
    brokers: Brokers,
    one: OffsetRange,
    *,
    reads_committed: bool,
    bytes_max: int,
    local_reads: bool,
) -> Iterator[FetchedBatches]:
    """Yield the batches of a range as `Brokers.batches` does, for as long as it has some.

    Raises `OffsetsLostError` if the present leader does not have the first offset that is left,
    `UnknownTopicError`, and `NetworkError` if it only says that it has it.
    """
    tries = AGAIN_MAX
    while one.count:
        fetched = brokers.batches(
            one.part,
            one.first,
            one.beyond,
            reads_committed=reads_committed,
            bytes_max=bytes_max,
            local_reads=local_reads,
        )
        try:
            for found in fetched:
                yield found
                one, tries = replace(one, first=found.next_offset), AGAIN_MAX
        except OffsetOutOfRangeError as error:
            bounds = _present_bounds(brokers, one)
            if not bounds.begin <= one.first < bounds.beyond:
                raise OffsetsLostError(one, bounds) from None
            if not tries:
                raise NetworkError(
                    f"partition {one.part} has {offsets_text(bounds)}, but they cannot be had "
                    f"from {one.first} on: {error}"
                ) from None
            tries -= 1
            time.sleep(AGAIN_S)


def _present_bounds(brokers: Brokers, one: OffsetRange) -> Bounds:
    """Return what the present leader has. Raises `UnknownTopicError`."""
    wanted = {one.part: one.first + 1}
    found = confirmed_bounds(brokers, [one.part], wanted, reads_committed=False)
    if one.part not in found:
        raise UnknownTopicError(f"there is no partition {one.part} any more", one.part.topic)
    return found[one.part]
