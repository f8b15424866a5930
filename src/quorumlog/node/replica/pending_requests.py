"""Requests that wait for a transfer, a change of members, or a linearizable read."""

import heapq
import itertools
from collections.abc import Callable
from typing import TypeAlias

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.peer import ReadIndexRequest, ReadIndexResponse
from quorumlog.model.wording import counted
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.leader_watch import LeaderWatch
from quorumlog.raft.effects import Finished, ReadReady
from quorumlog.raft.events import Event, ReadRequested

Done: TypeAlias = Callable[[ResponseCode, str, int], None]
"""Called at the end with code, reason of a failure, and for reads the index to wait for."""

ASKED_MAX = 65_536
"""Requests of all kinds that may wait on one replica."""
FORWARDED_MS = 1_000
"""How long a follower waits for its leader's answer, and then for entries to arrive."""


class PendingRequests:
    """The part of a replica that keeps requests until the core, or the leader, has answered.

    A query to the leader has a random number (`nonce`), so an answer that was not asked for, or
    that belongs to an earlier run, matches no query. `leaders` are those that wait for one. All
    methods run on the event loop's thread.
    """

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._core = context.core
        self._network = context.environment.network
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Done] = {}
        self._forwarded: dict[int, tuple[int, Done]] = {}
        self._awaited: list[tuple[int, int, int, Done]] = []
        self._timer = context.timers.new(self.tick)
        self.leaders = LeaderWatch(context)

    @property
    def count(self) -> int:
        """How many requests wait for an answer."""
        return max(len(self._waiting), len(self._forwarded) + len(self._awaited))

    def ask(self, make_event: Callable[[int], Event], done: Done) -> None:
        """Ask the core; `make_event` gets the number that the answer will have."""
        if len(self._waiting) >= ASKED_MAX:
            waiting = counted(len(self._waiting), "request waits", "requests wait")
            text = f"{waiting} already; try again later"
            done(ResponseCode.LEADER_PENDING_FULL, text, -1)
            return
        number = next(self._numbers)
        self._waiting[number] = done
        self._context.step(make_event(number))

    def read(self, done: Done) -> None:
        """Find the index up to which a linearizable read must see, and wait until it is here.

        A follower asks the leader for it.
        """
        core = self._core
        if core.role is Role.LEADER:
            self.ask(ReadRequested, done)
        elif core.leader_id is None or len(self._forwarded) >= ASKED_MAX:
            done(ResponseCode.NOT_LEADER, "no leader is known to ask", -1)
        else:
            number = self._context.environment.nonce()
            due_ms = self._context.environment.now_ms() + FORWARDED_MS
            self._forwarded[number] = (due_ms, done)
            self._timer.set_earlier(due_ms)
            request = ReadIndexRequest(
                **self._context.envelope_to(core.leader_id),
                request_id=number,
            )
            self._network.send(core.leader_id, request)

    # -- answers ----------------------------------------------------------------------------

    def finished(self, effect: Finished) -> None:
        """Answer the request that the core has finished."""
        self._waiting.pop(effect.request_id)(effect.code, effect.text, -1)

    def read_ready(self, effect: ReadReady) -> None:
        """The core has confirmed the index of a read."""
        self._waiting.pop(effect.request_id)(ResponseCode.SUCCESS, "", effect.index)

    def serve(self, request: ReadIndexRequest) -> None:
        """A follower asks for the index that its reads must see."""

        def done(code: ResponseCode, text: str, index: int) -> None:
            response = ReadIndexResponse(
                **self._context.envelope_to(request.local_id),
                request_id=request.request_id,
                code=code,
                index=index,
            )
            self._network.send(request.local_id, response)

        self.ask(ReadRequested, done)

    def answered(self, response: ReadIndexResponse) -> None:
        """The leader answered: wait until what it has committed is committed here."""
        found = self._forwarded.pop(response.request_id, None)
        if found is None:
            return
        if response.code is not ResponseCode.SUCCESS:
            found[1](response.code, f"{response.local_id}: {response.code.name}", -1)
            return
        due_ms = self._context.environment.now_ms() + FORWARDED_MS
        heapq.heappush(self._awaited, (response.index, next(self._numbers), due_ms, found[1]))
        self._timer.set_earlier(due_ms)
        self.committed(self._core.committed_index)

    def committed(self, index: int) -> None:
        """The committed index rose."""
        while self._awaited and self._awaited[0][0] <= index:
            wanted, _, _, done = heapq.heappop(self._awaited)
            done(ResponseCode.SUCCESS, "", wanted)

    # -- time -------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Give up requests that waited too long."""
        late = [number for number, (due, _) in self._forwarded.items() if due <= now_ms]
        for number in late:
            self._forwarded.pop(number)[1](ResponseCode.TIMEOUT, "the leader did not answer", -1)
        if any(entry[2] <= now_ms for entry in self._awaited):
            overdue = [entry for entry in self._awaited if entry[2] <= now_ms]
            self._awaited = [entry for entry in self._awaited if entry[2] > now_ms]
            heapq.heapify(self._awaited)
            for index, _, _, done in sorted(overdue, key=lambda entry: entry[:2]):
                text = f"index {index} did not arrive in time; this replica is behind"
                done(ResponseCode.TIMEOUT, text, -1)
        deadlines = [due for due, _ in self._forwarded.values()]
        deadlines += [entry[2] for entry in self._awaited]
        self._timer.set(min(deadlines, default=NEVER_MS))
