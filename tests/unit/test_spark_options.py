"""Options and columns of the data source: what is understood, what is refused and how."""

from pathlib import Path

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.spark.source.options import KNOWN, parse_options
from quorumlog.spark.source.schema import (
    HEADER_COLUMNS,
    PLAIN_COLUMNS,
    arrow_schema,
    default_schema,
    wanted_columns,
)
from quorumlog.spark.source.verify import Verify

ROOT = Path(__file__).parents[2]
REQUIRED = {"servers": "h:1", "group": "g"}


def test_defaults():
    options = parse_options(REQUIRED)
    assert (options.starting, options.ending) == (None, "latest")
    assert (options.groups, options.group_pattern) == (("g",), None)
    assert options.verify is Verify.SCREEN
    assert options.leader_only
    assert options.fail_on_data_loss
    assert options.isolation == "read_committed"
    assert options.max_trigger_delay_ms == 15 * 60 * 1000
    assert options.max_entries_per_trigger is options.max_bytes_per_trigger is None
    assert not options.include_headers
    assert not options.has_several_groups


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("startingIndex", "17", "starting", 17),
        ("startingOffsets", "latest", "starting", "latest"),
        ("startingOffsets", " Earliest ", "starting", "earliest"),
        ("STARTINGOFFSETS", '{"g": 5}', "starting", {"g": 5}),
        ("startingOffsets", '{"g": -2}', "starting", {"g": "earliest"}),
        ("endingOffsets", '{"g": -1}', "ending", {"g": "latest"}),
        ("endingIndex", "9", "ending", 9),
        ("maxEntriesPerTrigger", "100", "max_entries_per_trigger", 100),
        ("maxOffsetsPerTrigger", "100", "max_entries_per_trigger", 100),
        ("minOffsetsPerTrigger", "7", "min_entries_per_trigger", 7),
        ("maxBytesPerTrigger", "64m", "max_bytes_per_trigger", 64 << 20),
        ("maxBytesPerTrigger", "1 GiB", "max_bytes_per_trigger", 1 << 30),
        ("maxBytesPerPartition", "1000", "max_bytes_per_partition", 1000),
        ("maxTriggerDelay", "10s", "max_trigger_delay_ms", 10_000),
        ("maxTriggerDelay", "2 min", "max_trigger_delay_ms", 120_000),
        ("maxTriggerDelay", "250", "max_trigger_delay_ms", 250),
        ("minPartitions", "8", "min_partitions", 8),
        ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
        ("includeHeaders", "TRUE", "include_headers", True),
        ("channel", "7", "channel", 7),
        ("verifyCrc", "none", "verify", Verify.NONE),
        ("verifyCrc", "All", "verify", Verify.ALL),
        ("readFrom", "any", "leader_only", False),
        ("isolationLevel", "read_uncommitted", "isolation", "read_uncommitted"),
        ("fetchTimeoutMs", "5000", "fetch_timeout_ms", 5_000),
    ],
)
def test_options_are_understood(name, value, field, expected):
    assert getattr(parse_options({**REQUIRED, name: value}), field) == expected


