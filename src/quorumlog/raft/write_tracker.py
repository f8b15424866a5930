"""The writes of a replica that are not durable yet."""

from collections import deque

from quorumlog.model.errors import check


class WriteTracker:
    """Numbers writes and knows up to which index the log is durable.

    A write is remembered with the end that the log had after it. When entries are removed later,
    those ends are lowered too. Else the report of an old write would count entries as durable that
    took the place of the removed ones (RELIABILITY R20).
    """

    def __init__(self, durable_index: int) -> None:
        self.durable_index = durable_index
        self.last_token = 0
        self.durable_token = 0
        self.hard_state_token = 0
        self.lacks_room = False
        """Whether clients' entries would not be written, because the disk is full."""
        self._pending: deque[tuple[int, int, int]] = deque()

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest write that is not durable yet was issued; None when all are."""
        return self._pending[0][2] if self._pending else None

    def issue(self, end_index: int, now_ms: int) -> int:
        """Return the token of a write after which the log ends at end_index."""
        self.last_token += 1
        self._pending.append((self.last_token, end_index, now_ms))
        return self.last_token

    def issue_hard_state(self, end_index: int, now_ms: int) -> int:
        """Return the token of a write of term and vote; the log ends at end_index, as before."""
        self.hard_state_token = self.issue(end_index, now_ms)
        return self.hard_state_token

    def truncated(self, from_index: int) -> None:
        """Record that from_index and everything after it was removed; call it before `issue`."""
        self.durable_index = min(self.durable_index, from_index - 1)
        self._pending = deque(
            (token, min(end, from_index - 1), issued) for token, end, issued in self._pending
        )

    def durable(self, token: int) -> None:
        """Record that every write up to this one is durable."""
        check(token <= self.last_token, "only issued writes are durable", token, self.last_token)
        self.durable_token = max(self.durable_token, token)
        while self._pending and self._pending[0][0] <= token:
            self.durable_index = self._pending.popleft()[1]
