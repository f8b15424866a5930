"""The pushes to one peer that it has not acknowledged yet."""

from itertools import pairwise

import msgspec

from quorumlog.model.errors import InvariantViolation, check
from quorumlog.raft.config import RaftConfig


class Push(msgspec.Struct, frozen=True):
    """One APPEND: its last index, its size, when it was sent, and the commit index it carried."""

    request_id: int
    last_index: int
    size_bytes: int
    sent_ms: int
    commit_index: int


class InFlight:
    """A window bounded in bytes and requests; an entry larger than the window travels alone.

    `count` pushes of `size_bytes` together are in flight.
    """

    def __init__(self, config: RaftConfig) -> None:
        self.size_bytes = self.count = 0
        self._pushes: dict[int, Push] = {}
        self._requests_max = config.push_window_requests
        self._bytes_before_next_max = config.push_window_bytes - config.push_bytes_max

    @property
    def has_room(self) -> bool:
        """Whether another push of the largest size fits."""
        if not self._pushes:
            return True
        fits = self.size_bytes <= self._bytes_before_next_max
        return fits and len(self._pushes) < self._requests_max

    @property
    def oldest_sent_ms(self) -> int | None:
        """When the oldest unanswered push left; None when nothing is in flight."""
        for push in self._pushes.values():
            return push.sent_ms
        return None

    def add(self, push: Push) -> None:
        """Record a push that is sent now; last indexes rise."""
        if not self.has_room:
            raise InvariantViolation(f"a push beyond the window: {self.count}, {self.size_bytes}")
        self._pushes[push.request_id] = push
        self.size_bytes += push.size_bytes
        self.count += 1

    def find(self, request_id: int) -> Push | None:
        """Return the push with this request id, or None when it is not in flight (any more)."""
        return self._pushes.get(request_id)

    def acknowledge(self, match_index: int) -> None:
        """Forget every push that ends at match_index or below: acknowledgements are cumulative."""
        while self._pushes:
            push = next(iter(self._pushes.values()))
            if push.last_index > match_index:
                return
            del self._pushes[push.request_id]
            self.size_bytes -= push.size_bytes
            self.count -= 1

    def clear(self) -> None:
        """Forget everything."""
        self._pushes.clear()
        self.size_bytes = self.count = 0

    def validate(self, match_index: int, end_index: int) -> None:
        """Raise `InvariantViolation` unless the window is what it should be."""
        pushes = list(self._pushes.values())
        check(self.size_bytes == sum(push.size_bytes for push in pushes), "bytes in flight add up")
        check(self.count == len(pushes) <= self._requests_max, "requests in flight are bounded")
        bounds = [match_index, *(push.last_index for push in pushes)]
        rising = all(a < b for a, b in pairwise(bounds))
        check(rising and bounds[-1] <= end_index, "pushes in flight rise above the match", bounds)
