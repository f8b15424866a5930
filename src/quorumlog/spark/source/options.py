"""The options for reading, parsed and checked once. Names follow Spark's Kafka source."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from quorumlog.client import Isolation
from quorumlog.model.config import check_name
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import ConfigError, UnexpectedArgumentError
from quorumlog.spark.access import OPTIONS, AnyAccess, refuse_secrets, where_of
from quorumlog.spark.option_values import NUMBER_MAX, OptionValues, whole_number
from quorumlog.spark.source.verify import Verify

Position: TypeAlias = int | Literal["earliest", "latest"]
"""An index, or one end of what the log keeps."""
Positions: TypeAlias = Position | dict[str, Position]
"""One for all groups, or one for each."""

KNOWN = {
    "servers": "host:port,host:port: some of the cluster's nodes (this or context is required)",
    "group": "the group to read, or several joined by commas (this or groupPattern is required)",
    "groupPattern": "a regular expression for the whole names of the groups to read",
    "startingIndex": (
        "earliest (default of a batch), latest (default of a stream), an index, or JSON "
        "{group: index}, where -2 is earliest and -1 latest"
    ),
    "endingIndex": (
        "of a batch: latest (default), the index after the last, or JSON {group: index}, where "
        "-1 is latest"
    ),
    "maxEntriesPerTrigger": "of a stream: the most entries of a batch (default: no limit)",
    "maxBytesPerTrigger": "of a stream: the most bytes of a batch, such as 64m (default: no limit)",
    "minEntriesPerTrigger": "of a stream: wait until this many entries are there (default: 1)",
    "maxTriggerDelay": "of a stream: how long minEntriesPerTrigger waits, as in 10s (default 15m)",
    "minPartitions": "the least number of partitions (default 2, or 1 for few entries)",
    "maxEntriesPerPartition": "the most entries of a partition (default 1000000)",
    "maxBytesPerPartition": "the most bytes of a partition, such as 128m (default: no limit)",
    "failOnDataLoss": (
        "true (default): an error when entries are gone that were to be read; false: skip them, "
        "and log how many"
    ),
    "readFrom": "leader (default), or any: whatever replica answers",
    "localReads": (
        "true (default): what the replica that is asked has in files that this machine can read is "
        "read there; false: all is sent by the servers"
    ),
    "pushDownPredicate": (
        "of a batch: false (default): Spark checks conditions itself, on all entries; true: those "
        "on index and term narrow what is fetched, for a frame that is read with one condition only"
    ),
    "verifyCrc": (
        "screen (default): check all bodies of a block by one CRC; all: each by its own, which "
        "takes several times as long; none: trust the servers"
    ),
    "channel": "only the entries on this channel (default: all)",
    "includeHeaders": "true: also magic, size, pos and chain_crc (default false)",
    "isolationLevel": (
        "read_committed (default): of transactions only what was accepted; or read_uncommitted"
    ),
    "readerName": (
        "of a stream: under which quorumlog status shows how far it has come (default: the name of "
        "the query, else its id)"
    ),
    "fetchTimeoutMs": "how long an outage is ridden out (default 120000)",
    **OPTIONS,
}
SYNONYMS = {
    "startingOffsets": "startingIndex",
    "endingOffsets": "endingIndex",
    "maxOffsetsPerTrigger": "maxEntriesPerTrigger",
    "minOffsetsPerTrigger": "minEntriesPerTrigger",
}
NAME_LENGTH_MAX = 200
BATCH_ONLY = ("endingIndex", "pushDownPredicate")
STREAM_ONLY = (
    "maxEntriesPerTrigger",
    "maxBytesPerTrigger",
    "minEntriesPerTrigger",
    "maxTriggerDelay",
    "readerName",
)
_BOOLEAN = {"false": False, "true": True}
_BY_NUMBER: dict[int, Position] = {-1: "latest", -2: "earliest"}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read and how.

    `groups` is empty if there is a `group_pattern`. `ending` is exclusive, as Kafka's endingOffsets
    are. None: not given, that is, no limit.
    """

    servers: AnyAccess
    groups: tuple[str, ...]
    group_pattern: str | None
    starting: Positions | None
    ending: Positions
    max_entries_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_entries_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_entries_per_partition: int
    max_bytes_per_partition: int | None
    fail_on_data_loss: bool
    leader_only: bool
    local_reads: bool
    pushes_conditions: bool
    verify: Verify
    include_headers: bool
    channel: int | None
    isolation: Isolation
    fetch_timeout_ms: int
    reader_name: str
    given: frozenset[str]

    @property
    def has_several_groups(self) -> bool:
        """Whether rows must say which group they are of."""
        return len(self.groups) != 1

    def for_batch(self) -> "ReadOptions":
        """Return these, or raise `UnexpectedArgumentError` for one that only a stream has."""
        return self._without(STREAM_ONLY, "readStream", "a batch reads all there is")

    def for_stream(self) -> "ReadOptions":
        """Return these, or raise `UnexpectedArgumentError` for one that only a batch has."""
        return self._without(BATCH_ONLY, "read", "a stream reads all, and has no end")

    def _without(self, names: tuple[str, ...], only: str, reason: str) -> "ReadOptions":
        for name in names:
            if name in self.given:
                raise UnexpectedArgumentError(
                    f"option {name!r} is for spark.{only} only: {reason}; leave it out"
                )
        return self


