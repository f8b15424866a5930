"""The slices of time in which the requests of one connection are handled."""

from quorumlog.transport.classifier import Classifier
from quorumlog.transport.scheduler import TrafficClass
from quorumlog.transport.shared_resources import (
    FRAME_RECEIVED_BYTES_MAX,
    RECEIVED_BYTES_MAX,
    SharedResources,
)


class TimeSlices:
    """Slices of a connection that a node accepted, and whether each of them leaves requests over.

    Connections of members, and those that a node makes itself, have no slices: their frames are
    handled as they come.
    """

    def __init__(self, shared: SharedResources) -> None:
        self._scheduler = shared.scheduler
        self.is_over = shared.scheduler.is_slice_over
        self.end = shared.scheduler.end
        self.classifier = Classifier(shared.now)
        """The class of a client of which requests were answered."""
        self._space = 0
        self._since = 0.0
        self._is_granted = False
        self._has_more = False

    @property
    def is_closed_loop(self) -> bool:
        """Whether the client is known to wait for its answers."""
        return self.classifier.is_closed_loop

    def read_buffer(self, space: memoryview) -> memoryview:
        """Return the part of a buffer to receive into; the time from now on counts."""
        self._since = self._scheduler.now()
        space = space[:FRAME_RECEIVED_BYTES_MAX]
        self._space = len(space)
        return space

    def received(self, size: int, *, is_staging: bool) -> None:
        """Note how much was received; `is_staging`: not into a large frame."""
        # a full buffer means that there is more, as a rule; the rest of a large frame says nothing
        self._has_more = size == self._space and is_staging
        if not is_staging:
            self.classifier.saw_large_frame()

    def begin(self, traffic_class: TrafficClass) -> bool:
        """Start a slice; False: the connection has to wait for its turn."""
        granted, self._is_granted = self._is_granted, False
        since, self._since = self._since or self._scheduler.now(), 0.0
        return self._scheduler.begin(self.classifier, traffic_class, since, is_granted=granted)

    def slice_ended(self, *, leaves_something: bool | None = None) -> None:
        """Note whether the slice left requests over; None: as the last read suggests."""
        if leaves_something is None:
            leaves_something = self._has_more
        self.classifier.slice_ended(leaves_something=leaves_something)

    def sent(self, size: int) -> None:
        """Note an answer of `size` bytes."""
        if size > RECEIVED_BYTES_MAX:
            self.classifier.saw_large_frame()

    def scheduled(self, *, is_idle: bool) -> None:
        """It is the connection's turn; `is_idle`: no request waits, so it will only now be read."""
        self._is_granted = is_idle
        if is_idle:  # the slice before ended with its last request
            self.slice_ended()
