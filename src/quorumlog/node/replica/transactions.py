"""Aborts transactions that no producer ends, so that they cannot hold readers back."""

import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from quorumlog.log_events import log_event
from quorumlog.model.block import parse_block
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.client import AppendResponse
from quorumlog.model.messages.transactions import TransactionalRequest, TransactionalResponse
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.pending_requests import PendingRequests
from quorumlog.node.replica.proposals import Propose
from quorumlog.node.replica.tables import Tables
from quorumlog.sessions.entries import (
    EndTransaction,
    InitTransactions,
    SessionEntry,
    SystemEntry,
)

logger = logging.getLogger(__name__)

RETRY_MS = 1_000
"""Pause before the end of a transaction that was refused is proposed again."""


class OpenTransactions:
    """The part of a leader that aborts transactions to which nothing is added any more.

    Readers of committed transactions stop before an open one, and the log does not show whether its
    producer is slow or gone, so each transaction has a time-out. A new leader counts it from its
    election, as it cannot use the clock of another node. All methods run on the event loop's
    thread.
    """

    def __init__(
        self,
        context: ReplicaContext,
        tables: Tables,
        requests: PendingRequests,
        propose: Propose,
    ) -> None:
        self._context = context
        self._environment = context.environment
        self._tables = tables
        self._pending_requests = requests
        self._propose = propose
        self._due_ms: dict[bytes, int] = {}
        self._timer = context.timers.new(self.tick)

    def appended(self, entries: Iterable[SystemEntry]) -> None:
        """The leader appended blocks that start with these entries."""
        for entry in entries:
            if isinstance(entry, InitTransactions | EndTransaction):
                self._watch(entry.transactional_id)
            elif isinstance(entry, SessionEntry) and entry.part is not None:
                self._watch(entry.part.transactional_id)

    def _watch(self, found_id: bytes) -> None:
        table = self._tables.at_end
        if found_id in table.open_ids:
            timeout_ms = table.producers[found_id].timeout_ms
            self._due_ms[found_id] = due_ms = self._environment.now_ms() + timeout_ms
            self._timer.set_earlier(due_ms)
        else:
            self._due_ms.pop(found_id, None)

    def answer_state(
        self, request: TransactionalRequest, answer: Callable[[TransactionalResponse], None]
    ) -> None:
        """Answer with the state of a transactional id, once a read index is confirmed."""
        context, core = self._context, self._context.core

        def read_index_confirmed(code: ResponseCode, text: str, index: int) -> None:
            response = TransactionalResponse(
                code=code, text=text, leader_id=core.leader_id, term=core.term
            )
            known = self._tables.transactional(request.transactional_id)
            if code is ResponseCode.SUCCESS and known is not None:
                response = msgspec.structs.replace(
                    response,
                    epoch=known.epoch,
                    is_current=known.run_id == request.run_id,
                    is_fenced=request.run_id in known.past_runs,
                    last_batch=known.last_batch,
                    end_index=known.end_index,
                )
            answer(response)

        if core.role is Role.LEADER:
            self._pending_requests.read(read_index_confirmed)
        else:
            text = f"not the leader of {context.config.group}"
            read_index_confirmed(ResponseCode.NOT_LEADER, text, -1)

    def role_changed(self, role: Role) -> None:
        """This replica has become leader, or is leader no more."""
        self._due_ms = {}
        if role is Role.LEADER:
            for found_id in self._tables.at_end.open_ids:
                self._watch(found_id)

    def tick(self, now_ms: int) -> None:
        """Abort overdue transactions."""
        late = [found_id for found_id, due_ms in self._due_ms.items() if due_ms <= now_ms]
        for found_id in late:
            table = self._tables.at_end
            if found_id not in table.open_ids:
                del self._due_ms[found_id]
                continue
            self._due_ms[found_id] = now_ms + RETRY_MS
            producer = table.producers[found_id]
            batch_id = max(attempt.batch_id for attempt in producer.attempts.values())
            self._give_up(EndTransaction(found_id, producer.epoch, batch_id, None))
        self._timer.set(min(self._due_ms.values(), default=NEVER_MS))

    def _give_up(self, entry: EndTransaction) -> None:
        data = entry.encode()
        block = parse_block(memoryview(bytearray(data)), count=1, entry_bytes_max=len(data))
        log_event(
            logger,
            logging.WARNING,
            "transaction given up: nothing was added to it for its time-out",
            group=self._context.config.group,
            transactional_id=entry.transactional_id.hex(),
            batch_id=entry.batch_id,
        )
        self._propose(block, _nobody_waits, entry)


def _nobody_waits(response: AppendResponse, results: Sequence[bytes]) -> None:
    """Ignore the answer: an end that was refused is proposed again."""
