"""Bodies, commands, keys and values as callers give them: copied before a call returns."""

from collections.abc import Iterable, Sequence
from typing import Any

from quorumlog.model.block import HEADER_SIZE, Buffer
from quorumlog.model.errors import EmptyBatchError, UnexpectedArgumentError
from quorumlog.model.limits import Limits
from quorumlog.model.wording import entries_text


def as_bytes(what: str, data: Any, *, also: str = "") -> bytes:
    """Return the bytes of any buffer; all but `bytes` is copied.

    Raises `UnexpectedArgumentError`, naming `what` it is and its type, for everything else: text,
    numbers, objects in an array. `also` names other types that the caller allows.
    """
    if type(data) is bytes:  # a subclass may say another length than it has
        return data
    given = type(data).__name__
    if isinstance(data, str):
        given += "; encode text first, as in text.encode()"
    else:
        try:
            with memoryview(data) as view:
                # a number of numpy's is a buffer too, and one of objects holds their addresses
                if view.ndim and not _holds_objects_or_text(view.format):
                    return view.tobytes()
        except (TypeError, BufferError):
            pass  # no buffer, or one that cannot be exported
        except ValueError:
            if isinstance(data, memoryview):
                given += "; it was released"
    raise UnexpectedArgumentError(f"a {what} is bytes{also}, not {given}")


def _holds_objects_or_text(format_: str) -> bool:
    """Whether a buffer's bytes are not plain data: they are addresses, or text not encoded."""
    return format_[-1:] in ("O", "w", "u") or ("{" in format_ and "O" in format_)


def as_bodies(what: str, bodies: Iterable[Buffer], single: str) -> list[bytes]:
    """Return several bodies; those that could change are copied. `single`: the call that takes one.

    Raises `UnexpectedArgumentError` if there is anything else among them.
    """
    if isinstance(bodies, str | bytes | bytearray | memoryview):
        raise UnexpectedArgumentError(
            f"a list of bodies is needed, not one {type(bodies).__name__}; {single} takes one "
            f"{what}"
        )
    try:
        each = iter(bodies)
    except TypeError:
        raise UnexpectedArgumentError(
            f"a list of bodies is needed, not {type(bodies).__name__}"
        ) from None
    return [body if type(body) is bytes else as_bytes(what, body) for body in each]


def body_too_large(size: int, entry_bytes_max: int) -> UnexpectedArgumentError:
    """Return the error for a body that fits no entry."""
    return UnexpectedArgumentError(
        f"a body has {size} bytes; the largest that can be appended has "
        f"{entry_bytes_max - HEADER_SIZE}"
    )


def batch_sizes(bodies: Sequence[Buffer], limits: Limits) -> list[int]:
    """Return the size of each body of a batch.

    Raises `EmptyBatchError`, or `UnexpectedArgumentError` if they cannot be appended together.
    """
    if not bodies:
        raise EmptyBatchError("a batch needs at least one body")
    sizes = [len(body) for body in bodies]
    if max(sizes) > limits.entry_bytes_max - HEADER_SIZE:
        raise body_too_large(max(sizes), limits.entry_bytes_max)
    total = sum(sizes) + HEADER_SIZE * len(sizes)
    if total > limits.block_bytes_max or len(sizes) > limits.block_entries_max:
        raise UnexpectedArgumentError(
            f"a batch has {entries_text(len(sizes))} and {total} bytes; at most "
            f"{limits.block_entries_max} entries and {limits.block_bytes_max} bytes are appended "
            "together: append several batches, or use Producer"
        )
    return sizes
