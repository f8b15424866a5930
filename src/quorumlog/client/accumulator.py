"""The entries of a producer that have not been sent: the open block, and complete ones."""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sized

from isal.isal_zlib import crc32

from quorumlog.client.delivery import AttemptRecord, Delivery, OutgoingBlock, ProducerStats
from quorumlog.client.options import whole_number
from quorumlog.client.producer_options import ProducerSettings
from quorumlog.model.block import HEADER, HEADER_SIZE
from quorumlog.model.codes import Magic
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import UnexpectedArgumentError

_NORMAL = int(Magic.NORMAL)


class Accumulator:
    """Puts entries into blocks, and holds these until the `Sender` takes them.

    A block is sent when it has `batch_bytes` or its first entry has waited `linger_s`. While as
    many blocks are `in_flight` as may be, it grows up to `grown_bytes` instead. `refuse` is called
    with a body that is too large, or with any body once `is_ended` is set; it raises. `start` is
    called whenever a block is opened.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        stats: ProducerStats,
        attempt: AttemptRecord | None,
        in_flight: Sized,
        *,
        refuse: Callable[[bytes], None],
        start: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._stats = stats
        self._attempt = attempt
        self._in_flight = in_flight
        self._refuse = refuse
        self._start = start
        # copies of settings that are read for every entry
        self._entry_bytes_max = settings.entry_bytes_max
        self._batch_bytes = settings.batch_bytes
        self._lead_bytes = settings.lead_bytes
        self._last_ordinal = settings.last_ordinal
        self._linger: asyncio.TimerHandle | None = None
        self.open_block: OutgoingBlock | None = None
        self.waiting: deque[OutgoingBlock] = deque()
        self.buffered = 0
        self.next_sequence = 0
        self.is_ended = False
        self.space = asyncio.Event()
        self.wake = asyncio.Event()

    def lacks_space(self, size: int) -> bool:
        """Whether the buffer has too little room for an entry of this size, header included."""
        return bool(self.buffered) and self.buffered + size > self._settings.buffer_bytes

    async def wait_for_release(self) -> None:
        """Have the open block sent, and wait until a block is released."""
        self.space.clear()
        if self.open_block is not None:
            self.open_block.is_due = True
            self.is_block_ready()
        await self.space.wait()

    def add(self, body: bytes, channel: int) -> Delivery:
        """Take one entry. Raises `UnexpectedArgumentError`, or what `refuse` raises."""
        length = len(body)
        size = HEADER_SIZE + length
        if self.is_ended or size > self._entry_bytes_max:
            self._refuse(body)
        crc = crc32(body)
        try:
            header = HEADER.pack(_NORMAL, size, 0, 0, 0, channel, 0, crc, length)
        except struct.error:
            check_channel(channel)
            raise
        if channel == SYSTEM_CHANNEL:
            check_channel(channel)
        # nothing can be wrong with the entry from here on: what is refused changes nothing
        block = self.open_block
        if block is None or (
            block.size + size > self._batch_bytes and self._is_full_with(block.size + size - 1)
        ):
            block = self._next_block()
        block.parts += (header, body)
        block.crcs.append(crc)
        offsets = block.offsets
        ordinal = len(offsets)
        offsets.append(self._lead_bytes + block.size)
        block.size += size
        self.buffered += size
        if ordinal >= self._last_ordinal or (
            block.size >= self._batch_bytes and self._is_full_with(block.size)
        ):
            self.seal()
        return Delivery(block, ordinal)

    def _is_full_with(self, size: int) -> bool:
        """Whether a block that is large enough to be sent does not grow beyond this size."""
        return size >= self._settings.grown_bytes or self._has_slot()

    def _has_slot(self) -> bool:
        """Whether the next block could be sent at once."""
        return not self.waiting and len(self._in_flight) < self._settings.in_flight_blocks

    def _next_block(self) -> OutgoingBlock:
        loop = asyncio.get_running_loop()
        self.seal()
        deadline = loop.time() + self._settings.delivery_timeout_s
        block = self.open_block = OutgoingBlock(deadline, int(self._settings.is_idempotent))
        self._linger = loop.call_later(self._settings.linger_s, self._linger_over)
        self._start()
        return block

    def _linger_over(self) -> None:
        self._linger = None
        if self.open_block is not None:
            self.open_block.is_due = True
            self.is_block_ready()

    def is_block_ready(self) -> bool:
        """Whether a block can be sent; an open one is sealed once it is due and has a slot."""
        block = self.open_block
        if (
            block is not None
            and (block.is_due or block.size >= self._batch_bytes)
            and self._has_slot()
        ):
            self.seal()
        return bool(self.waiting)

    def seal(self) -> None:
        """Close the open block; it is sent after the blocks that wait already."""
        block, self.open_block = self.open_block, None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if block is not None:
            self._stats.entries_sent += block.count
            self._stats.bytes_sent += block.size
            block.first_sequence = self.next_sequence
            self.next_sequence += block.count
            if self._attempt is not None:
                self._attempt.sealed(block)
            self.waiting.append(block)
            self.wake.set()

    def release(self, block: OutgoingBlock) -> None:
        """Free the memory of a block that is acknowledged or has failed."""
        block.parts = []
        self.buffered -= block.size
        self.space.set()


def check_channel(channel: int) -> None:
    """Raise `UnexpectedArgumentError` for a channel that no entry can have."""
    whole_number("channel", channel, 0, SYSTEM_CHANNEL - 1, kind=UnexpectedArgumentError)
