"""How a member comes from the partitions that it has to those that it shall have (KIP-848).

It first gives up what it shall not have, and says so. Only then it gets the epoch of the target
assignment, and of its new partitions those that nobody else has. Whenever it has given up
partitions, its epoch rises, so that a commit of before is known by its epoch.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from quorumlog.kafka.groups.assignors import NOTHING, Partitions
from quorumlog.machine.cluster.consumer_groups import Partition

NO_EPOCH: Final = 0
"""The epoch of a member that has just joined."""


class Held(NamedTuple):
    """What a member has. `assigned`: partitions that it may use. `revoking`: those that it has not
    yet said to use no more. `waits`: it lacks partitions that others have.
    """

    epoch: int = NO_EPOCH
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING
    waits: bool = False


def next_held(
    held: Held,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[Partition], bool],
) -> Held:
    """Return what a member has once its heartbeat is answered; the same object: nothing changes.

    `owned`: what it says it uses; None: it does not say. `is_free`: whether no other member has a
    partition.
    """
    epoch = held.epoch
    if held.revoking:
        if owned is None or not owned.isdisjoint(held.revoking):
            return held
        epoch += 1
    elif epoch == target_epoch and not held.waits:
        return held
    kept = held.assigned & target
    dropped = held.assigned - kept
    if dropped and (owned is None or not owned.isdisjoint(dropped)):
        return Held(epoch, kept, dropped)
    wanted = target - kept
    taken = frozenset(filter(is_free, wanted))
    after = Held(target_epoch, kept | taken, NOTHING, len(taken) < len(wanted))
    return held if after == held else after
