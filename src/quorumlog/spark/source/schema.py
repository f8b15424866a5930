"""The columns of the data source."""

from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from quorumlog.model.errors import UnexpectedArgumentError

Columns: TypeAlias = dict[str, tuple[DataType, pa.DataType]]
"""Name → type in Spark and in Arrow."""

_COLUMNS: Columns = {
    "group": (StringType(), pa.string()),
    "index": (LongType(), pa.int64()),
    "term": (LongType(), pa.int64()),
    "channel": (IntegerType(), pa.int32()),
    "body": (BinaryType(), pa.binary()),
    "body_crc": (LongType(), pa.int64()),
    "magic": (IntegerType(), pa.int32()),
    "size": (IntegerType(), pa.int32()),
    "pos": (LongType(), pa.int64()),
    "chain_crc": (LongType(), pa.int64()),
}
PLAIN_COLUMNS = ("index", "term", "channel", "body", "body_crc")
HEADER_COLUMNS = ("magic", "size", "pos", "chain_crc")


def default_schema(*, include_headers: bool, include_group: bool = False) -> StructType:
    """Return the schema of a load without `.schema(...)`."""
    names = PLAIN_COLUMNS + (HEADER_COLUMNS if include_headers else ())
    if include_group:
        names = ("group", *names)
    return StructType([StructField(name, _COLUMNS[name][0]) for name in names])


def wanted_columns(schema: StructType, known: Columns = _COLUMNS) -> tuple[str, ...]:
    """Return the columns that a user's schema names; any subset in any order is fine.

    Raises `UnexpectedArgumentError` for a column or type that is not among the known ones.
    """
    names = ", ".join(known)
    if not schema.fields:
        raise UnexpectedArgumentError(f"the schema names no column; there are {names}")
    for field in schema.fields:
        if field.name not in known:
            raise UnexpectedArgumentError(
                f"column {field.name!r} does not exist; there are {names}"
            )
        expected = known[field.name][0]
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


def arrow_schema(columns: tuple[str, ...], known: Columns = _COLUMNS) -> pa.Schema:
    """Return the Arrow schema of batches with these columns, exactly as Spark wants it."""
    return pa.schema([pa.field(name, known[name][1]) for name in columns])
