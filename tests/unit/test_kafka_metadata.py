"""Answers to Metadata that are written by hand are what kafka-python reads."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_peer import OF_TYPE, SPOKEN_VERSIONS, TEXTS, answered, cut, sent
from quorumlog.auth.acls import ResourceType
from quorumlog.kafka.context import EVERYTHING
from quorumlog.kafka.metadata import (
    MetadataBroker,
    Place,
    metadata_answer,
    place_bytes,
    topic_bytes,
)
from quorumlog.kafka.requests import ApiKey
from quorumlog.kafka.rights import bits_of

ALL_BITS = 0b1_1111_1010_0000
"""All operations on a cluster."""
VERSIONS = [version for key, version in SPOKEN_VERSIONS if key == ApiKey.METADATA]
IDS = st.lists(OF_TYPE["int32"], max_size=4)
PLACES = st.builds(Place, OF_TYPE["int32"], OF_TYPE["int32"], IDS, IDS, IDS)
PARTITIONS = st.lists(st.tuples(OF_TYPE["int16"], OF_TYPE["int32"], PLACES), max_size=4)
TOPICS = st.lists(
    st.tuples(TEXTS, st.uuids(), OF_TYPE["int16"], PARTITIONS, OF_TYPE["bitfield"]), max_size=3
)
BROKERS = st.lists(
    st.builds(MetadataBroker, OF_TYPE["int32"], TEXTS, OF_TYPE["int32"], st.none() | TEXTS),
    max_size=3,
)


def bits(operations):
    """Return the number that has these bits."""
    return sum(1 << bit for bit in operations)


def header_of(version):
    """Return the header of a Metadata request that was read."""
    return cut(sent(ApiKey.METADATA, version, {"topics": []}))[1]


@pytest.mark.parametrize("version", VERSIONS)
@given(BROKERS, st.none() | TEXTS, OF_TYPE["int32"], TOPICS)
def test_an_answer_is_read_as_it_was_written(version, brokers, cluster_id, controller_id, topics):
    header = header_of(version)
    raw = metadata_answer(
        header,
        brokers=brokers,
        cluster_id=cluster_id,
        controller_id=controller_id,
        topics=[
            topic_bytes(
                version,
                name,
                topic_id.bytes,
                code,
                [(error, number, place_bytes(version, at)) for error, number, at in partitions],
                bits(operations),
            )
            for name, topic_id, code, partitions, operations in topics
        ],
        operations=ALL_BITS,
    )
    found = answered(header, raw)
    assert [(one.node_id, one.host, one.port) for one in found.brokers] == [
        (one.broker_id, one.host, one.port) for one in brokers
    ]
    assert found.cluster_id == (cluster_id if version >= 2 else None)
    assert found.controller_id == (controller_id if version >= 1 else -1)
    if 8 <= version <= 10:
        assert bits(found.authorized_operations) == ALL_BITS
    for one, (name, topic_id, code, partitions, operations) in zip(
        found.topics, topics, strict=True
    ):
        assert (one.error_code, one.name, one.is_internal) == (code, name, False)
        if version >= 10:
            assert (one.topic_id or UUID(int=0)) == topic_id
        if version >= 8:
            assert one.authorized_operations == operations
        assert [
            (
                each.error_code,
                each.partition_index,
                Place(
                    each.leader_id,
                    each.leader_epoch,
                    each.replica_nodes,
                    each.isr_nodes,
                    each.offline_replicas,
                ),
            )
            for each in one.partitions
        ] == [
            (
                error,
                number,
                Place(
                    at.leader_id,
                    at.leader_epoch if version >= 7 else -1,
                    at.replicas,
                    at.in_sync,
                    at.offline if version >= 5 else [],
                ),
            )
            for error, number, at in partitions
        ]


def test_a_topic_asked_for_by_id_may_have_no_name():
    id_ = bytes(range(16))
    for version, name in ((12, None), (11, "")):
        header = header_of(version)
        topic = topic_bytes(version, None, id_, 100)
        raw = metadata_answer(header, brokers=[], cluster_id="c", controller_id=1, topics=[topic])
        (one,) = answered(header, raw).topics
        assert (one.name, one.topic_id, one.error_code) == (name, UUID(bytes=id_), 100)


def test_allowed_operations_are_those_that_kafka_numbers():
    assert set(EVERYTHING.operations(ResourceType.TOPIC, "t")) == {3, 4, 5, 6, 7, 8, 10, 11}
    assert set(EVERYTHING.operations(ResourceType.CLUSTER, "c")) == {5, 7, 8, 9, 10, 11, 12}
    assert bits_of(EVERYTHING.operations(ResourceType.CLUSTER, "c")) == ALL_BITS
