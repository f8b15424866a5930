"""Requests are read as kafka-python wrote them, and kafka-python reads what is answered."""

import io
import struct
import sys
from datetime import timedelta
from uuid import UUID

import kio.index
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kio.serial import entity_writer
from kio.static.primitive import i32Timedelta

from kafka_peer import (
    MESSAGES,
    NO_UUID,
    SPOKEN_VERSIONS,
    answered,
    cut,
    damaged,
    framed,
    made,
    request,
    sent,
    values_of,
)
from quorumlog.kafka.codec import (
    UNSUPPORTED_VERSION,
    api_versions,
    decode_request,
    encode_response,
    error_response,
    refuse_version,
)
from quorumlog.kafka.primitives import ELEMENTS_MAX
from quorumlog.kafka.requests import SPOKEN, ApiKey, RequestHeader, read_header
from quorumlog.model.errors import RemoteProtocolError

every_version = pytest.mark.parametrize(("key", "version"), SPOKEN_VERSIONS)
NOT_CONTROLLER = 41
READ_BY_SCHEMA = [one for one in SPOKEN_VERSIONS if one[0] not in (ApiKey.PRODUCE, ApiKey.FETCH)]
every_request_version = pytest.mark.parametrize(("key", "version"), READ_BY_SCHEMA)
every_request = st.sampled_from(READ_BY_SCHEMA).flatmap(
    lambda one: st.tuples(st.just(one), values_of(MESSAGES[one[0], True]._struct, one[1]))
)


def header_of(key, version):
    """Return the header of a request that was read."""
    return read_header(cut(sent(key, version, {}))[0])


