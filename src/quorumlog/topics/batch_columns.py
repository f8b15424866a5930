"""Where the batches of many partitions are, sealed: columns sorted by channel and offset.

As bytes, little-endian (read by numpy as they are):

    0 4s magic "QBC1"   4 u32 channels   8 u32 batches   12 u32 CRC-32 of what follows
    16 i64 first index  24 i64 last index
    and for each channel, ascending   u32 channel · u32 batches before its own · i64 newest time
    and for each batch                i64 base offset · i64 index · i64 newest time · u32 records ·
                                      u32 bytes

Each field is a column: all values of one field lie together. The file can always be made again from
the log.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from quorumlog.model.errors import UnexpectedArgumentError

_HEAD: Final = struct.Struct("<4sIII")
_RANGE: Final = struct.Struct("<qq")
_MAGIC: Final = b"QBC1"
_CHANNEL_COLUMNS: Final = (("channels", "<u4"), ("starts", "<u4"), ("newest_times", "<i8"))
_BATCH_COLUMNS: Final = (
    ("base_offsets", "<i8"),
    ("indexes", "<i8"),
    ("times", "<i8"),
    ("counts", "<u4"),
    ("sizes", "<u4"),
)
_NEVER: Final = 1 << 62
"""An offset after all others."""
_Columns: TypeAlias = dict[str, npt.NDArray[Any]]


class PlacedBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch of a partition: its records' offsets, the index of its entry, its bytes."""

    base_offset: int
    last_offset: int
    index: int
    size_bytes: int
    newest_time: int


class ChannelRows(Protocol):
    """The batches of one partition in a part of the log, by row; there is at least one."""

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        ...

    @property
    def newest_time(self) -> int:
        """The newest time of them all."""
        ...

    def __len__(self) -> int:
        """How many batches."""
        ...

    def row_of(self, offset: int) -> int:
        """Return the last batch that begins at or before an offset; -1: all begin after it."""
        ...

    def batch(self, row: int) -> PlacedBatch:
        """Return one batch."""
        ...

    def next_since(self, row: int, time_ms: int) -> int | None:
        """Return the next batch, from one on, that has a record not older than a time."""
        ...

    def newest_within(self, row: int, stop: int) -> int:
        """Return the first of the batches from one on, before another, that have the newest time.

        There must be one.
        """
        ...

    def row_after(self, index: int) -> int:
        """Return the first batch whose entry comes after an index; their number: none does."""
        ...

    def sum_bytes(self, row: int, stop: int) -> int:
        """Return the bytes of the batches from one on, before another."""
        ...

    def row_at_bytes(self, row: int, size_bytes: int) -> int:
        """Return the first batch such that those from `row` up to and with it have more bytes."""
        ...


class SealedRows(msgspec.Struct, frozen=True):
    """See `ChannelRows`: columns of equal length."""

    newest_time: int
    base_offsets: npt.NDArray[np.int64]
    indexes: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    counts: npt.NDArray[np.uint32]
    sizes: npt.NDArray[np.uint32]

    @property
    def first_offset(self) -> int:
        """See `ChannelRows`."""
        return int(self.base_offsets[0])

    def __len__(self) -> int:
        """See `ChannelRows`."""
        return len(self.indexes)

    def row_of(self, offset: int) -> int:
        """See `ChannelRows`."""
        return int(self.base_offsets.searchsorted(offset, side="right")) - 1

    def batch(self, row: int) -> PlacedBatch:
        """See `ChannelRows`."""
        base_offset = int(self.base_offsets[row])
        return PlacedBatch(
            base_offset,
            base_offset + int(self.counts[row]) - 1,
            int(self.indexes[row]),
            int(self.sizes[row]),
            int(self.times[row]),
        )

    def next_since(self, row: int, time_ms: int) -> int | None:
        """See `ChannelRows`."""
        return next_since(self.times, row, time_ms)

    def newest_within(self, row: int, stop: int) -> int:
        """See `ChannelRows`."""
        return row + int(self.times[row:stop].argmax())

    def row_after(self, index: int) -> int:
        """See `ChannelRows`."""
        return int(self.indexes.searchsorted(index, side="right"))

    def sum_bytes(self, row: int, stop: int) -> int:
        """See `ChannelRows`."""
        return int(self.sizes[row:stop].sum(dtype=np.int64))

    def row_at_bytes(self, row: int, size_bytes: int) -> int:
        """See `ChannelRows`."""
        return row_at_bytes(self.sizes, row, size_bytes)


def next_since(times: npt.NDArray[np.int64], row: int, time_ms: int) -> int | None:
    """See `ChannelRows`; `times` are the newest times of its batches."""
    is_newer = times[row:] >= time_ms
    if not len(is_newer):
        return None
    found = int(is_newer.argmax())
    return row + found if is_newer[found] else None


