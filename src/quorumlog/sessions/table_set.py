"""All tables that every replica derives from the log, as of one entry; saved and sent as one value.

A table is a pure function of the entries: replicas that have taken the same ones hold the same
table. A replica passes everything that happens to its log to the list of all tables
(`quorumlog.node.replica.tables`), so a further table needs no call of its own anywhere.

The encoded form is an array: the index, then the fields of each table in the order of
`TableSet.tables`. A reader takes what it does not find for empty and ignores what it does not know,
so a table that comes later adds its fields at the end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import msgspec

from quorumlog.model.block import Block
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.sessions.entries import SystemEntry, system_entries_in
from quorumlog.sessions.producer_table import Session, SessionTable
from quorumlog.sessions.time_marks import TimeMarks
from quorumlog.sessions.transaction_table import TransactionalProducer, TransactionTable
from quorumlog.topics.partition_table import NO_CHANNEL, Partition, PartitionTable
from quorumlog.topics.partition_transactions import AbortedTransaction
from quorumlog.topics.producers import ProducerState

Change: TypeAlias = tuple[int, int, Any]
"""(index of the entry, number of the table, what was found there for it)."""


class DerivedTable(Protocol):
    """One table. What was found in a block is applied in the order of indexes, each once.

    Nothing may depend on anything but the entries: no clock, no chance, no other table.
    """

    name: ClassVar[str]
    """Names its digest, with the version of the rule: digests of other names are not compared."""

    @property
    def reads_users(self) -> bool:
        """Whether users' entries matter to it; else it sees only blocks with system entries."""
        ...

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


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    as_of: int
    sessions: list[tuple[int, Session]]
    producers: list[tuple[bytes, TransactionalProducer]] = []
    rejected: list[tuple[int, int]] = []
    complete_from: int = 0
    time_marks: list[tuple[int, int]] = []
    partitions: list[tuple[int, Partition]] = []
    partition_producers: list[tuple[int, int, ProducerState]] = []
    highest_channel: int = NO_CHANNEL
    ongoing: list[tuple[int, int, int]] = []
    aborted: list[tuple[int, AbortedTransaction]] = []


_TABLES: Final = msgspec.msgpack.Decoder(_Saved)


@dataclass(slots=True)
class TableSet:
    """The tables after the entry at index `as_of`."""

    as_of: int = -1
    sessions: SessionTable = field(default_factory=SessionTable)
    transactions: TransactionTable = field(default_factory=TransactionTable)
    marks: TimeMarks = field(default_factory=TimeMarks)
    partitions: PartitionTable = field(default_factory=PartitionTable)
    tables: tuple[DerivedTable, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """List the tables."""
        self.tables = (self.sessions, self.transactions, self.marks, self.partitions)

    @property
    def is_empty(self) -> bool:
        """Whether no entry has said anything."""
        is_said = self.sessions.sessions or self.transactions.producers or self.marks.pairs
        return not is_said and self.partitions.highest_channel == NO_CHANNEL

    def changes_in(
        self, block: Block, first_index: int, *, has_system_entries: bool = True
    ) -> list[Change]:
        """Return what a block says to all tables, in the order of its entries."""
        entries = system_entries_in(block, first_index) if has_system_entries else []
        changes: list[Change] = []
        for number, table in enumerate(self.tables):
            if entries or table.reads_users:
                found = table.found_in(block, first_index, entries)
                changes += [(index, number, what) for index, what in found]
        if len(changes) > 1:
            changes.sort(key=lambda change: change[0])
        return changes

    def apply(self, change: Change) -> None:
        """Take a change; one at or before `as_of` was taken already."""
        index, number, what = change
        if index > self.as_of:
            self.tables[number].apply(index, what)

    def removed(self, before_begin_index: int) -> None:
        """Forget what matters only for entries that the log does not hold any more."""
        for table in self.tables:
            table.removed(before_begin_index)

    def copy(self) -> "TableSet":
        """Return an independent copy."""
        return TableSet(
            self.as_of,
            self.sessions.copy(),
            self.transactions.copy(),
            self.marks.copy(),
            self.partitions.copy(),
        )

    def digests(self, since: int) -> dict[str, bytes]:
        """Return the digest of each table by its name, as far as they are known.

        See `DerivedTable.digest`.
        """
        found = ((table.name, table.digest(since)) for table in self.tables)
        return {name: digest for name, digest in found if digest is not None}

    def encode(self) -> bytes:
        """Return the tables as bytes."""
        fields: Iterable[Any] = (value for table in self.tables for value in table.fields())
        return msgspec.msgpack.encode([self.as_of, *fields])

    @classmethod
    def decode(cls, raw: bytes | memoryview) -> "TableSet":
        """Read what `encode` returned. Raises `UnexpectedArgumentError`."""
        try:
            saved = _TABLES.decode(raw)
        except msgspec.MsgspecError as error:
            raise UnexpectedArgumentError(f"no derived tables: {error}") from error
        transactions = TransactionTable(dict(saved.producers), saved.rejected, saved.complete_from)
        return cls(
            saved.as_of,
            SessionTable(dict(saved.sessions)),
            transactions,
            TimeMarks(saved.time_marks),
            PartitionTable(
                saved.partitions,
                saved.partition_producers,
                saved.highest_channel,
                saved.ongoing,
                saved.aborted,
            ),
        )


TABLE_NAMES: Final = tuple(table.name for table in TableSet().tables)
