"""The slices of time in which the requests of one connection are handled."""

from quorumlog.transport.pace import Pace
from quorumlog.transport.share import FRAME_RECEIVED_BYTES_MAX, RECEIVED_BYTES_MAX, Share
from quorumlog.transport.turns import Kind


class Slices:
    """Slices of a connection that a node accepted, and whether each of them leaves requests over.

    Connections of members, and those that a node makes itself, have no slices: their frames are
    handled as they come.
    """

    def __init__(self, share: Share) -> None:
        self._turns = share.turns
        self._pace = Pace(share.now)
        self._space = 0
        self._since = 0.0
        self._is_granted = False
        self._has_more = False

    @property
    def kind(self) -> Kind:
        """The kind of a client that is no stranger: `PROMPT`, `BURST` or `BUSY`."""
        return self._pace.kind

    def reading(self, space: memoryview) -> memoryview:
        """Return the part of a buffer to receive into; the time from now on counts."""
        self._since = self._turns.now()
        space = space[:FRAME_RECEIVED_BYTES_MAX]
        self._space = len(space)
        return space

    def received(self, size: int, *, is_staging: bool) -> None:
        """Note how much was received; `is_staging`: not into a large frame."""
        # a full buffer means that there is more, as a rule; the rest of a large frame says nothing
        self._has_more = size == self._space and is_staging
        if not is_staging:
            self._pace.passed_large_frame()

    def begin(self, kind: Kind) -> bool:
        """Start a slice; False: the connection has to wait for its turn."""
        granted, self._is_granted = self._is_granted, False
        since, self._since = self._since or self._turns.now(), 0.0
        return self._turns.begin(kind, since, is_granted=granted)

    def is_over(self) -> bool:
        """Whether the present slice has lasted long enough."""
        return self._turns.is_slice_over()

    def left(self, *, something: bool | None = None) -> None:
        """Note whether the slice left requests over; None: as the last read suggests."""
        self._pace.slice_ended(leaves_something=self._has_more if something is None else something)

    def sent(self, size: int) -> None:
        """Note an answer of so many bytes."""
        if size > RECEIVED_BYTES_MAX:
            self._pace.passed_large_frame()

    def granted(self, *, is_idle: bool) -> None:
        """It is the connection's turn; `is_idle`: no request waits, so it will only now be read."""
        self._is_granted = is_idle
        if is_idle:  # the slice before ended with its last request
            self.left()

    def end(self) -> None:
        """End the present slice."""
        self._turns.end()
