"""The primitive types of the Kafka protocol, read from untrusted bytes and written.

A *flexible* version of a message has compact strings and arrays, whose length plus one is an
unsigned varint, and tagged fields after each struct. Other versions have lengths of two or four
bytes, and no tagged fields. A null string or array has the length -1, or 0 if compact.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final, NoReturn

ELEMENTS_MAX: Final = 50_000
"""Elements that all arrays of one request may have, and tagged fields: those of 10,000 partitions,
each of another topic, named twice, and more. It bounds the time and the memory for a request."""
FIXED: Final = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}
"""Types of fixed size whose values are numbers, by their names in Kafka's schemas."""
UVARINT_BYTES_MAX: Final = 5
"""An unsigned varint has 32 bits."""
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")


class MalformedError(Exception):
    """What is wrong in the bytes of a request, and where; it does not leave this package."""

    def __init__(self, text: str, place: int) -> None:
        super().__init__(text)
        self.place = place


class ManyElementsError(Exception):
    """A request has more elements than are to be read here; elsewhere it may be read."""


class Cursor:
    """Reads one value after the other from `place` on, to the end of `data`.

    Raises `MalformedError`, or `IndexError` or `struct.error` where the bytes end early, and
    `ManyElementsError` beyond `elements_max` elements, if that is below `ELEMENTS_MAX`.
    """

    __slots__ = ("_elements_max", "_left", "_size", "data", "place")

    def __init__(self, data: memoryview, place: int, elements_max: int = ELEMENTS_MAX) -> None:
        self.data = data
        self._size = len(data)
        self.place = place
        self._left = self._elements_max = elements_max

    def fixed(self, form: struct.Struct) -> tuple[Any, ...]:
        """Return values of fixed size."""
        values = form.unpack_from(self.data, self.place)
        self.place += form.size
        return values

    def int32(self) -> int:
        """Return a number of four bytes."""
        place = self.place
        self.place = place + 4
        number: int = _I32.unpack_from(self.data, place)[0]
        return number

    def uvarint(self) -> int:
        """Return an unsigned varint of at most 32 bits."""
        data, place = self.data, self.place
        number = data[place]
        if number < 0x80:  # as most are
            self.place = place + 1
            return number
        byte = data[place + 1]
        number += (byte - 1) << 7
        if byte >= 0x80:
            byte = data[place + 2]
            number += (byte - 1) << 14
            if byte >= 0x80:
                return self._long_uvarint()
            self.place = place + 3
            return number
        self.place = place + 2
        return number

    def _long_uvarint(self) -> int:
        number = 0
        for shift in range(0, 7 * UVARINT_BYTES_MAX, 7):
            byte = self.data[self.place + shift // 7]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                if number >> 32:
                    break
                self.place += shift // 7 + 1
                return number
        raise MalformedError("an unsigned varint has more than 32 bits", self.place)

    def nullable_string(self, *, is_flexible: bool) -> str | None:
        """Return a string, or None if it is null."""
        data, start = self.data, self.place
        if is_flexible:
            length = self.uvarint() - 1
        else:
            (length,) = _I16.unpack_from(data, start)
            self.place = start + 2
        if length == -1:
            return None
        place = self.place
        stop = place + length
        if not place <= stop <= self._size:
            raise self._too_long(length, "a string")
        try:
            text = str(data[place:stop], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedError(f"a string is not UTF-8: {error.reason}", start) from None
        self.place = stop
        return text

    def string(self, *, is_flexible: bool) -> str:
        """Return a string, which must not be null."""
        start = self.place
        text = self.nullable_string(is_flexible=is_flexible)
        if text is None:
            raise MalformedError("a string that may not be null is null", start)
        return text

    def bytes_range(self, *, is_flexible: bool) -> tuple[int, int]:
        """Return where bytes start and end; null bytes are empty."""
        if is_flexible:
            length = self.uvarint() - 1
        else:
            (length,) = _I32.unpack_from(self.data, self.place)
            self.place += 4
        start = self.place
        if length == -1:
            return start, start
        end = start + length
        if not start <= end <= self._size:
            raise self._too_long(length, "a field of bytes")
        self.place = end
        return start, end

    def nullable_count(self, *, is_flexible: bool) -> int | None:
        """Return how many elements an array has, or None if it is null."""
        start = self.place
        if is_flexible:
            count = self.uvarint() - 1
        else:
            (count,) = _I32.unpack_from(self.data, start)
            self.place = start + 4
        if count == -1:
            return None
        if count < 0 or count > self._left or count > self._size - self.place:
            self._refuse_count(count, start, "elements of an array")
        self._left -= count
        return int(count)

    def count(self, *, is_flexible: bool) -> int:
        """Return how many elements an array has, which must not be null."""
        start = self.place
        count = self.nullable_count(is_flexible=is_flexible)
        if count is None:
            raise MalformedError("an array that may not be null is null", start)
        return count

    def rows(self, form: struct.Struct, count: int) -> Iterator[tuple[Any, ...]]:
        """Return `count` elements of fixed size, each as its values."""
        stop = self._stop_of(count * form.size, "an array")
        start, self.place = self.place, stop
        return form.iter_unpack(self.data[start:stop])

    def skip_tagged_fields(self) -> None:
        """Go to the end of the tagged fields of a struct: what is unknown is to be ignored."""
        if self.data[self.place] == 0:
            self.place += 1
            return
        start = self.place
        count = self.uvarint()
        if count > self._left or count > self._size - self.place:
            self._refuse_count(count, start, "tagged fields")
        self._left -= count
        for _ in range(count):
            self.uvarint()
            self.place = self._stop_of(self.uvarint(), "a tagged field")

    def _refuse_count(self, count: int, start: int, what: str) -> NoReturn:
        left = self._size - self.place
        if not 0 <= count <= left:
            raise MalformedError(f"{count} {what} cannot be in the {left} bytes that follow", start)
        if self._elements_max < ELEMENTS_MAX:
            raise ManyElementsError
        raise MalformedError(f"more than {ELEMENTS_MAX} elements in all", start)

    def _stop_of(self, length: int, what: str) -> int:
        """Return where the next `length` bytes end."""
        place = self.place
        if not 0 <= length <= self._size - place:
            raise self._too_long(length, what)
        return place + length

    def _too_long(self, length: int, what: str) -> MalformedError:
        left = self._size - self.place
        text = f"{what} of {length} bytes cannot be in the {left} bytes that follow"
        return MalformedError(text, self.place)


def uvarint_bytes(number: int) -> bytes:
    """Return the bytes of an unsigned varint."""
    if number < 0x80:
        return bytes((number,))
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def string_bytes(text: str | None, *, is_flexible: bool) -> bytes:
    """Return the bytes of a string; None is null. Raises `struct.error` above 32,767 bytes."""
    if text is None:
        return b"\0" if is_flexible else b"\xff\xff"
    raw = text.encode()
    return (uvarint_bytes(len(raw) + 1) if is_flexible else _I16.pack(len(raw))) + raw


def count_bytes(number: int, *, is_flexible: bool) -> bytes:
    """Return the number of elements, or bytes, that follow."""
    return uvarint_bytes(number + 1) if is_flexible else _I32.pack(number)
