"""A record batch on its way into the log, and where it went."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from quorumlog.model.block import HEADER, HEADER_SIZE, Block
from quorumlog.model.codes import Magic
from quorumlog.records.batch import NO_PRODUCER, BatchHeader

_AT_START: Final = np.zeros(1, dtype=np.int64)
"""The place of the only entry of a block."""
_AT_START.setflags(write=False)


@dataclass(slots=True)
class ProducedBatch:
    """A batch that a leader is asked to append to the partition on a channel.

    `header` is that of the batch as it came. `gets_append_time`: its records get the leader's time.
    `begins_anywhere`: a producer that is not known may begin at any sequence with it.
    `producer`: channel and producer id, if its place depends on what that producer sent before; a
    transaction marker's does not. `affects`: channel and producer id of later batches whose place
    depends on this one; a marker has them, too, as it may fence its producer.
    `base_offset` and `append_time` are known once the batch has its place, also if it has had it
    since it came before; -1 until then, `append_time` also if records keep their own times.
    """

    channel: int
    header: BatchHeader
    gets_append_time: bool = False
    begins_anywhere: bool = False
    base_offset: int = -1
    append_time: int = -1
    producer: tuple[int, int] | None = field(init=False)
    affects: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        """See `producer` and `affects`."""
        producer_id = self.header.producer_id
        self.affects = None if producer_id == NO_PRODUCER else (self.channel, producer_id)
        self.producer = None if self.header.is_control else self.affects


def block_around(buffer: memoryview, start: int, stop: int, channel: int) -> Block:
    """Return the entry whose body is the record batch from `start` to `stop`, unstamped.

    The entry's header takes the place of the bytes before the batch, of which there must be
    enough: nothing is copied. The body CRC follows with the batch's stamp.
    """
    begin, size = start - HEADER_SIZE, stop - start
    HEADER.pack_into(buffer, begin, Magic.NORMAL, HEADER_SIZE + size, 0, 0, 0, channel, 0, 0, size)
    return Block(buffer[begin:stop], _AT_START, np.array((HEADER_SIZE + size,), dtype=np.int64))