def row_at_bytes(sizes: npt.NDArray[np.uint32], row: int, size_bytes: int) -> int:
    """See `ChannelRows`; `sizes` are the bytes of its batches."""
    sums = sizes[row:].cumsum(dtype=np.int64)
    return row + int(sums.searchsorted(size_bytes, side="right"))


class SealedBatches:
    """The batches of a run of the log, from `first_index` to `last_index`."""

    def __init__(self, first_index: int, last_index: int, columns: _Columns) -> None:
        self.first_index = first_index
        self.last_index = last_index
        self._columns = columns

    @property
    def count(self) -> int:
        """How many batches."""
        return len(self._columns["indexes"])

    @property
    def newest_index(self) -> int:
        """Index of the newest batch; -1: there is none."""
        return int(self._columns["indexes"].max(initial=-1))

    @property
    def channels(self) -> list[int]:
        """The channels of the partitions that have batches here, ascending."""
        found: list[int] = self._columns["channels"].tolist()
        return found

    def rows_of(self, channel: int) -> SealedRows | None:
        """Return the batches of one partition; None: it has none here."""
        columns = self._columns
        channels, starts = columns["channels"], columns["starts"]
        place = int(channels.searchsorted(channel))
        if place == len(channels) or channels[place] != channel:
            return None
        start = int(starts[place])
        stop = int(starts[place + 1]) if place + 1 < len(starts) else self.count
        newest_time = int(columns["newest_times"][place])
        return SealedRows(newest_time, *(columns[name][start:stop] for name, _ in _BATCH_COLUMNS))

    def first_needed(self, starts: Mapping[int, int], begin_index: int) -> int | None:
        """See `BatchIndex.first_needed`."""
        columns = self._columns
        begins = [starts.get(channel, _NEVER) for channel in self.channels]
        counts = np.diff(columns["starts"], append=self.count)
        last_offsets = columns["base_offsets"] + columns["counts"] - 1
        is_needed = last_offsets >= np.repeat(np.array(begins, "<i8"), counts)
        indexes = columns["indexes"][is_needed & (columns["indexes"] >= begin_index)]
        return int(indexes.min()) if len(indexes) else None

    @classmethod
    def of(
        cls, first_index: int, last_index: int, rows: Mapping[int, Sequence[SealedRows]]
    ) -> "SealedBatches":
        """Return the batches of a run.

        `rows` are parts of it by channel, each list ascending, and none of them empty.
        """
        channels = sorted(rows)
        parts = [part for channel in channels for part in rows[channel]]
        counts = [sum(map(len, rows[channel])) for channel in channels]
        newest = [max(part.newest_time for part in rows[channel]) for channel in channels]
        columns: _Columns = {
            "channels": np.array(channels, dtype="<u4"),
            "starts": np.cumsum([0, *counts], dtype="<u4")[:-1],
            "newest_times": np.array(newest, dtype="<i8"),
        }
        for name, kind in _BATCH_COLUMNS:
            column = [getattr(part, name) for part in parts]
            columns[name] = np.concatenate([np.empty(0, kind), *column]).astype(kind)
        return cls(first_index, last_index, columns)

    def encode(self) -> bytes:
        """Return the whole as bytes."""
        columns = self._columns
        body = _RANGE.pack(self.first_index, self.last_index) + b"".join(
            columns[name].tobytes() for name, _ in (*_CHANNEL_COLUMNS, *_BATCH_COLUMNS)
        )
        return _HEAD.pack(_MAGIC, len(columns["channels"]), self.count, crc32(body)) + body

    @classmethod
    def decode(cls, raw: bytes | memoryview) -> "SealedBatches":
        """Read what `encode` returned. Raises `UnexpectedArgumentError`."""
        if len(raw) < _HEAD.size + _RANGE.size:
            raise UnexpectedArgumentError(f"{len(raw)} bytes are no index of batches")
        magic, channels, batches, crc = _HEAD.unpack_from(raw)
        body = memoryview(raw)[_HEAD.size :]
        counts = (
            *((name, kind, channels) for name, kind in _CHANNEL_COLUMNS),
            *((name, kind, batches) for name, kind in _BATCH_COLUMNS),
        )
        size = sum(np.dtype(kind).itemsize * count for _, kind, count in counts)
        if magic != _MAGIC or len(body) != _RANGE.size + size or crc32(body) != crc:
            raise UnexpectedArgumentError("an index of batches does not match its CRC")
        columns: _Columns = {}
        place = _RANGE.size
        for name, kind, count in counts:
            columns[name] = np.frombuffer(body, dtype=kind, count=count, offset=place)
            place += columns[name].nbytes
        first_index, last_index = _RANGE.unpack_from(body)
        return cls(first_index, last_index, columns)
