"""The end of a log as a staged write leaves it, and what may be said of it once it is durable."""

from quorumlog.storage.metadata.checkpoint import LogPoint, LogStart
from quorumlog.storage.metadata.store_metadata import StoreMetadata


class PendingWrites:
    """Where a log ends once a staged write is durable; a truncation lowers `point` in place."""

    def __init__(self, point: LogPoint) -> None:
        self.point = point
        self._is_superseded = False

    def supersede(self, point: LogPoint) -> None:
        """The log starts again after `point`, which is not durable yet."""
        self._is_superseded = True
        self.point = point

    def note_durable(self, notes: StoreMetadata, log_start: LogStart) -> None:
        """The write is durable; on the disk thread, while the log may go on."""
        point = self.point  # read first: `supersede` sets the two in the other order
        if not self._is_superseded:
            notes.write_hint(point, log_start)
