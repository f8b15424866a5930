"""What the connections that a node accepted share: memory to receive into, bounds, and turns."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from quorumlog.model.limits import Limits
from quorumlog.model.message import Hello
from quorumlog.transport.budget import Budgets
from quorumlog.wire.decoder import STAGED_BYTES_MAX

if TYPE_CHECKING:
    from quorumlog.transport.connection import Connection

TURN_S = 0.01
"""In one turn of the loop requests of clients are handled for so long; the others wait for the
next one, so that no number of clients and requests keeps it from what members say."""


class Share:
    """Of one listener."""

    def __init__(self, limits: Limits, is_member: Callable[[Hello], bool]) -> None:
        self.budgets = Budgets(
            limits.receive_bytes_max,
            limits.peer_receive_bytes_max,
            limits.send_bytes_max,
            limits.unread_ms,
        )
        self.is_member = is_member
        self.staged = memoryview(bytearray(STAGED_BYTES_MAX))
        self.turns: deque[Connection] = deque()
        # a loop's own time may stand still within one turn
        self.now = time.monotonic
        self._call_soon = asyncio.get_running_loop().call_soon
        self._turn_began: float | None = None
        self._is_giving_turns = False

    def is_turn_over(self) -> bool:
        """Whether clients have had their time in this turn of the loop."""
        if self.turns and not self._is_giving_turns:
            return True
        if self._turn_began is None:
            self._turn_began = self.now()
            self._call_soon(self._next_turn)
        return self.now() - self._turn_began >= TURN_S

    def _next_turn(self) -> None:
        """Let those that wait go on, in order, as far as there is time."""
        self._turn_began = None
        if not self.turns:
            return
        self._is_giving_turns = True
        try:
            while self.turns and not self.is_turn_over():
                self.turns.popleft().have_turn()
        finally:
            self._is_giving_turns = False
