"""A request of a Kafka client on its way to its answer, as its handler sees it."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from quorumlog.kafka.context import RequestContext
from quorumlog.kafka.frames import ReceivedFrame
from quorumlog.kafka.memory import REQUEST_BYTES
from quorumlog.kafka.primitives import ELEMENTS_MAX, ManyElementsError
from quorumlog.kafka.requests import ApiKey, RequestHeader
from quorumlog.model.block import Buffer

ELEMENTS_ON_LOOP_MAX = 1_000
"""Elements of a request that is read on the loop, where each takes up to 4 µs; one with more is
read on a thread."""
Value = TypeVar("Value")


class Owner(Protocol):
    """Those that keep a request in order with the others of its connection."""

    def answered(self, request: "PendingRequest") -> None:
        """A request has its answer."""
        ...

    def failed(self, request: "PendingRequest", error: Exception) -> None:
        """Handling a request has raised an exception."""
        ...

    def changed(self) -> None:
        """Start what may be started now."""
        ...

    def bytes_left(self) -> float | None:
        """Return how many bytes of records the client may read now, by its quotas."""
        ...

    def close_connection(self, reason: str) -> None:
        """End the connection."""
        ...


class PendingRequest:
    """A request that is not answered yet.

    `is_alone`: no other request may start before its answer. `cancel` is called if the connection
    ends before. `received_s`: when it came, in seconds. `is_in_log`: its memory is also that of
    entries that wait for a majority. `is_awaited`: the client waits for an answer, as far as is
    known: a Produce that was not read yet may want none. `size`: bytes that it holds until it is
    answered. `bytes_read`: of the records in its answer.
    """

    __slots__ = (
        "_owner",
        "answer",
        "bytes_read",
        "cancel",
        "context",
        "frame",
        "header",
        "is_alone",
        "is_awaited",
        "is_in_log",
        "is_produce",
        "is_released",
        "received_s",
        "size",
    )

    def __init__(self, owner: Owner, frame: ReceivedFrame, context: RequestContext) -> None:
        self._owner = owner
        self.frame = frame
        self.header: RequestHeader = context.header
        self.context = context
        self.received_s = context.services.now()
        self.answer: Sequence[Buffer] | None = None
        self.is_produce = context.header.api_key == ApiKey.PRODUCE
        self.is_alone = not self.is_produce
        self.size = frame.size + REQUEST_BYTES
        self.bytes_read = 0
        self.is_awaited = not self.is_produce
        self.is_in_log = self.is_released = False
        self.cancel: Callable[[], object] | None = None

    def answered(self, buffers: Sequence[Buffer]) -> None:
        """Give the answer, a frame in any number of parts; nothing: the client wants none."""
        self.answer = buffers
        self._owner.answered(self)

    def failed(self, error: Exception) -> None:
        """Say that handling it has raised an exception."""
        self._owner.failed(self, error)

    def bytes_left(self) -> float | None:
        """Return how many bytes of records the client may read now, by its quotas.

        Below 0: none, as it has to wait. None: any number, as it has no quota.
        """
        return self._owner.bytes_left()

    def wait_alone(self, *, is_alone: bool) -> None:
        """Have all later requests wait for this one, or let them go on."""
        self.is_alone = is_alone
        self._owner.changed()

    def close_connection(self, reason: str) -> None:
        """End the connection: the client cannot be told otherwise."""
        self._owner.close_connection(reason)

    def read(
        self,
        read: Callable[[ReceivedFrame, RequestHeader, int], Value],
        then: Callable[[Value], object],
    ) -> None:
        """Call `then` with what `read` makes of the request, which is on a thread if it is long.

        Raises what either of them raises on the loop; from a thread, that is told by `failed`.
        """
        frame, header = self.frame, self.header
        try:
            value = read(frame, header, ELEMENTS_ON_LOOP_MAX)
        except ManyElementsError:
            is_alone = self.is_alone
            self.is_alone = True

            def done(value: Value) -> None:
                self.is_alone = is_alone
                if self.is_released:
                    return  # the connection has ended meanwhile
                try:
                    then(value)
                except Exception as error:
                    self.failed(error)
                self._owner.changed()

            self.context.services.executor.run(
                lambda: read(frame, header, ELEMENTS_MAX), done, self.failed, self.context.owner
            )
        else:
            then(value)
