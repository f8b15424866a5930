"""The options of the data source `quorumlog-store`, parsed and checked once."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from urllib.parse import unquote, urlsplit

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.spark.option_values import OptionValues, whole_number

KNOWN = {
    "path": (
        "the directory of a group, or several: joined by commas, or by a pattern as in "
        "/logs/*/flights (required)"
    ),
    "paths": "a JSON list of directories, as load([...]) has it",
    "dataPaths": "where data files are, joined by commas (default: the directory data of the path)",
    "startingIndex": "earliest (default) or an index",
    "endingIndex": "latest (default), or the index after the last",
    "pushDownPredicate": (
        "false (default): Spark checks conditions itself, on all entries; true: those on the index "
        "narrow what is read, for a frame that is read with one condition only"
    ),
    "mode": ("failfast (default): damage is an error; permissive: it is a row with crc_ok = false"),
    "verifyCrc": "all (default): check what has a CRC; none: only that headers are possible",
    "includeHeaders": "true: also magic, size, header_pos and chain_crc (default false)",
    "includeAll": "true: also NOOPs and bookkeeping entries (default false)",
    "isolationLevel": (
        "read_committed (default): of transactions only what was accepted; or read_uncommitted"
    ),
    "committedOnly": (
        "true (default): nothing after the committed index, where the store knows it; false: all"
    ),
    "minPartitions": (
        "the number of partitions is a multiple of this, where the index allows it (default: the "
        "processors of the driver's machine; at least 32m each, or 256m without bodies)"
    ),
    "maxBytesPerPartition": ("the most bytes of a partition (default 1g, or 8g without bodies)"),
}
SYNONYMS = {"startingOffsets": "startingIndex", "endingOffsets": "endingIndex"}
_BOOLEAN = {"false": False, "true": True}


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What to read and how. `start` and `end` (exclusive) are None for all there is."""

    directories: tuple[str, ...]
    data_directories: tuple[str, ...]
    start: int | None
    end: int | None
    pushes_conditions: bool
    is_permissive: bool
    verify_crc: bool
    include_headers: bool
    include_all: bool
    read_committed: bool
    committed_only: bool
    min_partitions: int | None
    max_bytes_per_partition: int | None


def parse_options(raw: Mapping[str, str]) -> StoreOptions:
    """Return the options. Raises `UnexpectedArgumentError` naming the option and what it may be."""
    values = OptionValues(raw, KNOWN, SYNONYMS)
    directories = _directories(values)
    data_directories = tuple(_local(path, values) for path in _list(values.text("dataPaths")))
    if data_directories and len(directories) > 1:
        raise UnexpectedArgumentError(
            f"option 'dataPaths' is of one store, and {values.text('path')!r} names several; "
            "load each on its own and join them with union()"
        )
    return StoreOptions(
        directories,
        data_directories,
        _index(values, "startingIndex", "earliest"),
        _index(values, "endingIndex", "latest"),
        pushes_conditions=values.choice("pushDownPredicate", _BOOLEAN),
        is_permissive=values.choice("mode", {"failfast": False, "permissive": True}),
        verify_crc=values.choice("verifyCrc", {"all": True, "none": False}),
        include_headers=values.choice("includeHeaders", _BOOLEAN),
        include_all=values.choice("includeAll", _BOOLEAN),
        read_committed=values.choice(
            "isolationLevel", {"read_committed": True, "read_uncommitted": False}
        ),
        committed_only=values.choice("committedOnly", {"true": True, "false": False}),
        min_partitions=values.number("minPartitions"),
        max_bytes_per_partition=values.size("maxBytesPerPartition"),
    )


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _directories(values: OptionValues) -> tuple[str, ...]:
    """Return the directories named, absolute: tasks run elsewhere."""
    if values.is_given("paths"):
        try:
            named = [str(path) for path in json.loads(values.text("paths"))]
        except (ValueError, TypeError):
            raise values.wrong("paths") from None
    else:
        named = _list(values.required("path"))
    found: dict[str, None] = {}
    for text in named:
        path = _local(text, values)
        matches = sorted(glob(path)) if has_magic(path) and not Path(path).exists() else [path]
        if not matches:
            raise UnexpectedArgumentError(f"option 'path': no directory matches {text!r}")
        found |= dict.fromkeys(matches)
    if not found:
        raise values.wrong("paths" if values.is_given("paths") else "path")
    return tuple(found)


def _local(text: str, values: OptionValues) -> str:
    """Return an absolute path. Raises `UnexpectedArgumentError` for another file system's."""
    scheme = urlsplit(text).scheme if ":/" in text else ""
    if scheme not in ("", "file"):
        raise UnexpectedArgumentError(
            f"option 'path': {text!r} is not a path of a file system that is mounted on the driver "
            "and on every executor; mount it, or copy the store"
        )
    path = unquote(urlsplit(text).path) if scheme else text
    return str(Path(path).absolute())


def _index(values: OptionValues, name: str, default: str) -> int | None:
    text = values.text(name) or default
    if text == default:
        return None
    index = whole_number(text)
    if index is None:
        raise values.wrong(name)
    return index
