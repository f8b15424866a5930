"""The topics that an archive is produced into, by librdkafka's transactional producer."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from quorumlog.client.kafka_security import check_cluster, librdkafka_settings
from quorumlog.kafka.frames import FIRST_FRAME_BYTES_MAX, FRAME_BYTES_MAX
from quorumlog.model.errors import NetworkError
from quorumlog.model.topic_configs import MESSAGE_BYTES_MAX
from quorumlog.model.wording import counted
from quorumlog.spark.access import AnyAccess, open_brokers
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.topics.part import Part

if TYPE_CHECKING:
    from confluent_kafka import Producer

REQUEST_S: Final = 10.0
"""How long one call waits before it is repeated, as long as an outage is ridden out."""
RETRY_S: Final = 0.1
POLL_S: Final = 0.1
BUFFERED_KIB: Final = 64 * 1024
"""What waits in the producer at most, in KiB."""
BATCH_BYTES: Final = 1_000_000
"""Bytes of a batch before compression, unless one record has more."""
RECORD_BYTES_MAX: Final = FRAME_BYTES_MAX - FIRST_FRAME_BYTES_MAX
"""Bytes of a record before compression, so that a request has no more than brokers read."""
ROOM_BYTES: Final = 1_024
"""What a batch of one record has besides, generously."""
TOPIC_BYTES: Final = 1_048_588
"""What a batch may have if `max.message.bytes` of a topic is not set."""
TRANSACTION_MS_MAX: Final = 15 * 60_000
"""What clusters allow unless `transaction.max.timeout.ms` says otherwise."""
_LIBRDKAFKA: Final = {"log_level": 0}
"""What librdkafka says of brokers that are gone is in the error, if there is one."""

Value = TypeVar("Value")


class Position(NamedTuple):
    """How far a partition was replayed: the archive's offset to go on from.

    `began`: the offset in the target that the first record has. `topic`: the archive's, empty if
    it was not noted.
    """

    offset: int
    began: int
    topic: str = ""


class Outgoing(NamedTuple):
    """A record to produce; `time_ms` None: it gets the time at which it is produced.

    librdkafka takes 0 for that, too. `offset` is the one in the archive.
    """

    key: bytes | None
    value: bytes | None
    time_ms: int | None
    headers: Sequence[tuple[str, bytes | None]]
    offset: int

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        headers = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


class RecordTooLargeError(PipelineError):
    """A topic takes no record of that size; no record of its transaction counts.

    `offset` is the one in the archive.
    """

    def __init__(self, part: Part, record: Outgoing) -> None:
        needed = min(max(TOPIC_BYTES, record.size + ROOM_BYTES), MESSAGE_BYTES_MAX)
        super().__init__(
            f"partition {part} refuses a batch for its size, the largest record of which has "
            f"{counted(record.size, 'byte')}: let its topic take larger ones ('quorumlog topic "
            f"alter {part.topic} --config max.message.bytes={needed}'; {MESSAGE_BYTES_MAX} at "
            "most, after compression)"
        )
        self.offset = record.offset


class TopicTarget(Protocol):
    """Topics that are produced into, by one producer at a time."""

    def take_over(self) -> None:
        """Fence whoever replayed the same before; what that one did not commit never happened."""
        ...

    def make_topics(self, topics: Mapping[str, int]) -> None:
        """Make topics with these numbers of partitions, unless they are there with as many or more.

        Raises `PipelineError` for one with fewer.
        """
        ...

    def positions(self, parts: Sequence[Part]) -> dict[Part, Position | None]:
        """Return how far partitions were replayed; None: not at all."""
        ...

    def claim(self, positions: Mapping[Part, Position]) -> None:
        """Set the positions of partitions that were not replayed yet."""
        ...

    def produce(self, part: Part, records: Iterable[Outgoing], position: Position) -> None:
        """Produce records in their order and move the position, both at once or not at all.

        Raises `RecordTooLargeError` for a record that the topic refuses.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class ConfluentTarget:
    """Topics of the cluster at `servers`; see `TopicTarget`.

    `name` is both the transactional id and the consumer group whose offsets are the positions.
    Outages are ridden out for `timeout_ms`; then all methods raise `NetworkError`.
    """

    def __init__(self, servers: AnyAccess, name: str, timeout_ms: int) -> None:
        from confluent_kafka import Consumer, Producer  # noqa: PLC0415  (an extra)

        self._servers = servers
        self._name = name
        self._timeout_s = timeout_ms / 1_000
        self._refused: list[Any] = []
        """Why records of the transaction were not delivered, each with the message."""
        cluster = open_brokers(servers)
        check_cluster(cluster.kafka, cluster.security)
        common = {
            "bootstrap.servers": cluster.kafka,
            **_LIBRDKAFKA,
            **librdkafka_settings(cluster.security),
        }
        self._common = common
        settings = {
            "transactional.id": name,
            "transaction.timeout.ms": min(timeout_ms, TRANSACTION_MS_MAX),
            "linger.ms": 20,
            "compression.type": "zstd",
            "batch.size": BATCH_BYTES,
            "message.max.bytes": RECORD_BYTES_MAX,
            "delivery.report.only.error": True,
            "on_delivery": self._note_refused,
            "queue.buffering.max.kbytes": BUFFERED_KIB,
        }
        self._producer = Producer(common | settings)
        self._consumer = Consumer(common | {"group.id": name, "enable.auto.commit": False})

    def close(self) -> None:
        """See `TopicTarget`."""
        self._consumer.close()

    def take_over(self) -> None:
        """See `TopicTarget`."""
        self._ridden_out(lambda: self._producer.init_transactions(REQUEST_S))

    def make_topics(self, topics: Mapping[str, int]) -> None:
        """See `TopicTarget`."""
        from confluent_kafka.admin import (  # type: ignore[attr-defined]  # noqa: PLC0415
            AdminClient,
            NewTopic,
        )

        admin = AdminClient(self._common)
        there = self._ridden_out(lambda: admin.list_topics(timeout=REQUEST_S)).topics
        for topic, partitions in topics.items():
            found = len(there[topic].partitions) if topic in there else 0
            if 0 < found < partitions:
                raise PipelineError(
                    f"topic {topic!r} has {counted(found, 'partition')}, the archive {partitions}; "
                    f"add some ('quorumlog topic alter {topic} --partitions {partitions}'), or "
                    "replay into another topic"
                )
            if not found:
                self._ridden_out(partial(_make_topic, admin, NewTopic(topic, partitions)))

    def positions(self, parts: Sequence[Part]) -> dict[Part, Position | None]:
        """See `TopicTarget`."""
        from confluent_kafka import TopicPartition  # noqa: PLC0415

        asked = [TopicPartition(*part) for part in parts]
        found = self._ridden_out(lambda: self._consumer.committed(asked, REQUEST_S))
        positions: dict[Part, Position | None] = {}
        for one in found:
            if one.error is not None:
                raise NetworkError(f"{one.topic}-{one.partition}: {one.error}")
            part = Part(one.topic, one.partition)
            began, _, topic = (one.metadata or "0").partition(" ")
            positions[part] = Position(one.offset, int(began), topic) if one.offset >= 0 else None
        return positions

    def claim(self, positions: Mapping[Part, Position]) -> None:
        """See `TopicTarget`."""
        self._commit([], positions)

    def produce(self, part: Part, records: Iterable[Outgoing], position: Position) -> None:
        """See `TopicTarget`."""
        self._commit([(part, record) for record in records], {part: position})

    def _commit(
        self, records: Sequence[tuple[Part, Outgoing]], positions: Mapping[Part, Position]
    ) -> None:
        ends_at = time.monotonic() + self._timeout_s
        while not self._is_committed(records, positions, ends_at):
            if time.monotonic() > ends_at:
                raise NetworkError(
                    f"{self._servers}: no transaction could be committed for {self._timeout_s:g} s"
                    + "".join(f": {error.str()}" for error, _ in self._refused[:1])
                )

    def _is_committed(
        self,
        records: Sequence[tuple[Part, Outgoing]],
        positions: Mapping[Part, Position],
        ends_at: float,
    ) -> bool:
        """Try one transaction; return False if it was aborted and is to be tried again.

        If a transaction fails while records are produced, librdkafka says so to the next one by an
        error that is no more than its consequence. Whether that was the end is what the attempt to
        abort says.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicPartition  # noqa: PLC0415

        producer = self._producer
        at = [
            TopicPartition(*part, one.offset, f"{one.began} {one.topic}")
            for part, one in positions.items()
        ]
        group = self._consumer.consumer_group_metadata()
        self._refused.clear()

        def send_offsets() -> None:
            self._repeated(
                lambda: producer.send_offsets_to_transaction(at, group, REQUEST_S), ends_at
            )

        try:
            producer.begin_transaction()
            for part, record in records:
                self._send(producer, part, record, ends_at)
            send_offsets()
            while producer.flush(POLL_S) and not self._refused and time.monotonic() < ends_at:
                send_offsets()  # says so if the transaction failed for another reason
            if not self._refused:  # else it is never delivered whole, and a commit does not end
                self._repeated(lambda: producer.commit_transaction(REQUEST_S), ends_at)
                return True
        except KafkaException as failed:
            error = failed.args[0]
            is_consequence = error.code() in (KafkaError._STATE, KafkaError._FATAL)
            is_over = error.fatal() or not error.txn_requires_abort()
            if is_over and not is_consequence:
                raise self._failed(error) from failed
        producer.poll(0)  # so that it has said which records were refused
        self._abort(ends_at)
        self._check_sizes(records)
        return False

    def _note_refused(self, error: Any, message: Any) -> None:
        if error is not None:
            self._refused.append((error, message))

    def _check_sizes(self, records: Sequence[tuple[Part, Outgoing]]) -> None:
        """Raise `RecordTooLargeError` for the largest record of batches that were too large."""
        from confluent_kafka import KafkaError  # noqa: PLC0415

        refused = {
            (message.topic(), message.partition(), message.key(), message.value())
            for error, message in self._refused
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE
        }
        found = [(part, one) for part, one in records if (*part, one.key, one.value) in refused]
        if found:
            raise RecordTooLargeError(*max(found, key=lambda one: one[1].size))

    def _abort(self, ends_at: float) -> None:
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            self._repeated(lambda: self._producer.abort_transaction(REQUEST_S), ends_at)
        except KafkaException as failed:
            raise self._failed(failed.args[0]) from failed

    def _send(self, producer: "Producer", part: Part, record: Outgoing, ends_at: float) -> None:
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415

        while True:
            try:
                producer.produce(
                    part.topic,
                    record.value,
                    record.key,
                    part.partition,
                    timestamp=record.time_ms or 0,
                    headers=list(record.headers),
                )
            except KafkaException as failed:
                error = failed.args[0]
                is_sent = error.txn_requires_abort()
                if is_sent or error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise
                self._abort(ends_at)
                raise RecordTooLargeError(part, record) from failed
            except BufferError:  # until some are acknowledged
                producer.poll(POLL_S)
                if time.monotonic() > ends_at:
                    raise NetworkError(
                        f"{self._servers}: nothing was acknowledged for {self._timeout_s:g} s"
                    ) from None
            else:
                return

    def _ridden_out(self, act: Callable[[], Value]) -> Value:
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            return self._repeated(act, time.monotonic() + self._timeout_s)
        except KafkaException as failed:
            raise self._failed(failed.args[0]) from failed

    def _repeated(self, act: Callable[[], Value], ends_at: float) -> Value:
        """Return what `act` returns, repeated while brokers cannot answer."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        while True:
            try:
                return act()
            except KafkaException as failed:
                error = failed.args[0]
                is_over = error.fatal() or error.txn_requires_abort()
                if is_over or not _passes(error) or time.monotonic() > ends_at:
                    raise
                time.sleep(RETRY_S)

    def _failed(self, error: Any) -> Exception:
        from confluent_kafka import KafkaError  # noqa: PLC0415

        fenced = {
            KafkaError._FENCED,
            KafkaError.PRODUCER_FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
        }
        if error.code() in fenced:
            return PipelineError(
                f"another replay of this archive, {self._name}, has taken over, or this one was "
                f"cut off for longer than {self._timeout_s:g} s; run it again once no other runs"
            )
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            longest_ms = min(round(self._timeout_s * 1_000), TRANSACTION_MS_MAX)
            return PipelineError(
                f"the cluster at {self._servers} allows no transactions of {longest_ms} ms "
                "(transaction.max.timeout.ms): replay with a shorter timeout_ms (--timeout)"
            )
        if _passes(error):
            return NetworkError(
                f"the brokers at {self._servers} could not answer for {self._timeout_s:g} s: "
                f"{error.str()}"
            )
        return PipelineError(f"the brokers at {self._servers} refused it: {error.str()}")


def _make_topic(admin: Any, topic: Any) -> None:
    """Make a topic; one that is there was made by a request whose answer got lost."""
    from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415

    (made,) = admin.create_topics([topic], operation_timeout=REQUEST_S).values()
    try:
        made.result()
    except KafkaException as failed:
        if failed.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def _passes(error: Any) -> bool:
    from confluent_kafka import KafkaError  # noqa: PLC0415

    passing = {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
    return bool(error.retriable()) or error.code() in passing