def refused(raw):
    """Return why a request is refused."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode_request(*cut(raw))
    return str(caught.value)


@every_version
def test_the_versions_are_those_of_the_schemas(key, version):
    for is_request in (True, False):
        message = MESSAGES[key, is_request]
        assert version <= message.max_version
        assert message.flexible_version_q(version) == (version >= SPOKEN[key].first_flexible)
    tagged = [one.name for one in MESSAGES[key, True]._struct._fields if one.tag is not None]
    assert not tagged or key == ApiKey.FETCH  # whose tagged fields are of replicas


@every_request_version
@settings(max_examples=6)  # there are 78 versions
@given(st.data())
def test_a_request_is_read_as_a_client_wrote_it(key, version, data):
    message = MESSAGES[key, True]
    values = data.draw(values_of(message._struct, version))
    client_id = data.draw(st.none() | st.text(max_size=9))
    correlation_id = data.draw(st.integers(-(1 << 31), (1 << 31) - 1))
    frame, header = cut(
        sent(key, version, values, client_id=client_id, correlation_id=correlation_id)
    )
    assert (header.api_key, header.version) == (key, version)
    assert (header.client_id, header.correlation_id) == (client_id, correlation_id)
    assert decode_request(frame, header) == made(message, version, values)


@every_version
@settings(max_examples=6)
@given(st.data())
def test_a_client_reads_an_answer_as_it_was_given(key, version, data):
    message, header = MESSAGES[key, False], header_of(key, version)
    values = data.draw(values_of(message._struct, version))
    if key == ApiKey.API_VERSIONS and version:  # with an error clients read it as version 0
        values["error_code"] = 0
    assert answered(header, encode_response(header, values)) == made(message, version, values)


@pytest.mark.parametrize("version", [0, 1])
def test_requests_whose_schemas_are_ours_are_read_as_an_independent_codec_writes_them(version):
    """Answers by these schemas are read by it in tests/integration/test_kafka_versions.py."""
    heartbeat = kio.index.load_request_schema(ApiKey.CONSUMER_GROUP_HEARTBEAT, version)
    owned = sys.modules[heartbeat.__module__].TopicPartitions
    more = {"subscribed_topic_regex": "t.*"} if version else {}
    written = heartbeat(
        group_id="g",
        member_id="m",
        member_epoch=-2,
        instance_id="i",
        rack_id=None,
        rebalance_timeout=i32Timedelta.parse(timedelta(seconds=3)),
        subscribed_topic_names=("a", "b"),
        server_assignor="range",
        topic_partitions=(owned(topic_id=UUID(int=5), partitions=(0, 7)),),
        **more,
    )
    found = decode_request(*cut(request(68, version, written_by_kio(written))))
    assert (found.group_id, found.member_id, found.member_epoch) == ("g", "m", -2)
    assert (found.instance_id, found.rack_id, found.server_assignor) == ("i", None, "range")
    assert (found.rebalance_timeout_ms, found.subscribed_topic_names) == (3_000, ["a", "b"])
    assert [(one.topic_id, one.partitions) for one in found.topic_partitions] == [
        (UUID(int=5), [0, 7])
    ]
    assert found.subscribed_topic_regex == ("t.*" if version else None)
    describe = kio.index.load_request_schema(ApiKey.CONSUMER_GROUP_DESCRIBE, version)
    written = describe(group_ids=("g", "h"), include_authorized_operations=True)
    found = decode_request(*cut(request(69, version, written_by_kio(written))))
    assert (found.group_ids, found.include_authorized_operations) == (["g", "h"], True)


def written_by_kio(message):
    with io.BytesIO() as found:
        entity_writer(type(message))(found, message)
        return found.getvalue()


def test_what_an_answer_does_not_say_has_a_default_and_a_wrong_name_is_an_error():
    header = header_of(ApiKey.METADATA, 12)
    partition = {"partition_index": 3, "leader_id": 1, "replica_nodes": [1, 2]}
    topic = {"name": "t", "topic_id": bytes(range(16)), "partitions": [partition]}
    found = answered(header, encode_response(header, {"topics": [topic], "cluster_id": None}))
    assert found.topics[0].topic_id.bytes == bytes(range(16))
    assert found.topics[0].partitions[0].leader_epoch == -1
    assert found.topics[0].partitions[0].replica_nodes == [1, 2]
    assert (found.brokers, found.cluster_id, found.controller_id) == ([], None, -1)
    with pytest.raises(ValueError, match="partition_indx"):
        encode_response(header, {"topics": [{"partitions": [{"partition_indx": 1}]}]})


def test_no_topic_id_is_none_as_clients_read_it():
    frame, header = cut(sent(ApiKey.METADATA, 12, {"topics": [{"name": "t", "topic_id": NO_UUID}]}))
    assert [(one.name, one.topic_id) for one in decode_request(frame, header).topics] == [
        ("t", None)
    ]


GOLDEN = [
    (ApiKey.API_VERSIONS, 3, "0012 0003 00000007 0001 63 00 | 04 617061 02 31 00"),
    (ApiKey.METADATA, 1, "0003 0001 00000007 0001 63 | 00000001 0002 7431"),
    (ApiKey.METADATA, 12, "0003 000c 00000007 ffff 00 | 00 01 00 00"),
]


@pytest.mark.parametrize(("key", "version", "text"), GOLDEN)
def test_known_bytes_are_read(key, version, text):
    frame, header = cut(framed(bytes.fromhex(text.replace("|", ""))))
    assert (header.api_key, header.version, header.correlation_id) == (key, version, 7)
    found = decode_request(frame, header)
    if key == ApiKey.API_VERSIONS:
        assert (found.client_software_name, found.client_software_version) == ("apa", "1")
    elif version == 1:
        assert [one.name for one in found.topics] == ["t1"]
    else:
        assert (found.topics, found.allow_auto_topic_creation) == (None, True)


def test_the_answer_to_api_versions_never_has_a_flexible_header():
    header = header_of(ApiKey.API_VERSIONS, 3)
    raw = encode_response(header, {"api_keys": [{"api_key": 3, "max_version": 12}]})
    assert raw == framed(bytes.fromhex("00000007 0000 02 0003 0000 000c 00 00000000 00"))


def test_an_unknown_tagged_field_is_ignored_wherever_it_is():
    """A client of a later version may have fields of which nobody knows here."""
    tags = b"\x02\x07\x03abc\x90\x4e\x00"
    topic = bytes(16) + b"\x02t"
    plain = framed(
        struct.pack(">hhih", 3, 12, 7, -1) + b"\0" + b"\x02" + topic + b"\0" + b"\1\0" + b"\0"
    )
    with_tags = framed(
        struct.pack(">hhih", 3, 12, 7, -1) + tags + b"\x02" + topic + tags + b"\1\0" + tags
    )
    assert decode_request(*cut(with_tags)) == decode_request(*cut(plain))


@pytest.mark.parametrize("key", list(SPOKEN))
def test_a_version_that_is_not_spoken_is_refused_in_a_form_that_clients_read(key):
    latest = MESSAGES[key, False].max_version
    for version in {SPOKEN[key].first - 1, SPOKEN[key].last + 1, latest, latest + 1, -1}:
        if version in range(SPOKEN[key].first, SPOKEN[key].last + 1):
            continue
        _, header = cut(framed(struct.pack(">hhi", key, version, 9) + b"whatever"))
        assert not header.is_spoken
        form = 0 if key == ApiKey.API_VERSIONS else min(max(version, 0), latest)
        assert f"error_code': {UNSUPPORTED_VERSION}" in str(
            answered(header, refuse_version(header), version=form).to_dict()
        )


@pytest.mark.parametrize(
    ("key", "version"), [one for one in SPOKEN_VERSIONS if one[0] != ApiKey.API_VERSIONS]
)
def test_a_refusal_is_read_by_clients_and_has_nothing_compiled(key, version, monkeypatch):
    """A program for each version is made when it is first encoded, up to 20 ms for a stranger.

    Clients read refusals of ApiVersions in a form of their own, as the next test shows.
    """
    header, structs = header_of(key, version), type(MESSAGES[key, False]._struct)
    with monkeypatch.context() as patched:
        patched.delattr(structs, "compiled_encode_into")
        raw = error_response(header, NOT_CONTROLLER)
    found = str(answered(header, raw).to_dict())
    has_code = "error_code" in str(MESSAGES[key, False]._struct.untagged_fields(version))
    assert (f"error_code': {NOT_CONTROLLER}" in found) or not has_code


def test_a_client_that_asks_too_much_of_api_versions_learns_what_is_spoken():
    _, header = cut(framed(struct.pack(">hhi", 18, 4, 9) + b"\0\0"))
    found = answered(header, refuse_version(header), version=0)
    assert found.error_code == UNSUPPORTED_VERSION
    ranges = {one.api_key: (one.min_version, one.max_version) for one in found.api_keys}
    expected = {key: (spoken.first, spoken.last) for key, spoken in SPOKEN.items()}
    assert ranges == {**expected, ApiKey.PRODUCE: (0, 10)}
    assert len(api_versions()) == len(SPOKEN)


def test_a_key_that_is_not_known_has_no_answer():
    for key in (-1, 4, 7, 9_999):
        _, header = cut(framed(struct.pack(">hhi", key, 0, 9)))
        assert not header.is_spoken
        assert refuse_version(header) is None


@pytest.mark.parametrize("body", [b"\0", b"\0\3\0\1\0\0\0", b"\0\3\0\1\0\0\0\7\0\5name"])
def test_a_frame_without_a_whole_header_is_refused(body):
    with pytest.raises(RemoteProtocolError, match="header"):
        cut(framed(body))


def test_what_makes_other_decoders_take_memory_or_time_is_refused():
    """Each of these is a few bytes that claim to be many, or a number without an end."""
    claims = bytes.fromhex("ffffffff0f") + bytes(10)  # kio: abort of the process
    assert "4294967294 elements of an array" in refused(request(ApiKey.METADATA, 12, claims))
    assert "more than 32 bits" in refused(request(ApiKey.METADATA, 12, b"\xff" * 10))
    assert "more than 32 bits" in refused(request(ApiKey.METADATA, 12, b"\x80" * 60_000))
    assert "more than 32 bits" in refused(request(ApiKey.METADATA, 12, b"\xff" * 4 + b"\x10"))
    assert "-2 elements" in refused(request(ApiKey.METADATA, 1, b"\xff\xff\xff\xfe"))
    assert "2147483647 elements" in refused(request(ApiKey.METADATA, 1, b"\x7f\xff\xff\xff"))
    assert "a string of 32767 bytes" in refused(
        request(ApiKey.METADATA, 1, b"\0\0\0\1\x7f\xff") + b""
    )
    assert "a string of -2 bytes" in refused(request(ApiKey.METADATA, 1, b"\0\0\0\1\xff\xfe"))
    tags = b"\xfe\xff\xff\xff\x0f"
    assert "4294967294 tagged fields" in refused(request(ApiKey.API_VERSIONS, 3, b"\1\1" + tags))
    assert "a tagged field of 9 bytes" in refused(
        request(ApiKey.API_VERSIONS, 3, b"\1\1\1\7\x09abc")
    )


def test_elements_are_bounded_over_all_arrays_of_a_request():
    def names(count):
        return count.to_bytes(4, "big") + b"\0\0" * count

    half = ELEMENTS_MAX // 2
    resource = b"\2\0\1t" + names(half - 1)
    whole = b"\0\0\0\2" + 2 * resource + b"\0"
    frame, header = cut(request(ApiKey.DESCRIBE_CONFIGS, 1, whole))
    found = decode_request(frame, header)
    assert sum(len(one.configuration_keys) for one in found.resources) == ELEMENTS_MAX - 2
    more = b"\0\0\0\3" + 2 * resource + b"\2\0\1t" + names(1) + b"\0"
    assert f"more than {ELEMENTS_MAX}" in refused(request(ApiKey.DESCRIBE_CONFIGS, 1, more))


def test_bytes_after_the_last_field_are_ignored():
    """As librdkafka 2.16 sends them when it asks for the metadata of all topics."""
    frame, header = cut(request(ApiKey.METADATA, 12, b"\0\0\0\0" + b"\1\0\0"))
    assert decode_request(frame, header).topics is None


def test_fields_that_a_version_does_not_have_are_left_out_of_an_answer():
    topic = {"name": "t", "configs": [{"name": "retention.ms", "value": "1"}]}
    for version, expected in ((4, []), (5, ["retention.ms"])):
        header = header_of(ApiKey.CREATE_TOPICS, version)
        (found,) = answered(header, encode_response(header, {"topics": [topic]})).topics
        assert [one.name for one in found.configs or []] == expected


def test_nulls_that_may_not_be_are_refused():
    assert "a string that may not be null is null" in refused(
        request(ApiKey.METADATA, 1, b"\0\0\0\1\xff\xff")
    )
    assert "an array that may not be null is null" in refused(
        request(ApiKey.METADATA, 0, b"\xff\xff\xff\xff")
    )
    assert "not UTF-8" in refused(request(ApiKey.METADATA, 1, b"\0\0\0\1\0\1\xff"))


def test_an_error_says_which_request_and_where():
    text = refused(request(ApiKey.LIST_OFFSETS, 1, b"\xff\xff\xff\xff\0\0\0\1\0\1t\0\0\0\1no"))
    assert text == "LIST_OFFSETS request, version 1, byte 25: the frame of 27 bytes ends early"


@given(every_request)
def test_a_request_cut_anywhere_is_refused(drawn):
    (key, version), values = drawn
    raw = sent(key, version, values)
    for stop in range(5, len(raw)):
        with pytest.raises(RemoteProtocolError):
            decode_request(*cut(framed(raw[4:stop])))


@given(every_request, st.data())
def test_damaged_requests_are_refused_or_read_as_clients_would_read_them(drawn, data):
    (key, version), values = drawn
    raw = data.draw(damaged(sent(key, version, values)))
    try:
        frame, header = cut(raw)
        assume((header.api_key, header.version) in READ_BY_SCHEMA)
        found = decode_request(frame, header)
    except RemoteProtocolError:
        return
    body = bytes(frame.buffer[header.body :])
    assert found == MESSAGES[header.api_key, True].decode(body, version=header.version)


@every_request_version
@settings(max_examples=20)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_request_or_refused(key, version, body):
    try:
        frame, header = cut(request(key, version, body))
        found = decode_request(frame, header)
    except RemoteProtocolError:
        return
    assert found == MESSAGES[key, True].decode(body, version=version)


def test_a_header_is_plain_values():
    assert header_of(ApiKey.METADATA, 12) == RequestHeader(3, 12, 7, "client", 81, True)
