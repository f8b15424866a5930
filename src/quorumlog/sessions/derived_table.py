"""What a table is that every replica derives from the log, in the order of its entries.

A table is a pure function of the entries: replicas that have taken the same ones hold the same
table. `TableSet` lists all tables; a replica passes everything that happens to its log to that
list (`quorumlog.node.replica.tables`), so a further table needs no call of its own anywhere.
"""

from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Final, Protocol

import msgspec

from quorumlog.model.block import Block
from quorumlog.sessions.entries import SystemEntry

DIGEST_SIZE: Final = 16
"""Bytes of a table's digest."""
CHANGED_MAX: Final = 20_000
"""Changed records that are remembered between two digests; above, all records are hashed again."""
_MODULUS: Final = 1 << (8 * DIGEST_SIZE)


class DerivedTable(Protocol):
    """One table. What was found in a block is applied in the order of indexes, each once.

    Nothing may depend on anything but the entries: no clock, no chance, no other table.
    """

    name: ClassVar[str]
    """Names its digest, with the version of the rule: digests of other names are not compared."""
    reads_users: ClassVar[bool]
    """Whether entries of users matter to it; else it is shown only blocks with system entries."""

    def found_in(
        self, block: Block, first_index: int, entries: Sequence[tuple[int, SystemEntry]]
    ) -> Sequence[tuple[int, Any]]:
        """Return (index, what) of all that concerns this table in a block, ascending.

        `entries` are the entries of the system channel in it, already decoded.
        """
        ...

    def apply(self, index: int, what: Any) -> None:
        """Take what was found at an index."""
        ...

    def removed(self, before_begin_index: int) -> None:
        """Forget what matters only for entries that the log does not hold any more."""
        ...

    def fields(self) -> tuple[Any, ...]:
        """Return what is saved of it, as MessagePack can hold it."""
        ...

    def digest(self, since: int) -> bytes | None:
        """Return a digest that all replicas have in common, wherever their logs start.

        Of what depends on where the log starts, only what entries after `since` did may count;
        None: that is not known here.
        """
        ...


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
