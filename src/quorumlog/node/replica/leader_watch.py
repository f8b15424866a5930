"""Requests that wait for a leader: whoever wants to know of each change asks again and again."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from quorumlog.model.bounds import NEVER_MS
from quorumlog.node.replica.context import ReplicaContext

WAITING_MAX = 16_384
"""Requests that may wait on one replica; of more, each is answered at once, as at its deadline."""
ANSWERED_PER_TURN = 64
"""An election answers all that wait: the others follow in the next turns of the loop."""


@dataclass(frozen=True, slots=True, order=True)
class _Waiter:
    """`number` is its place in the order in which requests came."""

    deadline_ms: int
    number: int
    above_term: int = field(compare=False)
    answer: Callable[[], None] = field(compare=False)
    client: object = field(compare=False)


class LeaderWatch:
    """The part of a replica that answers once it knows the leader of a later term.

    Those that wait are a heap, the one whose time is over first at its top. All methods run on the
    event loop's thread.
    """

    def __init__(self, context: ReplicaContext) -> None:
        self._core = context.core
        self._environment = context.environment
        self._waiting: list[_Waiter] = []
        self._number = 0
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
        self._number += 1
        waiter = _Waiter(deadline_ms, self._number, above_term, answer, client)
        heapq.heappush(self._waiting, waiter)
        self._timer.set_earlier(deadline_ms)

    def _knows_leader_above(self, term: int) -> bool:
        return self._core.leader_id is not None and self._core.term > term

    def changed(self) -> None:
        """Role, term or leader may be others than before."""
        if not self._waiting or self._core.leader_id is None:
            return
        term = self._core.term
        answered = [one for one in self._waiting if one.above_term < term]
        if answered:
            self._keep([one for one in self._waiting if one.above_term >= term])
            self._answer(sorted(answered, key=attrgetter("number")))

    def expire(self, now_ms: int) -> None:
        """Answer those whose time is over."""
        waiting, over = self._waiting, []
        while waiting and waiting[0].deadline_ms <= now_ms:
            over.append(heapq.heappop(waiting))
        self._timer.set(waiting[0].deadline_ms if waiting else NEVER_MS)
        self._answer(over)

    def _keep(self, waiting: list[_Waiter]) -> None:
        heapq.heapify(waiting)
        self._waiting = waiting

    def _answer(self, due: list[_Waiter]) -> None:
        self._due.extend(due)
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
        self._keep([one for one in self._waiting if one.client is not client])
        self._due = deque(one for one in self._due if one.client is not client)
