"""The options of the data source, parsed and checked once. Names follow Spark's Kafka source."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quorumlog.model.errors import UnexpectedArgumentError

Start = int | Literal["earliest", "latest"]
End = int | Literal["latest"]

KNOWN = {
    "servers": "host:port,host:port: some of the cluster's nodes (required)",
    "group": "the group to read (required)",
    "startingIndex": "earliest (default), latest, an index, or JSON {group: index}",
    "endingIndex": "latest (default), an index that is not read any more, or JSON {group: index}",
    "minPartitions": "at least so many partitions (default 2)",
    "maxEntriesPerPartition": "at most so many entries in a partition (default 1000000)",
    "includeHeaders": "true: also magic, size, pos and chain_crc (default false)",
    "verifyCrc": "all (default): check every body; none: trust the servers",
    "readFrom": "leader (default), or any: whatever replica answers",
    "fetchTimeoutMs": "how long a task rides out an outage (default 120000)",
}
SYNONYMS = {"startingoffsets": "startingIndex", "endingoffsets": "endingIndex"}
_BY_LOWER_CASE = {name.lower(): name for name in KNOWN} | SYNONYMS
_IGNORED = {"path"}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read and how. `end` is exclusive, as Kafka's endingOffsets are."""

    servers: str
    group: str
    start: Start
    end: End
    min_partitions: int
    max_entries_per_partition: int
    include_headers: bool
    verify_crc: bool
    leader_only: bool
    fetch_timeout_ms: int


def parse_options(raw: Mapping[str, str]) -> ReadOptions:
    """Return the options. Raises `UnexpectedArgumentError` naming the option and what it may be."""
    values: dict[str, str] = {}
    for name, value in raw.items():
        known = _BY_LOWER_CASE.get(name.lower())
        if known is not None:
            values[known] = value
        elif name.lower() not in _IGNORED:
            raise UnexpectedArgumentError(
                f"option {name!r} is not known; there are " + ", ".join(KNOWN)
            )
    for required in ("servers", "group"):
        if not values.get(required):
            raise UnexpectedArgumentError(f"option {required!r} is missing: {KNOWN[required]}")
    return ReadOptions(
        servers=values["servers"],
        group=values["group"],
        start=_start(values),
        end=_end(values),
        min_partitions=_number(values, "minPartitions", 2),
        max_entries_per_partition=_number(values, "maxEntriesPerPartition", 1_000_000),
        include_headers=_choice(values, "includeHeaders", {"false": False, "true": True}),
        verify_crc=_choice(values, "verifyCrc", {"all": True, "none": False}),
        leader_only=_choice(values, "readFrom", {"leader": True, "any": False}),
        fetch_timeout_ms=_number(values, "fetchTimeoutMs", 120_000),
    )


def _wrong(name: str, value: str) -> UnexpectedArgumentError:
    return UnexpectedArgumentError(f"option {name}={value!r} is wrong; it is {KNOWN[name]}")


def _number(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, str(default)).strip()
    if not text.isdecimal() or int(text) < 1:
        raise _wrong(name, text)
    return int(text)


def _choice(values: Mapping[str, str], name: str, choices: dict[str, bool]) -> bool:
    """The first choice is the default."""
    text = values.get(name, next(iter(choices))).strip().lower()
    if text not in choices:
        raise _wrong(name, text)
    return choices[text]


def _position(values: Mapping[str, str], name: str, default: str) -> str:
    """Return the word or number for this group, out of JSON if it is that."""
    text = values.get(name, default).strip()
    if not text.startswith("{"):
        return text
    try:
        of_group = json.loads(text)[values["group"]]
    except (ValueError, KeyError):
        raise _wrong(name, text) from None
    return {-1: "latest", -2: "earliest"}.get(of_group, str(of_group))


def _start(values: Mapping[str, str]) -> Start:
    text = _position(values, "startingIndex", "earliest")
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if not text.isdecimal():
        raise _wrong("startingIndex", text)
    return int(text)


def _end(values: Mapping[str, str]) -> End:
    text = _position(values, "endingIndex", "latest")
    if text == "latest":
        return "latest"
    if not text.isdecimal():
        raise _wrong("endingIndex", text)
    return int(text)
