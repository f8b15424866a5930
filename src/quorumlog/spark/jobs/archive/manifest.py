"""The manifest of an archive of a group: which file holds which entries, and whose log it is.

The ranges of its files and gaps follow each other without a hole; a range covers NOOPs and
bookkeeping entries too, which are no rows.
"""

from itertools import pairwise
from typing import ClassVar, Final, Literal, TypeAlias

import msgspec

from quorumlog.spark.jobs.archive.manifest_file import (
    MANIFEST_NAME,
    ArchiveOf,
    BaseManifest,
    Replaced,
    read_manifest,
    save_manifest,
)
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.storage.files.os_files import FileSystem

__all__ = [
    "MANIFEST_NAME",
    "ArchivedFile",
    "Gap",
    "Manifest",
    "PartitionBy",
    "Replaced",
    "load_manifest",
    "save_manifest",
]

PartitionBy: TypeAlias = Literal["range", "day"]


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Entries first … last, in one Parquet file.

    `path` is relative to the archive's directory; empty if none of the entries is a row, so that
    there is no file. `chain_before` is the chain CRC of entry first - 1 (None: it was not there any
    more), `chain_last` that of entry `last`. `sha256` is of the file's bytes, in hexadecimal; `day`
    (UTC) is when it was archived. `body_bytes` counts bodies before compression.
    """

    path: str
    first: int
    last: int
    rows: int
    body_bytes: int
    file_bytes: int
    sha256: str
    first_term: int
    last_term: int
    chain_before: int | None
    chain_last: int
    day: str


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Entries first … last, which retention removed before they were archived; seen on `day`."""

    first: int
    last: int
    day: str


class Manifest(BaseManifest, frozen=True, kw_only=True):
    """An archive of one group."""

    OF: ClassVar[ArchiveOf] = "group"
    group: str
    partition_by: PartitionBy
    files: tuple[ArchivedFile, ...] = ()
    gaps: tuple[Gap, ...] = ()

    def parts_named(self) -> tuple[ArchivedFile, ...]:
        """See `BaseManifest`."""
        return self.files

    @property
    def parts(self) -> "list[ArchivedFile | Gap]":
        """Files and gaps in the order of their indexes."""
        found: list[ArchivedFile | Gap] = [*self.files, *self.gaps]
        return sorted(found, key=lambda part: part.first)

    @property
    def first_index(self) -> int | None:
        """First index that it covers; None if it is empty."""
        parts = self.parts
        return parts[0].first if parts else None

    @property
    def last_index(self) -> int | None:
        """Last index that it covers; None if it is empty."""
        parts = self.parts
        return parts[-1].last if parts else None

    @property
    def rows(self) -> int:
        """Entries that it holds."""
        return sum(file.rows for file in self.files)

    @property
    def lost_entries(self) -> int:
        """Entries in gaps."""
        return sum(gap.last - gap.first + 1 for gap in self.gaps)

    def check(self) -> None:
        """Raise `PipelineError` unless its ranges follow each other and its chain CRCs join."""
        parts = self.parts
        for part in parts:
            if not 0 <= part.first <= part.last:
                raise PipelineError(f"entries {part.first} to {part.last} are no range")
        for before, after in pairwise(parts):
            if after.first != before.last + 1:
                raise PipelineError(f"entry {after.first} does not follow entry {before.last}")
            if isinstance(before, ArchivedFile) and isinstance(after, ArchivedFile):
                _check_joins(before, after)
        super().check()


def _check_joins(before: ArchivedFile, after: ArchivedFile) -> None:
    if after.first_term < before.last_term or after.chain_before not in (None, before.chain_last):
        raise PipelineError(
            f"entries {after.first} to {after.last} belong to another history than those before "
            "them: their terms or chain CRCs do not join"
        )


_MANIFESTS: Final = msgspec.json.Decoder(Manifest)


def load_manifest(files: FileSystem, directory: str) -> Manifest:
    """Return the manifest of the archive of a group. Raises what `read_manifest` raises."""
    return read_manifest(files, directory, Manifest, _MANIFESTS)
