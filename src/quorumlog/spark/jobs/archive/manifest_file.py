"""The file that says what an archive holds, whatever it is an archive of.

`_manifest.json` in the archive's directory is the only truth about its content: a file that it does
not name is no part of the archive. It is replaced as a whole by a rename, so readers see one state
or the next.
"""

from typing import ClassVar, Final, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from quorumlog.client.results import Isolation
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.storage.files.os_files import FileSystem

MANIFEST_NAME = "_manifest.json"
"""Spark and Arrow ignore files whose names start with `_` or `.`."""
FORMAT_VERSION = 1
ArchiveOf: TypeAlias = Literal["group", "topics"]


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """A file whose rows are in a larger one since `at_s` (seconds since 1970).

    It is kept for a while for those who read it just then.
    """

    path: str
    at_s: int


class ParquetPart(Protocol):
    """A file that a manifest names; `path` is empty if there is none, as there are no rows.

    `sha256` is of the file's bytes, in hexadecimal. `body_bytes` is what its rows have before
    compression.
    """

    @property
    def path(self) -> str:
        """Where it is, relative to the archive's directory."""
        ...

    @property
    def body_bytes(self) -> int:
        """Bytes of its rows."""
        ...

    @property
    def file_bytes(self) -> int:
        """Its size."""
        ...

    @property
    def sha256(self) -> str:
        """By which it is known whether it is damaged."""
        ...


class BaseManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What all manifests have. `archive_id` is random and the archive's own."""

    OF: ClassVar[ArchiveOf]
    format_version: int
    of: ArchiveOf = "group"
    archive_id: str
    cluster: str
    isolation: Isolation
    replaced: tuple[Replaced, ...] = ()

    def parts_named(self) -> tuple[ParquetPart, ...]:
        """Return the files that hold its rows."""
        return ()

    def check(self) -> None:
        """Raise `PipelineError` unless it can be true."""
        paths = [part.path for part in self.parts_named() if part.path]
        if len(set(paths)) != len(paths):
            raise PipelineError("a file is named twice")
        for path in (*paths, *(one.path for one in self.replaced)):
            if path.startswith("/") or ".." in path.split("/"):
                raise PipelineError(f"the path {path!r} leaves the archive")


Kept = TypeVar("Kept", bound=BaseManifest)


def manifest_path(directory: str) -> str:
    """Return where the manifest of an archive is."""
    return f"{directory}/{MANIFEST_NAME}"


def archive_kind(files: FileSystem, directory: str) -> ArchiveOf:
    """Return what a directory is an archive of. Raises `PipelineError` when it is none."""
    return _head(files, directory)[1].of


def read_manifest(
    files: FileSystem, directory: str, kind: type[Kept], decoder: "msgspec.json.Decoder[Kept]"
) -> Kept:
    """Return the manifest of the archive in a directory.

    Raises `PipelineError` when there is none, one of another kind, or one that cannot be right.
    """
    raw, head = _head(files, directory)
    if head.of != kind.OF:
        raise PipelineError(
            f"{directory} is an archive of {_WORDS[head.of]}, not {_WORDS[kind.OF]}"
        )
    try:
        manifest = decoder.decode(raw)
        manifest.check()
    except (msgspec.MsgspecError, PipelineError) as error:
        raise _unusable(directory, error) from error
    return manifest


class _Head(msgspec.Struct, frozen=True):
    format_version: int
    of: ArchiveOf = "group"


_HEADS: Final = msgspec.json.Decoder(_Head)
_WORDS: Final[dict[ArchiveOf, str]] = {"group": "a group", "topics": "topics"}


def _head(files: FileSystem, directory: str) -> tuple[bytes, _Head]:
    path = manifest_path(directory)
    if not files.exists(path):
        raise PipelineError(
            f"{directory} holds no archive: there is no {MANIFEST_NAME}; "
            "'quorumlog pipeline archive' makes one"
        )
    raw = _read(files, path)
    try:
        head = _HEADS.decode(raw)
    except msgspec.MsgspecError as error:
        raise _unusable(directory, error) from error
    if head.format_version != FORMAT_VERSION:
        text = (
            f"its format is {head.format_version}, this version of quorumlog knows {FORMAT_VERSION}"
        )
        raise _unusable(directory, text)
    return raw, head


def _unusable(directory: str, reason: object) -> PipelineError:
    return PipelineError(
        f"{manifest_path(directory)} cannot be used: {reason}; put it back from a copy"
    )


def _read(files: FileSystem, path: str) -> bytes:
    file = files.open(path, writable=False)
    try:
        return bytes(file.read_at(file.size(), 0))
    finally:
        file.close()


def save_manifest(files: FileSystem, directory: str, manifest: BaseManifest) -> None:
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
