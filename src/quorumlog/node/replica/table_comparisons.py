"""The tables that a replica derives from the log, compared with others' (decision 0033).

A replica with a table that differs from a majority's does not lead, serves nothing that the table
says, and takes the tables of a peer that agreed with a majority since (`lost_tables`).
"""

from functools import partial

from quorumlog.model.messages.peer import TableDigest, TableDigestQuery
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.digest_comparison import DigestComparison
from quorumlog.node.replica.lost_tables import LostTables
from quorumlog.node.replica.tables import Tables
from quorumlog.sessions.table_set import TABLE_NAMES
from quorumlog.storage.log.store import OpenedGroup


class DerivedTables:
    """The part of a replica that keeps all its tables and compares them with those of others.

    All methods run on the event loop's thread.
    """

    def __init__(self, context: ReplicaContext, opened: OpenedGroup) -> None:
        self.tables = tables = Tables(
            opened.log,
            opened.committed_index,
            opened.tables,
            is_lost=opened.tables_lost,
            digest_entries=context.config.digest_entries,
            sealed=opened.batches.load() if opened.batches is not None else (),
            seal_limits=context.environment.seal_limits,
        )
        opened.log.keep_tables(tables.to_save)
        self.lost_tables = lost_tables = LostTables(context, tables)
        self._by_name = {
            name: _TableComparison(context, name, tables, lost_tables) for name in TABLE_NAMES
        }
        tables.reached = self._reached
        lost_tables.replaced = self._forget

    def _reached(self, index: int, digests: dict[str, bytes]) -> None:
        for name, digest in digests.items():
            self._by_name[name].reached(index, digest)

    def _forget(self) -> None:
        """The digests are those of tables that are not here any more."""
        for comparison in self._by_name.values():
            comparison.forget()

    def received(self, message: TableDigestQuery | TableDigest, _: memoryview) -> None:
        """Handle a query or an answer of a peer; one of a table not known here is dropped."""
        comparison = self._by_name.get(message.table)
        if comparison is not None:
            comparison.received(message)

    def agreed(self) -> list[tuple[str, int]]:
        """Return the name of each table, and after which entry it equalled a majority's last."""
        return [(name, one.agreed_index) for name, one in self._by_name.items()]

    @property
    def agreed_index(self) -> int:
        """Index after which all tables that were compared equalled a majority's; -1: none was."""
        return max(one.agreed_index for one in self._by_name.values())


class _TableComparison(DigestComparison):
    """Compares one table."""

    def __init__(
        self, context: ReplicaContext, name: str, tables: Tables, lost_tables: LostTables
    ) -> None:
        what, query = f"the table {name}", partial(TableDigestQuery, table=name)
        super().__init__(context, what, query, partial(TableDigest, table=name))
        self._name = name
        self._tables = tables
        self._lost_tables = lost_tables

    def _agreed(self) -> None:
        """Nothing waits for it: doubt ends with the tables of a peer, not with a later digest."""

    def _differs(self, text: str, index: int, *, is_majority: bool) -> None:
        if is_majority:
            self._tables.doubt(self.agreed_index)
            self._lost_tables.doubted(self._name, index, text)
