"""The columns of the data source `quorumlog-store`."""

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from quorumlog.model.errors import UnexpectedArgumentError

_COLUMNS: dict[str, tuple[DataType, pa.DataType]] = {
    "index": (LongType(), pa.int64()),
    "term": (LongType(), pa.int64()),
    "channel": (IntegerType(), pa.int32()),
    "body": (BinaryType(), pa.binary()),
    "body_crc": (LongType(), pa.int64()),
    "file": (StringType(), pa.string()),
    "pos": (LongType(), pa.int64()),
    "crc_ok": (BooleanType(), pa.bool_()),
    "magic": (IntegerType(), pa.int32()),
    "size": (IntegerType(), pa.int32()),
    "header_pos": (LongType(), pa.int64()),
    "chain_crc": (LongType(), pa.int64()),
}
PLAIN_COLUMNS = ("index", "term", "channel", "body", "body_crc", "file", "pos", "crc_ok")
HEADER_COLUMNS = ("magic", "size", "header_pos", "chain_crc")
INDEX_COLUMNS = frozenset(("index", "term", "size", "pos", "file"))
"""What index records tell."""
BODY_COLUMNS = frozenset(("body", "crc_ok"))
"""What only the bodies tell."""


def default_schema(*, include_headers: bool) -> StructType:
    """Return the schema of a load without `.schema(...)`."""
    names = PLAIN_COLUMNS + (HEADER_COLUMNS if include_headers else ())
    return StructType([StructField(name, _COLUMNS[name][0]) for name in names])


def wanted_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a user's schema names; any subset in any order is fine.

    Raises `UnexpectedArgumentError` for a column or type that does not exist.
    """
    if not schema.fields:
        raise UnexpectedArgumentError(f"the schema names no column; there are {_names()}")
    for field in schema.fields:
        if field.name not in _COLUMNS:
            raise UnexpectedArgumentError(
                f"column {field.name!r} does not exist; there are {_names()}"
            )
        expected = _COLUMNS[field.name][0]
        if field.dataType != expected:
            raise UnexpectedArgumentError(
                f"column {field.name} is {expected.simpleString()}, not "
                f"{field.dataType.simpleString()}"
            )
        if not field.nullable:
            raise UnexpectedArgumentError(
                f"column {field.name}: leave NOT NULL out, Spark's batches cannot promise it"
            )
    return tuple(field.name for field in schema.fields)


def _names() -> str:
    return ", ".join(_COLUMNS)


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow schema of batches with these columns, exactly as Spark wants it."""
    return pa.schema([pa.field(name, _COLUMNS[name][1]) for name in columns])
