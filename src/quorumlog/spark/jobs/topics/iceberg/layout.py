"""The data files of the table: Kafka's columns with the ids by which Iceberg knows them."""

from typing import Final

import pyarrow as pa

from quorumlog.spark.jobs.topics.files import TOPIC_LAYOUT, TopicLayout
from quorumlog.spark.topics.schema import COLUMNS

TOPIC_ID: Final = 3
PARTITION_ID: Final = 4
OFFSET_ID: Final = 5
TIMESTAMP_ID: Final = 6


def _field(number: int, name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable, {"PARQUET:field_id": str(number)})


_HEADER: Final = pa.struct(
    [_field(10, "key", pa.string()), _field(11, "value", pa.binary(), nullable=True)]
)
ICEBERG_LAYOUT: Final = TopicLayout(
    schema=pa.schema(
        [
            _field(1, "key", pa.binary(), nullable=True),
            _field(2, "value", pa.binary(), nullable=True),
            _field(TOPIC_ID, "topic", pa.string()),
            _field(PARTITION_ID, "partition", pa.int32()),
            _field(OFFSET_ID, "offset", pa.int64()),
            _field(TIMESTAMP_ID, "timestamp", COLUMNS["timestamp"][1], nullable=True),
            _field(7, "timestampType", pa.int32()),
            _field(8, "headers", pa.list_(_field(9, "element", _HEADER)), nullable=True),
        ]
    ),
    bodies=TOPIC_LAYOUT.bodies,
    number=TOPIC_LAYOUT.number,
    repeated=(*TOPIC_LAYOUT.repeated, "topic"),
    searched=(*TOPIC_LAYOUT.searched, "topic"),
    calendar_only=True,
)
"""The order and the ids are those that Iceberg gives to a new table: columns first, then parts of
columns. All records of a file are of one topic and day (UTC), as the table's partitions are."""
