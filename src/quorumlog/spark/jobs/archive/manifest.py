"""The manifest of an archive: which file holds which entries, and whose log it is.

`_manifest.json` in the archive's directory is the only truth about its content: a file that it does
not name is no part of the archive. It is replaced as a whole by a rename, so readers see one state
or the next. The ranges of its files and gaps follow each other without a hole; a range covers
NOOPs and bookkeeping entries too, which are no rows.
"""

from itertools import pairwise
from typing import Final, Literal, TypeAlias

import msgspec

from quorumlog.client.results import Isolation
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.storage.files.os_files import FileSystem

MANIFEST_NAME = "_manifest.json"
"""Spark and Arrow ignore files whose names start with `_` or `.`."""
FORMAT_VERSION = 1
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


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """A file whose rows are in a larger one since `at_s` (seconds since 1970).

    It is kept for a while for those who read it just then.
    """

    path: str
    at_s: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """An archive of one group. `archive_id` is random and its own."""

    format_version: int
    archive_id: str
    cluster: str
    group: str
    isolation: Isolation
    partition_by: PartitionBy
    files: tuple[ArchivedFile, ...] = ()
    gaps: tuple[Gap, ...] = ()
    replaced: tuple[Replaced, ...] = ()

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
        paths = [file.path for file in self.files if file.path]
        if len(set(paths)) != len(paths):
            raise PipelineError("a file is named twice")


def _check_joins(before: ArchivedFile, after: ArchivedFile) -> None:
    if after.first_term < before.last_term or after.chain_before not in (None, before.chain_last):
        raise PipelineError(
            f"entries {after.first} to {after.last} belong to another history than those before "
            "them: their terms or chain CRCs do not join"
        )


def manifest_path(directory: str) -> str:
    """Return where the manifest of an archive is."""
    return f"{directory}/{MANIFEST_NAME}"


def load_manifest(files: FileSystem, directory: str) -> Manifest:
    """Return the manifest of the archive in a directory.

    Raises `PipelineError` when there is none, or one that cannot be right.
    """
    path = manifest_path(directory)
    if not files.exists(path):
        raise PipelineError(
            f"{directory} holds no archive: there is no {MANIFEST_NAME}; "
            "'quorumlog pipeline archive' makes one"
        )
    raw = bytes(_read(files, path))
    try:
        version = _VERSIONS.decode(raw).format_version
        if version != FORMAT_VERSION:
            raise PipelineError(
                f"its format is {version}, this version of quorumlog knows {FORMAT_VERSION}"
            )
        manifest = _MANIFESTS.decode(raw)
        manifest.check()
    except (msgspec.MsgspecError, PipelineError) as error:
        raise PipelineError(f"{path} cannot be used: {error}") from error
    return manifest


class _Versioned(msgspec.Struct, frozen=True):
    format_version: int


_VERSIONS: Final = msgspec.json.Decoder(_Versioned)
_MANIFESTS: Final = msgspec.json.Decoder(Manifest)


def _read(files: FileSystem, path: str) -> bytes:
    file = files.open(path, writable=False)
    try:
        return file.read_at(file.size(), 0)
    finally:
        file.close()


def save_manifest(files: FileSystem, directory: str, manifest: Manifest) -> None:
    """Put a manifest in the place of the one before; it is durable on return."""
    manifest.check()
    path = manifest_path(directory)
    temporary = f"{path}.tmp"
    raw = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    files.remove(temporary)  # a longer one may be left of a crash
    file = files.open(temporary, create=True)
    try:
        file.write_at([raw], 0)
        file.sync()
    finally:
        file.close()
    files.replace(temporary, path)
    files.sync_directory(directory)
