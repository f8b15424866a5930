"""The configs of topics, by Kafka's names: types, defaults, what a value may be, and what it does.

A topic has the configs that were set for it; for the others the defaults of the cluster count,
which have names of their own (`log.retention.ms` for `retention.ms`) and can be set, too.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

LONG_MAX: Final = (1 << 63) - 1
INT_MAX: Final = (1 << 31) - 1
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024 - 48
"""The largest record batch: with the header of its entry it has 4 MiB."""
VALUE_LENGTH_MAX: Final = 1_024
"""Characters of one value."""
_DAY_MS: Final = 86_400_000
_WHOLE_NUMBER: Final = re.compile("[+-]?[0-9]+")
"""What every client that reads a config takes for a number: Python's `1_000` is none."""

_UNITS: Final = {"ms": " (milliseconds)", "bytes": " (bytes)", "minutes": " (minutes)"}
"""By the last word of a config's name: what its number counts."""

ConfigType: TypeAlias = Literal["boolean", "string", "int", "long", "double", "list"]
Check: TypeAlias = Callable[[str], str]
"""Returns what is wrong with a value; empty: nothing."""


class ConfigDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """One config. `check` returns what is wrong with a value; `documentation` is for people.

    `broker_name` is that of the cluster's default; empty: it has none. A config that `has_effect`
    not is accepted, so that programs that set it run, and changes nothing.
    """

    name: str
    type: ConfigType
    default: str
    check: Check
    documentation: str
    broker_name: str = ""
    has_effect: bool = True


def _whole(least: int, most: int) -> Check:
    def check(value: str) -> str:
        if _WHOLE_NUMBER.fullmatch(value) is not None and least <= int(value) <= most:
            return ""
        return f"{value!r} is not a whole number from {least} to {most}"

    return check


def _fraction(value: str) -> str:
    try:
        fits = 0 <= float(value) <= 1
    except ValueError:
        fits = False
    return "" if fits else f"{value!r} is not a number from 0 to 1"


def _one_of(*words: str) -> Check:
    allowed = (
        f"one of {', '.join(words)}"
        if len(words) > 1
        else f"{words[0]}, the only value that is taken"
    )
    return lambda value: "" if value in words else f"{value!r} is not {allowed}"


def _several_of(*words: str, least: int = 0) -> Check:
    """Return what checks words between commas, of which there must be `least`."""
    allowed = ", ".join(words)

    def check(value: str) -> str:
        given = [part.strip() for part in value.split(",")] if value.strip() else []
        if len(given) < least:
            return f"{value!r} names none, and must name at least {least} of {allowed}"
        for part in given:
            if part not in words:
                where = "" if part == value else f" in {value!r}"
                return f"{part!r}{where} is not one of {allowed}"
        return ""

    return check


def _anything(value: str) -> str:
    return ""


def _config(
    name: str, kind: ConfigType, default: str, check: Check, broker_name: str, documentation: str
) -> ConfigDefinition:
    return ConfigDefinition(
        name=name,
        type=kind,
        default=default,
        check=check,
        broker_name=broker_name,
        documentation=documentation,
    )


def _ignored(
    name: str, kind: ConfigType, default: str, check: Check, reason: str
) -> ConfigDefinition:
    return ConfigDefinition(
        name=name,
        type=kind,
        default=default,
        check=check,
        documentation=f"Accepted, without effect: {reason}",
        has_effect=False,
    )


_LONG, _FROM_MINUS_1 = _whole(0, LONG_MAX), _whole(-1, LONG_MAX)
_BOOLEAN: Final = _one_of("true", "false")
_FILES: Final = "partitions share the files of their group, whose sizes the group's settings say."
_NOT_COMPACTED: Final = "topics are not compacted."
_SYNCED: Final = "what is acknowledged was synced by a majority."

