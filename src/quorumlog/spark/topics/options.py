"""The options for reading topics, parsed and checked once: those of Spark's Kafka source.

Where several options say where to start, or to end, Spark's order counts: one time for all
partitions, then times of partitions, then offsets.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.spark.access import OPTIONS, AnyAccess, refuse_secrets, where_of
from quorumlog.spark.option_values import NUMBER_MAX, OptionValues, whole_number
from quorumlog.spark.topics.part import EARLIEST, LATEST, Part

SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
"""The options one of which says what is read, and that topics are read at all."""
KNOWN: Final = {
    "kafka.bootstrap.servers": (
        "host:port,host:port: some of the brokers (this or context is required)"
    ),
    "subscribe": "the topic to read, or several joined by commas",
    "subscribePattern": "a regular expression for the whole names of the topics to read",
    "assign": 'JSON {"topic": [0, 1]}: the partitions to read',
    "startingOffsets": (
        "earliest (default of a batch), latest (default of a stream), or JSON "
        '{"topic": {"0": 23, "1": -2}}, where -2 is earliest and -1 latest'
    ),
    "startingTimestamp": ("milliseconds since 1970: begin with the first record that is not older"),
    "startingOffsetsByTimestamp": (
        'the same for each partition: JSON {"topic": {"0": 1700000000000}}'
    ),
    "startingOffsetsByTimestampStrategy": (
        "where to begin if all records are older: error (default), or latest"
    ),
    "endingOffsets": (
        'of a batch: latest (default), or JSON {"topic": {"0": 50, "1": -1}}: the offset after the '
        "last, where -1 is latest"
    ),
    "endingTimestamp": (
        "of a batch, milliseconds since 1970: end before the first record not older than that"
    ),
    "endingOffsetsByTimestamp": "of a batch: the same for each partition, as JSON",
    "maxOffsetsPerTrigger": "of a stream: the most offsets of a batch (default: no limit)",
    "minOffsetsPerTrigger": "of a stream: wait until this many offsets are there (default: 1)",
    "maxTriggerDelay": "of a stream: how long minOffsetsPerTrigger waits, as in 10s (default 15m)",
    "minPartitions": "the least number of Spark's partitions (default: as the records need)",
    "maxRecordsPerPartition": "the most offsets of one of Spark's partitions (default 1000000)",
    "failOnDataLoss": (
        "true (default): an error when records are gone that were to be read; false: skip them, "
        "and log how many"
    ),
    "includeHeaders": "true: also the column headers (default false)",
    "isolationLevel": (
        "read_committed (default): of transactions only what was committed; or read_uncommitted"
    ),
    "localReads": (
        "true (default): what the leader has in files that this machine can read is read there; "
        "false: all is sent by the brokers"
    ),
    "pushDownPredicate": (
        "of a batch: false (default): Spark checks conditions itself, on all records; true: those "
        "on partition, offset and timestamp narrow what is fetched, for a frame that is read with "
        "one condition only"
    ),
    "verifyCrc": "all (default): check each record batch by its CRC; or none: trust the brokers",
    "fetchTimeoutMs": "how long an outage is ridden out (default 120000)",
    "kafka.client.id": "by which name brokers know the reader (default quorumlog-spark)",
    "kafka.security.protocol": "PLAINTEXT; for TLS give context or ca instead",
    **OPTIONS,
}
SYNONYMS: Final = {
    "servers": "kafka.bootstrap.servers",
    "bootstrap.servers": "kafka.bootstrap.servers",
    "kafka.isolation.level": "isolationLevel",
    "kafkaConsumer.pollTimeoutMs": "fetchTimeoutMs",
}
_BATCH_ONLY: Final = (
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "pushDownPredicate",
)
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_NO_EFFECT: Final = frozenset(
    name.lower()
    for name in (
        "groupIdPrefix",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafka.allow.auto.create.topics",
        "kafka.check.crcs",
        "kafka.client.dns.lookup",
        "kafka.connections.max.idle.ms",
        "kafka.default.api.timeout.ms",
        "kafka.fetch.max.bytes",
        "kafka.fetch.max.wait.ms",
        "kafka.fetch.min.bytes",
        "kafka.group.id",
        "kafka.heartbeat.interval.ms",
        "kafka.max.partition.fetch.bytes",
        "kafka.max.poll.interval.ms",
        "kafka.max.poll.records",
        "kafka.metadata.max.age.ms",
        "kafka.receive.buffer.bytes",
        "kafka.reconnect.backoff.max.ms",
        "kafka.reconnect.backoff.ms",
        "kafka.request.timeout.ms",
        "kafka.retry.backoff.ms",
        "kafka.send.buffer.bytes",
        "kafka.session.timeout.ms",
    )
)
"""Options of Spark's Kafka source that jobs have, and nothing here needs."""
_BOOLEAN: Final = {"false": False, "true": True}
_TOPICS_MAX: Final = 10_000
_NAME_LENGTH_MAX: Final = 249

