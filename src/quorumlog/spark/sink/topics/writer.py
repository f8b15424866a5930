"""Writes rows to topics, each once, even if tasks or whole batches run again.

Every task is a producer with a transaction of its own, which it leaves ongoing; the driver commits
those whose messages it was given, by one decision (`machine.cluster.sinks`), which aborts all
others. A batch that was committed is not written again. A query that is started again fences the
run before it.
"""

import logging
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

from quorumlog.machine.cluster.commands import ITEMS_MAX, UNKNOWN_ROWS
from quorumlog.machine.cluster.sinks import attempt_id
from quorumlog.model.errors import TransactionAbortedError, UnexpectedArgumentError
from quorumlog.model.wording import counted
from quorumlog.spark.sink.topics.coordinator import (
    Attempt,
    Ended,
    Joined,
    SinkBatch,
    SinkCoordinator,
)
from quorumlog.spark.sink.topics.options import (
    TopicWriteOptions,
    check_topic_columns,
    parse_topic_options,
)
from quorumlog.spark.sink.topics.producer import TopicProducer
from quorumlog.spark.sink.writer import Messages, context_of, task_context
from quorumlog.spark.source.clusters import PLAN_TIMEOUT_MS
from quorumlog.spark.worker import freeze_gc

logger = logging.getLogger(__name__)

TASKS_MAX: Final = ITEMS_MAX
"""Tasks of a batch that one decision can commit."""
NAMES_MAX: Final = 16
"""Attempts of one number at a partition: Spark counts them anew if it runs a stage again, while
some of the first run may be there yet."""


@dataclass
class TopicTaskMessage(WriterCommitMessage):
    """What a task wrote: of which batch, None for at-least-once; its attempt, None if it wrote
    nothing; and how many rows it was given, also if they were not to be written again.
    """

    batch: SinkBatch | None
    attempt: Attempt | None = None
    rows: int = 0


class _Rows:
    """Rows as they are taken, and how many they were."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.count = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for one in self._batches:
            if one.num_rows:
                self.count += one.num_rows
                yield one


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
        taken = _Rows(batches)
        rows = iter(taken)
        if self._batch is None:
            self._write(rows)
            return TopicTaskMessage(None)
        with SinkCoordinator(self._options.servers, self._options.delivery_timeout_ms) as asked:
            attempt = self._write_once(asked, self._batch, rows)
        for _ in rows:
            pass  # of a batch that is not written again: they are counted
        return TopicTaskMessage(self._batch, attempt, taken.count)

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
) -> Ended | None:
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
            rows = sum(one.rows for one in messages)
            return asked.end(batch, accepted, rows=rows, commits=commits, is_last=is_last)
        except TransactionAbortedError as error:
            if not attempts:
                return None  # no task has got so far that the sink is known
            raise TransactionAbortedError(
                f"{error}. Nothing of the batch is committed. A batch must end within "
                f"transactionTimeoutMs, which is {options.transaction_timeout_ms}"
            ) from None


@dataclass(frozen=True, slots=True)
class _Committed:
    """Judges by what the coordinator answers whether it is this batch that is committed.

    `which`: the batch. `of`: whose it is. `advice`: why another one may have its number, and what
    to do.
    """

    which: int
    of: str
    advice: str

    def check(
        self, ended: Ended | None, messages: Sequence[TopicTaskMessage], *, fails: bool
    ) -> None:
        """Raise `UnexpectedArgumentError` for a batch that was not written and is not known to have
        been: a later one was committed, or one of this number with another number of rows.

        `fails` False: for the latter there is a line in the log.
        """
        if ended is None or ended.last_batch < self.which:
            return
        if ended.last_batch > self.which:
            raise UnexpectedArgumentError(
                f"batch {self.which} is not written, as batch {ended.last_batch} of {self.of} was "
                f"committed before: {self.advice}"
            )
        rows = sum(one.rows for one in messages)
        if ended.last_rows in (UNKNOWN_ROWS, rows):
            return
        text = (
            f"batch {self.which} is not written, as a batch {self.which} of {self.of} was "
            f"committed before, with {counted(ended.last_rows, 'row')} and not {rows:,}"
        )
        if fails:
            raise UnexpectedArgumentError(
                f"{text}: if it is the same batch, and the query was changed, its source left out "
                "records that are lost, or its rows depend on chance or on a table that has "
                f"changed, set failOnDataLoss=false until it is over. Else {self.advice}"
            )
        logger.warning("%s; going on, as failOnDataLoss=false", text)


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
        was not written. The last one may come again, with as many rows: Spark repeats it after a
        failure.
        """
        options, batch, ours = self._options, self._batch, _ours(messages)
        is_last = options.identity is None
        ended = end_batch(options, batch, ours, commits=True, is_last=is_last)
        if batch is not None:
            advice = (
                "does the query begin with a new checkpoint, and count from 0 again, or does "
                "another one use this transactionalId? Then give it another one"
            )
            committed = _Committed(batch.batch_id, batch.sink, advice)
            committed.check(ended, ours, fails=options.fails_on_data_loss)

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

        Raises `UnexpectedArgumentError` for a batch that comes before one that was committed, and
        for one with its number but not as many rows: the checkpoint has gone back. Spark itself
        repeats no batch but the last one, and plans it as before.
        """
        ours = _ours(messages)
        ended = end_batch(self._options, None, ours, commits=True, is_last=False)
        advice = (
            "the query's checkpoint was restored from a backup, or another query has a copy of it. "
            "Go on with the newest checkpoint, or begin with a new one, which is another query and "
            "writes from its startingOffsets on"
        )
        committed = _Committed(batchId, "this query", advice)
        committed.check(ended, ours, fails=self._options.fails_on_data_loss)

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