def parse_options(raw: Mapping[str, str]) -> ReadOptions:
    """Return the options. Raises `UnexpectedArgumentError` naming the option and what it may be."""
    refuse_secrets(raw)
    values = OptionValues(raw, KNOWN, SYNONYMS)
    groups, pattern = _groups(values)
    least, most = values.number("minEntriesPerTrigger"), values.number("maxEntriesPerTrigger")
    if least is not None and most is not None and least > most:
        raise UnexpectedArgumentError(
            f"option minEntriesPerTrigger={least} is above maxEntriesPerTrigger={most}"
        )
    return ReadOptions(
        servers=where_of(values, "servers"),
        groups=groups,
        group_pattern=pattern,
        starting=_positions(values, "startingIndex", groups),
        ending=_positions(values, "endingIndex", groups) or "latest",
        max_entries_per_trigger=most,
        max_bytes_per_trigger=values.size("maxBytesPerTrigger"),
        min_entries_per_trigger=least,
        max_trigger_delay_ms=values.duration_ms("maxTriggerDelay") or 15 * 60_000,
        min_partitions=values.number("minPartitions"),
        max_entries_per_partition=values.number("maxEntriesPerPartition") or 1_000_000,
        max_bytes_per_partition=values.size("maxBytesPerPartition"),
        fail_on_data_loss=values.choice("failOnDataLoss", {"true": True, "false": False}),
        leader_only=values.choice("readFrom", {"leader": True, "any": False}),
        local_reads=values.choice("localReads", {"true": True, "false": False}),
        pushes_conditions=values.choice("pushDownPredicate", _BOOLEAN),
        verify=values.choice("verifyCrc", {kind.value: kind for kind in Verify}),
        include_headers=values.choice("includeHeaders", _BOOLEAN),
        channel=channel_of(values),
        isolation=values.choice("isolationLevel", _ISOLATION),
        fetch_timeout_ms=values.duration_ms("fetchTimeoutMs") or 120_000,
        reader_name=values.text("readerName")[:NAME_LENGTH_MAX],
        given=frozenset(name for name in KNOWN if values.is_given(name)),
    )


_ISOLATION: dict[str, Isolation] = {
    "read_committed": "read_committed",
    "read_uncommitted": "read_uncommitted",
}


def channel_of(values: OptionValues) -> int | None:
    """Return the channel that is given, if one is."""
    text = values.text("channel")
    if not text:
        return None
    channel = whole_number(text)
    if channel is None or channel >= SYSTEM_CHANNEL:
        raise UnexpectedArgumentError(
            f"option channel={text}: a channel is between 0 and {SYSTEM_CHANNEL - 1}"
        )
    return channel


def _groups(values: OptionValues) -> tuple[tuple[str, ...], str | None]:
    """Return the groups, or none of them and the pattern."""
    if not values.is_given("groupPattern"):
        names = [name.strip() for name in values.required("group").split(",")]
        try:
            for name in names:
                check_name("group", name)
        except ConfigError as error:
            raise UnexpectedArgumentError(f"option 'group': {error}") from None
        return tuple(sorted(set(names))), None
    if values.is_given("group"):
        raise UnexpectedArgumentError("options 'group' and 'groupPattern': give one of them only")
    pattern = values.required("groupPattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise UnexpectedArgumentError(
            f"option groupPattern={pattern!r} is no regular expression: {error}"
        ) from None
    return (), pattern


def _positions(values: OptionValues, name: str, groups: tuple[str, ...]) -> Positions | None:
    """Return where to start or end, None if that is not said."""
    if not values.is_given(name):
        return None
    text = values.text(name)
    if text.startswith("{"):
        return _by_group(values, name, groups)
    position: Position
    index = whole_number(text)
    if index is not None:
        if len(groups) != 1:
            raise UnexpectedArgumentError(
                f"option {name}={text} is for a single group; for several give JSON, such as "
                f"{json.dumps(dict.fromkeys(groups or ('g',), index))}"
            )
        position = index
    elif text.lower() == "latest":
        position = "latest"
    elif text.lower() == "earliest" and name == "startingIndex":
        position = "earliest"
    else:
        raise values.wrong(name)
    return position


def _by_group(values: OptionValues, name: str, groups: tuple[str, ...]) -> dict[str, Position]:
    found: dict[str, Position] = {}
    for group, index in values.json_object(name).items():
        least = -2 if name == "startingIndex" else -1
        if type(index) is not int or not least <= index <= NUMBER_MAX:
            raise values.wrong(name)
        found[group] = _BY_NUMBER.get(index, index)
    if groups:
        check_names(name, found, groups)
    return found


def check_names(name: str, positions: dict[str, Position], groups: tuple[str, ...]) -> None:
    """Raise `UnexpectedArgumentError` unless there is a position for each group and no other."""
    missing = sorted(set(groups) - set(positions))
    extra = sorted(set(positions) - set(groups))
    if missing:
        raise UnexpectedArgumentError(f"option {name} says nothing of group {', '.join(missing)}")
    if extra:
        raise UnexpectedArgumentError(
            f"option {name} names {', '.join(extra)}, which is not read; read are "
            f"{', '.join(groups)}"
        )
