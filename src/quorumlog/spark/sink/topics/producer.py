"""Sends rows to topics with librdkafka, and says in one line why some could not be written."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer

from quorumlog.client.kafka_security import check_cluster
from quorumlog.model.errors import (
    DeadlineExceededError,
    RequestError,
    TransactionAbortedError,
    UnexpectedArgumentError,
    UnsupportedError,
)
from quorumlog.model.wording import counted
from quorumlog.spark.access import open_brokers, said_where
from quorumlog.spark.sink.topics.options import TopicWriteOptions, producer_settings

ROWS_TOGETHER: Final = 1_000
"""Rows that are made Python objects at a time."""
TOPICS_MAX: Final = 1_000
"""Topics that one task writes to."""
POLL_S: Final = 0.1
"""How long to wait for room among the records that are under way, before looking for errors."""
MORE_S: Final = 5.0
"""Records that are not written in time are given up by librdkafka; it says so within this."""
ABORT_S: Final = 5.0
"""How long a task that failed tries to abort its transaction."""
_ANY_PARTITION: Final = -1
_NOW: Final = 0
"""Instead of a partition, which is chosen then, and of a timestamp."""
_LEAST_MS: Final = 1
"""The least timestamp that librdkafka does not take for none."""
_FENCED: Final = {
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_TXN_STATE,
    KafkaError._STATE,
}
_UNKNOWN_TOPIC: Final = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
_LATE: Final = {KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT}


class TopicProducer:
    """One producer, with a transaction if it has a transactional id. All methods raise
    `RequestError`.
    """

    def __init__(self, options: TopicWriteOptions, transactional_id: str | None) -> None:
        self._options = options
        self._seconds = options.delivery_timeout_ms / 1_000
        self._failed: tuple[KafkaError, str] | None = None
        cluster = open_brokers(options.servers)
        with said_where():
            check_cluster(cluster.kafka, cluster.security)
        settings = producer_settings(options, transactional_id)
        self._producer = Producer({**settings, "on_delivery": self._refused})
        self._partitions: dict[str, int] = {}
        if transactional_id is not None:
            try:
                self._producer.init_transactions(self._seconds)
            except KafkaException as error:
                raise self._translated(error.args[0], "") from None

    def begin(self) -> None:
        """Begin the transaction."""
        self._producer.begin_transaction()

    def send(self, rows: pa.RecordBatch) -> None:
        """Take rows to be written; wait while there is no room for more."""
        for start in range(0, rows.num_rows, ROWS_TOGETHER):
            self._send(rows.slice(start, ROWS_TOGETHER))
            self._serve(self._producer.poll, 0)

    def finish(self) -> None:
        """Wait until all rows are written. What a transaction has written is left as it is."""
        left = self._serve(self._producer.flush, self._seconds + MORE_S)
        if left:
            text = f"{counted(left, 'row')} not written within {self._seconds:g} s"
            raise DeadlineExceededError(text)

    def abort(self) -> None:
        """Give up the transaction, so that readers need not wait for its time-out.

        If the cluster does not answer soon, that ends it.
        """
        with suppress(KafkaException):
            self._producer.abort_transaction(min(self._seconds, ABORT_S))

    # -- rows ---------------------------------------------------------------------------------

    def _send(self, rows: pa.RecordBatch) -> None:
        names = rows.schema.names
        values = _bytes_of(rows, "value")
        topics: Sequence[str]
        if self._options.topic is not None:
            topics = [self._options.topic] * len(values)
        else:
            topics = _topics_of(rows)
        for topic in dict.fromkeys(topics):
            self._look_at(topic)
        keys = _bytes_of(rows, "key") if "key" in names else [None] * len(values)
        parts = self._partitions_of(rows, topics) if "partition" in names else None
        if "headers" in names or "timestamp" in names:
            self._send_all_columns(rows, topics, values, keys, parts)
        elif parts is not None:
            for topic, value, key, part in zip(topics, values, keys, parts, strict=True):
                self._produce(topic, value, key, part)
        else:
            produce = self._producer.produce
            for topic, value, key in zip(topics, values, keys, strict=True):
                try:
                    produce(topic, value, key)
                except (BufferError, KafkaException):
                    self._produce(topic, value, key)

    def _send_all_columns(
        self,
        rows: pa.RecordBatch,
        topics: Sequence[str],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        parts: Sequence[int] | None,
    ) -> None:
        names, count = rows.schema.names, rows.num_rows
        headers: Sequence[Any] = [None] * count
        if "headers" in names:
            headers = [_pairs(one) for one in rows.column("headers").to_pylist()]
        times: Sequence[int] = [_NOW] * count
        if "timestamp" in names:
            times = _milliseconds(rows.column("timestamp"))
        parts = parts or [_ANY_PARTITION] * count
        for row in zip(topics, values, keys, parts, times, headers, strict=True):
            topic, value, key, part, time_ms, pairs = row
            self._produce(topic, value, key, part, timestamp=time_ms, headers=pairs)

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int = _ANY_PARTITION,
        **more: Any,
    ) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, **more)
            except BufferError:
                self._serve(self._producer.poll, POLL_S)
            except KafkaException as error:
                self._serve(self._producer.poll, 0)  # it may say why
                size = len(value or b"") + len(key or b"")
                raise self._translated(error.args[0], topic, size) from None
            else:
                return

    def _partitions_of(self, rows: pa.RecordBatch, topics: Sequence[str]) -> list[int]:
        found = []
        for topic, part in zip(topics, rows.column("partition").to_pylist(), strict=True):
            if part is not None and not 0 <= part < self._partitions[topic]:
                raise UnexpectedArgumentError(
                    f"a row has partition {part}, but topic {topic!r} has "
                    f"{counted(self._partitions[topic], 'partition')}, from 0"
                )
            found.append(_ANY_PARTITION if part is None else part)
        return found

    def _look_at(self, topic: str) -> None:
        """See that a topic is there; one that may be created is."""
        if topic in self._partitions:
            return
        if len(self._partitions) >= TOPICS_MAX:
            raise UnexpectedArgumentError(
                f"one task writes to more than {TOPICS_MAX} topics; repartition the rows by the "
                "column topic before they are written"
            )
        try:
            found = self._producer.list_topics(topic, self._seconds).topics[topic]
        except KafkaException as error:
            raise self._translated(error.args[0], topic) from None
        passing = (None, KafkaError.LEADER_NOT_AVAILABLE)
        if found.error is not None and found.error.code() not in passing:
            raise self._translated(found.error, topic)
        self._partitions[topic] = len(found.partitions)

    # -- errors -------------------------------------------------------------------------------

    def _refused(self, error: KafkaError | None, message: Any) -> None:
        """Note why a row could not be written, the first time."""
        if error is not None and self._failed is None:
            self._failed = error, message.topic() or ""

    def _serve(self, call: Callable[[float], int], seconds: float) -> int:
        """Have librdkafka say what became of rows; raise what it says of one that was not written.

        A fatal error is raised by the call, or is the cause of what is raised, if it was met by a
        function that librdkafka called next.
        """
        try:
            found = call(seconds)
        except (KafkaException, SystemError) as error:
            cause = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(cause, KafkaException):
                raise
            raise self._translated(cause.args[0], "") from None
        if self._failed is not None:
            raise self._translated(*self._failed)
        return found

    def _translated(self, error: KafkaError, topic: str, size: int = 0) -> RequestError:
        """Return what went wrong, and what to do about it."""
        code, where = error.code(), f"topic {topic!r}: " if topic else ""
        if code in _UNKNOWN_TOPIC:
            return UnexpectedArgumentError(
                f"{where}it does not exist, and the cluster does not create topics by itself; "
                "create it: quorumlog topic create"
            )
        if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._INVALID_ARG) and size:
            return UnexpectedArgumentError(
                f"{where}a row of {size} bytes is above kafka.max.request.size, or above 4 MiB"
            )
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            return UnexpectedArgumentError(
                f"{where}a row is too large: the topic allows batches of max.message.bytes"
            )
        if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return UnexpectedArgumentError(
                f"transactionTimeoutMs={self._options.transaction_timeout_ms} is above what the "
                "cluster allows (transaction.max.timeout.ms); set the option to at most that"
            )
        if code == KafkaError.POLICY_VIOLATION:
            return UnsupportedError(
                f"{where}the cluster has no room for more transactions (docs/kafka.md, Limits)"
            )
        if code in _FENCED and self._options.is_transactional:
            return TransactionAbortedError(
                f"{where}the transaction of this task was aborted: another run or attempt has "
                f"taken its place, or it took longer than {self._options.transaction_timeout_ms} "
                f"ms (transactionTimeoutMs): {error.str()}"
            )
        if code in _LATE:
            return DeadlineExceededError(
                f"{where}{self._options.servers} did not take all rows within "
                f"{self._seconds:g} s (deliveryTimeoutMs): {error.str()}"
            )
        return RequestError(f"{where}{error.str()}")


def _bytes_of(rows: pa.RecordBatch, name: str) -> list[bytes | None]:
    column = rows.column(name)
    if column.type != pa.binary():
        column = column.cast(pa.binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _topics_of(rows: pa.RecordBatch) -> list[str]:
    column = rows.column("topic")
    if column.null_count:
        raise UnexpectedArgumentError("a row has no topic: its column topic is null")
    found: list[str] = column.to_pylist()
    return found


def _pairs(headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    if not headers:
        return None
    if any(one is None or one["key"] is None for one in headers):
        raise UnexpectedArgumentError("a header of a row has no key: it is null")
    return [(one["key"], one["value"]) for one in headers]


def _milliseconds(column: pa.Array) -> list[int]:
    """Return timestamps as Kafka has them; null is the present.

    The first millisecond of 1970 becomes the second one: librdkafka takes 0 for the present.
    """
    if pc.any(pc.less(column.cast(pa.int64()), 0)).as_py():
        raise UnexpectedArgumentError("a row has a timestamp before 1970")
    found = column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    times: list[int] = (
        pc.max_element_wise(found, _LEAST_MS, skip_nulls=False).fill_null(_NOW).to_pylist()
    )
    return times
