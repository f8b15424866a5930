"""Produce by hand: read as kafka-python wrote it, written as kafka-python reads it."""

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
from quorumlog.kafka.produce import ProducedPartition, produce_answer, read_produce
from quorumlog.kafka.requests import SPOKEN, ApiKey, RequestHeader
from quorumlog.model.errors import RemoteProtocolError

KEY = ApiKey.PRODUCE
REQUEST = MESSAGES[KEY, True]
VERSIONS = range(SPOKEN[KEY].first, SPOKEN[KEY].last + 1)
every_version = pytest.mark.parametrize("version", VERSIONS)
requests = st.sampled_from(VERSIONS).flatmap(
    lambda version: st.tuples(st.just(version), values_of(REQUEST._struct, version))
)
answers = st.builds(
    ProducedPartition,
    *(OF_TYPE[name] for name in ("int32", "int16", "int64", "int64", "int64")),
    st.none() | TEXTS,
)


def plain(frame, request):
    """Return what was read, with the bytes of the batches themselves."""
    topics = [
        (name, [(number, bytes(frame.buffer[start:stop])) for number, start, stop in places])
        for name, places in request.topics
    ]
    return request.transactional_id, request.acks, request.timeout_ms, topics


def plain_of_client(found):
    """Return the same of kafka-python's object; it tells null records from empty ones."""
    topics = [
        (one.name, [(each.index, each.records or b"") for each in one.partition_data])
        for one in found.topic_data
    ]
    return found.transactional_id, found.acks, found.timeout_ms, topics


def read(raw):
    frame, header = cut(raw)
    return plain(frame, read_produce(frame, header))


def refused(raw):
    with pytest.raises(RemoteProtocolError) as caught:
        read(raw)
    return str(caught.value)


@every_version
@given(st.data())
def test_a_request_is_read_as_a_client_wrote_it(version, data):
    values = data.draw(values_of(REQUEST._struct, version))
    raw = sent(KEY, version, values)
    frame, header = cut(raw)
    body = bytes(frame.buffer[header.body :])
    assert read(raw) == plain_of_client(REQUEST.decode(body, version=version))


@every_version
@given(topics=st.lists(st.tuples(TEXTS, st.lists(answers, max_size=3)), max_size=3), rest=st.data())
def test_a_client_reads_an_answer_as_it_was_given(version, topics, rest):
    throttle_ms = rest.draw(OF_TYPE["int32"])
    _, header = cut(sent(KEY, version, {}))
    found = answered(header, produce_answer(header, topics, throttle_ms))
    assert found.throttle_time_ms == throttle_ms
    expected = [
        (
            name,
            [
                (
                    one.partition,
                    one.error_code,
                    one.base_offset,
                    one.append_time,
                    one.log_start if version >= 5 else -1,
                    one.error_message if version >= 8 else None,
                    [],
                )
                for one in partitions
            ],
        )
        for name, partitions in topics
    ]
    assert expected == [
        (
            topic.name,
            [
                (
                    one.index,
                    one.error_code,
                    one.base_offset,
                    one.log_append_time_ms,
                    one.log_start_offset,
                    one.error_message,
                    one.record_errors,
                )
                for one in topic.partition_responses
            ],
        )
        for topic in found.responses
    ]


def test_a_batch_is_not_copied():
    value = b"batch" * 10_000
    topics = [{"name": "t", "partition_data": [{"index": 4, "records": value}]}]
    frame, header = cut(sent(KEY, 9, {"acks": -1, "timeout_ms": 5, "topic_data": topics}))
    ((_, ((number, start, stop),)),) = read_produce(frame, header).topics
    assert (number, stop - start) == (4, len(value))
    frame.buffer[start:stop] = value.upper()
    assert bytes(frame.buffer[start:stop]) == value.upper()


REQUESTS = {
    3: "0000 0003 00000007 0001 63 | ffff 0001 00007530 00000001 0002 7431 00000001 "
    "00000005 00000004 deadbeef",
    9: "0000 0009 00000007 0001 63 00 | 03 7478 ffff 00007530 02 03 7431 02 "
    "00000005 05 deadbeef 00 00 00",
}
ANSWERS = {
    3: "00000007 | 00000001 0002 7431 00000001 00000005 0000 0000000000000009 ffffffffffffffff "
    "00000000",
    7: "00000007 | 00000001 0002 7431 00000001 00000005 0000 0000000000000009 ffffffffffffffff "
    "0000000000000001 00000000",
    8: "00000007 | 00000001 0002 7431 00000001 00000005 0000 0000000000000009 ffffffffffffffff "
    "0000000000000001 00000000 ffff 00000000",
    9: "00000007 00 | 02 03 7431 02 00000005 0000 0000000000000009 ffffffffffffffff "
    "0000000000000001 01 00 00 00 00000000 00",
}


def test_known_bytes_are_read():
    def frame(version):
        return framed(bytes.fromhex(REQUESTS[version].replace("|", "")))

    topics = [("t1", [(5, b"\xde\xad\xbe\xef")])]
    assert read(frame(3)) == (None, 1, 30_000, topics)
    assert read(frame(9)) == ("tx", -1, 30_000, topics)


@pytest.mark.parametrize("version", ANSWERS)
def test_known_bytes_are_written(version):
    header = RequestHeader(KEY, version, 7, None, 100, version >= 9)
    raw = produce_answer(header, [("t1", [ProducedPartition(5, 0, 9, -1, 1)])])
    assert raw == framed(bytes.fromhex(ANSWERS[version].replace("|", "")))


def test_records_that_are_null_or_empty_are_nothing_between_two_places():
    for value in (None, b""):
        topics = [{"name": "t", "partition_data": [{"index": 4, "records": value}]}]
        assert read(sent(KEY, 3, {"topic_data": topics}))[3] == [("t", [(4, b"")])]


@pytest.mark.parametrize(
    ("version", "body", "text"),
    [
        (3, b"\xff\xff\0\1\0\0\0\1\xff\xff\xff\xff", "an array that may not be null"),
        (3, b"\xff\xff\0\1\0\0\0\1\x7f\xff\xff\xff", "2147483647 elements"),
        (3, b"\xff\xff\0\1\0\0\0\1\0\0\0\1\xff\xff", "byte 22: a string that may not be null"),
        (3, b"\xff\xff\0\1\0\0\0\1\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xfe", "of -2 bytes"),
        (3, b"\xff\xff\0\1\0\0\0\1\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\0\0\0\5four", "of 5 bytes"),
        (9, b"\0\0\1\0\0\0\1\2\2t\2\0\0\0\0\xff\xff\xff\xff\x0f", "of 4294967294 bytes"),
        (9, b"\0\0\1\0\0\0\1\2\2t\2\0\0\0\0" + b"\x80" * 10, "more than 32 bits"),
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
        found = plain(frame, read_produce(frame, header))
    except RemoteProtocolError:
        return
    body = bytes(frame.buffer[header.body :])
    assert found == plain_of_client(REQUEST.decode(body, version=header.version))


@every_version
@given(body=st.binary(max_size=120))
def test_any_bytes_are_a_request_or_refused(version, body):
    try:
        found = read(request(KEY, version, body))
    except RemoteProtocolError:
        return
    assert found == plain_of_client(REQUEST.decode(body, version=version))
