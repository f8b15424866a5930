"""Checks of the options of clients and producers, and of numbers; each raises `ConfigError`.

`quorumlog.client.arguments` checks the arguments of calls.
"""

from typing import Any

from quorumlog.model.errors import ConfigError, QuorumlogError

MILLISECONDS_MAX = 10**12
"""The longest time that an option may have: about thirty years."""
SHOWN_MAX = 100
"""At most this many characters of a wrong value are repeated in an error."""


def shown(value: object) -> str:
    """Return a value as errors show it, cut after `SHOWN_MAX` characters."""
    try:
        text = repr(value)
    except Exception:  # a number too long to be written, an object that cannot say what it is
        return f"this {type(value).__name__}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def whole_number(
    name: str,
    value: Any,
    least: int,
    most: int,
    *,
    kind: type[QuorumlogError] = ConfigError,
) -> int:
    """Return a whole number within bounds. Raises `kind` for anything else, `True` included."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise kind(f"{name} is a whole number from {least} to {most}, not {shown(value)}")
    return value


def milliseconds(
    name: str, value: Any, *, least: float = 0, kind: type[QuorumlogError] = ConfigError
) -> float:
    """Return a time. Raises `kind` unless it is a finite number of milliseconds from `least` on."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not least <= value <= MILLISECONDS_MAX
    ):
        raise kind(
            f"{name} is a number of milliseconds from {least:g} to {MILLISECONDS_MAX}, "
            f"not {shown(value)}"
        )
    return value


def flag(name: str, value: Any) -> bool:
    """Return a truth value. Raises `ConfigError` for anything but True and False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is True or False, not {value!r}")
    return value


def text(name: str, value: Any) -> str:
    """Return a text. Raises `ConfigError` for anything else."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} is a str, not {value!r}")
    return value


def addresses_of(servers: Any) -> list[str]:
    """Return the addresses of servers given as one text or several. Raises `ConfigError`."""
    if isinstance(servers, str):
        given: list[Any] = servers.split(",")
    else:
        try:
            given = list(servers)
        except TypeError:
            given = [servers]
        if isinstance(servers, bytes | bytearray) or not all(isinstance(x, str) for x in given):
            raise ConfigError(
                f"servers is host:port,host:port … or a list of host:port, not {servers!r}"
            )
    addresses = [address.strip() for address in given if address.strip()]
    if not addresses:
        raise ConfigError("servers: at least one host:port is needed")
    return addresses
