"""The frame of one connection that has not arrived whole: since when, and the memory it holds."""

from quorumlog.transport.budget import Budgets, MemoryHolder
from quorumlog.wire.receiver import FrameReceiver


class UnfinishedFrame:
    """What a connection is receiving. `began`: when the frame began to arrive; 0: there is none."""

    def __init__(self, holder: MemoryHolder, decoder: FrameReceiver, budgets: Budgets) -> None:
        self._holder = holder
        self._decoder = decoder
        self._budgets = budgets
        self._memory = budgets.unproven
        self._holds = False
        self.began = 0.0

    def note(self, taken: int, now: float, *, is_answered: bool) -> bool:
        """Note the bytes that are there after `taken` whole frames; False: it must wait for memory.

        `is_answered`: a request of this connection was answered, so it is not unproven.
        """
        if not self._decoder.is_mid_frame:
            self.began = 0.0
        elif taken or not self.began:
            self.began = now
        if taken and self._holds:  # what is not whole now came after those that wait
            self._release()
        if is_answered and self._memory is self._budgets.unproven and not self._holds:
            self._memory = self._budgets.clients
        wanted = self._decoder.wanted_bytes
        if wanted:
            self._holds = True
            return self._memory.hold(self._holder, wanted)
        if self._holds:
            self._release()
        return True

    def is_late(self, now: float, grace_s: float, bytes_per_second_min: int) -> bool:
        """Whether the frame has been arriving for longer than `grace_s`, and too slowly since."""
        late_s = now - self.began - grace_s
        return late_s > 0 and self._decoder.arrived_bytes < late_s * bytes_per_second_min

    def paused(self, seconds: float) -> None:
        """The frame could not arrive for this long."""
        if self.began:
            self.began += seconds

    def becomes_members(self) -> None:
        """Count the frame to the members' share of memory, which nobody else can take."""
        self._memory.forget(self._holder)
        self._memory = self._budgets.members

    def forget(self) -> None:
        """Nothing more is received."""
        self._memory.forget(self._holder)

    def _release(self) -> None:
        self._holds = False
        self._memory.forget(self._holder)