Where: TypeAlias = Literal["offset", "time"]


@dataclass(frozen=True, slots=True)
class Positions:
    """Where to start or to end: an offset or a time for each partition, or one for all.

    `EARLIEST` and `LATEST` are among the offsets. `by_part` is None if `for_all` counts.
    """

    kind: Where
    for_all: int = LATEST
    by_part: Mapping[Part, int] | None = None
    option: str = ""


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """What to read of which topics, and how; `assigned` is None unless partitions are named.

    `topics` are empty if there is a `pattern`. None: not given, that is, no limit.
    """

    servers: AnyAccess
    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[Part, ...] | None
    starting: Positions | None
    ending: Positions
    is_late_start_allowed: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int
    fail_on_data_loss: bool
    include_headers: bool
    reads_committed: bool
    local_reads: bool
    pushes_conditions: bool
    checks_crcs: bool
    fetch_timeout_ms: int
    client_id: str
    given: frozenset[str]

    def for_batch(self) -> "TopicOptions":
        """Return these, or raise `UnexpectedArgumentError` for one that only a stream has."""
        return self._without(_STREAM_ONLY, "readStream", "a batch reads all there is")

    def for_stream(self) -> "TopicOptions":
        """Return these, or raise `UnexpectedArgumentError` for one that only a batch has."""
        return self._without(_BATCH_ONLY, "read", "a stream reads all, and has no end")

    def _without(self, names: tuple[str, ...], only: str, reason: str) -> "TopicOptions":
        for name in names:
            if name in self.given:
                raise UnexpectedArgumentError(
                    f"option {name!r} is for spark.{only} only: {reason}; leave it out"
                )
        return self


def are_of_topics(raw: Mapping[str, str]) -> bool:
    """Whether options say that topics are read, not a plain group."""
    given = {name.lower() for name in raw}
    return any(name.lower() in given for name in SUBSCRIPTIONS) or any(
        name.startswith("kafka.") for name in given
    )


def parse_topic_options(raw: Mapping[str, str]) -> TopicOptions:
    """Return the options. Raises `UnexpectedArgumentError` naming the option and what it may be."""
    refuse_secrets(raw)
    taken = {name: value for name, value in raw.items() if name.lower() not in _NO_EFFECT}
    values = OptionValues(taken, KNOWN, SYNONYMS)
    topics, pattern, assigned = _subscription(values)
    least, most = values.number("minOffsetsPerTrigger"), values.number("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise UnexpectedArgumentError(
            f"option minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}"
        )
    values.choice("kafka.security.protocol", {"plaintext": None})
    where = where_of(values, "kafka.bootstrap.servers")
    if values.is_given("kafka.security.protocol") and not isinstance(where, str):
        raise UnexpectedArgumentError(
            "option kafka.security.protocol is given, and so is a context or ca, which says it: "
            "leave one out"
        )
    return TopicOptions(
        servers=where,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_positions(values, "starting"),
        ending=_positions(values, "ending") or Positions("offset"),
        is_late_start_allowed=values.choice(
            "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}
        ),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=values.duration_ms("maxTriggerDelay") or 15 * 60_000,
        min_partitions=values.number("minPartitions"),
        max_records_per_partition=values.number("maxRecordsPerPartition") or 1_000_000,
        fail_on_data_loss=values.choice("failOnDataLoss", {"true": True, "false": False}),
        include_headers=values.choice("includeHeaders", _BOOLEAN),
        reads_committed=values.choice(
            "isolationLevel", {"read_committed": True, "read_uncommitted": False}
        ),
        local_reads=values.choice("localReads", {"true": True, "false": False}),
        pushes_conditions=values.choice("pushDownPredicate", _BOOLEAN),
        checks_crcs=values.choice("verifyCrc", {"all": True, "none": False}),
        fetch_timeout_ms=values.duration_ms("fetchTimeoutMs") or 120_000,
        client_id=values.text("kafka.client.id")[:_NAME_LENGTH_MAX] or "quorumlog-spark",
        given=frozenset(name for name in KNOWN if values.is_given(name)),
    )


