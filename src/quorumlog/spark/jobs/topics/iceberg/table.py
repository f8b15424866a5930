"""The Iceberg table of an archive in its SQL catalog: opened, checked, and appended to.

Data files and the archive's progress change in one commit, which the catalog carries out only if
the table's snapshot is the one that was seen before. So each record is appended once.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from quorumlog.model.errors import ConfigError
from quorumlog.spark.jobs.output_files import OutputFileSystem
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.jobs.topics.iceberg.claim import DATA
from quorumlog.spark.jobs.topics.iceberg.layout import (
    ICEBERG_LAYOUT,
    OFFSET_ID,
    PARTITION_ID,
    TIMESTAMP_ID,
    TOPIC_ID,
)
from quorumlog.spark.jobs.topics.iceberg.progress import (
    PROPERTY,
    TableProgress,
    decode_progress,
    encode_progress,
)
from quorumlog.spark.jobs.topics.manifest import TopicFile

try:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.conversions import to_bytes
    from pyiceberg.exceptions import (
        CommitFailedException,
        NoSuchNamespaceError,
        NoSuchTableError,
        NotInstalledError,
        ValidationError,
        ValidationException,
    )
    from pyiceberg.io import PY_IO_IMPL
    from pyiceberg.io.pyarrow import pyarrow_to_schema
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema, index_by_id
    from pyiceberg.table import Table, TableProperties
    from pyiceberg.table.snapshots import ancestors_of
    from pyiceberg.transforms import DayTransform, IdentityTransform
    from pyiceberg.typedef import Record
    from pyiceberg.types import IntegerType, LongType, StringType, TimestamptzType
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    from quorumlog.spark.jobs.topics.iceberg.durable_io import SCHEME, DurableFileIO
except ModuleNotFoundError as error:
    raise ConfigError(
        f"an Iceberg table needs {(error.name or '').partition('.')[0]}, which is not installed: "
        "pip install 'quorumlog[iceberg]'"
    ) from error

ARCHIVE_ID: Final = "quorumlog.archive-id"
"""In the summary of each snapshot that an archive made: whose it is."""
COMMIT_ATTEMPTS_MAX: Final = 10
"""How often a commit is tried anew because others, such as a compaction, changed the table."""
DAY_MS: Final = 86_400_000
FORMAT: Final = 2
"""The version of Iceberg's format: with 3, data files need more than pyiceberg writes."""
_SQLITE: Final = "sqlite"
_IN_MEMORY: Final = ":memory:"
"""The path of a database of SQLite that is no file."""
_NOT_IN_URIS: Final = "#?%"
_SCHEMA: Final = pyarrow_to_schema(ICEBERG_LAYOUT.schema)
_SPEC: Final = PartitionSpec(
    PartitionField(TOPIC_ID, 1000, IdentityTransform(), "topic"),
    PartitionField(TIMESTAMP_ID, 1001, DayTransform(), "timestamp_day"),
)
_PROPERTIES: Final = {
    TableProperties.FORMAT_VERSION: str(FORMAT),
    # every commit makes a file of metadata: the last hundred are kept
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
}
_DURABLE: Final = {PY_IO_IMPL: f"{DurableFileIO.__module__}.{DurableFileIO.__qualname__}"}
_FAILURES: Final = (
    *(CommitFailedException, NoSuchNamespaceError, NoSuchTableError, NotInstalledError),
    *(ValidationError, ValidationException, ValueError),
)
_ONCE: Final = {TableProperties.COMMIT_NUM_RETRIES: "0"}


@dataclass(frozen=True, slots=True)
class TableName:
    """A table NAMESPACE.NAME of an SQL catalog; `uri` is that of SQLAlchemy.

    `catalog` is the name under which the catalog's database keeps its tables.
    Raises `ConfigError` for what cannot be.
    """

    uri: str = field(repr=False)  # it may have a password
    name: str
    catalog: str

    def __post_init__(self) -> None:
        parts = self.name.split(".")
        if len(parts) < 2 or not all(parts):
            raise ConfigError(
                f"table {self.name!r} is not NAMESPACE.NAME: name it like archive.flights"
            )
        if not self.catalog:
            raise ConfigError("the name of the catalog is empty")


