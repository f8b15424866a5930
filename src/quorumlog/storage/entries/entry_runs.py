"""Entries as they are read: contiguous bytes with their index records."""

import msgspec

from quorumlog.model.block import Block, block_from_index_records


class EntryRun(msgspec.Struct, frozen=True):
    """Entries first_index … first_index + count - 1, contiguous bytes, final and readable.

    `records` are their index records (32 bytes each), `from_memory` whether no disk was touched.
    """

    first_index: int
    count: int
    data: memoryview
    records: memoryview
    from_memory: bool

    @property
    def last_index(self) -> int:
        """Index of the last entry."""
        return self.first_index + self.count - 1

    def block(self) -> Block:
        """Return the entries; their records say where each starts."""
        return block_from_index_records(self.data, self.records)
