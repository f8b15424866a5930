"""OffsetCommit by hand: as the codec of all other requests reads and writes it, byte for byte."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kafka_peer import MESSAGES, OF_TYPE, TEXTS, cut, damaged, request, sent, values_of
from quorumlog.kafka.codec import decode_request, encode_response
from quorumlog.kafka.offset_commit import offset_commit_answer, read_offset_commit
from quorumlog.kafka.primitives import ManyElementsError
from quorumlog.kafka.requests import SPOKEN, ApiKey
from quorumlog.model.errors import RemoteProtocolError

KEY = ApiKey.OFFSET_COMMIT
REQUEST = MESSAGES[KEY, True]
VERSIONS = range(SPOKEN[KEY].first, SPOKEN[KEY].last + 1)
every_version = pytest.mark.parametrize("version", VERSIONS)
requests = st.sampled_from(VERSIONS).flatmap(
    lambda version: st.tuples(st.just(version), values_of(REQUEST._struct, version))
)


def plain(found):
    """Return what a request says, by whichever of the two it was read."""
    topics = [
        (
            topic.name,
            [
                (
                    one.partition_index,
                    one.committed_offset,
                    getattr(one, "committed_leader_epoch", -1),
                    one.committed_metadata,
                )
                for one in topic.partitions
            ],
        )
        for topic in found.topics
    ]
    instance_id = getattr(found, "group_instance_id", None)
    epoch = found.generation_id_or_member_epoch
    return found.group_id, epoch, found.member_id, instance_id, topics


def outcome(read, raw):
    """Return what a request says; None: it is refused."""
    try:
        return plain(read(*cut(raw)))
    except RemoteProtocolError:
        return None


@every_version
@given(data=st.data())
def test_a_request_is_read_as_by_its_schema(version, data):
    raw = sent(KEY, version, data.draw(values_of(REQUEST._struct, version)))
    found = outcome(read_offset_commit, raw)
    assert found is not None
    assert found == outcome(decode_request, raw)


@settings(max_examples=200)
@given(requests, st.data())
def test_a_damaged_request_is_refused_if_it_is_so_by_its_schema(asked, data):
    version, values = asked
    raw = data.draw(damaged(sent(KEY, version, values)))
    try:
        _, header = cut(raw)
    except RemoteProtocolError:
        assume(False)
    assume(header.api_key == KEY and header.is_spoken)
    assert outcome(read_offset_commit, raw) == outcome(decode_request, raw)


@pytest.mark.parametrize("version", [8, 9])
def test_tagged_fields_are_ignored(version):
    tags = b"\1\5\2ab"
    partition = bytes(4) + (7).to_bytes(8) + (3).to_bytes(4) + b"\0" + tags
    body = b"\2g" + (4).to_bytes(4) + b"\2m" + b"\0" + b"\2\2t\2" + partition + tags + tags
    raw = request(KEY, version, body)
    found = outcome(read_offset_commit, raw)
    assert found == ("g", 4, "m", None, [("t", [(0, 7, 3, None)])])
    assert found == outcome(decode_request, raw)


def test_a_request_of_many_elements_is_left_to_a_thread():
    offsets = [{"partition_index": one, "committed_offset": 5} for one in range(10)]
    raw = sent(KEY, 2, {"group_id": "g", "topics": [{"name": "t", "partitions": offsets}]})
    with pytest.raises(ManyElementsError):
        read_offset_commit(*cut(raw), 10)
    assert len(read_offset_commit(*cut(raw), 11).topics[0].partitions) == 10


@every_version
@given(
    correlation_id=OF_TYPE["int32"],
    topics=st.lists(
        st.tuples(TEXTS, st.lists(st.tuples(OF_TYPE["int32"], OF_TYPE["int16"]), max_size=3)),
        max_size=3,
    ),
)
def test_an_answer_is_written_as_by_its_schema(version, correlation_id, topics):
    _, header = cut(sent(KEY, version, {}, correlation_id=correlation_id))
    fields = [
        {
            "name": name,
            "partitions": [
                {"partition_index": number, "error_code": code} for number, code in partitions
            ],
        }
        for name, partitions in topics
    ]
    assert offset_commit_answer(header, topics) == encode_response(header, {"topics": fields})


def test_an_answer_about_many_partitions_is_written_as_by_its_schema():
    _, header = cut(sent(KEY, 9, {}))
    topics = [("t" * 200, [(number, 0) for number in range(300)])] * 200
    partitions = [{"partition_index": number, "error_code": 0} for number in range(300)]
    fields = [{"name": "t" * 200, "partitions": partitions}] * 200
    assert offset_commit_answer(header, topics) == encode_response(header, {"topics": fields})
