"""The columns of the data source `quorumlog-store`."""

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from quorumlog.spark.source import schema as schema_of_log

_COLUMNS: schema_of_log.Columns = {
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
"""Columns that index records hold."""
BODY_COLUMNS = frozenset(("body", "crc_ok"))
"""Columns that need the bodies."""


def default_schema(*, include_headers: bool) -> StructType:
    """Return the schema of a load without `.schema(...)`."""
    names = PLAIN_COLUMNS + (HEADER_COLUMNS if include_headers else ())
    return StructType([StructField(name, _COLUMNS[name][0]) for name in names])


def wanted_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a user's schema names (see `schema.wanted_columns`)."""
    return schema_of_log.wanted_columns(schema, _COLUMNS)


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow schema of batches with these columns, exactly as Spark wants it."""
    return schema_of_log.arrow_schema(columns, _COLUMNS)
