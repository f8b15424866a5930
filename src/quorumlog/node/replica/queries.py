"""Queries of clients to a replica's state machine."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from quorumlog.log_events import describe_error
from quorumlog.machine.base import StateMachine
from quorumlog.model.block import Buffer
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import TRANSIENT_ERRORS, RequestError, StorageError
from quorumlog.model.fair_queue import FairQueue
from quorumlog.model.messages.machine import QueryRequest
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.counters import READ_INDEX, STALE
from quorumlog.node.replica.machine_jobs import MachineControl, MachineDamagedError, MachineJob
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.pending_requests import PendingRequests

QueryAnswer: TypeAlias = Callable[[ResponseCode, str, int, bytes], None]
"""Called with code, reason of a failure, applied index and the machine's answer."""

QUERIES_TOGETHER = 128
"""Queries answered in one job: all their answers are sent in one turn of the loop."""
ANSWER_BYTES_TOGETHER = 1024 * 1024
"""With this many bytes of answers, a job leaves the rest of its queries for the next."""
QUERIES_MAX = 65_536
"""Queries to one machine that may wait; more are refused."""
_TOO_MANY = f"{QUERIES_MAX} queries wait already; try again later"
QUERY_WAIT_MS = 2_500
"""How long a query may wait for its entries to be applied, and for an eligible machine."""


@dataclass(order=True, slots=True)
class _Query:
    """A query, answered once `index` is applied; `is_patient`: at the deadline in any case.

    After `end_ms` it is refused if the machine is not eligible.
    """

    index: int
    number: int
    deadline_ms: int = field(compare=False)
    is_patient: bool = field(compare=False)
    body: Buffer = field(compare=False)
    answer: QueryAnswer = field(compare=False)
    client: object = field(compare=False)

    @property
    def end_ms(self) -> int:
        return self.deadline_ms + (QUERY_WAIT_MS if self.is_patient else 0)


