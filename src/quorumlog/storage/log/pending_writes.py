"""The end of a log after a staged write, and the hint that is written once it is durable."""

from quorumlog.storage.metadata.checkpoint import LogPoint, LogStart
from quorumlog.storage.metadata.store_metadata import StoreMetadata


class PendingWrites:
    """Where a log ends once a staged write is durable; a truncation lowers `point` in place."""

    def __init__(self, point: LogPoint) -> None:
        self.point = point
        self._is_superseded = False

    def supersede(self, point: LogPoint) -> None:
        """Report `point` as the end, without a hint: the reset to it is not durable yet."""
        self._is_superseded = True
        self.point = point

    def note_durable(self, metadata: StoreMetadata, log_start: LogStart) -> None:
        """Write a hint: the write is durable. Called on the disk thread, while the log goes on."""
        point = self.point  # read first: `supersede` sets the two in the other order
        if not self._is_superseded:
            metadata.write_hint(point, log_start)
