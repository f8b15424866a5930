"""The records of many batches as columns of numbers: where each key and value is, and when.

A record is (Kafka's message format, magic 2): a varint that counts its bytes, one byte of
attributes, timestamp and offset less those of the batch as varints, key, value, and a varint that
counts headers. Key and value are a varint that counts their bytes, -1 for null, and these; a header
is a key, which is never null, and a value. All varints are zigzag-encoded.

Only the sizes of records are walked through one by one; all else is found for all records at once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from quorumlog.model.block import Buffer, Int64s
from quorumlog.model.wording import counted
from quorumlog.records.batch import (
    HEADER_SIZE,
    RECORD_BYTES_MIN,
    BatchHeader,
    Codec,
    RecordBatchError,
    batch_header,
)
from quorumlog.records.compression import unpacked, unreadable

UNPACKED_MAX: Final = 256 * 1024 * 1024
"""Bytes that the records of one batch may have once they are unpacked."""
STRETCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes of records that become columns together, unless one batch has more."""
_ALIKE_LEAST, _ALIKE_MOST = 8, 1_024
"""Records of one size after which the next ones are looked at together, and the most of these."""
_VARINT_BYTES_MAX: Final = 10
_NULL: Final = -1
_ATTRIBUTES_SIZE: Final = 1
_HEADERS_AT_ONCE: Final = 64
"""Headers of a record that are found for all records at once; further ones one by one."""

Bytes: TypeAlias = npt.NDArray[np.uint8]
_Placed: TypeAlias = tuple[int, int, BatchHeader]
"""Where the records of a batch start in a buffer and end, and its header."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Where byte strings are in the data, in rising order; the size of one that is null is -1."""

    starts: Int64s
    sizes: Int64s


@dataclass(frozen=True, slots=True)
class HeaderColumns:
    """All headers of records, in order; `counts` says how many each record has."""

    counts: Int64s
    keys: Texts
    values: Texts


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records of one partition, in the order of their offsets; `data` has their keys and values.

    `timestamps` are milliseconds since 1970; `log_append_times` says which of them are those of the
    leader.
    """

    data: Bytes
    offsets: Int64s
    timestamps: Int64s
    log_append_times: npt.NDArray[np.bool_]
    keys: Texts
    values: Texts
    _header_counts: Int64s
    _headers_at: Int64s
    _ends: Int64s

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.offsets)

    def headers(self) -> HeaderColumns:
        """Return the headers of all records. Raises `RecordBatchError` if they cannot be read."""
        counts = self._header_counts
        rows, found = [], []
        places = self._headers_at.copy()
        left = np.flatnonzero(counts)
        number = 0
        while left.size:
            keys, after = _texts(self.data, places[left], self._ends[left], 0)
            values, after = _texts(self.data, after, self._ends[left], _NULL)
            places[left] = after
            rows.append(left)
            found.append((keys, values))
            number += 1
            left = left[counts[left] > number]
            if number == _HEADERS_AT_ONCE:
                break
        for row in left.tolist():  # seldom any
            texts = _headers_of(
                self.data, int(places[row]), int(self._ends[row]), counts[row] - number
            )
            rows.append(np.full(len(texts[0].starts), row))
            found.append(texts)
        if not found:
            none = np.empty(0, np.int64)
            return HeaderColumns(counts, Texts(none, none), Texts(none, none))
        order = np.argsort(np.concatenate(rows), kind="stable")
        keys, values = (
            Texts(
                np.concatenate([one[kind].starts for one in found])[order],
                np.concatenate([one[kind].sizes for one in found])[order],
            )
            for kind in (0, 1)
        )
        return HeaderColumns(counts, keys, values)


def whole_batches(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield where each batch starts, and its header; a last one that is cut off is left out.

    Raises `RecordBatchError` if a header cannot be true.
    """
    start, size = 0, len(data)
    while size - start >= HEADER_SIZE:
        header = batch_header(data, start)
        if header.size_bytes < HEADER_SIZE or header.count < 0:
            raise unreadable(f"the batch at byte {start} states the length {header.length}")
        if start + header.size_bytes > size:
            return
        yield start, header
        start += header.size_bytes


