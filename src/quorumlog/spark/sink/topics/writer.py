"""Writes rows to topics, each once, even if tasks or whole batches run again.

Every task is a producer with a transaction of its own, which it leaves ongoing; the driver commits
those whose messages it was given, by one decision (`machine.cluster.sinks`), which aborts all
others. A batch that was committed is not written again. A query that is started again fences the
run before it.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from quorumlog.machine.cluster.commands import ITEMS_MAX
from quorumlog.machine.cluster.sinks import attempt_id
from quorumlog.model.errors import TransactionAbortedError, UnexpectedArgumentError
from quorumlog.spark.sink.topics.coordinator import Attempt, Joined, SinkBatch, SinkCoordinator
from quorumlog.spark.sink.topics.options import (
    TopicWriteOptions,
    check_topic_columns,
    parse_topic_options,
)
from quorumlog.spark.sink.topics.producer import TopicProducer
from quorumlog.spark.sink.writer import Messages, context_of, task_context
from quorumlog.spark.source.clusters import PLAN_TIMEOUT_MS
from quorumlog.spark.worker import freeze_gc

TASKS_MAX: Final = ITEMS_MAX
"""Tasks of a batch that one decision can commit."""
NAMES_MAX: Final = 16
"""Attempts of one number at a partition: Spark counts them anew if it runs a stage again, while
some of the first run may be there yet."""


@dataclass
class TopicTaskMessage(WriterCommitMessage):
    """What a task wrote: of which batch, None for at-least-once; and its attempt, None if it wrote
    nothing.
    """

    batch: SinkBatch | None
    attempt: Attempt | None = None


class TopicTaskWriter:
    """Writes the rows of one task, which is the `attempt`th at its partition.

    `batch` is None for at-least-once. Raises `UnexpectedArgumentError` for a task after the first
    10,000 of a batch: Spark tells nobody earlier how many there are.
    """

    def __init__(
        self, options: TopicWriteOptions, batch: SinkBatch | None, partition: int, attempt: int = 0
    ) -> None:
        if batch is not None and partition >= TASKS_MAX:
            raise UnexpectedArgumentError(
                f"a batch has more than {TASKS_MAX:,} tasks, and one decision commits no more: "
                "coalesce its rows, or set deliveryGuarantee=at-least-once"
            )
        self._options = options
        self._batch = batch
        self._name = f"{partition}.{attempt}"

    def write(self, batches: Iterator[pa.RecordBatch]) -> TopicTaskMessage:
        """Write all rows and wait until they are acknowledged. Raises `RequestError`."""
        freeze_gc()
        rows = (one for one in batches if one.num_rows)
        if self._batch is None:
            self._write(rows)
            return TopicTaskMessage(None)
        with SinkCoordinator(self._options.servers, self._options.delivery_timeout_ms) as asked:
            attempt = self._write_once(asked, self._batch, rows)
        return TopicTaskMessage(self._batch, attempt)

    def _write(self, rows: Iterator[pa.RecordBatch]) -> None:
        producer = None
        for some in rows:
            producer = producer or TopicProducer(self._options, None)
            producer.send(some)
        if producer is not None:
            producer.finish()

    def _write_once(
        self, coordinator: SinkCoordinator, batch: SinkBatch, rows: Iterator[pa.RecordBatch]
    ) -> Attempt | None:
        """Return the attempt, or None if nothing was written.

        That the batch was not committed, and the run not succeeded, is asked before the attempt
        takes its transactional id, so that a task of an earlier batch does not take it from one of
        this batch; and once more when it has it, as it may have taken long. A batch that ends from
        then on fences the attempt.
        """
        name, joined = self._free_name(coordinator, batch)
        first = next(rows, None)
        if joined.last_batch >= batch.batch_id or first is None:
            for _ in rows:
                pass  # Spark wants them to be read
            return None
        transactional_id = attempt_id(batch.sink, name)
        producer = TopicProducer(self._options, transactional_id)
        joined = coordinator.join(batch, transactional_id)
        if joined.last_batch >= batch.batch_id:
            return None
        if joined.producer_id < 0:
            raise TransactionAbortedError(f"{transactional_id}: the coordinator does not know it")
        producer.begin()
        try:
            producer.send(first)
            for some in rows:
                producer.send(some)
            producer.finish()
        except BaseException:
            producer.abort()  # the driver does not know of it, if no task of the batch ended well
            raise
        return Attempt(name, joined.producer_id, joined.epoch)

    def _free_name(self, coordinator: SinkCoordinator, batch: SinkBatch) -> tuple[str, Joined]:
        """Return a name under which no other attempt has an ongoing transaction.

        All those of this run are at this batch, as the end of one ends them.
        """
        names = [self._name, *(f"{self._name}.{number}" for number in range(1, NAMES_MAX))]
        for name in names:
            joined = coordinator.join(batch, attempt_id(batch.sink, name))
            if not joined.is_ongoing or joined.last_batch >= batch.batch_id:
                return name, joined
        raise TransactionAbortedError(
            f"{NAMES_MAX} attempts at partition {self._name} of batch {batch.batch_id} are there"
        )


def end_batch(
    options: TopicWriteOptions,
    batch: SinkBatch | None,
    messages: Sequence[TopicTaskMessage],
    *,
    commits: bool,
    is_last: bool,
    timeout_ms: int | None = None,
) -> int | None:
    """Commit a batch, or abort it; in both cases all that tasks did not say to have written ends.

    `batch` None: that which the messages name; nothing is done if they name none. Returns the last
    batch of the sink that is committed then, None if nothing is known of it. Raises `RequestError`.
    """
    batch = batch or next((one.batch for one in messages if one.batch is not None), None)
    if batch is None:
        return None
    attempts = [one.attempt for one in messages if one.attempt is not None]
    with SinkCoordinator(options.servers, timeout_ms or options.delivery_timeout_ms) as asked:
        try:
            accepted = attempts if commits else []
            return asked.end(batch, accepted, commits=commits, is_last=is_last)
        except TransactionAbortedError as error:
            if not attempts:
                return None  # no task has got so far that the sink is known
            raise TransactionAbortedError(
                f"{error}. Nothing of the batch is committed. A batch must end within "
                f"transactionTimeoutMs, which is {options.transaction_timeout_ms}"
            ) from None


# -- what Spark is given ----------------------------------------------------------------------


class TopicWriter(DataSourceArrowWriter):
    """Writes a batch once; its sink has a random name if the user gave none."""

    def __init__(self, options: TopicWriteOptions) -> None:
        self._options = options
        self._batch: SinkBatch | None = None
        if options.is_transactional:
            own = str(uuid.uuid4())
            name, number = options.identity or (own, 0)
            self._batch = SinkBatch(name, own, number)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        task = task_context()
        place = task.partitionId(), task.attemptNumber()
        return TopicTaskWriter(self._options, self._batch, *place).write(iterator)

    def commit(self, messages: Messages) -> None:
        """All tasks have ended well: their rows count from now on.

        Raises `UnexpectedArgumentError` for a batch that comes before one that was committed: it
        was not written. (The last one may come again: Spark repeats it after a failure.)
        """
        options, batch = self._options, self._batch
        is_last = options.identity is None
        last_batch = end_batch(options, batch, _ours(messages), commits=True, is_last=is_last)
        if batch is not None and last_batch is not None and last_batch > batch.batch_id:
            raise UnexpectedArgumentError(
                f"batch {batch.batch_id} of {batch.sink} is not written, as batch {last_batch} was "
                "committed before: does the query begin with a new checkpoint, and count from 0 "
                "again? Then give it another transactionalId"
            )

    def abort(self, messages: Messages) -> None:
        """The job failed: what tasks wrote never counts."""
        is_last = self._options.identity is None
        abort_batch(self._options, self._batch, _ours(messages), is_last=is_last)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, which is known by its checkpoint."""

    def __init__(self, options: TopicWriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        task, batch = task_context(), None
        if self._options.is_transactional:
            found = context_of(task.getLocalProperty)
            batch = SinkBatch(found.transactional_id, found.run_id, found.batch_id)
        place = task.partitionId(), task.attemptNumber()
        return TopicTaskWriter(self._options, batch, *place).write(iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """All tasks have ended well: their rows count from now on.

        Raises `UnexpectedArgumentError` for a batch that comes before one that was committed: the
        checkpoint has gone back. (Spark itself repeats no batch but the last one.)
        """
        ours = _ours(messages)
        last_batch = end_batch(self._options, None, ours, commits=True, is_last=False)
        if last_batch is not None and last_batch > batchId:
            raise UnexpectedArgumentError(
                f"batch {batchId} is not written, as batch {last_batch} of this query was "
                "committed before: its checkpoint was restored from a backup, or another query "
                "has a copy of it. Go on with the newest checkpoint, or begin with a new one, "
                "which is another query and writes from its startingOffsets on"
            )

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """The batch failed: what tasks wrote never counts."""
        abort_batch(self._options, None, _ours(messages), is_last=False)


def batch_writer(raw: Mapping[str, str], schema: StructType) -> TopicWriter:
    """Return a writer of a batch. Raises `UnexpectedArgumentError` for options and columns."""
    return TopicWriter(_checked(raw, schema))


def stream_writer(raw: Mapping[str, str], schema: StructType) -> TopicStreamWriter:
    """Return a writer of a stream's batches. Raises `UnexpectedArgumentError` likewise."""
    return TopicStreamWriter(_checked(raw, schema).for_stream())


def _checked(raw: Mapping[str, str], schema: StructType) -> TopicWriteOptions:
    options = parse_topic_options(raw)
    check_topic_columns(schema, options)
    return options


def abort_batch(
    options: TopicWriteOptions,
    batch: SinkBatch | None,
    messages: Sequence[TopicTaskMessage],
    *,
    is_last: bool,
) -> None:
    """Give up what the tasks of a batch wrote, so that readers need not wait for its time-out.

    It does not wait long for a cluster that cannot be reached: most likely that is why the batch
    failed. One that was fenced has nothing to give up. Raises `RequestError`.
    """
    timeout_ms = min(PLAN_TIMEOUT_MS, options.delivery_timeout_ms)
    end_batch(options, batch, messages, commits=False, is_last=is_last, timeout_ms=timeout_ms)


def _ours(messages: Messages) -> list[TopicTaskMessage]:
    return [message for message in messages if isinstance(message, TopicTaskMessage)]
