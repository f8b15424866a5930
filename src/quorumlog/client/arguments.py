"""Checks of the arguments of calls: a decorator, and one check for each kind of argument.

A call with an argument of a wrong type or value raises `UnexpectedArgumentError`, which names the
argument. The call itself raises it, before anything is sent and without being awaited or iterated.
`quorumlog.client.options` checks the options of clients and producers.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeAlias, TypeVar

from quorumlog.client.options import shown, whole_number
from quorumlog.model.bounds import (
    LABEL_LENGTH_MAX,
    MS_MAX,
    NAME_LENGTH_MAX,
    NUMBER_MAX,
    SIZE_MAX,
    TERM_MAX,
)
from quorumlog.model.codes import WriteLevel
from quorumlog.model.config import parse_address
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import ConfigError, UnexpectedArgumentError

P = ParamSpec("P")
R = TypeVar("R")
Check: TypeAlias = Callable[[str, Any], None]
"""(name of the argument, its value); raises `UnexpectedArgumentError`."""

SECONDS_MAX = 10**9


def refusal(name: str, expected: str, value: object) -> UnexpectedArgumentError:
    """Return the error for an argument that is not what is expected."""
    return UnexpectedArgumentError(f"{name} is {expected}, not {shown(value)}")


def number(least: int, most: int = NUMBER_MAX) -> Check:
    """A whole number from `least` to `most`; True and False are no numbers."""

    def check(name: str, value: Any) -> None:
        whole_number(name, value, least, most, kind=UnexpectedArgumentError)

    return check


def optional(check: Check) -> Check:
    """None, or an argument that `check` allows."""

    def check_optional(name: str, value: Any) -> None:
        if value is not None:
            check(name, value)

    return check_optional


def word(*words: str) -> Check:
    """One of several words."""
    expected = " or ".join(map(repr, words))

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str) or value not in words:
            raise refusal(name, expected, value)

    return check


def text(least: int, most: int) -> Check:
    """A str of `least` to `most` characters, which UTF-8 can encode."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str) or not least <= len(value) <= most:
            raise refusal(name, f"a str of {least} to {most} characters", value)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise refusal(name, "a str that UTF-8 can encode", value) from None

    return check


def instance(kind: type) -> Check:
    """An object of a class."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, kind):
            raise refusal(name, f"a {kind.__name__}", value)

    return check


def flag(name: str, value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise refusal(name, "True or False", value)


def seconds(name: str, value: Any) -> None:
    """A number of seconds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= SECONDS_MAX:
        raise refusal(name, f"a number of seconds from 0 to {SECONDS_MAX}", value)


def several(name: str, value: Any) -> None:
    """A list or another iterable, but not one text and not one bytes."""
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Iterable):
        raise refusal(name, "a list", value)


def address(name: str, value: Any) -> None:
    """The address at which a node listens."""
    try:
        parse_address(value if isinstance(value, str) else "")
    except ConfigError:
        raise refusal(name, "host:port, such as 127.0.0.1:7101", value) from None


def start(name: str, value: Any) -> None:
    """The place at which a reader starts."""
    if not isinstance(value, str) or value not in ("earliest", "latest"):
        try:
            INDEX(name, value)
        except UnexpectedArgumentError:
            expected = f"'earliest', 'latest' or an index from 0 to {NUMBER_MAX}"
            raise refusal(name, expected, value) from None


INDEX = number(0)
INDEX_OR_NONE = number(-1)
"""An index, or -1 for no index or for the end."""
TERM = number(-1, TERM_MAX)
BYTES = number(1, SIZE_MAX)
COUNT = number(1)
MILLISECONDS = number(0, MS_MAX)
CHANNEL = number(0, SYSTEM_CHANNEL - 1)
LEVEL = word(*(level.word for level in WriteLevel))
ISOLATION = word("read_committed", "read_uncommitted")
NODE_ID = text(1, NAME_LENGTH_MAX)
LABEL = text(0, LABEL_LENGTH_MAX)


def takes(**checks: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks arguments by name at each call; defaults are not checked."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = signature(function).parameters
        by_place = [(place, name) for place, name in enumerate(names) if name in checks]

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for place, name in by_place:
                if place < len(args):
                    checks[name](name, args[place])
            for name, value in kwargs.items():
                if name in checks:
                    checks[name](name, value)
            return function(*args, **kwargs)

        return checked

    return decorate
