"""What callers give, checked and copied before anything else happens to it."""

from collections.abc import Iterable
from typing import Any

from quorumlog.model.block import Buffer
from quorumlog.model.errors import ConfigError, QuorumlogError, UnexpectedArgumentError

MILLISECONDS_MAX = 10**12
"""The longest time that can be asked for: about thirty years."""
SHOWN_MAX = 100
"""Characters of a wrong value that a message repeats."""


def shown(value: object) -> str:
    """Return a value as a message names it, whatever it is and however long."""
    try:
        text = repr(value)
    except Exception:  # a number too long to be written, an object that cannot say what it is
        return f"this {type(value).__name__}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def as_bytes(what: str, data: Any, *, also: str = "") -> bytes:
    """Return the bytes of any buffer; whatever is not `bytes` already is copied.

    Raises `UnexpectedArgumentError`, naming `what` it is and its type, for everything else: text,
    numbers, objects in an array. `also` names other types that the caller allows.
    """
    if type(data) is bytes:  # a subclass may say another length than it has
        return data
    if not isinstance(data, str):
        try:
            with memoryview(data) as view:
                # a number of numpy's is a buffer too, and one of objects holds their addresses
                if view.ndim and not _holds_objects_or_text(view.format):
                    return view.tobytes()
        except (TypeError, ValueError, BufferError):
            pass  # no buffer, or one that was released or cannot be exported
    hint = "; encode text first, as in text.encode()" if isinstance(data, str) else ""
    raise UnexpectedArgumentError(f"a {what} is bytes{also}, not {type(data).__name__}{hint}")


def _holds_objects_or_text(format_: str) -> bool:
    """Whether a buffer holds what has other bytes elsewhere: addresses, or text not encoded."""
    return format_[-1:] in ("O", "w", "u") or ("{" in format_ and "O" in format_)


def as_bodies(what: str, bodies: Iterable[Buffer]) -> list[bytes]:
    """Return several bodies, copied where they could change.

    Raises `UnexpectedArgumentError` if there is anything else among them.
    """
    if isinstance(bodies, str | bytes | bytearray | memoryview):
        raise UnexpectedArgumentError(
            f"a list of bodies is needed, not one {type(bodies).__name__}; append takes one {what}"
        )
    try:
        each = iter(bodies)
    except TypeError:
        raise UnexpectedArgumentError(
            f"a list of bodies is needed, not {type(bodies).__name__}"
        ) from None
    return [body if type(body) is bytes else as_bytes(what, body) for body in each]


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
