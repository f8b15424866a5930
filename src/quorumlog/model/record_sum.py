"""The digest of a table of records that is kept up to date cheaply."""

from collections.abc import Hashable, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec

DIGEST_SIZE: Final = 16
"""Bytes of a table's digest."""
CHANGED_MAX: Final = 20_000
"""Changed records that are remembered between two digests; above, all records are hashed again."""
_MODULUS: Final = 1 << (8 * DIGEST_SIZE)


class RecordSum:
    """The sum of the hashes of a table's records, in which only what changed is hashed again."""

    def __init__(self) -> None:
        self._hashes: dict[Hashable, int] = {}
        self._changed: set[Hashable] | None = None
        self._sum = 0

    def changed(self, key: Hashable) -> None:
        """The record of a key was made, replaced or removed."""
        if self._changed is not None:
            self._changed.add(key)
            if len(self._changed) > CHANGED_MAX:
                self._changed = None

    def of(self, records: Mapping[Any, Any]) -> bytes:
        """Return the sum for all records, whose keys and values MessagePack can hold."""
        keys = self._changed
        if keys is None:
            self._hashes, self._sum, keys = {}, 0, set(records)
        for key in keys:
            self._sum -= self._hashes.pop(key, 0)
            if key in records:
                raw = msgspec.msgpack.encode((key, records[key]))
                found = int.from_bytes(blake2b(raw, digest_size=DIGEST_SIZE).digest())
                self._hashes[key] = found
                self._sum += found
        self._changed = set()
        self._sum %= _MODULUS
        return self._sum.to_bytes(DIGEST_SIZE)