class Queries:
    """The part of a replica that has its machine answer queries, once it has applied enough.

    Clients take turns: of one that asks a thousand things, others wait for one job at most.

    All methods run on the event loop's thread.
    """

    def __init__(
        self,
        context: ReplicaContext,
        machine: MachineState,
        control: MachineControl,
        requests: PendingRequests,
    ) -> None:
        self._context = context
        self._environment = context.environment
        self._machine = machine
        self._control = control
        self._pending_requests = requests
        self._waiting: list[_Query] = []
        self._ready: FairQueue[_Query] = FairQueue()
        self._unconfirmed: list[tuple[Buffer, QueryAnswer, object]] = []
        self._confirming: list[list[tuple[Buffer, QueryAnswer, object]]] = []
        self._numbers = itertools.count()
        self._timer = context.timers.new(self.expire)

    @property
    def is_waiting(self) -> bool:
        """Whether a query waits for its answer."""
        return bool(self._waiting or self._ready)

    @property
    def is_ready(self) -> bool:
        """Whether the machine can answer a query: it has applied enough, and is eligible."""
        return bool(self._ready) and self._control.is_eligible

    def take(
        self, request: QueryRequest, body: Buffer, answer: QueryAnswer, client: object
    ) -> None:
        """Take a client's query; one that does not wait for something to happen is timed."""
        if request.linearizable:
            self.ask_linearizable(body, self._timed(READ_INDEX, answer), client)
        elif request.wait_ms <= 0:
            self.ask(request.after_index, body, self._timed(STALE, answer), client, wait_ms=0)
        else:
            wait_ms = min(request.wait_ms, self._context.limits.fetch_wait_ms_max)
            self.ask(request.after_index, body, answer, client, wait_ms=wait_ms)

    def _timed(self, mode: str, answer: QueryAnswer) -> QueryAnswer:
        """Observe how long a client waits for the machine's answer."""
        now_us, seconds = self._environment.now_us, self._context.histograms.read_seconds[mode]
        started_us = now_us()

        def answered(code: ResponseCode, text: str, index: int, found: bytes) -> None:
            if code is ResponseCode.SUCCESS:
                seconds.observe((now_us() - started_us) / 1_000_000)
            answer(code, text, index, found)

        return answered

    def ask(
        self,
        index: int,
        body: Buffer,
        answer: QueryAnswer,
        client: object,
        *,
        wait_ms: int | None = None,
    ) -> None:
        """Ask the machine once `index` is applied.

        With `wait_ms` it is answered after that time at the latest; without, it is refused after
        `QUERY_WAIT_MS`. A machine that is rebuilt, or loads a snapshot, answers neither; then a
        query with `wait_ms` is refused `QUERY_WAIT_MS` after its deadline.
        """
        if self._machine.machine is None:
            text = (
                f"group {self._context.config.group} has no state machine to ask; 'quorumlog "
                "cluster up --machine' or stateMachine in the configuration gives a group one"
            )
            answer(ResponseCode.UNSUPPORTED, text, -1, b"")
            return
        if self._machine.failed_text:
            self._refuse_failed(answer)
            return
        if len(self._waiting) + len(self._ready) >= QUERIES_MAX:
            answer(ResponseCode.LEADER_PENDING_FULL, _TOO_MANY, -1, b"")
            return
        patience_ms = QUERY_WAIT_MS if wait_ms is None else wait_ms
        deadline_ms = self._environment.now_ms() + patience_ms
        number, is_patient = next(self._numbers), wait_ms is not None
        query = _Query(index, number, deadline_ms, is_patient, body, answer, client)
        heapq.heappush(self._waiting, query)
        self._timer.set_earlier(deadline_ms)
        self.release()
        self._control.advance()

    def ask_linearizable(self, body: Buffer, answer: QueryAnswer, client: object) -> None:
        """Ask the machine once everything acknowledged before now is applied.

        The queries of one turn of the loop share one read index.
        """
        if len(self._unconfirmed) >= QUERIES_MAX:
            answer(ResponseCode.LEADER_PENDING_FULL, _TOO_MANY, -1, b"")
            return
        self._unconfirmed.append((body, answer, client))
        if len(self._unconfirmed) == 1:
            self._environment.defer(self._confirm_read_index)

    def _confirm_read_index(self) -> None:
        together, self._unconfirmed = self._unconfirmed, []
        self._confirming.append(together)

        def read_index_confirmed(code: ResponseCode, text: str, index: int) -> None:
            self._confirming = [one for one in self._confirming if one is not together]
            for body, answer, client in together:
                if code is ResponseCode.SUCCESS:
                    self.ask(index, body, answer, client)
                else:
                    answer(code, text, -1, b"")

        self._pending_requests.read(read_index_confirmed)

    def forget(self, client: object) -> None:
        """Drop the queries of a client that has disconnected, but for those in a job."""
        self._ready.drop(client)
        for linearizable in (self._unconfirmed, *self._confirming):
            linearizable[:] = [one for one in linearizable if one[2] is not client]
        self._waiting = [query for query in self._waiting if query.client is not client]
        heapq.heapify(self._waiting)

    def expire(self, now_ms: int) -> None:
        """Give up queries that waited too long for entries, or for the machine to be eligible."""
        if any(query.deadline_ms <= now_ms for query in self._waiting):
            late = sorted(query for query in self._waiting if query.deadline_ms <= now_ms)
            self._waiting = [query for query in self._waiting if query.deadline_ms > now_ms]
            heapq.heapify(self._waiting)
            for query in late:
                if query.is_patient:
                    self._ready.add(query.client, query)
                else:
                    text = f"index {query.index} is not applied here yet; try again later"
                    query.answer(ResponseCode.TIMEOUT, text, self._machine.applied, b"")
        # an eligible machine answers the others as soon as it is free
        if not self._control.is_eligible and any(query.end_ms <= now_ms for query in self._ready):
            unanswered = self._ready.take_if(lambda query: query.end_ms <= now_ms)
            why = self._control.condition_text or "its state machine has not again what it had"
            text = f"this replica cannot answer yet: {why}; try again later"
            for query in unanswered:
                query.answer(ResponseCode.TIMEOUT, text, self._machine.applied, b"")
        self._set_timer(now_ms)
        self._control.advance()

    def _set_timer(self, now_ms: int) -> None:
        due_ms = min((query.deadline_ms for query in self._waiting), default=NEVER_MS)
        if self._ready:  # after its time, an eligible machine still answers it: look again then
            end_ms = min(query.end_ms for query in self._ready)
            due_ms = min(due_ms, end_ms if end_ms > now_ms else now_ms + QUERY_WAIT_MS)
        self._timer.set(due_ms)

    def release(self) -> None:
        """Entries were applied: some queries can be answered now."""
        while self._waiting and self._waiting[0].index <= self._machine.applied:
            query = heapq.heappop(self._waiting)
            self._ready.add(query.client, query)

    def next_job(self, machine: StateMachine) -> MachineJob:
        """Return the job that answers the next queries, if `is_ready`."""
        count = min(len(self._ready), QUERIES_TOGETHER)
        queries = [self._ready.pop() for _ in range(count)]

        def put_back(answered: int = 0) -> None:
            for query in reversed(queries[answered:]):
                self._ready.put_back(query.client, query)
                self._timer.set_earlier(query.end_ms)

        def done(answers: list[tuple[ResponseCode, str, bytes]]) -> None:
            put_back(len(answers))
            for query, (code, text, answer) in zip(queries, answers, strict=False):
                query.answer(code, text, self._machine.applied, answer)

        return MachineJob(partial(_answers_of, machine, queries), done, refused=put_back)

    def applied_less(self) -> None:
        """The machine is rebuilt: queries that were ready must wait for entries once more."""
        for query in self._ready.take_all():
            heapq.heappush(self._waiting, query)
        self._set_timer(self._environment.now_ms())

    def refuse_all(self) -> None:
        """Refuse all queries: the machine failed."""
        unanswered = [*self._ready.take_all(), *self._waiting]
        self._waiting.clear()
        for query in unanswered:
            self._refuse_failed(query.answer)

    def _refuse_failed(self, answer: QueryAnswer) -> None:
        text = self._machine.failure_text
        answer(ResponseCode.INTERNAL_ERROR, text, self._machine.applied, b"")


def _answers_of(
    machine: StateMachine, queries: list[_Query]
) -> list[tuple[ResponseCode, str, bytes]]:
    """Answer queries until the answers are too large to be sent together: the first at least."""
    answers, room = [], ANSWER_BYTES_TOGETHER
    for query in queries:
        answers.append(_answer_of(machine, query.body))
        room -= len(answers[-1][2])
        if room <= 0:
            break
    return answers


def _answer_of(machine: StateMachine, body: Buffer) -> tuple[ResponseCode, str, bytes]:
    """Answer one query; an exception becomes the error text of the answer."""
    try:
        return ResponseCode.SUCCESS, "", bytes(memoryview(machine.query(bytes(body))))
    except TRANSIENT_ERRORS as error:
        return ResponseCode.LEADER_PENDING_FULL, f"{error}; try again later", b""
    except StorageError as error:
        raise MachineDamagedError(str(error)) from error
    except RequestError as error:
        return error.code, f"the state machine cannot answer: {error}", b""
    except Exception as error:
        text = f"the state machine cannot answer: {describe_error(error)}"
        return ResponseCode.INTERNAL_ERROR, text, b""
