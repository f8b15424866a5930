"""The end of a log as a staged write leaves it, and what may be said of it once it is durable."""

from quorumlog.storage.metadata.checkpoint import Boundary, Mark
from quorumlog.storage.metadata.store_metadata import StoreMetadata


class PendingWrites:
    """A truncation lowers `mark` in place."""

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self._is_superseded = False

    def supersede(self, mark: Mark) -> None:
        """The log begins anew behind `mark`, which is not durable yet."""
        self._is_superseded = True
        self.mark = mark

    def note_durable(self, notes: StoreMetadata, boundary: Boundary) -> None:
        """The write is durable; on the disk thread, while the log may go on."""
        mark = self.mark  # read first: `supersede` sets the two in the other order
        if not self._is_superseded:
            notes.write_hint(mark, boundary)
