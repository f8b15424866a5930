"""Options for topics: those of Spark's Kafka source."""

from pathlib import Path

import pytest

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.spark.topics.options import (
    KNOWN,
    SYNONYMS,
    Positions,
    are_of_topics,
    parse_topic_options,
)
from quorumlog.spark.topics.part import EARLIEST, LATEST, Part

ROOT = Path(__file__).parents[2]
SERVERS = {"kafka.bootstrap.servers": "h:1,i:2"}


def parsed(**options):
    return parse_topic_options({**SERVERS, "subscribe": "t", **options})


def test_b13_topics_are_named_as_for_sparks_kafka_source():
    assert parsed(subscribe="b, a,b").topics == ("a", "b")
    options = parse_topic_options({**SERVERS, "subscribePattern": "f.*"})
    assert (options.topics, options.pattern) == ((), "f.*")
    options = parse_topic_options({**SERVERS, "assign": '{"b": [1], "a": [2, 0]}'})
    assert options.assigned == (Part("a", 0), Part("a", 2), Part("b", 1))
    assert options.topics == ("a", "b")


@pytest.mark.parametrize("name", ["kafka.bootstrap.servers", "bootstrap.servers", "servers"])
def test_b13_brokers_have_several_names(name):
    options = parse_topic_options({name: " h:1 ,i:2", "subscribe": "t"})
    assert options.servers == "h:1,i:2"


@pytest.mark.parametrize(
    ("options", "starting"),
    [
        ({}, None),
        ({"startingOffsets": "earliest"}, Positions("offset", EARLIEST, option="startingOffsets")),
        ({"startingOffsets": "LATEST"}, Positions("offset", LATEST, option="startingOffsets")),
        (
            {"startingOffsets": '{"t": {"0": 23, "1": -2}}'},
            Positions(
                "offset", by_part={Part("t", 0): 23, Part("t", 1): -2}, option="startingOffsets"
            ),
        ),
        (
            {"startingTimestamp": "5", "startingOffsetsByTimestamp": "{}", "startingOffsets": "x"},
            Positions("time", 5, option="startingTimestamp"),
        ),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 7}}', "startingOffsets": "earliest"},
            Positions("time", by_part={Part("t", 0): 7}, option="startingOffsetsByTimestamp"),
        ),
    ],
)
def test_b13_where_to_start_is_said_as_for_sparks_kafka_source(options, starting):
    assert parsed(**options).starting == starting


def test_b13_options_of_spark_jobs_that_nothing_here_needs_are_taken():
    parsed(**{"groupIdPrefix": "x", "kafka.group.id": "g", "kafka.max.poll.records": "5"})
    options = parsed(**{"kafka.isolation.level": "read_uncommitted", "kafka.client.id": "me"})
    assert (options.reads_committed, options.client_id) == (False, "me")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"assign": "{}"}, "subscribe and assign: give one of them only"),
        ({"subscribe": "a,,b"}, "option subscribe='a,,b' is wrong"),
        ({"startingOffsets": "soon"}, "option startingOffsets='soon' is wrong; it is earliest"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "startingOffsets"),
        ({"startingOffsets": '{"t": {"0": 1.5}}'}, "startingOffsets"),
        ({"startingOffsets": '{"t": [5]}'}, "startingOffsets"),
        ({"startingOffsets": '{"t": {"x": 5}}'}, "startingOffsets"),
        ({"startingOffsets": "[]"}, "startingOffsets"),
        ({"startingOffsets": '{"t": {"00": 5}}'}, "startingOffsets"),
        ({"startingOffsets": '{"t": {"\\u0660": 5}}'}, "startingOffsets"),
        ({"startingOffsets": '{"t": {"0": 5, "0": 6}}'}, "names '0' more than once"),
        ({"startingOffsets": '{"t": {"0": 5}, "t": {"1": 5}}'}, "names 't' more than once"),
        ({"startingTimestamp": str(1 << 63)}, "startingTimestamp='9223372036854775808' is wrong"),
        ({"endingTimestamp": "9" * 5_000}, "is wrong; it is of a batch"),
        ({"maxOffsetsPerTrigger": "9" * 5_000}, "is wrong"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "endingOffsets"),
        ({"startingTimestamp": "-1"}, "startingTimestamp='-1' is wrong; it is milliseconds"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is above"),
        ({"kafka.security.protocol": "SSL"}, "PLAINTEXT; for TLS give context or ca instead"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.server": "h:1"}, "did you mean 'kafka.bootstrap.servers'"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_may_be(options, text):
    with pytest.raises(UnexpectedArgumentError, match="option") as refused:
        parsed(**options)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "one of the options subscribe, subscribePattern, assign says which topics are read"),
        ({"subscribePattern": "("}, "subscribePattern='(' is no regular expression"),
        ({"assign": '{"t": [-1]}'}, "option assign"),
        ({"assign": '{"t": []}'}, "option assign"),
        ({"assign": "t"}, "option assign"),
        ({"assign": '{"t": [0], "t": [1]}'}, "option assign names 't' more than once"),
    ],
)
def test_a_wrong_subscription_is_named(options, text):
    with pytest.raises(UnexpectedArgumentError) as refused:
        parse_topic_options({**SERVERS, **options})
    assert text in str(refused.value)


def test_the_servers_are_required_and_addresses():
    with pytest.raises(UnexpectedArgumentError, match=r"'kafka.bootstrap.servers' is missing"):
        parse_topic_options({"subscribe": "t"})
    with pytest.raises(UnexpectedArgumentError, match="is wrong; it is host:port"):
        parsed(**{"kafka.bootstrap.servers": "h"})


def test_options_of_a_stream_and_of_a_batch_are_told_apart():
    with pytest.raises(UnexpectedArgumentError, match=r"'maxOffsetsPerTrigger' is .*readStream"):
        parsed(maxOffsetsPerTrigger="5").for_batch()
    with pytest.raises(UnexpectedArgumentError, match=r"'endingTimestamp' is for spark.read only"):
        parsed(endingTimestamp="5").for_stream()


def test_every_option_of_topics_is_documented():
    page = (ROOT / "docs" / "reference" / "spark.md").read_text()
    assert [name for name in (*KNOWN, *SYNONYMS) if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("options", "are_so"),
    [
        ({"servers": "h:1", "group": "g"}, False),
        ({"SUBSCRIBE": "t"}, True),
        ({"kafka.bootstrap.servers": "h:1"}, True),
        ({"servers": "h:1", "assign": "{}"}, True),
    ],
)
def test_options_say_whether_topics_are_read(options, are_so):
    assert are_of_topics(options) is are_so
