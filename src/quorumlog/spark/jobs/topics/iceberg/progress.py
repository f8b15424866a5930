"""How far an archive in a table has come: a property of the table, changed with its content."""

from typing import Final

import msgspec

from quorumlog.model.wording import counted
from quorumlog.spark.jobs.archive.manifest_file import FORMAT_VERSION
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.jobs.topics.manifest import TopicManifest

PROPERTY: Final = "quorumlog.archive"
PROGRESS_BYTES_MAX: Final = 8 << 20
"""Every commit writes the table's properties anew: room for some 30,000 partitions of topics."""


class TableProgress(TopicManifest, frozen=True, kw_only=True, omit_defaults=True):
    """What was read of each partition; `files` are those that are not in the table yet.

    `snapshot_id` is Iceberg's snapshot by which the archive last changed the table, and
    `sequence_number` the number of it, which grows from snapshot to snapshot.
    """

    snapshot_id: int | None = None
    sequence_number: int = 0


_PROGRESS: Final = msgspec.json.Decoder(TableProgress)


def encode_progress(progress: TableProgress) -> str:
    """Return the property of a table to which all files of an archive were added.

    Raises `PipelineError` when it is too large.
    """
    done = msgspec.structs.replace(progress, files=())
    raw = msgspec.json.encode(done)
    if len(raw) > PROGRESS_BYTES_MAX:
        raise PipelineError(
            f"how far {counted(len(progress.partitions), 'partition')} were read takes "
            f"{counted(len(raw), 'byte')}, "
            f"and a table has room for {PROGRESS_BYTES_MAX:,}: archive some topics into a table of "
            "their own"
        )
    return raw.decode()


def decode_progress(text: str, table: str) -> TableProgress:
    """Return what a property says. Raises `PipelineError` when that cannot be used."""
    try:
        progress = _PROGRESS.decode(text)
    except msgspec.MsgspecError as error:
        raise PipelineError(f"property {PROPERTY} of {table} cannot be used: {error}") from error
    if progress.format_version != FORMAT_VERSION:
        raise PipelineError(
            f"property {PROPERTY} of {table} has format {progress.format_version}, this version "
            f"of quorumlog knows {FORMAT_VERSION}"
        )
    return progress
