"""Looking into a store without its node: reads only, takes no lock, works while a node runs."""

from collections.abc import Iterator

from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.entry import Entry
from quorumlog.model.errors import StorageError
from quorumlog.storage.checkpoint import DurableHint
from quorumlog.storage.file_sequence import FileSequence, stored_file_size
from quorumlog.storage.files import FileSystem
from quorumlog.storage.judgement import judge
from quorumlog.storage.layout import DATA, INDEX
from quorumlog.storage.scan import Found, Scanner, Stop


def scan_store(files: FileSystem, directory: str) -> Iterator[tuple[Entry, str, int]]:
    """Yield every entry of a group directory with its file and the byte it starts at.

    Works on stores of the original too. Raises `StorageError` when there is no store, and, after
    the entries before it, `CorruptionError` when a damaged or missing entry was once durable; a
    torn tail just ends.
    """
    data = _sequence(files, f"{directory}/{DATA}")
    if data is None:
        raise StorageError(f"{directory}: no data files in {DATA}/; is this a group directory?")
    index = _sequence(files, f"{directory}/{INDEX}") or FileSequence(files, directory, 1)
    durable_index = DurableHint(files, directory).load()
    scanner = Scanner(data, data.starts[0])
    try:
        for found in scanner:
            yield _entry(data, found)
        last_good = -1 if scanner.index is None else scanner.index
        judge(data, index, last_good, scanner.stop or Stop(scanner.position, ""), durable_index)
    finally:
        data.close()
        index.close()


def _sequence(files: FileSystem, directory: str) -> FileSequence | None:
    file_size = stored_file_size(files, directory)
    if file_size is None:
        return None
    sequence = FileSequence(files, directory, file_size)
    sequence.load()
    return sequence


def _entry(data: FileSequence, found: Found) -> tuple[Entry, str, int]:
    start, view = data.map_at(found.position)
    offset = found.position - start
    entry = Entry(
        found.index,
        found.term,
        found.pos,
        bytes(view[offset + HEADER_SIZE : offset + found.size]),
        found.magic,
        found.channel,
        found.chain_crc,
        found.body_crc,
    )
    return entry, f"{data.directory}/{start:020d}", offset