@contextmanager
def _explained(name: TableName) -> Iterator[None]:
    """Raise `PipelineError` naming the catalog when its database fails, or a table's file."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise PipelineError(
            f"the catalog's database needs {error.name}, which is not installed"
        ) from error
    except OSError as error:
        raise PipelineError(f"a file of table {name.name} cannot be used: {error}") from error
    except SQLAlchemyError as error:
        reason = str(error).partition("\n")[0]
        try:
            shown = make_url(name.uri).render_as_string(hide_password=True)
        except SQLAlchemyError:
            raise PipelineError(
                "the catalog is not a database URI like sqlite:////archive/catalog.db"
            ) from error
        raise PipelineError(f"catalog {shown} failed: {reason}") from error
    except _FAILURES as error:
        reason = " ".join(str(error).split())  # pydantic's has several lines
        raise PipelineError(f"table {name.name} cannot be used: {reason}") from error


def _make_parents(uri: str) -> None:
    """Make the directory in which an SQLite database is to lie, as that of an archive is made.

    Raises `StorageError`.
    """
    url = make_url(uri)
    path = url.database or _IN_MEMORY
    if url.get_backend_name() == _SQLITE and path != _IN_MEMORY and not path.startswith("file:"):
        directory = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(directory):  # one above it may be such that it cannot be read
            OutputFileSystem().make_directory(directory)


class ArchiveTable:
    """The table of an archive, whose files lie in `directory`; within it the catalog is open."""

    def __init__(self, name: TableName, directory: str) -> None:
        if found := sorted(set(_NOT_IN_URIS) & set(directory)):
            raise ConfigError(
                f"directory {directory} has {' '.join(found)}, which the URIs of a table's files "
                "cannot have: choose another one"
            )
        self.directory = directory
        self.name = name.name
        self._name = name
        self._location = SCHEME + directory
        with _explained(name):
            _make_parents(name.uri)
            self._catalog = SqlCatalog(name.catalog, uri=name.uri, **_DURABLE)
        self._table: Table | None = None

    def __enter__(self) -> "ArchiveTable":
        return self

    def __exit__(self, *error: object) -> None:
        self._catalog.close()

    # -- what is there ------------------------------------------------------------------------

    def load(self) -> TableProgress | None:
        """Return how far the archive in the table has come; None if there is no table yet.

        Raises `PipelineError` unless the table is one that can be continued.
        """
        with _explained(self._name):
            try:
                table = self._catalog.load_table(self._name.name)
            except NoSuchTableError:
                return None
        progress = self._checked(table)
        self._table = table
        return progress

    def _checked(self, table: Table) -> TableProgress:
        """Return the progress in a table of an archive that records may be appended to."""
        name, text = self._name.name, table.properties.get(PROPERTY)
        if text is None:
            raise PipelineError(
                f"table {name} was not made by an archive of topics: name another table"
            )
        if table.location() != self._location:
            raise PipelineError(
                f"table {name} lies in {table.location().removeprefix(SCHEME)}, not in "
                f"{self.directory}: give its directory, or name another table"
            )
        if table.format_version != FORMAT:
            raise PipelineError(
                f"table {name} has Iceberg's format {table.format_version}, and an archive writes "
                f"{FORMAT}: archive into a new table in a new directory"
            )
        if missing := sorted(_columns(_SCHEMA) - _columns(table.schema())):
            raise PipelineError(
                f"table {name} has other columns than an archive, in the place of "
                f"{', '.join(one for _, one, *_ in missing)}: undo that, or archive into a new "
                "table in a new directory"
            )
        if table.spec().fields != _SPEC.fields:
            raise PipelineError(
                f"table {name} has other partitions than topic and day(timestamp): undo that, or "
                "archive into a new table"
            )
        progress = decode_progress(text, name)
        self._check_not_rolled_back(table, progress)
        return progress

    def _check_not_rolled_back(self, table: Table, progress: TableProgress) -> None:
        """Raise `PipelineError` if the table was taken back to before what the archive appended.

        A snapshot that expired is not there at all; its records still are, if what is current came
        after it, which its sequence number says.
        """
        number, current = progress.snapshot_id, table.current_snapshot()
        if number is None:
            return
        if table.snapshot_by_id(number) is None:
            hint = "archive into a new table in a new directory"
            is_back = current is None or (current.sequence_number or 0) < progress.sequence_number
        else:
            hint = "make that one current again, or archive into a new table in a new directory"
            history = ancestors_of(current, table.metadata)
            is_back = all(one.snapshot_id != number for one in history)
        if is_back:
            raise PipelineError(
                f"table {self._name.name} was rolled back to before snapshot {number}, with which "
                f"the archive ended: {hint}"
            )

    def create(self, progress: TableProgress) -> TableProgress:
        """Make the table, without records; return its progress, which may be another run's.

        Another run may have made the table meanwhile. Raises `PipelineError`.
        """
        namespace = self._name.name.rpartition(".")[0]
        with _explained(self._name):
            self._catalog.create_namespace_if_not_exists(namespace)
            table = self._catalog.create_table_if_not_exists(
                self._name.name,
                _SCHEMA,
                location=self._location,
                partition_spec=_SPEC,
                properties={**_PROPERTIES, PROPERTY: encode_progress(progress)},
            )
        found = self._checked(table)
        self._table = table
        return found

    def data_files(self) -> set[str]:
        """Return the paths of the data files of all snapshots, within their directory."""
        table = self._opened()
        with _explained(self._name):
            manifests = {
                manifest.manifest_path: manifest
                for snapshot in table.snapshots()
                for manifest in snapshot.manifests(table.io)
            }
            paths = {
                entry.data_file.file_path
                for manifest in manifests.values()
                for entry in manifest.fetch_manifest_entry(table.io)
            }
        return {path.removeprefix(f"{self._location}/{DATA}/") for path in paths}

    def _opened(self) -> Table:
        if self._table is None:
            raise RuntimeError("the table is used before it was loaded or made")
        return self._table

    # -- appending ----------------------------------------------------------------------------

    def append(self, progress: TableProgress, before: TableProgress) -> TableProgress:
        """Add the files of `progress` to the table, and progress itself, in one commit.

        Returns what the table has then. `before` is the progress from which it was counted:
        `PipelineError` if another run has changed it, and nothing is appended then.
        """
        for _ in range(COMMIT_ATTEMPTS_MAX):
            with _explained(self._name):
                try:
                    self._commit(progress)
                except CommitFailedException:
                    found = self.load()
                    if found is None:
                        raise PipelineError(
                            f"table {self._name.name} was dropped while records were appended"
                        ) from None
                    if found != before:
                        raise PipelineError(
                            f"another run archived into table {self._name.name} meanwhile; "
                            "nothing of this one was appended since. Run again"
                        ) from None
                    continue
            return self._checked(self._opened())
        raise PipelineError(
            f"table {self._name.name} was changed by others {COMMIT_ATTEMPTS_MAX} times while "
            "records were appended; run again when they have ended"
        )

    def _commit(self, progress: TableProgress) -> None:
        table = self._opened()
        # pyiceberg would repeat the commit on top of what another run has appended. The change to
        # the properties is in memory only: the catalog takes them from its own copy
        properties = {**table.metadata.properties, **_ONCE}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        summary = {ARCHIVE_ID: progress.archive_id}
        with table.transaction() as transaction:
            with transaction.update_snapshot(snapshot_properties=summary).merge_append() as append:
                for file in progress.files:
                    append.append_data_file(self._data_file(file, table.spec().spec_id))
            done = msgspec.structs.replace(
                progress,
                snapshot_id=append.snapshot_id,
                sequence_number=table.metadata.next_sequence_number(),
            )
            transaction.set_properties({PROPERTY: encode_progress(done)})

    def _data_file(self, file: TopicFile, spec_id: int) -> DataFile:
        """Return what the table is told of a file: by this, engines know which ones they need."""
        bounds = _bounds(file)
        no_times = file.rows if file.min_ms is None else 0
        days = None if file.min_ms is None else file.min_ms // DAY_MS
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._location}/{DATA}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(file.topic, days),
            record_count=file.rows,
            file_size_in_bytes=file.file_bytes,
            value_counts=dict.fromkeys(bounds, file.rows),
            null_value_counts={**dict.fromkeys(bounds, 0), TIMESTAMP_ID: no_times},
            lower_bounds={number: least for number, (least, _) in bounds.items()},
            upper_bounds={number: most for number, (_, most) in bounds.items()},
            sort_order_id=None,
            spec_id=spec_id,
            equality_ids=None,
            key_metadata=None,
        )


def _columns(schema: Schema) -> set[tuple[int, str, bool, str]]:
    """Return what must stay of columns and their parts; comments on them may change."""
    return {
        (
            *(number, schema.find_column_name(number) or "", one.required),
            str(one.field_type) if one.field_type.is_primitive else "",
        )
        for number, one in index_by_id(schema).items()
    }


def _bounds(file: TopicFile) -> dict[int, tuple[bytes, bytes]]:
    """Return the least and the greatest value of columns, by their ids."""
    found: dict[int, tuple[Any, Any, Any]] = {
        TOPIC_ID: (StringType(), file.topic, file.topic),
        PARTITION_ID: (IntegerType(), file.partition, file.partition),
        OFFSET_ID: (LongType(), file.first, file.last),
    }
    if file.min_ms is not None and file.max_ms is not None:
        found[TIMESTAMP_ID] = (TimestamptzType(), file.min_ms * 1_000, file.max_ms * 1_000)
    return {
        number: (to_bytes(kind, least), to_bytes(kind, most))
        for number, (kind, least, most) in found.items()
    }
