"""The columns of topics: those of Spark's Kafka source."""

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quorumlog.spark.source.schema import Columns

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
ARROW_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
COLUMNS: Final[Columns] = {
    "key": (BinaryType(), pa.binary()),
    "value": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", "UTC")),
    "timestampType": (IntegerType(), pa.int32()),
    "headers": (ArrayType(_HEADER), pa.list_(ARROW_HEADER)),
}


def topic_schema(*, include_headers: bool) -> StructType:
    """Return the schema of a load without `.schema(...)`."""
    names = [name for name in COLUMNS if include_headers or name != "headers"]
    return StructType([StructField(name, COLUMNS[name][0]) for name in names])
