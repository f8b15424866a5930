"""The results of commands that were sent in a session, kept to answer a block that comes again.

Every replica derives the same table from the entries and the machine's results, in the order of the
log. The table is part of each snapshot; a machine that stores its own state stores the table, too.
Only the newest block of each session is remembered, as a client has one under way at a time.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.sessions.entries import SessionEntry
from quorumlog.sessions.producer_table import SESSIONS_MAX

RESULTS_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of all results together; those of the oldest blocks are forgotten first."""
_KEY_BYTES = 8


class _Block(msgspec.Struct, array_like=True):
    """The block whose session entry is at `index`; results are missing until it is applied."""

    producer_id: int
    index: int
    count: int
    results: list[bytes]

    @property
    def is_whole(self) -> bool:
        return len(self.results) == self.count

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.results))


_BLOCKS: Final = msgspec.msgpack.Decoder(_Block)


class CommandResults:
    """The results that one replica remembers; the machine's jobs change them, one at a time."""

    def __init__(self, blocks: Iterable[_Block] = (), bytes_max: int = RESULTS_BYTES_MAX) -> None:
        ordered = sorted(blocks, key=lambda block: block.index)
        self._blocks = {block.producer_id: block for block in ordered}
        self._bytes_max = bytes_max
        self._size = sum(block.size_bytes for block in ordered if block.is_whole)
        newest = ordered[-1] if ordered else None
        self._open = None if newest is None or newest.is_whole else newest

    def find(self, producer_id: int, index: int) -> list[bytes] | None:
        """Return the results of the block with its session entry at `index`, if they are known."""
        block = self._blocks.get(producer_id)
        return block.results if block and block.index == index and block.is_whole else None

    def take(
        self, sessions: Iterable[tuple[int, SessionEntry]], results: Mapping[int, bytes]
    ) -> dict[bytes, bytes | None]:
        """Take what was applied: session entries and results by index, both ascending.

        Returns what changed, for a machine that stores the table: key → value; None: remove it.
        The table after an entry does not depend on how entries were cut into batches.
        """
        changed: dict[int, None] = {}
        if self._open is not None:
            self._advance(self._open, results, changed)
        for index, entry in sessions:
            if entry.keeps_results:
                self._forget(entry.producer_id, changed)
                block = _Block(entry.producer_id, index, entry.count, [])
                self._blocks[entry.producer_id] = self._open = block
                self._advance(block, results, changed)
        return {_key(number): self._value(number) for number in changed}

    def _advance(
        self, block: _Block, results: Mapping[int, bytes], changed: dict[int, None]
    ) -> None:
        changed[block.producer_id] = None
        for index in range(block.index + 1 + len(block.results), block.index + block.count + 1):
            if index not in results:
                return
            block.results.append(results[index])
        self._open = None
        self._size += block.size_bytes
        while self._size > self._bytes_max or len(self._blocks) > SESSIONS_MAX:
            self._forget(next(iter(self._blocks)), changed)

    def _forget(self, producer_id: int, changed: dict[int, None]) -> None:
        block = self._blocks.pop(producer_id, None)
        if block is not None:
            changed[producer_id] = None
            self._size -= block.size_bytes if block.is_whole else 0

    def _value(self, producer_id: int) -> bytes | None:
        block = self._blocks.get(producer_id)
        return None if block is None else msgspec.msgpack.encode(block)

    # -- keeping it ---------------------------------------------------------------------------

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """Return the whole table, in the form that `of` takes."""
        return [(_key(number), msgspec.msgpack.encode(b)) for number, b in self._blocks.items()]

    @classmethod
    def of(
        cls, pairs: Iterable[tuple[bytes, bytes]], bytes_max: int = RESULTS_BYTES_MAX
    ) -> "CommandResults":
        """Read what `take` or `pairs` returned. Raises `UnexpectedArgumentError`."""
        try:
            blocks = [_BLOCKS.decode(value) for _, value in pairs]
            return cls(blocks, bytes_max)
        except msgspec.MsgspecError as error:
            raise UnexpectedArgumentError(f"no results of commands: {error}") from error


def _key(producer_id: int) -> bytes:
    return producer_id.to_bytes(_KEY_BYTES, "big")
