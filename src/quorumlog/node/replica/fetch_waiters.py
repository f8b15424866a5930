"""Fetches that wait for entries to be committed, and those that are due to be answered."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import msgspec

from quorumlog.model.block import Buffer
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.fair_queue import FairQueue
from quorumlog.model.messages.client import FetchRequest, FetchResponse
from quorumlog.node.replica.channel_waiters import ChannelsIn, ChannelWaiters

FetchAnswer: TypeAlias = Callable[[FetchResponse, list[Buffer]], None]

ANSWERED_PER_TURN = 8
"""Waiting fetches that are answered in one turn of the loop, and in one millisecond of those that
are answered at once; the others follow in the next turn, one of each client in turn."""
STALE_MAX = 1_024
"""Answered fetches that may still be in a heap, beyond the number of waiting ones."""


@dataclass(order=True, slots=True)
class Waiter:
    """One waiting fetch; `key` orders it in its heap. `deadline_ms`: it may wait on until then."""

    key: int
    number: int
    request: FetchRequest = field(compare=False)
    answer: FetchAnswer = field(compare=False)
    client: object = field(compare=False)
    twin: "Waiter | None" = field(compare=False, default=None)
    deadline_ms: int | None = field(compare=False, default=None)
    is_due: bool = field(compare=False, default=False)


class FetchWaiters:
    """The fetches that wait on one replica. `serve` answers one that is due, or has it
    wait on until its deadline (None: it has passed); `defer` calls a function in the next turn.
    `channels_in` looks through entries for their channels.

    A commit looks only at the fetches that it concerns, however many wait for later entries, or for
    entries of other channels.
    """

    def __init__(
        self,
        serve: Callable[[FetchRequest, FetchAnswer, object, int | None], None],
        defer: Callable[[Callable[[], None]], object],
        channels_in: ChannelsIn,
    ) -> None:
        self._serve = serve
        self._defer = defer
        self._numbers = itertools.count()
        self._by_deadline: list[Waiter] = []
        self._by_index: dict[bool, list[Waiter]] = {False: [], True: []}
        self._by_channel: dict[bool, ChannelWaiters[Waiter]] = {
            False: ChannelWaiters(channels_in),
            True: ChannelWaiters(channels_in),
        }
        self._due: FairQueue[Callable[[], None]] = FairQueue()
        self._is_deferred = False
        self._waiting = 0
        self._at_once, self._at_once_ms = 0, -1

    def __len__(self) -> int:
        """How many are not answered."""
        return self._waiting + len(self._due)

    def add(
        self,
        request: FetchRequest,
        answer: FetchAnswer,
        client: object,
        deadline_ms: int,
        limit: int,
    ) -> None:
        """Have a client's fetch wait for its first entry after `limit`, or for the deadline."""
        number = next(self._numbers)
        late = Waiter(deadline_ms, number, request, answer, client)
        reached = Waiter(request.begin_index, number, request, answer, client, late, deadline_ms)
        late.twin = reached
        self._waiting += 1
        by_index = self._by_index[request.read_committed]
        heapq.heappush(self._by_deadline, late)
        if request.channel >= 0:
            waiters = self._by_channel[request.read_committed]
            waiters.add(request.channel, request.begin_index, number, reached, limit)
        else:
            heapq.heappush(by_index, reached)
        for heap in (self._by_deadline, by_index):
            if len(heap) > 2 * self._waiting + STALE_MAX:
                heap[:] = [waiter for waiter in heap if not waiter.is_due]
                heapq.heapify(heap)

    def answer(self, serve: Callable[[], None], client: object, now_ms: int) -> None:
        """Answer a client's fetch that is due: at once, unless many are due at this time.

        A linearizable fetch is due when its index was confirmed, and one confirmation is for all
        that were asked before: a thousand of one client would have everybody wait.
        """
        if now_ms != self._at_once_ms:
            self._at_once, self._at_once_ms = 0, now_ms
        self._at_once += 1
        if self._at_once <= ANSWERED_PER_TURN and not self._due:
            serve()
        else:
            self._due.add(client, serve)
            self._defer_rest()

    def reached(self, committed_index: int, stable_index: int) -> None:
        """Entries up to `committed_index` are committed, those up to `stable_index` also stable."""
        for read_committed, limit in ((False, committed_index), (True, stable_index)):
            self._take(self._by_index[read_committed], limit)
            for waiter, begin in self._by_channel[read_committed].reached(limit):
                self._set_due(waiter, begin)
        self._advance()

    def dismiss(self) -> None:
        """Answer all fetches that only a leader may serve: this replica does not lead any more."""
        for waiter in sorted(self._by_deadline):
            if waiter.request.leader_only:
                self._set_due(waiter)
        self._advance()

    def forget(self, client: object) -> None:
        """Drop the fetches of a client that has disconnected: they are not answered any more."""
        for late in self._by_deadline:
            if late.client is client and not late.is_due and late.twin is not None:
                self._over(late, late.twin)
        self._due.drop(client)

    def expire(self, now_ms: int) -> None:
        """Answer the fetches whose time has passed."""
        self._take(self._by_deadline, now_ms)
        self._advance()

    def next_deadline_ms(self) -> int:
        """When the first one's time passes."""
        heap = self._by_deadline
        while heap and heap[0].is_due:
            heapq.heappop(heap)
        return heap[0].key if heap else NEVER_MS

    def _take(self, heap: list[Waiter], limit: int) -> None:
        while heap and (heap[0].is_due or heap[0].key <= limit):
            self._set_due(heapq.heappop(heap))

    def _over(self, waiter: Waiter, twin: Waiter) -> int:
        """A fetch waits no more; return from where on entries may matter to it."""
        waiter.is_due = twin.is_due = True
        self._waiting -= 1
        request = waiter.request
        if request.channel < 0:
            return request.begin_index
        waiters = self._by_channel[request.read_committed]
        return waiters.drop(request.channel, request.begin_index, waiter.number)

    def _set_due(self, waiter: Waiter, begin_index: int | None = None) -> None:
        """Have a fetch served; before `begin_index` there is nothing for it."""
        if waiter.is_due or waiter.twin is None:
            return
        unseen, request = self._over(waiter, waiter.twin), waiter.request
        begin_index = unseen if begin_index is None else begin_index
        if begin_index != request.begin_index:
            request = msgspec.structs.replace(request, begin_index=begin_index)
        serve = partial(self._serve, request, waiter.answer, waiter.client, waiter.deadline_ms)
        self._due.add(waiter.client, serve)

    def _advance(self) -> None:
        if not self._is_deferred:
            self._answer_some()

    def _answer_some(self) -> None:
        """Answer some of the fetches that are due; sockets are polled before the next ones."""
        self._is_deferred = False
        for _ in range(min(len(self._due), ANSWERED_PER_TURN)):
            self._due.pop()()
        if self._due:
            self._defer_rest()

    def _defer_rest(self) -> None:
        if not self._is_deferred:
            self._is_deferred = True
            self._defer(self._answer_some)