_TOPIC: Final = (
    _config(
        "cleanup.policy",
        "list",
        "delete",
        _several_of("delete", "compact"),
        "log.cleanup.policy",
        "With delete, records are removed by retention.ms and retention.bytes. With compact alone "
        "nothing is removed, neither old records nor those whose key came again: consumers find at "
        "least what a compacted topic has. With both, old records are removed as with delete. "
        "Empty: nothing is removed.",
    ),
    _config(
        "compression.type",
        "string",
        "producer",
        _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "compression.type",
        "Batches stay compressed as their producers sent them, whatever the value.",
    ),
    _config(
        "max.message.bytes",
        "int",
        "1048588",
        _whole(0, MESSAGE_BYTES_MAX),
        "message.max.bytes",
        "Largest record batch in bytes, as it is sent.",
    ),
    _config(
        "message.timestamp.type",
        "string",
        "CreateTime",
        _one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
        "Whether records keep the timestamps of their producers or get the leader's time.",
    ),
    _config(
        "min.insync.replicas",
        "int",
        "1",
        _whole(1, INT_MAX),
        "min.insync.replicas",
        "Records produced with acks=all are always on the disks of a majority of the replicas; "
        "if fewer replicas than this are in sync, they are refused.",
    ),
    _config(
        "retention.ms",
        "long",
        str(7 * _DAY_MS),
        _FROM_MINUS_1,
        "log.retention.ms",
        "Records older than this may be removed; -1: age does not matter.",
    ),
    _config(
        "retention.bytes",
        "long",
        "-1",
        _FROM_MINUS_1,
        "log.retention.bytes",
        "The oldest records of a partition are removed while it has more bytes; -1: no bound.",
    ),
    _config(
        "quorumlog.acks.one",
        "string",
        "persistence",
        _one_of("receive", "persistence"),
        "",
        "When a produce with acks=1 is answered: once the leader has the batch in memory "
        "(receive), or on its disk (persistence).",
    ),
    _config(
        "quorumlog.write.level",
        "string",
        "one_way",
        _one_of("one_way", "receive", "persistence", "replication", "all"),
        "",
        "Produces that ask for less are answered at this level.",
    ),
    _ignored("delete.retention.ms", "long", str(_DAY_MS), _LONG, _NOT_COMPACTED),
    _ignored("file.delete.delay.ms", "long", "60000", _LONG, _FILES),
    _ignored("flush.messages", "long", str(LONG_MAX), _whole(1, LONG_MAX), _SYNCED),
    _ignored("flush.ms", "long", str(LONG_MAX), _LONG, _SYNCED),
    _ignored("index.interval.bytes", "int", "4096", _whole(0, INT_MAX), _FILES),
    _ignored("max.compaction.lag.ms", "long", str(LONG_MAX), _whole(1, LONG_MAX), _NOT_COMPACTED),
    _ignored("min.cleanable.dirty.ratio", "double", "0.5", _fraction, _NOT_COMPACTED),
    _ignored("min.compaction.lag.ms", "long", "0", _LONG, _NOT_COMPACTED),
    _ignored(
        "message.timestamp.after.max.ms",
        "long",
        str(LONG_MAX),
        _LONG,
        "any timestamp is taken.",
    ),
    _ignored(
        "message.timestamp.before.max.ms",
        "long",
        str(LONG_MAX),
        _LONG,
        "any timestamp is taken.",
    ),
    _ignored("preallocate", "boolean", "false", _BOOLEAN, _FILES),
    _ignored("segment.bytes", "int", "1073741824", _whole(1, INT_MAX), _FILES),
    _ignored("segment.index.bytes", "int", "10485760", _whole(1, INT_MAX), _FILES),
    _ignored("segment.jitter.ms", "long", "0", _LONG, _FILES),
    _ignored("segment.ms", "long", str(7 * _DAY_MS), _whole(1, LONG_MAX), _FILES),
    _config(
        "unclean.leader.election.enable",
        "boolean",
        "false",
        _one_of("false"),
        "unclean.leader.election.enable",
        "Only false: a replica that lacks acknowledged records is never elected.",
    ),
    _ignored(
        "follower.replication.throttled.replicas",
        "list",
        "",
        _anything,
        "peerPushQuota of a group bounds what members that lag are sent.",
    ),
    _ignored(
        "leader.replication.throttled.replicas",
        "list",
        "",
        _anything,
        "peerPushQuota of a group bounds what members that lag are sent.",
    ),
)

TOPIC_CONFIGS: Final[Mapping[str, ConfigDefinition]] = {one.name: one for one in _TOPIC}
"""The configs that a topic may have, by name."""

