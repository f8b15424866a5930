"""Which process made a client: after a fork, the other one may not use it.

A child has its parent's memory, but none of its threads, and shares its sockets: a client used
there would wait for answers that nobody reads, or write into the parent's connections.
"""

import os

from quorumlog.model.errors import Outcome, RequestError
from quorumlog.transport.standard_streams import fill_standard_streams

_present = os.getpid()


def _forked() -> None:
    global _present  # noqa: PLW0603  (one number a process)
    _present = os.getpid()


os.register_at_fork(after_in_child=_forked)


class MakingProcess:
    """The process that made an object of a `kind`."""

    __slots__ = ("_id", "_kind")

    def __init__(self, kind: str) -> None:
        self._id = _present
        self._kind = kind

    @property
    def is_this(self) -> bool:
        """Whether this is that process."""
        return self._id == _present

    def check(self) -> None:
        """Raise `RequestError`, which says that nothing was done, in any other process."""
        if self._id != _present:
            error = RequestError(
                f"this {self._kind} was made in process {self._id} and cannot be used in its "
                f"forked child {_present}; make a new one there"
            )
            error.outcome = Outcome.DID_NOT_HAPPEN
            raise error


def open_standard_streams() -> None:
    """See `fill_standard_streams`. Raises `RequestError` if no descriptor is free."""
    try:
        fill_standard_streams()
    except OSError as error:
        raise no_client(error) from error


def no_client(error: OSError) -> RequestError:
    """Return what to raise when this process has no room for one more client."""
    failure = RequestError(
        f"no client can be made: {error.strerror}; close files or connections, or raise the "
        "limit (ulimit -n)"
    )
    failure.outcome = Outcome.DID_NOT_HAPPEN
    return failure
