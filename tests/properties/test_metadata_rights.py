"""Metadata tells of exactly the topics that a naive reading of the ACLs lets somebody describe."""

import asyncio
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_peer import answered
from quorumlog.kafka.context import RequestContext
from quorumlog.kafka.encoded_topics import EncodedTopics
from quorumlog.kafka.handlers import metadata
from quorumlog.kafka.requests import ApiKey, RequestHeader
from quorumlog.kafka.rights import Rights
from rights import RightsOfTest

HEADER = RequestHeader(ApiKey.METADATA, 12, 7, "c", 1, is_flexible=True)
NAMES = ["a", "ab", "abc", "b", "ba", "c"]
WORDS = ["read", "write", "describe", "alter", "create", "describe_configs", "all"]
IMPLY_DESCRIBE = {"read", "write", "delete", "alter", "describe", "all"}
PATTERNS = [*NAMES, "a*", "ab*", "b*", "*"]
ACLS = st.lists(
    st.tuples(
        st.sampled_from(["User:alice", "User:*", "User:bob"]),
        st.booleans(),
        st.sampled_from(WORDS),
        st.sampled_from(PATTERNS),
    ),
    max_size=6,
)


def is_about(pattern, name):
    if pattern == "*":
        return True
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == name


def may_describe(acls, name):
    own = [
        (denies, word)
        for who, denies, word, pattern in acls
        if who in ("User:alice", "User:*") and is_about(pattern, name)
    ]
    if any(denies and word in ("describe", "all") for denies, word in own):
        return False
    return any(not denies and word in IMPLY_DESCRIBE for denies, word in own)


class Broker(SimpleNamespace):
    async def wait_elected(self):
        pass


def topic_id(name):
    return name.encode().rjust(16, b"\1")


@pytest.fixture(autouse=True, scope="module")
def _no_pause():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "NEWS_S", 0)
        yield


def ask(rights, topics):
    known = {
        name: SimpleNamespace(name=name, topic_id=topic_id(name), partitions=(), configs={})
        for name in NAMES[:-1]
    }
    broker = Broker(
        topics=known,
        topics_by_id={one.topic_id: one for one in known.values()},
        brokers={},
        version=1,
        cluster_id="c",
        controller_id=0,
    )
    lines = SimpleNamespace(warn=lambda *args, **fields: None)
    services = SimpleNamespace(broker=broker, encoded_topics=EncodedTopics(broker), lines=lines)
    permit = rights.permit("User:alice")
    context = RequestContext(services, HEADER, "h:1", None, rights=Rights(permit))
    request = SimpleNamespace(
        topics=topics,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )
    return answered(HEADER, asyncio.run(metadata.handle_metadata(context, request))).topics


@given(ACLS)
@settings(max_examples=100)
def test_topics_are_told_as_a_naive_reading_of_the_acls_says(acls):
    rights = RightsOfTest()
    for who, denies, word, pattern in acls:
        rights.give(who, f"{'deny ' if denies else ''}{word} topic {pattern}")
    seen = [name for name in NAMES if may_describe(acls, name)]
    there = NAMES[:-1]
    assert [one.name for one in ask(rights, None)] == [name for name in seen if name in there]
    named = ask(rights, [SimpleNamespace(name=name, topic_id=None) for name in NAMES])
    expected = {name: 29 if name not in seen else 0 if name in there else 3 for name in NAMES}
    assert {one.name: one.error_code for one in named} == expected
    by_id = ask(
        rights, [SimpleNamespace(name=None, topic_id=UUID(bytes=topic_id(name))) for name in NAMES]
    )
    assert [one.error_code for one in by_id] == [
        0 if name in seen and name in there else 100 for name in NAMES
    ]