def record_columns(
    data: memoryview, batches: Iterable[tuple[int, BatchHeader]]
) -> Iterator[RecordColumns]:
    """Yield the records of batches in `data`, several batches together.

    Raises `RecordBatchError` if the records of a batch cannot be read.
    """
    together: list[_Placed] = []
    parts: list[memoryview] = []
    size, is_packed = 0, False
    for start, header in batches:
        packed = _codec(header) is not Codec.NONE
        if together and (size >= STRETCH_BYTES or packed != is_packed):
            yield _columns(b"".join(parts) if is_packed else data, together)
            together, parts, size = [], [], 0
        is_packed = packed
        records = data[start + HEADER_SIZE : start + header.size_bytes]
        if packed:
            records = unpacked(_codec(header), records, UNPACKED_MAX)
            parts.append(records)
            together.append((size, size + len(records), header))
        else:
            together.append((start + HEADER_SIZE, start + header.size_bytes, header))
        if header.count * RECORD_BYTES_MIN > len(records):
            raise _of(header, f"{counted(header.count, 'record')} in {len(records)} bytes")
        size += len(records)
    if together:
        yield _columns(b"".join(parts) if is_packed else data, together)


def _codec(header: BatchHeader) -> Codec:
    try:
        return header.codec
    except ValueError:
        raise _of(header, "its compression is not known") from None


def _of(header: BatchHeader, text: str) -> RecordBatchError:
    return unreadable(f"batch at offset {header.base_offset}: {text}")


def _columns(buffer: Buffer, batches: list[_Placed]) -> RecordColumns:
    """Return the records of batches in a buffer."""
    starts: list[int] = []
    for start, _, header in batches:
        try:
            _walk(buffer, start, header.count, starts)
        except IndexError:
            raise _of(header, "a record ends outside its batch") from None
    counts = [header.count for _, _, header in batches]

    def of_batch(values: Iterable[int]) -> Int64s:
        return np.repeat(np.fromiter(values, np.int64, len(batches)), counts)

    data = np.frombuffer(buffer, np.uint8)
    at = np.array(starts, np.int64)
    sizes, places = _varints(data, at)
    ends = places + sizes
    base_offsets = of_batch(header.base_offset for _, _, header in batches)
    beyond = np.append(at[1:], ends[-1:])
    batch_ends = of_batch(end for _, end, _ in batches)
    if not ((sizes > 0) & (ends <= beyond) & (ends <= batch_ends)).all():
        raise unreadable(f"a record in or after the batch at offset {base_offsets[0]} has no end")
    time_deltas, places = _varints(data, places + _ATTRIBUTES_SIZE)
    offset_deltas, places = _varints(data, places)
    offsets = base_offsets + offset_deltas
    _check(places <= ends, offsets, "ends before its fields do")
    deltas_max = of_batch(header.last_offset_delta for _, _, header in batches)
    _check((offset_deltas >= 0) & (offset_deltas <= deltas_max), offsets, "is of another batch")
    keys, places = _texts(data, places, ends, _NULL)
    values, places = _texts(data, places, ends, _NULL)
    header_counts, places = _varints(data, places)
    # each header has two bytes or more
    _check((header_counts >= 0) & (header_counts <= ends - places), offsets, "has no such headers")
    stamped = of_batch(header.is_log_append_time for _, _, header in batches).astype(np.bool_)
    newest = of_batch(header.max_timestamp for _, _, header in batches)
    first = of_batch(header.first_timestamp for _, _, header in batches)
    return RecordColumns(
        data,
        offsets,
        np.where(stamped, newest, first + time_deltas),
        stamped,
        keys,
        values,
        header_counts,
        places,
        ends,
    )