PARTITIONS_DEFAULT: Final = "num.partitions"
AUTO_CREATE: Final = "auto.create.topics.enable"
REPLICATION_DEFAULT: Final = "default.replication.factor"
GROUP_INITIAL_DELAY: Final = "group.initial.rebalance.delay.ms"
GROUP_SESSION_MIN: Final = "group.min.session.timeout.ms"
GROUP_SESSION_MAX: Final = "group.max.session.timeout.ms"
CONSUMER_SESSION: Final = "group.consumer.session.timeout.ms"
CONSUMER_SESSION_MIN: Final = "group.consumer.min.session.timeout.ms"
CONSUMER_SESSION_MAX: Final = "group.consumer.max.session.timeout.ms"
CONSUMER_INTERVAL: Final = "group.consumer.heartbeat.interval.ms"
CONSUMER_INTERVAL_MIN: Final = "group.consumer.min.heartbeat.interval.ms"
CONSUMER_INTERVAL_MAX: Final = "group.consumer.max.heartbeat.interval.ms"
CONSUMER_MEMBERS_MAX: Final = "group.consumer.max.size"
CONSUMER_ASSIGNORS: Final = "group.consumer.assignors"
_BOUNDS: Final = (
    (GROUP_SESSION_MIN, GROUP_SESSION_MAX),
    (CONSUMER_SESSION_MIN, CONSUMER_SESSION),
    (CONSUMER_SESSION, CONSUMER_SESSION_MAX),
    (CONSUMER_INTERVAL_MIN, CONSUMER_INTERVAL),
    (CONSUMER_INTERVAL, CONSUMER_INTERVAL_MAX),
    (CONSUMER_INTERVAL, CONSUMER_SESSION),
)
"""Configs of which the first one must not be above the second one."""
OFFSETS_RETENTION: Final = "offsets.retention.minutes"
TRANSACTION_TIMEOUT_MAX: Final = "transaction.max.timeout.ms"
TRANSACTIONAL_ID_EXPIRATION: Final = "transactional.id.expiration.ms"
_CLUSTER: Final = (
    _config(
        AUTO_CREATE,
        "boolean",
        "true",
        _BOOLEAN,
        AUTO_CREATE,
        "Whether a topic that a client asks for is created if there is none, as far as the node "
        "that is asked allows it (autoCreateTopics of its configuration).",
    ),
    _config(
        PARTITIONS_DEFAULT,
        "int",
        "4",
        _whole(1, 4_000),
        PARTITIONS_DEFAULT,
        "Partitions of a topic whose creator does not say how many.",
    ),
    _config(
        REPLICATION_DEFAULT,
        "int",
        "3",
        _whole(1, 50),
        REPLICATION_DEFAULT,
        "Replicas of partition groups that are made from now on, or as many as there are nodes.",
    ),
    _config(
        GROUP_INITIAL_DELAY,
        "int",
        "1000",
        _whole(0, 300_000),
        GROUP_INITIAL_DELAY,
        "How long a consumer group without members waits for more of them to join.",
    ),
    _config(
        GROUP_SESSION_MIN,
        "int",
        "6000",
        _whole(1, 1_800_000),
        GROUP_SESSION_MIN,
        "The shortest session time-out that a member of a consumer group may have.",
    ),
    _config(
        GROUP_SESSION_MAX,
        "int",
        "1800000",
        _whole(1, 86_400_000),
        GROUP_SESSION_MAX,
        "The longest session time-out that a member of a consumer group may have.",
    ),
    _config(
        CONSUMER_SESSION,
        "int",
        "45000",
        _whole(1, 86_400_000),
        CONSUMER_SESSION,
        "How long a member by the consumer protocol may send no heartbeat before it is removed.",
    ),
    _config(
        CONSUMER_SESSION_MIN,
        "int",
        "45000",
        _whole(1, 86_400_000),
        CONSUMER_SESSION_MIN,
        "The least that group.consumer.session.timeout.ms may be.",
    ),
    _config(
        CONSUMER_SESSION_MAX,
        "int",
        "60000",
        _whole(1, 86_400_000),
        CONSUMER_SESSION_MAX,
        "The most that group.consumer.session.timeout.ms may be.",
    ),
    _config(
        CONSUMER_INTERVAL,
        "int",
        "1000",
        _whole(1, 86_400_000),
        CONSUMER_INTERVAL,
        "How often members by the consumer protocol are told to send heartbeats.",
    ),
    _config(
        CONSUMER_INTERVAL_MIN,
        "int",
        "500",
        _whole(1, 86_400_000),
        CONSUMER_INTERVAL_MIN,
        "The least that group.consumer.heartbeat.interval.ms may be.",
    ),
    _config(
        CONSUMER_INTERVAL_MAX,
        "int",
        "15000",
        _whole(1, 86_400_000),
        CONSUMER_INTERVAL_MAX,
        "The most that group.consumer.heartbeat.interval.ms may be.",
    ),
    _config(
        CONSUMER_MEMBERS_MAX,
        "int",
        "1000",
        _whole(1, 1_000),
        CONSUMER_MEMBERS_MAX,
        "How many members a consumer group by the consumer protocol may have.",
    ),
    _config(
        CONSUMER_ASSIGNORS,
        "list",
        "uniform,range",
        _several_of("uniform", "range", least=1),
        CONSUMER_ASSIGNORS,
        "Which assignors consumers may ask for (group.remote.assignor); the first one assigns if "
        "they ask for none.",
    ),
    _config(
        OFFSETS_RETENTION,
        "int",
        "10080",
        _whole(1, 5_256_000),
        OFFSETS_RETENTION,
        "How long the offsets of a consumer group that has no members are kept.",
    ),
    _config(
        TRANSACTION_TIMEOUT_MAX,
        "int",
        "900000",
        _whole(1, INT_MAX),
        TRANSACTION_TIMEOUT_MAX,
        "The longest transaction.timeout.ms of a producer; after it a transaction that has not "
        "ended is aborted.",
    ),
    _config(
        TRANSACTIONAL_ID_EXPIRATION,
        "int",
        str(7 * _DAY_MS),
        _whole(60_000, INT_MAX),
        TRANSACTIONAL_ID_EXPIRATION,
        "How long a transactional id is kept that no producer uses; a minute at least. Ids are "
        "looked at each hour, so one may be kept for up to an hour longer.",
    ),
)
CLUSTER_CONFIGS: Final[Mapping[str, ConfigDefinition]] = {
    **{one.broker_name: one for one in _TOPIC if one.broker_name},
    **{one.name: one for one in _CLUSTER},
}
"""The defaults that the whole cluster has, by the names that Kafka's brokers give them."""


