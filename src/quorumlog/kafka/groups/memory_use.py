"""What groups take in memory beyond what is saved of them: who joins is not saved at once.

Together with what is saved it is bounded. Otherwise groups whose generations are never complete
would fill the memory of the coordinator.
"""

from typing import Final

from quorumlog.kafka.broker_view import BrokerView
from quorumlog.machine.cluster.consumer_groups import BYTES_MAX

NO_ROOM: Final = (
    f"consumer groups of the cluster take {BYTES_MAX // 2**20} MiB together, which is the most: "
    "stop consumers, or delete groups that are not used (quorumlog consumer-group delete)"
)


class MemoryUse:
    """Counts groups. `unsaved_bytes`: what all of them take beyond their records."""

    def __init__(self, broker: BrokerView) -> None:
        self._broker = broker
        self.unsaved_bytes = 0
        self._unsaved: dict[str, int] = {}

    def count(self, name: str, unsaved_bytes: int) -> None:
        """Note what a group takes beyond its record; 0: nothing, or it is not in memory."""
        self.unsaved_bytes += unsaved_bytes - self._unsaved.pop(name, 0)
        if unsaved_bytes:
            self._unsaved[name] = unsaved_bytes

    def has_room(self, growth_bytes: int) -> bool:
        """Whether groups may take more in memory and in their records together, if it is more."""
        after = self._broker.consumer_group_bytes + self.unsaved_bytes + growth_bytes
        return growth_bytes <= 0 or after <= BYTES_MAX
