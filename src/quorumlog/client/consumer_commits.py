"""What a consumer has committed, and what it has lost before it was committed."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from quorumlog.client.consumer_requests import ConsumerRequests
from quorumlog.client.consumer_share import Place
from quorumlog.model.errors import ConsumerFencedError

Places: TypeAlias = Mapping[int, Place]
"""By partition."""


class Taken(NamedTuple):
    """A position as it was when the program asked for a commit, and whose tenure it is of."""

    position: int
    tenure: object


def taken_of(places: Places) -> dict[int, Taken]:
    """Return where the program has handled everything before, at present."""
    return {partition: Taken(one.handled, one.tenure) for partition, one in places.items()}


class Commits:
    """Commits positions of partitions, each beyond what is committed of it.

    Attributes:
        lost: partitions that were lost with entries that were yielded and not committed, until the
            program is told.
    """

    def __init__(self, requests: ConsumerRequests) -> None:
        self._requests = requests
        self._committed: dict[int, int] = {}
        self.lost: set[int] = set()

    async def first(self, new: frozenset[int], begin: int, epoch: int) -> None:
        """Commit where partitions begin of which nothing was committed."""
        await self._requests.commit(dict.fromkeys(sorted(new), begin), epoch)

    def know(self, committed: Mapping[int, int]) -> None:
        """Take what is committed of partitions that the consumer has got."""
        self._committed.update(committed)

    def forget(self, places: Places) -> None:
        """The consumer has lost partitions, or has given them up."""
        for partition, place in places.items():
            if place.yielded > self._committed.pop(partition, -1):
                self.lost.add(partition)

    async def commit_taken(self, taken: Mapping[int, Taken], places: Places, epoch: int) -> None:
        """Commit what was taken of those places that are still of the same tenure.

        Partitions that were lost are left out, even if the consumer has them again: the program is
        to be told first.
        """
        await self._commit(self._taken_still(taken, places), epoch)

    def _taken_still(self, taken: Mapping[int, Taken], places: Places) -> dict[int, int]:
        return {
            partition: one.position
            for partition, one in taken.items()
            if partition in places
            and places[partition].tenure is one.tenure
            and partition not in self.lost
        }

    def give_up(self, taken: Mapping[int, Taken], places: Places) -> None:
        """Count as lost what was taken, and is not committed: the coordinator has refused it."""
        self.lost.update(self._wanted(self._taken_still(taken, places)))

    async def commit_handled(self, places: Places, epoch: int) -> None:
        """Commit what the program has handled for sure; a place that it has sought only, is not."""
        await self._commit(
            {p: one.handled for p, one in places.items() if not one.is_sought}, epoch
        )

    async def _commit(self, positions: Mapping[int, int], epoch: int) -> None:
        wanted = self._wanted(positions)
        if wanted:
            await self._requests.commit(wanted, epoch)
            self._committed.update(wanted)

    def _wanted(self, positions: Mapping[int, int]) -> dict[int, int]:
        return {p: at for p, at in positions.items() if at > self._committed.get(p, -1)}

    def after_loss(self, places: Places) -> dict[int, Place]:
        """Return where lost partitions that the consumer has again go on: where it had committed.

        The program undoes all that it has not committed of them, so that is yielded again. The
        places are of a tenure of their own, as commits that were asked for before are void.
        """
        return {
            p: Place(self._committed.get(p, places[p].position)) for p in self.lost & places.keys()
        }

    def raise_lost(self) -> None:
        """Tell the program what was lost, once. Raises `ConsumerFencedError` if anything was."""
        if not self.lost:
            return
        lost, self.lost = sorted(self.lost), set()
        raise ConsumerFencedError(
            f"entries of {'partition' if len(lost) == 1 else 'partitions'} "
            f"{', '.join(map(str, lost))} were yielded and not committed before the consumer lost "
            "them to another member or to a time-out: whoever has them now handles them again. "
            "Undo what was not committed of them, and go on"
        )
