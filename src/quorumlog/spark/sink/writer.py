"""Writes rows to the log, each once, even if tasks or whole batches run again.

Every task writes its rows as an attempt at its partition of the batch; the driver commits the batch
by naming the attempts whose messages it was given (see `quorumlog.sessions.transaction_table`). A
batch that is committed is not written again; it must have as many rows as then. A query that is
started again fences the run before it.
"""

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from quorumlog.client import SyncClient, SyncProducer, SyncTransactions
from quorumlog.client.transactions import ProducerEpoch
from quorumlog.model.config import check_name
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import ConfigError, IndexRemovedError, UnexpectedArgumentError
from quorumlog.model.wording import counted
from quorumlog.sessions.entries import AcceptedAttempt, EndTransaction
from quorumlog.spark.access import open_nodes
from quorumlog.spark.sink.options import WriteOptions
from quorumlog.spark.source.clusters import PLAN_TIMEOUT_MS, client_for
from quorumlog.spark.worker import freeze_gc

logger = logging.getLogger(__name__)

BLOCK_BYTES = 1024 * 1024
BUFFER_BYTES = 16 * 1024 * 1024
"""What a task buffers of each group besides the rows that Spark passes at a time."""
GROUPS_PER_TASK_MAX = 64
"""Each has connections and a thread of its own."""
NO_BATCH: Final = -1
"""Instead of the last batch that was committed in a group: none was."""
UNKNOWN_ROWS: Final = -1
"""Instead of how many rows the last batch has: the group does not say it, or not any more."""
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
"""Local properties of a streaming query's tasks."""
_ADVICE: Final = (
    "a query's checkpoint was restored from a backup, or another query has a copy of it: go on "
    "with the newest one, or begin with a new one, which is another query. Or a foreachBatch "
    "counts from 0 again: give it another transactionalId"
)
"""Why another batch may have a number, and what to do."""


Messages: TypeAlias = list[WriterCommitMessage | None]
"""The messages of the tasks of a batch; None of a task that gave none."""


@dataclass(frozen=True, slots=True)
class WriteContext:
    """Which batch is written: of which transactional id, in which run of it."""

    transactional_id: str
    run_id: str
    batch_id: int


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """What a task wrote to one group. `accepted` is None if the batch was committed there before;
    `last_batch` is the last one that was. `rows`: how many it was given for the group.
    """

    group: str
    epoch: int
    accepted: AcceptedAttempt | None
    last_batch: int = NO_BATCH
    rows: int = 0


@dataclass
class TaskCommitMessage(WriterCommitMessage):
    """The part of a batch that a task wrote; for at-least-once `context` is None, `parts` empty."""

    context: WriteContext | None
    parts: tuple[WrittenPart, ...]


