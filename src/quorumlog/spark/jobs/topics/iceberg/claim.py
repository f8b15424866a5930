"""Whose directory it is: a small file names the archive and the table whose files lie there.

A table knows its own files only. Of two tables in one directory, each would remove the files of the
other as those of a run that was stopped.
"""

from typing import Final

import msgspec

from quorumlog.spark.jobs.archive.parquet import archive_files
from quorumlog.spark.jobs.output_files import NewFile
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.storage.files.os_files import FileSystem

CLAIM_NAME: Final = "_archive.json"
DATA: Final = "data"
"""The directory of the data files, within that of the table."""
METADATA: Final = "metadata"
"""Where Iceberg keeps what it knows of the table, within the table's directory."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Which archive a directory belongs to; `table` is its name when it was made, for errors."""

    archive_id: str
    table: str


_CLAIMS: Final = msgspec.json.Decoder(Claim)


class ClaimedDirectory:
    """A directory that belongs to one archive from its first run on."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/{CLAIM_NAME}"

    def check_is_free(self, table: str) -> None:
        """Raise `PipelineError` if there are files of a table; none of this name is known."""
        found = self._found()
        data, metadata = (f"{self._directory}/{one}" for one in (DATA, METADATA))
        if found or self._files.names(metadata) or any(archive_files(self._files, data)):
            owner = f"table {found.table}" if found else "a table"
            raise PipelineError(
                f"{self._directory} has files of {owner}, and the catalog has no table {table}: "
                "check the catalog's URI and name and the table's name, or archive into a new "
                "table in a new directory"
            )

    def claim(self, archive_id: str, table: str) -> None:
        """Claim the directory for a table that lies in it.

        Raises `PipelineError` if it belongs to another one.
        """
        found = self._found()
        if found is None:
            self._write(Claim(archive_id=archive_id, table=table))
        elif found.archive_id != archive_id:
            raise PipelineError(
                f"{self._directory} belongs to another archive, that of table {found.table}: "
                "archive into that one, or into a new table in a new directory"
            )

    def _found(self) -> Claim | None:
        if not self._files.exists(self._path):
            return None
        file = self._files.open(self._path, writable=False)
        try:
            return _CLAIMS.decode(file.read_at(file.size(), 0))
        except msgspec.MsgspecError as error:
            raise PipelineError(
                f"{self._path} cannot be used: {error}; put it back from a copy"
            ) from error
        finally:
            file.close()

    def _write(self, claim: Claim) -> None:
        with NewFile(self._files, self._directory, CLAIM_NAME) as file:
            file.write(msgspec.json.encode(claim))
            file.publish()
