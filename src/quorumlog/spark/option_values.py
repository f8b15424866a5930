"""Options as Spark passes them: all values are strings, and names may be in any case."""

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from quorumlog.model.config import parse_address
from quorumlog.model.errors import ConfigError, UnexpectedArgumentError

T = TypeVar("T")

_OF_SPARK = {"path", "checkpointlocation", "queryname"}
"""Spark's own, which it hands on: `load(path)`, temporary views, and what names a stream."""
_OPTION_OF_TABLE = "option."
"""Before the names of the options of CREATE TABLE, which Spark hands on then, but not to reads."""
_ALIKE = 0.75
"""How alike a known name and one that is not known are, if the known one is suggested."""
NUMBER_MAX = (1 << 63) - 1
"""The largest offset, timestamp and number of a batch."""
_DIGITS_MAX = len(str(NUMBER_MAX))
_QUANTITY = re.compile(r"([0-9]+)\s*([a-z]*)")
_SIZE_UNITS = {"": 1, "b": 1} | {
    name: 1024**power
    for power, letter in enumerate("kmgt", 1)
    for name in (letter, letter + "b", letter + "ib")
}
_DURATION_UNITS = {"": 1, "ms": 1} | {
    name: milliseconds
    for names, milliseconds in (
        (("s", "sec", "second", "seconds"), 1_000),
        (("m", "min", "minute", "minutes"), 60_000),
        (("h", "hour", "hours"), 3_600_000),
        (("d", "day", "days"), 86_400_000),
    )
    for name in names
}


def whole_number(text: str) -> int | None:
    """Return a number from 0 to 2^63 - 1, if the text is one, in ASCII digits."""
    if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS_MAX:
        return None
    number = int(text)
    return number if number <= NUMBER_MAX else None


def unknown_option(given: str, names: Iterable[str], shown: Iterable[str]) -> str:
    """Return what to say of an option that is not known.

    `names`: all that are known, one of which may be meant. `shown`: those that the user is told of
    if none is alike.
    """
    by_lower = {name.lower(): name for name in names}
    near = get_close_matches(given.lower(), by_lower, n=1, cutoff=_ALIKE)
    if near:
        return f"option {given!r} is not known; did you mean {by_lower[near[0]]!r}?"
    return f"option {given!r} is not known; there are {', '.join(shown)}"


class OptionValues:
    """The options that were given. `known`: name → what it may be, in words for the user.

    `synonyms`: other name → name. Raises `UnexpectedArgumentError` for an option that is not known
    and for one that is given twice; so does every method for a value that is wrong.
    """

    def __init__(
        self, raw: Mapping[str, str], known: Mapping[str, str], synonyms: Mapping[str, str]
    ) -> None:
        self._known = known
        names = {name.lower(): name for name in known}
        names |= {other.lower(): name for other, name in synonyms.items()}
        self._values: dict[str, str] = {}
        if any(given.lower().startswith(_OPTION_OF_TABLE) for given in raw):
            raise UnexpectedArgumentError(
                "Spark keeps no options of tables for data sources in Python; instead of CREATE "
                "TABLE say CREATE TEMPORARY VIEW … USING … OPTIONS (…)"
            )
        for given, value in raw.items():
            name = names.get(given.lower())
            if name is None and given.lower() not in _OF_SPARK:
                raise UnexpectedArgumentError(unknown_option(given, (*known, *synonyms), known))
            if name in self._values:
                raise UnexpectedArgumentError(
                    f"option {name!r} is given twice, once under another name; leave one out"
                )
            if name is not None:
                self._values[name] = value.strip()

    def is_given(self, name: str) -> bool:
        """Whether there is a value."""
        return name in self._values

    def text(self, name: str) -> str:
        """Return the value, or nothing if there is none."""
        return self._values.get(name, "")

    def required(self, name: str) -> str:
        """Return the value, which there must be."""
        value = self.text(name)
        if not value:
            raise UnexpectedArgumentError(f"option {name!r} is missing: {self._known[name]}")
        return value

    def addresses(self, name: str) -> str:
        """Return host:port of one or more servers, joined by commas; there must be one."""
        addresses = [each.strip() for each in self.required(name).split(",") if each.strip()]
        try:
            for address in addresses:
                parse_address(address)
        except ConfigError:
            raise self.wrong(name) from None
        if not addresses:
            raise self.wrong(name)
        return ",".join(addresses)

    def number(self, name: str) -> int | None:
        """Return a whole number above 0, or None if it is not given."""
        return self._quantity(name, {"": 1})

    def size(self, name: str) -> int | None:
        """Return bytes, above 0; units as in `64m`, powers of 1024. None if it is not given."""
        return self._quantity(name, _SIZE_UNITS)

    def duration_ms(self, name: str) -> int | None:
        """Return milliseconds, above 0; units as in `10s` or `15m`. None if it is not given."""
        return self._quantity(name, _DURATION_UNITS)

    def _quantity(self, name: str, units: Mapping[str, int]) -> int | None:
        if not self.is_given(name):
            return None
        match = _QUANTITY.fullmatch(self.text(name).lower())
        unit = units.get(match[2]) if match else None
        count = whole_number(match[1]) if match else None
        if not unit or not count or count * unit > NUMBER_MAX:
            raise self.wrong(name)
        return count * unit

    def choice(self, name: str, choices: Mapping[str, T]) -> T:
        """Return what one of the words stands for; the first is the default."""
        if not self.is_given(name):
            return next(iter(choices.values()))
        word = self.text(name).lower()
        if word not in choices:
            raise self.wrong(name)
        return choices[word]

    def json_object(self, name: str) -> dict[str, Any]:
        """Return the value, an object in JSON in which nothing is named twice."""

        def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for key, value in pairs:
                if key in found:
                    raise UnexpectedArgumentError(f"option {name} names {key!r} more than once")
                found[key] = value
            return found

        try:
            given = json.loads(self.required(name), object_pairs_hook=named_once)
        except (ValueError, RecursionError):
            raise self.wrong(name) from None
        if not isinstance(given, dict):
            raise self.wrong(name)
        return given

    def wrong(self, name: str) -> UnexpectedArgumentError:
        """Return the error that says what the value is and what it may be."""
        return UnexpectedArgumentError(
            f"option {name}={self.text(name)!r} is wrong; it is {self._known[name]}"
        )