def test_several_groups_and_patterns():
    several = parse_options({"servers": "h:1, i:2", "group": "b, a,b"})
    assert (several.groups, several.servers) == (("a", "b"), "h:1,i:2")
    pattern = parse_options({"servers": "h:1", "groupPattern": "orders-.*"})
    assert (pattern.groups, pattern.group_pattern) == ((), "orders-.*")
    assert several.has_several_groups
    assert pattern.has_several_groups


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "g"}, "'servers' is missing"),
        ({"servers": "h:1"}, "'group' is missing"),
        ({"servers": "h", "group": "g"}, "servers='h' is wrong"),
        ({"servers": ",", "group": "g"}, "servers=',' is wrong"),
        ({"servers": "h:1", "group": "a,,b"}, "option 'group': .*is not usable"),
        ({**REQUIRED, "groupPattern": "x"}, "give one of them only"),
        ({"servers": "h:1", "groupPattern": "("}, "is no regular expression"),
        ({**REQUIRED, "topic": "x"}, "'topic' is not known; there are servers, group"),
        ({**REQUIRED, "minPartitions": "0"}, "minPartitions='0' is wrong"),
        ({**REQUIRED, "minPartitions": "many"}, "minPartitions='many' is wrong"),
        ({**REQUIRED, "minPartitions": "5m"}, "minPartitions='5m' is wrong"),
        ({**REQUIRED, "maxBytesPerTrigger": "64 meters"}, "maxBytesPerTrigger='64 meters'"),
        ({**REQUIRED, "maxTriggerDelay": "soon"}, "maxTriggerDelay='soon' is wrong"),
        ({**REQUIRED, "startingIndex": "-3"}, "startingIndex='-3' is wrong"),
        ({**REQUIRED, "startingIndex": "{"}, "is wrong"),
        ({**REQUIRED, "startingIndex": '{"g": "1"}'}, "is wrong"),
        ({**REQUIRED, "startingIndex": '{"g": true}'}, "is wrong"),
        ({**REQUIRED, "startingIndex": '{"g": -3}'}, "is wrong"),
        ({**REQUIRED, "startingIndex": '{"g": 9223372036854775808}'}, "is wrong"),
        ({**REQUIRED, "startingIndex": "9223372036854775808"}, "is wrong"),
        ({**REQUIRED, "startingIndex": '{"g": 1, "g": 2}'}, "names 'g' more than once"),
        ({**REQUIRED, "startingIndex": '{"other": 1}'}, "startingIndex says nothing of group g"),
        ({**REQUIRED, "startingIndex": '{"g": 1, "h": 1}'}, "names h, which is not read"),
        ({"servers": "h:1", "group": "a,b", "startingIndex": "5"}, '"a": 5, "b": 5'),
        ({"servers": "h:1", "groupPattern": ".", "startingIndex": "5"}, "for a single group"),
        ({**REQUIRED, "endingIndex": "earliest"}, "endingIndex='earliest' is wrong"),
        ({**REQUIRED, "endingIndex": '{"g": -2}'}, "is wrong"),
        ({**REQUIRED, "startingIndex": "1", "startingOffsets": "2"}, "is given twice"),
        ({**REQUIRED, "channel": "-1"}, "channel=-1: a channel is between 0 and 4294967294"),
        ({**REQUIRED, "channel": "4294967295"}, "a channel is between 0 and"),
        ({**REQUIRED, "verifyCrc": "some"}, "verifyCrc='some' is wrong"),
        ({**REQUIRED, "failOnDataLoss": "maybe"}, "failOnDataLoss='maybe' is wrong"),
        (
            {**REQUIRED, "minEntriesPerTrigger": "9", "maxEntriesPerTrigger": "8"},
            "minEntriesPerTrigger=9 is above maxEntriesPerTrigger=8",
        ),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(UnexpectedArgumentError, match=message):
        parse_options(options)


def test_options_of_streams_and_batches_are_distinguished():
    for name in ("maxEntriesPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"):
        options = parse_options({**REQUIRED, name: "5"})
        assert options.for_stream() is options
        with pytest.raises(UnexpectedArgumentError, match=r"PerTrigger' is for spark.readStream"):
            options.for_batch()
    options = parse_options({**REQUIRED, "endingOffsets": "latest"})
    assert options.for_batch() is options
    with pytest.raises(UnexpectedArgumentError, match=r"'endingIndex' is for spark.read only"):
        options.for_stream()


def test_what_spark_adds_is_ignored():
    assert parse_options({**REQUIRED, "path": "/warehouse/t"}).groups == ("g",)


def test_every_option_is_documented():
    page = (ROOT / "docs" / "reference" / "spark.md").read_text()
    assert [name for name in KNOWN if f"`{name}`" not in page] == []


# -- columns --------------------------------------------------------------------------------------


def schema_of(*fields):
    return StructType([StructField(*field) for field in fields])


def test_wrong_columns_are_named():
    with pytest.raises(UnexpectedArgumentError, match="column 'value' does not exist"):
        wanted_columns(schema_of(("value", IntegerType())))
    with pytest.raises(UnexpectedArgumentError, match="column index is bigint, not int"):
        wanted_columns(schema_of(("index", IntegerType())))
    with pytest.raises(UnexpectedArgumentError, match="column index: leave NOT NULL out"):
        wanted_columns(schema_of(("index", LongType(), False)))
    with pytest.raises(UnexpectedArgumentError, match="names no column"):
        wanted_columns(schema_of())


def test_columns_are_those_named_in_their_order():
    assert wanted_columns(schema_of(("term", LongType()), ("group", StringType()))) == (
        "term",
        "group",
    )


def test_headers_and_group_are_columns_on_request():
    assert default_schema(include_headers=False).names == list(PLAIN_COLUMNS)
    assert default_schema(include_headers=True).names == [*PLAIN_COLUMNS, *HEADER_COLUMNS]
    several = default_schema(include_headers=False, include_group=True)
    assert several.names == ["group", *PLAIN_COLUMNS]


def test_arrow_types_are_those_that_spark_expects():
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  (slow)

    spark = default_schema(include_headers=True, include_group=True)
    assert arrow_schema(tuple(spark.names)).equals(to_arrow_schema(spark, timezone="UTC"))