def _walk(data: Buffer, place: int, count: int, starts: list[int]) -> None:
    """Append where each of `count` records starts. Raises `IndexError` beyond the data."""
    append, beyond = starts.append, len(starts) + count
    step, alike, wanted = 0, 0, _ALIKE_LEAST
    while len(starts) < beyond:
        append(place)
        before, byte = place, data[place]
        if byte < 0x80:
            place += 1 + (byte >> 1)
        elif (second := data[place + 1]) < 0x80:  # as most are
            place += 2 + (second << 6 | (byte & 0x7F) >> 1)
        else:
            place = _end_of(data, place)
        if place - before != step:
            step, alike = place - before, 0
            continue
        alike += 1
        if alike == wanted:
            found = _alike(data, place, step, min(_ALIKE_MOST, beyond - len(starts)))
            starts += found
            place += step * len(found)
            alike, wanted = 0, _ALIKE_LEAST if len(found) > wanted else 2 * wanted


def _end_of(data: Buffer, place: int) -> int:
    """Return where a record ends. Raises `IndexError` beyond the data."""
    size, shift = 0, 0
    while (byte := data[place]) >= 0x80:
        size |= (byte & 0x7F) << shift
        shift += 7
        place += 1
        if shift > 7 * _VARINT_BYTES_MAX:
            raise IndexError
    return place + 1 + ((size | byte << shift) >> 1)


def _alike(data: Buffer, place: int, step: int, count: int) -> list[int]:
    """Return the starts of the records from a place on that are as long as the one before.

    They are at most `count`. Records of a topic are often of one size.
    """
    raw = np.frombuffer(data, np.uint8)
    width = 1
    while data[place - step + width - 1] >= 0x80:
        width += 1
    count = min(count, (len(raw) - place - width) // step + 1)
    if count <= 0:
        return []
    same = np.ones(count, np.bool_)
    for number in range(width):
        first = place + number
        same &= raw[first : first + (count - 1) * step + 1 : step] == raw[first - step]
    length = count if same.all() else int(same.argmin())
    return list(range(place, place + length * step, step))


def _varints(data: Bytes, places: Int64s) -> tuple[Int64s, Int64s]:
    """Return the numbers at places, and the places after them; beyond the data there are zeros."""
    found = data.take(places, mode="clip")
    raw = (found & 0x7F).astype(np.uint64)
    after = places + 1
    left = np.flatnonzero(found >= 0x80)
    shift = 7
    while left.size:
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise unreadable("a number in a record has more than 64 bits")
        found = data.take(after[left], mode="clip")
        raw[left] |= (found & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[left] += 1
        left = left[found >= 0x80]
        shift += 7
    numbers = (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64)
    return numbers, after


def _texts(data: Bytes, places: Int64s, ends: Int64s, least: int) -> tuple[Texts, Int64s]:
    """Return byte strings at places in records with these ends, and the places after them."""
    sizes, starts = _varints(data, places)
    if not ((sizes >= least) & (sizes <= ends - starts)).all():
        raise unreadable("a key, value or header ends outside its record")
    return Texts(starts, sizes), starts + np.maximum(sizes, 0)


def _headers_of(data: Bytes, place: int, end: int, count: int) -> tuple[Texts, Texts]:
    """Return keys and values of `count` headers from a place in a record on, one by one."""
    bounds: list[int] = []
    record, begin = data[place:end].tobytes(), place
    for number in range(2 * int(count)):
        raw, shift, byte = 0, 0, 0x80
        while byte >= 0x80:
            if place >= end or shift >= 7 * _VARINT_BYTES_MAX:
                raise unreadable("a header ends outside its record")
            byte = record[place - begin]
            raw |= (byte & 0x7F) << shift
            shift += 7
            place += 1
        size = (raw >> 1) ^ -(raw & 1)
        if not (_NULL if number % 2 else 0) <= size <= end - place:
            raise unreadable("a header ends outside its record")
        bounds += (place, size)
        place += max(size, 0)
    pairs = np.array(bounds, np.int64).reshape(-1, 2, 2)
    return Texts(pairs[:, 0, 0], pairs[:, 0, 1]), Texts(pairs[:, 1, 0], pairs[:, 1, 1])


def _check(fits: npt.NDArray[np.bool_], offsets: Int64s, text: str) -> None:
    if not fits.all():
        raise unreadable(f"the record at offset {offsets[np.argmin(fits)]} {text}")
