"""Whether a journal holds entries of a group which the group's own files may lack."""

import logging
from collections.abc import Sequence

from quorumlog.model.config import JOURNAL_NAME
from quorumlog.model.errors import CorruptionError, NoSpaceError
from quorumlog.storage.files.os_files import FileSystem, absolute_path
from quorumlog.storage.log.layout import (
    DATA,
    Identity,
    has_identity,
    incarnation_number,
    note_settled,
    note_unsettled,
    read_identity,
)
from quorumlog.storage.metadata.store_metadata import StoreMetadata

logger = logging.getLogger(__name__)


class GroupInJournal:
    """See `JournaledGroup`. Used on the disk thread."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        data_directories: Sequence[str],
        identity: Identity,
        metadata: StoreMetadata,
    ) -> None:
        self._files = files
        self._directory = directory
        # what lies where it lies by default is found again if all of it is moved
        elsewhere = [path for path in data_directories if path != f"{directory}/{DATA}"]
        self._data_directories = [absolute_path(path) for path in data_directories if elsewhere]
        self._made_as = made_as = identity.incarnation
        self._metadata = metadata
        self.incarnation = incarnation_number(made_as) if made_as else 0
        """See `JournaledGroup`; 0: it takes part in no journal."""
        self.is_in = False
        """See `JournaledGroup`."""

    def enter(self, path: str, journal: int) -> None:
        """See `JournaledGroup`.

        Without a checkpoint it would not be known which records were removed since.
        """
        if not self.incarnation or self._metadata.checkpoint is None:
            return
        default = f"{self._directory.rpartition('/')[0]}/{JOURNAL_NAME}"
        path = "" if path == default else absolute_path(path)
        try:
            note_unsettled(self._files, self._directory, path, journal, self._data_directories)
        except NoSpaceError as error:
            logger.warning("%s does not use the journal: %s", self._directory, error)
            return
        self.is_in = True

    def leave(self) -> None:
        """See `JournaledGroup`; nothing happens if the directory is another group's by now."""
        if not has_identity(self._files, self._directory):
            return
        try:
            known = read_identity(self._files, self._directory)
        except CorruptionError as error:
            logger.error("%s", error)  # opening says what to do
            return
        if known.incarnation == self._made_as:
            note_settled(self._files, self._directory)
        self.is_in = False
