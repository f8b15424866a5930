"""Configs of topics: what they may be, and which value counts."""

import pytest

from quorumlog.model.topic_configs import (
    CLUSTER_CONFIGS,
    TOPIC_CONFIGS,
    VALUE_LENGTH_MAX,
    cluster_default,
    effective,
    problem_of,
)


def problem(name, value):
    return problem_of(TOPIC_CONFIGS, name, value, of="topics")


def test_the_value_of_the_topic_counts_then_the_clusters_then_the_built_in_one():
    assert effective("retention.ms", {}, {}) == "604800000"
    assert effective("retention.ms", {}, {"log.retention.ms": "7"}) == "7"
    assert effective("retention.ms", {"retention.ms": "5"}, {"log.retention.ms": "7"}) == "5"
    assert effective("quorumlog.acks.one", {}, {}) == "persistence"
    assert cluster_default("num.partitions", {}) == "4"
    assert cluster_default("num.partitions", {"num.partitions": "9"}) == "9"


@pytest.mark.parametrize("definitions", [TOPIC_CONFIGS, CLUSTER_CONFIGS])
def test_every_default_is_a_value_that_is_taken(definitions):
    for name, definition in definitions.items():
        assert problem_of(definitions, name, definition.default, of="topics") == ""
        assert definition.documentation.endswith(".")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("retention.ms", "-2", "'-2' is not a whole number from -1 to 9223372036854775807"),
        ("retention.ms", "soon", "'soon' is not a whole number from -1 to"),
        ("retention.ms", "1_000", "'1_000' is not a whole number"),
        ("retention.ms", " 5 ", "' 5 ' is not a whole number"),
        ("retention.ms", "١٢", "is not a whole number"),
        ("retention.ms", "", "retention.ms (milliseconds): '' is not a whole number"),
        ("retention.ms", "9" * 1_000, "is not a whole number from -1 to"),
        ("max.message.bytes", "4194257", "is not a whole number from 0 to 4194256"),
        ("cleanup.policy", "delete,forget", "'forget' in 'delete,forget' is not one of delete,"),
        ("cleanup.policy", "delete,", "'' in 'delete,' is not one of delete, compact"),
        ("message.timestamp.type", "Never", "is not one of CreateTime, LogAppendTime"),
        ("preallocate", "yes", "'yes' is not one of true, false"),
        ("min.cleanable.dirty.ratio", "2", "'2' is not a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "'nan' is not a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "much", "'much' is not a number from 0 to 1"),
        ("unclean.leader.election.enable", "true", "'true' is not false, the only value"),
        ("no.such.config", "1", "topics have no config 'no.such.config'"),
        ("retention.ms", "1" * (VALUE_LENGTH_MAX + 1), "more than 1024 characters"),
    ],
)
def test_what_a_config_may_not_be_is_said(name, value, words):
    assert words in problem(name, value)


def test_configs_that_change_nothing_are_taken_and_say_so():
    assert problem("cleanup.policy", "compact") == ""
    assert problem("cleanup.policy", "compact, delete") == ""
    assert problem("cleanup.policy", "") == ""  # nothing is removed (KIP-1161)
    assert "nothing is removed" in TOPIC_CONFIGS["cleanup.policy"].documentation
    ignored = [one for one in TOPIC_CONFIGS.values() if not one.has_effect]
    assert {"segment.bytes", "delete.retention.ms"} < {one.name for one in ignored}
    assert all(one.documentation.startswith("Accepted, without effect") for one in ignored)
