"""Derives the outcomes of the transactions in a store, as a replica would, but without its node."""

from quorumlog.model.errors import StorageError, UnexpectedArgumentError
from quorumlog.sessions.table_set import TableSet
from quorumlog.sessions.transaction_table import TransactionTable
from quorumlog.storage.files.mapped_files import MappedFiles
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.log.layout import has_identity
from quorumlog.storage.metadata.tables_file import FILE_NAME as TABLES_NAME
from quorumlog.storage.metadata.tables_file import TablesFile
from quorumlog.storage.offline.range_planner import Extent, PartitionSizing, RangePlanner
from quorumlog.storage.offline.range_reader import Checks, RangeReader, StoredRun
from quorumlog.storage.offline.store_files import StoreFiles

SCAN_BYTES = 64 * 1024 * 1024


def transactions_of(
    files: FileSystem, directory: str, store: StoreFiles, extent: Extent, planner: RangePlanner
) -> TransactionTable:
    """Return the transactions of a store as its entries up to the end of `extent` have them.

    From what was saved with the last checkpoint, and the headers of the entries after it. A store
    without our identity was written by DLedger, which has none. Raises `StorageError` when
    what was saved cannot be read.
    """
    if not has_identity(files, directory):
        return TransactionTable()
    saved_file, checkpoint = TablesFile(files, directory), store.metadata.checkpoint
    saved = saved_file.load(read_only=True)
    is_lost = saved_file.is_lost or (
        saved is None and checkpoint is not None and TABLES_NAME in checkpoint.kept
    )
    if is_lost and extent.first > 0:
        raise StorageError(
            f"{directory}/{TABLES_NAME} and its copy are lost, and the log begins after what "
            "they said: which transactions were accepted is not known here. Start the node, which "
            "asks its peers, or read another replica's files"
        )
    try:
        tables = TableSet() if saved is None else TableSet.decode(saved)
    except UnexpectedArgumentError as error:
        raise StorageError(f"{directory}: {error}") from error
    if saved is None and checkpoint is not None and not is_lost:
        # it would have been saved before a checkpoint that covers the entry of a producer
        tables.as_of = checkpoint.committed_index
    first = max(extent.first, tables.as_of + 1)
    if first <= extent.last:
        maps = MappedFiles(files)
        for part in planner.ranges(first, extent.last, PartitionSizing(SCAN_BYTES)):
            for found in RangeReader(part, maps, Checks(crcs=False, bodies=False)):
                if isinstance(found, StoredRun):
                    for change in tables.changes_in(found.block, found.first_index):
                        tables.apply(change)
    return tables.transactions
