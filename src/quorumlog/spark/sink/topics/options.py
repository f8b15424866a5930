"""The options for writing to topics, and which columns can be written there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from quorumlog.client.kafka_security import librdkafka_settings
from quorumlog.machine.cluster.topics import problem_of_name
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.spark.access import (
    OPTIONS,
    AnyAccess,
    open_brokers,
    refuse_secrets,
    said_where,
    where_of,
)
from quorumlog.spark.option_values import OptionValues, unknown_option, whole_number
from quorumlog.spark.sink.options import check_stream

SERVERS: Final = "kafka.bootstrap.servers"
TIMEOUT_MS: Final = 900_000
"""The time-out of transactions, unless it is set: also the most that a cluster allows, unless
`transaction.max.timeout.ms` is set there."""
DELIVERY_TIMEOUT_MS: Final = 120_000
RECORD_BYTES_MAX: Final = 4 * 1024 * 1024 - 48
"""The largest batch, and so record, that any topic takes."""
SINK_NAME_MAX: Final = 800
"""Characters of `transactionalId`, which names the sink together with the topic."""
_KEPT_BYTES: Final = 64 * 1024
"""Of records that a producer holds, in KiB, unless `kafka.buffer.memory` says otherwise."""
_KAFKA: Final = {
    "kafka.acks": "all (default); for at-least-once also 1 or 0",
    "kafka.batch.size": "bytes of a batch of records (default 1000000)",
    "kafka.buffer.memory": "bytes of records that a task holds until they are written (64 MiB)",
    "kafka.client.id": "the name that brokers see",
    "kafka.compression.level": "how much work the codec does (default: the codec's own)",
    "kafka.compression.type": "none (default), gzip, snappy, lz4 or zstd",
    "kafka.connections.max.idle.ms": "when an idle connection is closed",
    "kafka.linger.ms": "how long a batch waits for more records (default 50)",
    "kafka.max.in.flight.requests.per.connection": "1 to 5 (default 5)",
    "kafka.max.request.size": "bytes of a record (default and most: 4194256)",
    "kafka.metadata.max.age.ms": "when it is asked again who leads partitions",
    "kafka.partitioner": (
        "murmur2_random (default), as Kafka's Java clients do, or another one of librdkafka"
    ),
    "kafka.reconnect.backoff.max.ms": "the longest pause before a broker is connected to again",
    "kafka.reconnect.backoff.ms": "the first pause before a broker is connected to again",
    "kafka.request.timeout.ms": "how long an answer of a broker may take",
    "kafka.retry.backoff.ms": "pause before records are sent again",
    "kafka.socket.keepalive.enable": "true or false (default)",
    "kafka.socket.timeout.ms": "how long a broker may be silent",
    "kafka.sticky.partitioning.linger.ms": (
        "how long records without a key go to the same partition (default 100)"
    ),
}
"""Settings of the producers, by the names of Kafka's Java clients or librdkafka's."""
KNOWN: Final = {
    SERVERS: "host:port,host:port: the Kafka port of some brokers (this or context is required)",
    "topic": "the topic of all rows, instead of a column topic (required unless there is one)",
    "deliveryGuarantee": (
        "exactly-once (default): rows count when their batch is committed, once however often it "
        "is written; or at-least-once: rows are there at once, and again when a task is run again"
    ),
    "transactionTimeoutMs": (
        "how long the tasks of a batch, and its end, may take (default 15m; to be set where the "
        "cluster allows less: transaction.max.timeout.ms)"
    ),
    "transactionalId": (
        "of a batch write: with batchId, the name under which it is written once, for foreachBatch"
    ),
    "batchId": "of a batch write: its number, rising with every batch of a transactionalId",
    "deliveryTimeoutMs": "how long an outage is ridden out (default 120000)",
    "failOnDataLoss": (
        "true (default): a batch with the number of the last one, but not as many rows, is an "
        "error; or false: it is taken for the same one, and not written"
    ),
    **_KAFKA,
    **OPTIONS,
}
SYNONYMS: Final = {
    "bootstrap.servers": SERVERS,
    "servers": SERVERS,
    "kafka.transaction.timeout.ms": "transactionTimeoutMs",
    "kafka.delivery.timeout.ms": "deliveryTimeoutMs",
    "kafka.message.max.bytes": "kafka.max.request.size",
}
_REFUSED: Final = {
    "kafka.enable.idempotence": "a record that is sent again is always stored once",
    "kafka.key.serializer": "give the column key the bytes that are to be written",
    "kafka.transactional.id": "use transactionalId and batchId, in foreachBatch",
    "kafka.value.serializer": "give the column value the bytes that are to be written",
    "group": "it names a group of the log, not of consumers; rows go to a group, or to topics",
    "channel": "topics have partitions: use a column partition",
}
_OF_LIBRDKAFKA: Final = {
    "max.request.size": "message.max.bytes",
    "buffer.memory": "queue.buffering.max.kbytes",
}
_SAID_BY_LIBRDKAFKA: Final = {
    "queue.buffering.max.ms": "linger.ms",
    **{own: name for name, own in _OF_LIBRDKAFKA.items()},
}
_BYTES: Final = (BinaryType, StringType)
_COLUMNS: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "key": (_BYTES, "binary or string"),
    "value": (_BYTES, "binary or string"),
    "headers": ((ArrayType,), "array<struct<key:string,value:binary>>"),
    "topic": ((StringType,), "a string"),
    "partition": ((IntegerType,), "an int"),
    "timestamp": ((TimestampType,), "a timestamp"),
}


@dataclass(frozen=True, slots=True)
class TopicWriteOptions:
    """Where to write and how. `identity`: sink and batch of a batch write, if it has a name.

    `settings`: of the producers, by librdkafka's names. `fails_on_data_loss`: whether a batch that
    has the number of the last one, and another number of rows, is an error.
    """

    servers: AnyAccess
    topic: str | None
    is_transactional: bool
    transaction_timeout_ms: int
    identity: tuple[str, int] | None
    delivery_timeout_ms: int
    settings: Mapping[str, str | int]
    fails_on_data_loss: bool

    def for_stream(self) -> "TopicWriteOptions":
        """Return these, or raise `UnexpectedArgumentError` for what only a batch write has."""
        check_stream(self.identity)
        return self


def parse_topic_options(raw: Mapping[str, str]) -> TopicWriteOptions:
    """Return the options. Raises `UnexpectedArgumentError` naming the option and what it may be."""
    refuse_secrets(raw)
    _refuse(raw)
    values = OptionValues(raw, KNOWN, SYNONYMS)
    is_transactional = values.choice(
        "deliveryGuarantee", {"exactly-once": True, "at-least-once": False}
    )
    timeout_ms = values.duration_ms("transactionTimeoutMs") or TIMEOUT_MS
    delivery_ms = values.duration_ms("deliveryTimeoutMs") or DELIVERY_TIMEOUT_MS
    topic = values.text("topic") or None
    if topic is not None and (problem := problem_of_name(topic)):
        raise UnexpectedArgumentError(f"option 'topic': {problem}")
    identity = _identity(values, topic)
    if identity is not None and not is_transactional:
        raise UnexpectedArgumentError(
            "options transactionalId and batchId are for deliveryGuarantee=exactly-once"
        )
    if is_transactional and values.text("kafka.acks") not in ("", "all", "-1"):
        raise UnexpectedArgumentError(
            "option kafka.acks must be all for deliveryGuarantee=exactly-once; leave it out"
        )
    options = TopicWriteOptions(
        servers=where_of(values, SERVERS),
        topic=topic,
        is_transactional=is_transactional,
        transaction_timeout_ms=timeout_ms,
        identity=identity,
        delivery_timeout_ms=min(delivery_ms, timeout_ms) if is_transactional else delivery_ms,
        settings=_settings(values),
        fails_on_data_loss=values.choice("failOnDataLoss", {"true": True, "false": False}),
    )
    _check_settings(options)
    return options


def _refuse(raw: Mapping[str, str]) -> None:
    """Raise `UnexpectedArgumentError` for options that are refused with a reason of their own."""
    names = {name.lower(): name for name in (*KNOWN, *SYNONYMS)}
    for given in raw:
        lower = given.lower()
        if lower in _REFUSED:
            raise UnexpectedArgumentError(f"option {given!r} cannot be set: {_REFUSED[lower]}")
        if lower.startswith("kafka.") and lower not in names:
            known = (*_KAFKA, SERVERS)
            raise UnexpectedArgumentError(unknown_option(given, names.values(), sorted(known)))


def _identity(values: OptionValues, topic: str | None) -> tuple[str, int] | None:
    """Return the sink and the batch.

    The topic of the option is part of the sink's name: else the second of two writes in one
    `foreachBatch` would be taken for the first one, and not be written.
    """
    name, batch = values.text("transactionalId"), values.text("batchId")
    if not name and not batch:
        return None
    if not name or not batch:
        raise UnexpectedArgumentError("options transactionalId and batchId: give both or neither")
    number = whole_number(batch)
    if number is None:
        raise values.wrong("batchId")
    sink = name if topic is None else f"{name}/{topic}"
    if len(sink) > SINK_NAME_MAX:
        raise UnexpectedArgumentError(
            f"option transactionalId has {len(name)} characters; with the topic there are at most "
            f"{SINK_NAME_MAX}"
        )
    return sink, number


def _settings(values: OptionValues) -> dict[str, str | int]:
    """Return the settings of producers, by librdkafka's names."""
    found: dict[str, str | int] = {
        "acks": "all",
        "linger.ms": 50,
        "log_level": 2,
        "message.max.bytes": RECORD_BYTES_MAX,
        "partitioner": "murmur2_random",
        "queue.buffering.max.kbytes": _KEPT_BYTES,
        "sticky.partitioning.linger.ms": 100,
    }
    for name in _KAFKA:
        if not values.is_given(name):
            continue
        own = name.removeprefix("kafka.")
        own = _OF_LIBRDKAFKA.get(own, own)
        found[own] = values.text(name)
        if own == "queue.buffering.max.kbytes":
            found[own] = max(1, (values.size(name) or 0) // 1024)
    if found["acks"] not in ("all", "-1"):
        found["enable.idempotence"] = "false"
    return found


def _check_settings(options: TopicWriteOptions) -> None:
    """Raise `UnexpectedArgumentError` for values that librdkafka refuses."""
    linger = whole_number(str(options.settings["linger.ms"]))
    if linger is not None and linger >= options.delivery_timeout_ms:
        given_ms = options.delivery_timeout_ms
        raise UnexpectedArgumentError(
            f"options deliveryTimeoutMs and transactionTimeoutMs leave {given_ms} ms to deliver a "
            f"row, which must be more than kafka.linger.ms ({linger} ms)"
        )
    try:
        Producer(producer_settings(options, None) | {"bootstrap.servers": ""})
    except KafkaException as error:
        text = error.args[0].str().strip()
        for own, name in _SAID_BY_LIBRDKAFKA.items():
            text = text.replace(own, name)
        raise UnexpectedArgumentError(f"an option kafka.* is wrong: {text}") from None


def producer_settings(options: TopicWriteOptions, transactional_id: str | None) -> dict[str, Any]:
    """Return what librdkafka is told to make a producer, its secrets included.

    They are read on this machine. Raises `ConfigError`.
    """
    cluster = open_brokers(options.servers)
    with said_where():
        secure = librdkafka_settings(cluster.security)
    found: dict[str, Any] = {
        "bootstrap.servers": cluster.kafka,
        "delivery.report.only.error": True,
        "enable.idempotence": "true",
        "message.timeout.ms": options.delivery_timeout_ms,
        **options.settings,
        **secure,
    }
    if transactional_id is not None:
        found["transactional.id"] = transactional_id
        found["transaction.timeout.ms"] = options.transaction_timeout_ms
    return found


def check_topic_columns(schema: StructType, options: TopicWriteOptions) -> None:
    """Raise `UnexpectedArgumentError` unless rows of a schema can be written to topics."""
    for field in schema.fields:
        known = _COLUMNS.get(field.name)
        if known is None:
            raise UnexpectedArgumentError(
                f"column {field.name!r} cannot be written to topics; a row has "
                f"{', '.join(_COLUMNS)}: select those, and put everything else into value"
            )
        is_right = isinstance(field.dataType, known[0])
        if field.name == "headers":
            is_right = _are_headers(field.dataType)
        if not is_right:
            raise UnexpectedArgumentError(
                f"column {field.name} must be {known[1]}, not {field.dataType.simpleString()}"
            )
    if "value" not in schema.names:
        raise UnexpectedArgumentError(
            "there is no column value, binary or string, to be written; null is a tombstone"
        )
    if options.topic is None and "topic" not in schema.names:
        raise UnexpectedArgumentError(f"option 'topic' is missing: {KNOWN['topic']}")


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(one.name, type(one.dataType)) for one in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]