def _subscription(
    values: OptionValues,
) -> tuple[tuple[str, ...], str | None, tuple[Part, ...] | None]:
    """Return the topics, or the pattern for them, and the partitions if only some are read."""
    given = [name for name in SUBSCRIPTIONS if values.is_given(name)]
    if len(given) != 1:
        names = ", ".join(SUBSCRIPTIONS)
        raise UnexpectedArgumentError(
            f"options {' and '.join(given)}: give one of them only"
            if given
            else f"one of the options {names} says which topics are read; none is given"
        )
    (name,) = given
    if name == "subscribePattern":
        pattern = values.required(name)
        try:
            re.compile(pattern)
        except re.error as error:
            raise UnexpectedArgumentError(
                f"option {name}={pattern!r} is no regular expression: {error}"
            ) from None
        return (), pattern, None
    if name == "assign":
        parts = tuple(sorted(_parts(values, name)))
        return tuple(sorted({part.topic for part in parts})), None, parts
    topics = {topic.strip() for topic in values.required(name).split(",")}
    if "" in topics or len(topics) > _TOPICS_MAX or max(map(len, topics)) > _NAME_LENGTH_MAX:
        raise values.wrong(name)
    return tuple(sorted(topics)), None, None


def _parts(values: OptionValues, name: str) -> set[Part]:
    found = set()
    for topic, partitions in values.json_object(name).items():
        if not isinstance(partitions, list) or not all(_is_number(one, 0) for one in partitions):
            raise values.wrong(name)
        found |= {Part(topic, one) for one in partitions}
    if not found:
        raise values.wrong(name)
    return found


def _positions(values: OptionValues, end: Literal["starting", "ending"]) -> Positions | None:
    """Return where to start or to end; None: it is not said."""
    by_time = f"{end}Timestamp"
    if values.is_given(by_time):
        time_ms = whole_number(values.text(by_time))
        if time_ms is None:
            raise values.wrong(by_time)
        return Positions("time", time_ms, option=by_time)
    by_times = f"{end}OffsetsByTimestamp"
    if values.is_given(by_times):
        return Positions("time", by_part=_by_part(values, by_times, 0), option=by_times)
    name = f"{end}Offsets"
    if not values.is_given(name):
        return None
    text = values.text(name).lower()
    if text == "latest":
        return Positions("offset", LATEST, option=name)
    if text == "earliest" and end == "starting":
        return Positions("offset", EARLIEST, option=name)
    least = EARLIEST if end == "starting" else LATEST
    return Positions("offset", by_part=_by_part(values, name, least), option=name)


def _by_part(values: OptionValues, name: str, least: int) -> dict[Part, int]:
    found = {}
    for topic, positions in values.json_object(name).items():
        if not isinstance(positions, dict):
            raise values.wrong(name)
        for partition, position in positions.items():
            number = whole_number(partition)
            if number is None or partition != str(number) or not _is_number(position, least):
                raise values.wrong(name)
            found[Part(topic, number)] = position
    return found


def _is_number(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= NUMBER_MAX