def problem_of(
    definitions: Mapping[str, ConfigDefinition], name: str, value: str, *, of: str
) -> str:
    """Return what is wrong with a config and its value; empty: nothing. `of`: whose config."""
    definition = definitions.get(name)
    if definition is None:
        return f"{of} have no config {name!r}"
    if len(value) > VALUE_LENGTH_MAX:
        return f"{name} has more than {VALUE_LENGTH_MAX} characters"
    problem = definition.check(value)
    unit = _UNITS.get(name.rpartition(".")[2], "")
    return f"{name}{unit}: {problem}" if problem else ""


def problem_of_topic(configs: Mapping[str, str]) -> str:
    """Return what is wrong with the first bad one of the configs of a topic; empty: nothing."""
    problems = (problem_of(TOPIC_CONFIGS, *pair, of="topics") for pair in configs.items())
    return next(filter(None, problems), "")


def problem_of_defaults(defaults: Mapping[str, str]) -> str:
    """Return what is wrong with the cluster's configs together; empty: nothing."""
    for lower, upper in _BOUNDS:
        least, most = (cluster_default(name, defaults) for name in (lower, upper))
        if int(least) > int(most):
            return f"{lower} would be {least}, above {upper}, {most}"
    return ""


def effective(name: str, configs: Mapping[str, str], defaults: Mapping[str, str]) -> str:
    """Return the value that counts for a topic: its own, the cluster's, or the built-in one.

    Raises `KeyError` for a name that is not in `TOPIC_CONFIGS`.
    """
    definition = TOPIC_CONFIGS[name]
    if name in configs:
        return configs[name]
    return defaults.get(definition.broker_name, definition.default)


class Retained(NamedTuple):
    """How much a topic keeps: records up to `age_ms`, and `size_bytes`; None: any of that."""

    age_ms: int | None = None
    size_bytes: int | None = None


def retained(configs: Mapping[str, str], defaults: Mapping[str, str]) -> Retained:
    """Return how much a topic with these configs keeps, where the cluster has these defaults.

    One whose `cleanup.policy` is not `delete` keeps everything.
    """
    policies = effective("cleanup.policy", configs, defaults).split(",")
    if "delete" not in (policy.strip() for policy in policies):
        return Retained()
    names = ("retention.ms", "retention.bytes")
    bounds = [int(effective(name, configs, defaults)) for name in names]
    return Retained(*(None if bound < 0 else bound for bound in bounds))


def cluster_default(name: str, defaults: Mapping[str, str]) -> str:
    """Return the value of one of `CLUSTER_CONFIGS` that counts."""
    return defaults.get(name, CLUSTER_CONFIGS[name].default)
