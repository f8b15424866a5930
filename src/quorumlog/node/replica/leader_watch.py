"""Requests that wait for a leader: whoever wants to know of each change asks again and again."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from quorumlog.model.bounds import NEVER_MS
from quorumlog.node.replica.context import ReplicaContext

WAITING_MAX = 16_384
"""Requests that may wait on one replica; of more, each is answered at once, as at its deadline."""
ANSWERED_PER_TURN = 64
"""An election answers all that wait: the others follow in the next turns of the loop."""


@dataclass(frozen=True, slots=True)
class _Waiter:
    above_term: int
    deadline_ms: int
    answer: Callable[[], None]
    client: object


class LeaderWatch:
    """The part of a replica that answers once it knows the leader of a later term.

    Those that wait are in the order in which they came, which is about that of their deadlines. All
    methods run on the event loop's thread.
    """

    def __init__(self, context: ReplicaContext) -> None:
        self._core = context.core
        self._environment = context.environment
        self._waiting: deque[_Waiter] = deque()
        self._due: deque[_Waiter] = deque()
        self._is_deferred = False
        self._timer = context.timers.new(self.expire)

    def wait(
        self, above_term: int, wait_ms: int, answer: Callable[[], None], client: object
    ) -> None:
        """Call `answer` once a leader of a term above this one is known, or after `wait_ms`."""
        count = len(self._waiting) + len(self._due)
        if self._knows_leader_above(above_term) or wait_ms <= 0 or count >= WAITING_MAX:
            answer()
            return
        deadline_ms = self._environment.now_ms() + wait_ms
        self._waiting.append(_Waiter(above_term, deadline_ms, answer, client))
        self._timer.set_earlier(deadline_ms)

    def _knows_leader_above(self, term: int) -> bool:
        return self._core.leader_id is not None and self._core.term > term

    def changed(self) -> None:
        """Role, term or leader may be others than before."""
        if self._waiting and self._core.leader_id is not None:
            self._take(lambda waiter: self._core.term > waiter.above_term)

    def expire(self, now_ms: int) -> None:
        """Answer those whose time is over."""
        self._take(lambda waiter: waiter.deadline_ms <= now_ms)
        self._timer.set(min([waiter.deadline_ms for waiter in self._waiting], default=NEVER_MS))

    def _take(self, is_due: Callable[[_Waiter], bool]) -> None:
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            (self._due if is_due(waiter) else self._waiting).append(waiter)
        if not self._is_deferred:
            self._answer_some()

    def _answer_some(self) -> None:
        self._is_deferred = False
        for _ in range(min(len(self._due), ANSWERED_PER_TURN)):
            self._due.popleft().answer()
        if self._due:
            self._is_deferred = True
            self._environment.defer(self._answer_some)

    def forget(self, client: object) -> None:
        """Drop the requests of a client that has disconnected."""
        self._waiting = deque(one for one in self._waiting if one.client is not client)
        self._due = deque(one for one in self._due if one.client is not client)
