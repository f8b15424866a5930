"""Entries read from a replica's files on this machine instead of being sent (decision 0019).

The replica says up to where its files hold what is committed, and what of it was rejected; such
entries do not change before they are removed, so they can be read while the replica runs.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from quorumlog.client import FetchedBlock
from quorumlog.model.block import block_from_index_records, headers
from quorumlog.model.errors import (
    IndexOutOfRangeError,
    IndexRemovedError,
    RemoteProtocolError,
    StorageError,
)
from quorumlog.model.messages.client import StoreLocation
from quorumlog.spark.source.located_files import located_files
from quorumlog.storage.files.location import is_here
from quorumlog.storage.files.os_files import boot_id

logger = logging.getLogger(__name__)

READ_BYTES = 4 * 1024 * 1024
"""Bytes of entries in a block, unless a single one is larger."""
NOTHING = memoryview(b"")


def local_blocks(
    fetch: Callable[..., FetchedBlock], group: str, first: int, last: int, *, headers_only: bool
) -> Iterator[FetchedBlock]:
    """Yield the entries first … last of a group, as far as they can be read from files here.

    `fetch` asks a replica (`SyncClient.fetch`); it says again what is in files when what it said is
    read. Raises what it raises, but for what has nothing to do with where entries are read.
    """
    boot = boot_id()
    while boot and first <= last:
        try:
            located = fetch(first, last, bytes_max=1, headers_only=True, machine=boot)
        except (IndexOutOfRangeError, IndexRemovedError):
            return
        if located.location is None or not is_here(located.location):
            return
        if located.first_index != first or not 0 < located.count <= last - first + 1:
            raise RemoteProtocolError(
                f"asked where entries {first} to {last} of {group} are, a server answered with "
                f"{located.count} from {located.first_index} on"
            )
        try:
            for block in read_located(located, located.location, headers_only=headers_only):
                yield block
                first = block.first_index + block.count
        except IndexRemovedError:
            return
        except StorageError as error:
            logger.warning("entries of %s from %d on are fetched: %s", group, first, error)
            return


def read_located(
    located: FetchedBlock, location: StoreLocation, *, headers_only: bool
) -> Iterator[FetchedBlock]:
    """Yield the entries that an answer says are in files, in blocks that have been checked.

    Raises `IndexRemovedError` if they were removed meanwhile, `StorageError` when the files cannot
    be read, `CorruptionError` for a damaged entry.
    """
    index, last = located.first_index, located.first_index + located.count - 1
    with located_files(location) as files:
        files.require(index)
        while index <= last:
            run = files.read(index, last, READ_BYTES)
            data, records = run.data, run.records
            if headers_only:
                table = headers(block_from_index_records(data, records))
                data, records = memoryview(table.tobytes()), NOTHING
            yield replace(
                located,
                first_index=index,
                count=run.count,
                data=data,
                records=records,
                rejected=[one for one in located.rejected if is_over(one, index, run.last_index)],
                headers_only=headers_only,
                location=None,
                is_checked=True,
            )
            index = run.last_index + 1


def is_over(rejected_range: tuple[int, int], first: int, last: int) -> bool:
    """Whether a (first, last) has indexes in common with first … last."""
    return rejected_range[0] <= last and first <= rejected_range[1]