class TaskWriter:
    """Writes the rows of one task. `context` is None for at-least-once."""

    def __init__(self, options: WriteOptions, context: WriteContext | None, partition: int) -> None:
        self._options = options
        self._context = context
        self._partition = partition
        self._producers: dict[str, SyncProducer | None] = {}
        self._epochs: dict[str, int] = {}
        self._last_batches: dict[str, int] = {}
        self._rows: dict[str, int] = defaultdict(int)

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """Write all rows and wait until they are acknowledged. Raises `RequestError`."""
        freeze_gc()
        try:
            for batch in batches:
                for group, rows in self._by_group(batch):
                    self._send(group, rows)
            parts = [self._finished(group) for group in self._producers]
        finally:
            for producer in self._producers.values():
                if producer is not None:
                    producer.close(flush=False)
        return TaskCommitMessage(self._context, tuple(part for part in parts if part is not None))

    def _by_group(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if "group" not in batch.schema.names:
            yield self._options.group or "", batch
            return
        column = batch.column("group")
        named = column.unique().to_pylist()
        for group in named:
            if group is None:
                raise UnexpectedArgumentError("a row has no group: its column group is null")
            rows = batch if len(named) == 1 else batch.filter(pc.equal(column, group))
            yield group, rows

    def _send(self, group: str, rows: pa.RecordBatch) -> None:
        if group not in self._producers:
            self._producers[group] = self._open(group)
        producer = self._producers[group]
        self._rows[group] += rows.num_rows
        if producer is None or not rows.num_rows:
            return
        bodies = rows.column("body")
        if bodies.null_count:
            raise UnexpectedArgumentError(
                f"{bodies.null_count} of {counted(rows.num_rows, 'row')} without a body: the "
                "column body is null; leave them out or give them an empty one"
            )
        if bodies.type != pa.binary():
            bodies = bodies.cast(pa.binary())
        producer.send_batch(bodies.to_pylist(), _channels(rows))

    def _open(self, group: str) -> SyncProducer | None:
        """Return a producer for a group; None: the batch is committed there, and not written."""
        if len(self._producers) >= GROUPS_PER_TASK_MAX:
            raise UnexpectedArgumentError(
                f"one task writes to more than {GROUPS_PER_TASK_MAX} groups; repartition the rows "
                "by the column group before they are written"
            )
        try:
            check_name("group", group)
        except ConfigError as error:
            raise UnexpectedArgumentError(f"column group: {error}") from None
        options, context, part = self._options, self._context, None
        if context is not None:
            transactions = _transactions_of(options, context, group)
            found = transactions.init()
            self._epochs[group] = found.epoch
            self._last_batches[group] = found.last_batch
            if found.last_batch >= context.batch_id:
                return None
            part = transactions.part(found, context.batch_id, self._partition)
        return SyncProducer(
            open_nodes(options.servers),
            group,
            part=part,
            channel=options.channel or 0,
            batch_bytes=BLOCK_BYTES,
            buffer_bytes=BUFFER_BYTES,
            delivery_timeout_ms=options.delivery_timeout_ms,
            level=options.level,
            idempotent=options.level in ("replication", "all"),
        )

    def _finished(self, group: str) -> WrittenPart | None:
        producer, rows = self._producers[group], self._rows[group]
        if producer is None:
            return WrittenPart(group, self._epochs[group], None, self._last_batches[group], rows)
        producer.flush()
        accepted = producer.attempt()
        if accepted is None:
            return None
        return WrittenPart(group, self._epochs[group], accepted, rows=rows)


def _channels(rows: pa.RecordBatch) -> Sequence[int] | None:
    if "channel" not in rows.schema.names:
        return None
    column = rows.column("channel")
    if column.null_count:
        column = column.fill_null(0)
    bounds = pc.min_max(column).as_py()
    if bounds["min"] < 0 or bounds["max"] >= SYSTEM_CHANNEL:
        raise UnexpectedArgumentError(
            f"column channel has values from {bounds['min']} to {bounds['max']}; a channel is "
            f"between 0 and {SYSTEM_CHANNEL - 1}"
        )
    found: list[int] = column.to_pylist()
    return found


def _transactions_of(
    options: WriteOptions, context: WriteContext, group: str, timeout_ms_max: int | None = None
) -> SyncTransactions:
    """Return the transactions of a group."""
    timeout_ms = options.delivery_timeout_ms
    return SyncTransactions(
        _client_of(options, group, min(timeout_ms, timeout_ms_max or timeout_ms)),
        context.transactional_id,
        run_id=context.run_id,
        timeout_ms=options.transaction_timeout_ms,
    )


def _client_of(options: WriteOptions, group: str, timeout_ms: int) -> SyncClient:
    return client_for(options.servers, group, timeout_ms)


def commit_batch(options: WriteOptions, messages: Sequence[TaskCommitMessage | None]) -> None:
    """Commit a batch in every group that was written to, with what the tasks' messages say.

    Groups do not change in the same moment; each has every row once, because what is committed
    in one is not written to it again. Raises `RequestError`; `UnexpectedArgumentError`, before
    anything is committed, if a later batch was committed in a group, or one of this number with
    another number of rows: this one is not written there. The last one may come again with as many
    rows: Spark repeats it after a failure.
    """
    _check_is_last(messages)
    _check_is_same(options, messages)
    for group, (context, epoch, accepted) in _by_group(messages).items():
        if accepted:
            transactions = _transactions_of(options, context, group)
            transactions.commit(epoch, context.batch_id, accepted)


def _check_is_last(messages: Sequence[TaskCommitMessage | None]) -> None:
    for message in messages:
        if message is None or message.context is None:
            continue
        this, name = message.context.batch_id, message.context.transactional_id
        for part in message.parts:
            if part.last_batch > this:
                raise UnexpectedArgumentError(
                    f"batch {this} of {name} is not written to group {part.group}, as batch "
                    f"{part.last_batch} was committed there before: {_ADVICE}"
                )


def _check_is_same(options: WriteOptions, messages: Sequence[TaskCommitMessage | None]) -> None:
    """Compare the rows of a batch with those of the one of its number that a group has committed.

    Spark plans a batch anew if the checkpoint does not know it; such a one is not taken for written
    unless it has as many rows. `failOnDataLoss=false`: there is only a line in the log.
    """
    for group, (context, rows) in _committed_before(messages).items():
        which, name = context.batch_id, context.transactional_id
        found = _transactions_of(options, context, group).init()
        if found.last_batch != which:
            continue
        committed = _rows_of_last(_client_of(options, group, options.delivery_timeout_ms), found)
        if committed in (UNKNOWN_ROWS, rows):
            continue
        text = (
            f"batch {which} of {name} is not written to group {group}, as a batch {which} was "
            f"committed there before, with {counted(committed, 'row')} and not {rows:,}"
        )
        if options.fails_on_data_loss:
            raise UnexpectedArgumentError(
                f"{text}: if it is the same batch, and the query was changed, its source left out "
                "records that are lost, or its rows depend on chance or on a table that has "
                f"changed, set failOnDataLoss=false until it is over. Else {_ADVICE}"
            )
        logger.warning("%s; going on, as failOnDataLoss=false", text)


def _rows_of_last(client: SyncClient, found: ProducerEpoch) -> int:
    """Return how many rows the last batch has, by the attempts that the entry at its end names."""
    if found.end_index < 0:
        return UNKNOWN_ROWS
    try:  # of a leader that still leads: a former one may not have the entry
        ended = EndTransaction.decode(client.get(found.end_index, linearizable=True).body)
    except IndexRemovedError:
        return UNKNOWN_ROWS
    if ended is None or ended.accepted is None:
        return UNKNOWN_ROWS
    return sum(one.count for one in ended.accepted)


def _committed_before(
    messages: Sequence[TaskCommitMessage | None],
) -> dict[str, tuple[WriteContext, int]]:
    """Return the groups in which the batch is committed, and how many rows it has for each now."""
    rows: dict[str, int] = defaultdict(int)
    committed: dict[str, WriteContext] = {}
    for message in messages:
        if message is None or message.context is None:
            continue
        for part in message.parts:
            rows[part.group] += part.rows
            if part.accepted is None:
                committed[part.group] = message.context
    return {group: (context, rows[group]) for group, context in committed.items()}


def abort_batch(
    options: WriteOptions,
    messages: Sequence[TaskCommitMessage | None],
    context: WriteContext | None = None,
) -> None:
    """Give up what some tasks of a batch wrote, so that readers need not wait for its time-out.

    This includes tasks that did not end, as far as it is known what they wrote. It does not wait
    for a cluster that cannot be reached: most likely that is why the batch failed.
    """
    if context is not None and options.group is not None:
        transactions = _transactions_of(options, context, options.group, PLAN_TIMEOUT_MS)
        found = transactions.init()
        if found.last_batch < context.batch_id:
            transactions.abort(found.epoch, context.batch_id)
        return
    for group, (written_in, epoch, accepted) in _by_group(messages).items():
        if accepted:
            transactions = _transactions_of(options, written_in, group, PLAN_TIMEOUT_MS)
            transactions.abort(epoch, written_in.batch_id)


def _by_group(
    messages: Sequence[TaskCommitMessage | None],
) -> dict[str, tuple[WriteContext, int, list[AcceptedAttempt]]]:
    epochs: dict[str, int] = defaultdict(int)
    accepted: dict[str, list[AcceptedAttempt]] = defaultdict(list)
    context: WriteContext | None = None
    for message in messages:
        if message is None or message.context is None:
            continue
        context = message.context
        for part in message.parts:
            epochs[part.group] = max(epochs[part.group], part.epoch)
            if part.accepted is not None:
                accepted[part.group].append(part.accepted)
    if context is None:
        return {}
    return {group: (context, epoch, accepted[group]) for group, epoch in epochs.items()}


# -- what Spark is given ----------------------------------------------------------------------


class LogWriter(DataSourceArrowWriter):
    """Writes a batch once; it gets a random transactional id if the user named none."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._context: WriteContext | None = None
        if options.is_transactional:
            own = str(uuid.uuid4())
            named = options.identity or (own, 0)
            self._context = WriteContext(named[0], own, named[1])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        partition = task_context().partitionId()
        return TaskWriter(self._options, self._context, partition).write(iterator)

    def commit(self, messages: Messages) -> None:
        """All tasks have ended well: their rows count from now on."""
        commit_batch(self._options, _ours(messages))

    def abort(self, messages: Messages) -> None:
        """The job failed: what tasks wrote never counts."""
        abort_batch(self._options, _ours(messages), self._context)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, which is known by its checkpoint."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        task, context = task_context(), None
        if self._options.is_transactional:
            context = context_of(task.getLocalProperty)
        return TaskWriter(self._options, context, task.partitionId()).write(iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """All tasks have ended well: their rows count from now on."""
        commit_batch(self._options, _ours(messages))

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """The batch failed: what tasks wrote never counts."""
        abort_batch(self._options, _ours(messages))


def context_of(local_property: Callable[[str], str | None]) -> WriteContext:
    """Return which batch of which query a task writes, from Spark's local properties.

    Raises `UnexpectedArgumentError` if this Spark does not set them.
    """
    found = {name: local_property(name) for name in (QUERY_ID, RUN_ID, BATCH_ID)}
    missing = [name for name, value in found.items() if not value]
    batch = found[BATCH_ID] or ""
    if missing or not batch.isdecimal():
        raise UnexpectedArgumentError(
            f"this Spark does not pass {', '.join(missing) or BATCH_ID} to its tasks, and without "
            "it rows cannot be written exactly once; set deliveryGuarantee=at-least-once, or write "
            "with foreachBatch and the options transactionalId and batchId"
        )
    return WriteContext(found[QUERY_ID] or "", found[RUN_ID] or "", int(batch))


def task_context() -> TaskContext:
    """Return what Spark says of the task that this is."""
    context = TaskContext.get()
    if context is None:
        raise UnexpectedArgumentError("rows are written by Spark's tasks only")
    return context


def _ours(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommitMessage | None]:
    return [message for message in messages if isinstance(message, TaskCommitMessage)]
