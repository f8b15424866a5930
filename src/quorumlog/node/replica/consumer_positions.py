"""The positions that consumers report, kept by the leader in memory and shown to operators."""

from collections.abc import Callable

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.messages.client import ConsumerPosition

READERS_MAX = 1_000
"""Positions that are kept; the one that was reported longest ago is forgotten first."""
NAME_LENGTH_MAX = 200


class ConsumerPositions:
    """The positions that the consumers of one group last reported to its leader."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._reports: dict[str, tuple[int, int]] = {}

    def report(self, reader: str, index: int) -> None:
        """Take a report. Raises `UnexpectedArgumentError` for an invalid name."""
        if not 0 < len(reader) <= NAME_LENGTH_MAX or index < 0:
            raise UnexpectedArgumentError(
                f"a reader has a name of 1 to {NAME_LENGTH_MAX} characters and an index from 0 on"
            )
        self._reports.pop(reader, None)
        self._reports[reader] = (index, self._now_ms())
        while len(self._reports) > READERS_MAX:
            del self._reports[next(iter(self._reports))]

    def list(self) -> list[ConsumerPosition]:
        """Return all, the newest report last."""
        now_ms = self._now_ms()
        reports = list(self._reports.items())  # in one step: metrics are read on another thread
        return [
            ConsumerPosition(reader, index, now_ms - at_ms) for reader, (index, at_ms) in reports
        ]

    def forget(self) -> None:
        """Forget all positions: consumers report to another leader from now on."""
        self._reports = {}
