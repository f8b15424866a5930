"""Fetch by hand: read as kafka-python wrote it, written as kafka-python reads it."""

import struct
from uuid import UUID

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kafka_peer import (
    MESSAGES,
    OF_TYPE,
    TEXTS,
    answered,
    cut,
    damaged,
    framed,
    request,
    sent,
    values_of,
)
from quorumlog.kafka.fetch import (
    GATHERED_BYTES_MAX,
    FetchedPartition,
    FetchedTopic,
    fetch_answer,
    read_fetch,
)
from quorumlog.kafka.requests import SPOKEN, ApiKey, RequestHeader
from quorumlog.model.errors import RemoteProtocolError

KEY = ApiKey.FETCH
REQUEST = MESSAGES[KEY, True]
VERSIONS = range(SPOKEN[KEY].first, SPOKEN[KEY].last + 1)
every_version = pytest.mark.parametrize("version", VERSIONS)


def request_values(version):
    return values_of(REQUEST._struct, version).map(
        lambda values: {**values, "isolation_level": values["isolation_level"] % 2}
    )


requests = st.sampled_from(VERSIONS).flatmap(
    lambda version: st.tuples(st.just(version), request_values(version))
)
int32s, int64s = OF_TYPE["int32"], OF_TYPE["int64"]
answers = st.builds(
    FetchedPartition,
    int32s,
    OF_TYPE["int16"],
    int64s,
    int64s,
    int64s,
    st.none() | st.lists(st.tuples(int64s, int64s), max_size=3),
    int32s,
    st.lists(st.binary(max_size=300).map(memoryview), max_size=3),
)


def plain(request):
    topics = [
        (
            one.name,
            one.topic_id,
            [
                (
                    each.partition,
                    each.leader_epoch,
                    each.offset,
                    each.last_fetched_epoch,
                    each.log_start,
                    each.bytes_max,
                )
                for each in one.partitions
            ],
        )
        for one in request.topics
    ]
    forgotten = [(one.name, one.topic_id, one.partitions) for one in request.forgotten]
    head = (request.replica_id, request.wait_ms_max, request.bytes_min, request.bytes_max)
    session = (request.session_id, request.session_epoch)
    return head, request.reads_committed, session, topics, forgotten, request.rack


def topic_of(one, version):
    if version < 13:
        return one.topic, None
    return None, bytes(16) if one.topic_id is None else one.topic_id.bytes


def plain_of_client(found, version):
    topics = [
        (
            *topic_of(one, version),
            [
                (
                    each.partition,
                    each.current_leader_epoch,
                    each.fetch_offset,
                    each.last_fetched_epoch,
                    each.log_start_offset,
                    each.partition_max_bytes,
                )
                for each in one.partitions
            ],
        )
        for one in found.topics
    ]
    forgotten = [
        (*topic_of(one, version), one.partitions) for one in found.forgotten_topics_data or ()
    ]
    head = (found.replica_id, found.max_wait_ms, found.min_bytes, found.max_bytes)
    session = (found.session_id, found.session_epoch)
    return head, found.isolation_level == 1, session, topics, forgotten, found.rack_id


def read(raw):
    return plain(read_fetch(*cut(raw)))


def refused(raw):
    with pytest.raises(RemoteProtocolError) as caught:
        read(raw)
    return str(caught.value)


@every_version
@given(st.data())
def test_a_request_is_read_as_a_client_wrote_it(version, data):
    raw = sent(KEY, version, data.draw(request_values(version)))
    frame, header = cut(raw)
    body = bytes(frame.buffer[header.body :])
    assert read(raw) == plain_of_client(REQUEST.decode(body, version=version), version)


@every_version
@given(
    topics=st.lists(st.tuples(TEXTS, st.uuids(), st.lists(answers, max_size=3)), max_size=3),
    rest=st.data(),
)
def test_a_client_reads_an_answer_as_it_was_given(version, topics, rest):
    error_code, throttle_ms = rest.draw(OF_TYPE["int16"]), rest.draw(int32s)
    _, header = cut(sent(KEY, version, {}))
    given_topics = [FetchedTopic(name, id_.bytes, parts) for name, id_, parts in topics]
    buffers = fetch_answer(header, given_topics, error_code, throttle_ms)
    found = answered(header, b"".join(buffers))
    assert (found.throttle_time_ms, found.session_id) == (throttle_ms, 0)
    assert found.error_code == (error_code if version >= 7 else 0)
    names = [topic[1].bytes if version >= 13 else topic[0] for topic in topics]
    assert names == [
        (one.topic_id or UUID(int=0)).bytes if version >= 13 else one.topic
        for one in found.responses
    ]
    expected = [
        (
            one.partition,
            one.error_code,
            one.high_watermark,
            one.last_stable_offset,
            one.log_start if version >= 5 else -1,
            one.aborted,
            one.preferred_replica if version >= 11 else -1,
            b"".join(one.records),
            None,
        )
        for topic in topics
        for one in topic[2]
    ]
    assert expected == [
        (
            one.partition_index,
            one.error_code,
            one.high_watermark,
            one.last_stable_offset,
            one.log_start_offset,
            one.aborted_transactions
            and [(each.producer_id, each.first_offset) for each in one.aborted_transactions],
            one.preferred_read_replica,
            one.records,
            one.diverging_epoch,
        )
        for topic in found.responses
        for one in topic.partitions
    ]


