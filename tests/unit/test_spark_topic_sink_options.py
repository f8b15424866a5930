"""What the sink for topics refuses before a job begins, and what it tells librdkafka."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.spark.data_source import QuorumlogSource
from quorumlog.spark.sink.topics.options import (
    check_topic_columns,
    parse_topic_options,
    producer_settings,
)
from quorumlog.spark.sink.topics.writer import TopicStreamWriter, TopicWriter

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "long": LongType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
    "texts": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", StringType())])
    ),
}


def schema(text):
    fields = [column.split() for column in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in fields])


def options(**given):
    return parse_topic_options({**SERVERS, "topic": "t", **given})


def test_defaults_are_exactly_once_and_javas_partitions():
    found = options()
    assert (found.is_transactional, found.identity, found.topic) == (True, None, "t")
    assert (found.transaction_timeout_ms, found.delivery_timeout_ms) == (900_000, 120_000)
    settings = producer_settings(found, "x")
    assert settings["transactional.id"] == "x"
    assert settings["partitioner"] == "murmur2_random"
    assert settings["enable.idempotence"] == "true"
    assert settings["acks"] == "all"


@pytest.mark.parametrize("name", ["bootstrap.servers", "servers", "KAFKA.bootstrap.servers"])
def test_servers_have_other_names(name):
    assert parse_topic_options({name: "a:1, b:2", "topic": "t"}).servers == "a:1,b:2"


def test_settings_of_producers_are_handed_on():
    found = options(
        **{
            "kafka.compression.type": "zstd",
            "kafka.linger.ms": "7",
            "kafka.buffer.memory": "32m",
            "kafka.max.request.size": "100000",
            "kafka.delivery.timeout.ms": "10s",
        }
    )
    settings = producer_settings(found, None)
    assert settings["compression.type"] == "zstd"
    assert settings["linger.ms"] == "7"
    assert settings["queue.buffering.max.kbytes"] == 32 * 1024
    assert settings["message.max.bytes"] == "100000"
    assert settings["message.timeout.ms"] == 10_000
    assert "transactional.id" not in settings


def test_rows_without_acknowledgement_are_for_at_least_once():
    found = options(deliveryGuarantee="at-least-once", **{"kafka.acks": "1"})
    assert producer_settings(found, None)["enable.idempotence"] == "false"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kafka.liger.ms": "5"}, "did you mean 'kafka.linger.ms'"),
        ({"deliveryGarantee": "x"}, "did you mean 'deliveryGuarantee'"),
        ({"kafka.transactional.id": "x"}, "use transactionalId and batchId"),
        ({"kafka.enable.idempotence": "false"}, "is always stored once"),
        ({"kafka.security.protocol": "SSL"}, "there are kafka.acks"),
        ({"kafka.acks": "1"}, "must be all"),
        ({"kafka.linger.ms": "soon"}, "an option kafka.* is wrong"),
        ({"kafka.compression.type": "brotli"}, "brotli"),
        ({"kafka.buffer.memory": "much"}, "bytes of records"),
        ({"group": "g"}, "rows go to a group, or to topics"),
        ({"channel": "1"}, "use a column partition"),
        ({"topic": "a b"}, "a name has letters and digits"),
        ({"batchId": "1"}, "give both or neither"),
        ({"transactionalId": "x", "batchId": "-1"}, "batchId='-1' is wrong"),
        ({"transactionalId": "x", "batchId": str(1 << 63)}, "batchId='9223372036854775808' is"),
        ({"transactionTimeoutMs": "1"}, "must be more than kafka.linger.ms (50 ms)"),
        ({"deliveryTimeoutMs": "9", "kafka.linger.ms": "9"}, "more than kafka.linger.ms (9 ms)"),
        (
            {
                "kafka.linger.ms": "999999999",
                "deliveryTimeoutMs": "20d",
                "deliveryGuarantee": "at-least-once",
            },
            '"linger.ms" value 1e+09 is outside',
        ),
        ({"transactionalId": "x" * 800, "batchId": "1"}, "at most 800"),
        ({"servers": "a:1"}, "is given twice"),
        ({"kafka.bootstrap.servers": "nowhere"}, "nowhere' is wrong"),
        (
            {"transactionalId": "x", "batchId": "1", "deliveryGuarantee": "at-least-once"},
            "for deliveryGuarantee=exactly-once",
        ),
    ],
)
def test_wrong_options_are_named_in_one_line(given, says):
    with pytest.raises(UnexpectedArgumentError) as raised:
        options(**given)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_batches_with_a_name_have_a_sink_for_each_topic():
    named = {"transactionalId": "app", "batchId": "7"}
    assert options(**named).identity == ("app/t", 7)
    assert parse_topic_options({**SERVERS, **named}).identity == ("app", 7)
    with pytest.raises(UnexpectedArgumentError, match="a stream has a name of its own"):
        options(**named).for_stream()


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("value string, offset long", "column 'offset' cannot be written to topics"),
        ("value int", "column value must be binary or string, not int"),
        ("value string, partition long", "column partition must be an int"),
        ("value string, headers string", "must be array<struct<key:string,value:binary>>"),
        ("value string, headers texts", "value:binary"),
        ("key string", "there is no column value"),
    ],
)
def test_wrong_columns_are_named(columns, says):
    with pytest.raises(UnexpectedArgumentError, match=says):
        check_topic_columns(schema(columns), options())


def test_a_topic_is_named_by_an_option_or_a_column():
    nameless = parse_topic_options(SERVERS)
    check_topic_columns(schema("key string, value binary, headers headers, topic string"), nameless)
    with pytest.raises(UnexpectedArgumentError, match="option 'topic' is missing"):
        check_topic_columns(schema("value binary"), nameless)


def test_rows_go_to_topics_if_options_or_columns_say_so():
    row, named = (
        schema("value string"),
        schema("value string, topic string"),
    )
    for given, columns in (
        ({**SERVERS, "topic": "t"}, row),
        ({"servers": "a:1", "topic": "t"}, row),
        ({"servers": "a:1"}, named),
    ):
        assert isinstance(QuorumlogSource(given).writer(columns, False), TopicWriter)
        assert isinstance(QuorumlogSource(given).streamWriter(columns, False), TopicStreamWriter)
    with pytest.raises(UnexpectedArgumentError, match="cannot be overwritten"):
        QuorumlogSource({**SERVERS, "topic": "t"}).writer(row, True)
