"""Looking into a store without its node: reads only, takes no lock, works while a node runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quorumlog.model.block import decode_entries
from quorumlog.model.entry import Entry
from quorumlog.model.errors import StorageError
from quorumlog.storage.checkpoint import Mark
from quorumlog.storage.damage import DamagedRanges
from quorumlog.storage.file_sequence import FileSequence, stored_file_size
from quorumlog.storage.files import FileSystem
from quorumlog.storage.layout import DATA, INDEX
from quorumlog.storage.notes import Notes
from quorumlog.storage.recovery import Known
from quorumlog.storage.survey import Survey


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """A store's files, open for reading, and what was noted about it."""

    data: FileSequence
    index: FileSequence
    known: Known
    damaged: DamagedRanges

    def survey(self) -> Survey:
        """Return a walk over all entries, from the first on."""
        known, boundary, start = self.known, self.known.boundary, None
        if boundary is not None and len(self.data):
            start = Mark(
                boundary.before_begin_index,
                boundary.position,
                boundary.chain_crc,
                boundary.before_begin_term,
            )
        return Survey(self.data, self.index, start, known.durable, is_recent=known.is_recent)

    def close(self) -> None:
        """Give the files back."""
        self.data.close()
        self.index.close()


def open_files(
    files: FileSystem, directory: str, data_directories: Sequence[str] = ()
) -> StoreFiles:
    """Open a group directory (ours or the original's) for reading.

    `data_directories` are where its data files are, if not in `data/`. Raises `StorageError` when
    there is no store.
    """
    paths = list(data_directories) or [f"{directory}/{DATA}"]
    file_size = stored_file_size(files, paths)
    if file_size is None:
        raise StorageError(
            f"{directory}: no data files in {', '.join(paths)}; is this a group directory?"
        )
    data = FileSequence(files, paths, file_size)
    data.load(read_only=True)
    index_path = f"{directory}/{INDEX}"
    index_size = stored_file_size(files, [index_path])
    index = FileSequence(files, [index_path], index_size or file_size)
    if index_size is not None:
        index.load(read_only=True)
    notes = Notes(files, directory)
    try:
        known, damaged = notes.load(read_only=True)
    finally:
        notes.close()
    return StoreFiles(data, index, known, damaged)


def scan_store(
    files: FileSystem, directory: str, data_directories: Sequence[str] = ()
) -> Iterator[tuple[Entry, str, int]]:
    """Yield every entry of a group directory with its file and the byte it starts at.

    Works on stores of the original too. Raises `StorageError` when there is no store, and, after
    the entries before it, `CorruptionError` when a damaged or missing entry was once durable; a
    torn tail just ends.
    """
    store = open_files(files, directory, data_directories)
    try:
        survey = store.survey()
        for stretch in survey:
            if survey.damages:
                break
            path, start = (
                store.data.path_at(stretch.position),
                store.data.start_of(stretch.position),
            )
            offsets = (stretch.position - start + stretch.block.offsets).tolist()
            for entry, offset in zip(decode_entries(stretch.block), offsets, strict=True):
                yield entry, path, offset
        if survey.damages:
            raise survey.error_of(survey.damages[0])
    finally:
        store.close()