def test_large_records_are_sent_from_where_they_are_and_small_ones_with_what_is_around_them():
    header = RequestHeader(KEY, 12, 7, None, 100, True)
    large = bytes(GATHERED_BYTES_MAX)
    parts = [memoryview(bytearray(large)), memoryview(bytearray(b"two")), large]
    records = [parts[:2], (), [b"small"], parts[2:]]
    partitions = [FetchedPartition(number, records=one) for number, one in enumerate(records)]
    topic = FetchedTopic("t", None, partitions)
    buffers = fetch_answer(header, [topic])
    assert len(buffers) == 6
    assert [buffers[1] is parts[0], buffers[2] is parts[1], buffers[4] is parts[2]] == [True] * 3
    assert b"small" in buffers[3]


REQUESTS = {
    4: "0001 0004 00000007 0001 63 | ffffffff 000001f4 00000001 03200000 01 00000001 0002 7431 "
    "00000001 00000005 0000000000000009 00100000",
    12: "0001 000c 00000007 0001 63 00 | ffffffff 000001f4 00000001 03200000 01 00000000 ffffffff "
    "02 03 7431 02 00000005 00000003 0000000000000009 00000002 ffffffffffffffff 00100000 00 00 "
    "02 03 7432 02 00000006 00 02 72 00",
}
ANSWERS = {
    4: "00000007 | 00000000 00000001 0002 7431 00000001 00000005 0000 000000000000000a "
    "000000000000000a 00000001 0000000000000063 0000000000000008 00000004 deadbeef",
    12: "00000007 00 | 00000000 0000 00000000 02 03 7431 02 00000005 0000 000000000000000a "
    "000000000000000a 0000000000000001 02 0000000000000063 0000000000000008 00 ffffffff "
    "05 deadbeef 00 00 00",
}


def test_known_bytes_are_read():
    def frame(version):
        return framed(bytes.fromhex(REQUESTS[version].replace("|", "")))

    head = (-1, 500, 1, 52_428_800)
    topics = [("t1", None, [(5, -1, 9, -1, -1, 1 << 20)])]
    assert read(frame(4)) == (head, True, (0, -1), topics, [], "")
    topics = [("t1", None, [(5, 3, 9, 2, -1, 1 << 20)])]
    assert read(frame(12)) == (head, True, (0, -1), topics, [("t2", None, [6])], "r")


@pytest.mark.parametrize("version", ANSWERS)
def test_known_bytes_are_written(version):
    header = RequestHeader(KEY, version, 7, None, 100, version >= 12)
    one = FetchedPartition(5, 0, 10, 10, 1, [(99, 8)], records=[b"\xde\xad", b"\xbe\xef"])
    raw = b"".join(fetch_answer(header, [FetchedTopic("t1", None, [one])]))
    assert raw == framed(bytes.fromhex(ANSWERS[version].replace("|", "")))


@pytest.mark.parametrize("tagged", [0, 1, 2])
def test_partitions_with_tagged_fields_are_read_as_those_without(tagged):
    tags, row = b"\1\x07\2ab", struct.pack(">iiqiqi", 5, 3, 9, 2, -1, 1 << 20)
    rows = b"".join(row + (tags if number == tagged else b"\0") for number in range(3))
    found = read(request(KEY, 12, bytes(25) + b"\2\2t\4" + rows + tags + b"\1\1" + tags))
    assert found[3] == [("t", None, [(5, 3, 9, 2, -1, 1 << 20)] * 3)]


@pytest.mark.parametrize(
    ("version", "body", "text"),
    [
        (4, bytes(16) + b"\2" + bytes(4), "no isolation level 2"),
        (4, bytes(17) + b"\xff" * 4, "an array that may not be null"),
        (4, bytes(17) + b"\0\0\0\1\0\1t\0\0\0\1" + bytes(15), "of 16 bytes cannot be in the 15"),
        (12, bytes(25) + b"\2\2t\xff\xff\xff\xff\x0f" + bytes(60), "4294967294 elements"),
        (12, bytes(25) + b"\xff" * 10, "more than 32 bits"),
        (13, bytes(25) + b"\2" + bytes(9), "ends early"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(version, body, text):
    assert text in refused(request(KEY, version, body))


@given(requests)
def test_a_request_cut_anywhere_is_refused(drawn):
    raw = sent(KEY, *drawn)
    for stop in range(5, len(raw)):
        refused(framed(raw[4:stop]))


@settings(max_examples=150)
@given(requests, st.data())
def test_damaged_requests_are_refused_or_read_as_kafka_python_reads_them(drawn, data):
    raw = data.draw(damaged(sent(KEY, *drawn)))
    try:
        frame, header = cut(raw)
        assume(header.api_key == KEY and header.is_spoken)
        found = plain(read_fetch(frame, header))
    except RemoteProtocolError:
        return
    body = bytes(frame.buffer[header.body :])
    version = header.version
    assert found == plain_of_client(REQUEST.decode(body, version=version), version)


@every_version
@given(body=st.binary(max_size=120))
def test_any_bytes_are_a_request_or_refused(version, body):
    try:
        found = read(request(KEY, version, body))
    except RemoteProtocolError:
        return
    assert found == plain_of_client(REQUEST.decode(body, version=version), version)
