"""The coordinator of sinks: the broker whose node leads `__cluster`, as for transactions.

It judges by the records in `__cluster`. What it answers without a command is proved first: a
majority has confirmed that its view is up to date.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from quorumlog.kafka.broker_view import BrokerView
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.transactions.coordinator import COMPLETE_MS, NO_PRODUCER, SAVE_MS
from quorumlog.machine.cluster.commands import (
    UNKNOWN_ROWS,
    BeginSinkRun,
    EndSinkBatch,
    GroupsChanged,
    SinkBatchEnded,
)
from quorumlog.machine.cluster.sinks import NO_BATCH, SINKS_MAX, sink_of
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RequestError

_ERRORS: Final = {
    ResponseCode.SUCCESS: ErrorCode.NONE,
    ResponseCode.NOT_LEADER: ErrorCode.NOT_COORDINATOR,
    ResponseCode.INCONSISTENT_TERM: ErrorCode.CONCURRENT_TRANSACTIONS,
    ResponseCode.CLUSTER_FULL: ErrorCode.POLICY_VIOLATION,
    ResponseCode.PRODUCER_FENCED: ErrorCode.PRODUCER_FENCED,
    ResponseCode.INVALID_TRANSACTION_STATE: ErrorCode.INVALID_TXN_STATE,
    ResponseCode.UNKNOWN_PRODUCER: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}
_FENCED: Final = "another run of the sink has begun, or the batch has ended"
ABORTED_MAX: Final = SINKS_MAX
"""Sinks of which this node remembers the batch that was aborted last."""
_ABORTED: Final = "the batch was aborted"
_NOT_SAVED: Final = "__cluster has not applied it in time"


class SinkBatch(NamedTuple):
    """Which batch is meant: of which sink, in which run of it."""

    sink: str
    run_id: str
    batch_id: int


class Attempt(NamedTuple):
    """An attempt whose transaction is to be committed: its name, and its producer."""

    name: str
    producer_id: int
    epoch: int


class JoinAnswer(NamedTuple):
    """The answer to a task: the last batch that was committed, and its producer if it asked."""

    error: ErrorCode
    text: str = ""
    last_batch: int = NO_BATCH
    producer_id: int = NO_PRODUCER
    epoch: int = -1
    is_ongoing: bool = False


class EndAnswer(NamedTuple):
    """The answer to who ends a batch: the last one that was committed, and the number of its rows
    if that was told; or what is wrong.
    """

    error: ErrorCode
    text: str = ""
    last_batch: int = NO_BATCH
    last_rows: int = UNKNOWN_ROWS


class SinkCoordinator:
    """All sinks of a cluster, on the node that leads `__cluster`.

    `counters` gets the number of transactions that have ended. Which batches were aborted is known
    in memory only: a late task of one would leave a transaction that ends by its time-out, and so
    it does if another node has come to coordinate since.
    """

    def __init__(self, broker: BrokerView, counters: KafkaCounters) -> None:
        self._broker = broker
        self._counters = counters
        self._aborted: dict[str, SinkBatch] = {}

    async def join(self, asked: SinkBatch, transactional_id: str | None) -> JoinAnswer:
        """Answer a task whether its batch is to be written; its run begins then, if it is new.

        With a transactional id it is told which producer has that now, if any. A task that has
        taken the id before, and whose records are taken after that answer, is that producer: if
        another one had the id by then, the task would have been fenced.
        """
        broker, term = self._broker, self._broker.coordinator_term
        if not await broker.barrier(SAVE_MS):
            return JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, _NOT_SAVED)
        sink = broker.sinks.get(asked.sink)
        if sink is not None and asked.batch_id <= sink.last_batch:
            # Not even a run that is not known begins: it may be one that stalled for many runs.
            return JoinAnswer(ErrorCode.NONE, last_batch=sink.last_batch)
        if sink is not None and (sink.is_over or asked.run_id in sink.earlier_runs):
            return JoinAnswer(ErrorCode.PRODUCER_FENCED, _FENCED, sink.last_batch)
        if sink is None or asked.run_id != sink.run_id:
            version = 0 if sink is None else sink.version
            command = BeginSinkRun(term, asked.sink, version, asked.run_id)
            error, text, _ = await self._execute(command)
            if error is not ErrorCode.NONE:
                return JoinAnswer(error, text)
        last_batch = NO_BATCH if sink is None else sink.last_batch
        if self._aborted.get(asked.sink) == asked:
            return JoinAnswer(ErrorCode.PRODUCER_FENCED, _ABORTED, last_batch)
        record = broker.transactions.records.get(transactional_id or "")
        if record is None:
            return JoinAnswer(ErrorCode.NONE, last_batch=last_batch)
        producer = record.producer_id, record.epoch
        return JoinAnswer(ErrorCode.NONE, "", last_batch, *producer, record.state == "Ongoing")

    async def end(
        self,
        asked: SinkBatch,
        attempts: Sequence[Attempt],
        *,
        commits: bool,
        is_last: bool,
        rows: int = UNKNOWN_ROWS,
    ) -> EndAnswer:
        """Commit the attempts of a batch, or none, and abort all others of the sink.

        The markers are written then, unless that takes long.
        """
        command = EndSinkBatch(
            self._broker.coordinator_term,
            asked.sink,
            asked.run_id,
            asked.batch_id,
            commits,
            list(attempts),
            is_last,
            rows,
        )
        error, text, result = await self._execute(command)
        if not isinstance(result, SinkBatchEnded) or error is not ErrorCode.NONE:
            return EndAnswer(error, text)
        self._counters.transactions_committed += result.committed
        self._counters.transactions_aborted += result.aborted
        if not commits and result.last_batch < asked.batch_id:
            self._note_aborted(asked)

        def are_marked() -> bool:
            prepared = self._broker.transactions.prepared
            return not any(sink_of(one) == asked.sink for one in prepared)

        await self._broker.until_committed(are_marked, COMPLETE_MS)
        return EndAnswer(ErrorCode.NONE, last_batch=result.last_batch, last_rows=result.last_rows)

    def _note_aborted(self, batch: SinkBatch) -> None:
        """Remember a batch; that which was aborted first of too many is forgotten."""
        self._aborted.pop(batch.sink, None)
        self._aborted[batch.sink] = batch
        if len(self._aborted) > ABORTED_MAX:
            del self._aborted[next(iter(self._aborted))]

    async def _execute(self, command: Any) -> tuple[ErrorCode, str, Any]:
        """Have a command applied; return what came of it, in words and as it is."""
        if command.term < 0:
            return ErrorCode.NOT_COORDINATOR, "", None  # it has ceased to be, while it waited
        try:
            result = await self._broker.execute(command, SAVE_MS)
        except RequestError as error:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error), None
        if not isinstance(result, GroupsChanged | SinkBatchEnded):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, "", None
        found = _ERRORS.get(result.code, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return found, result.text, result
