"""The network between simulated machines: loses, repeats, delays, reorders and cuts messages."""

import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from quorumlog.model.messages.base import Message
from quorumlog.model.messages.peer import HeartBeats, PeerMessage, PeerTurn
from quorumlog.sim.simulation_clock import SimulationClock
from quorumlog.wire.frame import Frame
from quorumlog.wire.joined import split
from quorumlog.wire.kinds import KIND_OF_MESSAGE

if TYPE_CHECKING:
    from random import Random

USUAL_DELAY_US = (100, 2_000)


def parts_of(message: Message, data: bytes) -> list[PeerMessage]:
    """Return what a message says in the name of groups."""
    parts: Iterable[object] = [message]
    if isinstance(message, HeartBeats):
        parts = message.requests
    elif isinstance(message, PeerTurn):
        frames = split(message, memoryview(data))
        parts = [frame.message for frame in frames if isinstance(frame, Frame)]
    return [part for part in parts if isinstance(part, PeerMessage)]


class Trace:
    """A digest of everything that was delivered, and when."""

    def __init__(self, clock: SimulationClock) -> None:
        self._clock = clock
        self._encode = msgspec.msgpack.Encoder().encode
        self._digest = 0

    def record(self, pair: tuple[str, str], message: Message, data: bytes) -> None:
        """A message is delivered."""
        header = f"{self._clock.now_us}{pair}{KIND_OF_MESSAGE[type(message)]}".encode()
        self._digest = zlib.crc32(data, zlib.crc32(header + self._encode(message), self._digest))

    @property
    def text(self) -> str:
        """The digest of the run so far."""
        return f"{self._digest:08x}-{self._clock.events}-{self._clock.now_us}"


class SimulatedNetwork:
    """Carries messages between machines; clients are machines, too.

    `loss` and `repeat` are shares of messages, `delay_us` the range of their travel, `straggler`
    the share that takes up to `straggler_us`, `cut` pairs (from, to) between which nothing gets
    through.
    """

    def __init__(self, clock: SimulationClock) -> None:
        self._clock = clock
        self._random: Random = clock.random
        self._epochs: dict[tuple[str, str], int] = {}
        self.cut: set[tuple[str, str]] = set()
        self.trace = Trace(clock)
        self.calm()

    def calm(self) -> None:
        """Lose, repeat and cut nothing from now on."""
        self.loss = self.repeat = self.straggler = 0.0
        self.delay_us = USUAL_DELAY_US
        self.straggler_us = 0
        self.cut.clear()

    def reset(self, one: str, two: str) -> None:
        """Break the connections between two machines: what is on its way is lost."""
        for pair in ((one, two), (two, one)):
            self._epochs[pair] = self._epochs.get(pair, 0) + 1

    def breaks(self, one: str, two: str) -> int:
        """Return how many times the connections between two machines have broken."""
        return self._epochs.get((one, two), 0)

    def carry(
        self,
        sender: str,
        receiver: str,
        message: Message,
        data: bytes,
        deliver: Callable[[], None],
    ) -> None:
        """Call `deliver` when the message arrives, if it does, once for each copy."""
        random, pair = self._random, (sender, receiver)
        epoch = self._epochs.get(pair, 0)
        for _ in range(2 if self.repeat and random.random() < self.repeat else 1):
            if pair in self.cut or (self.loss and random.random() < self.loss):
                continue
            delay = random.randint(*self.delay_us)
            if self.straggler and random.random() < self.straggler:
                delay += random.randint(0, self.straggler_us)

            def arrive() -> None:
                if pair in self.cut or self._epochs.get(pair, 0) != epoch:
                    return
                self.trace.record(pair, message, data)
                deliver()

            self._clock.after_us(delay, arrive)
