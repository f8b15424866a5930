"""Messages of Spark's jobs, as kafka-python reads and writes them, byte for byte."""

import struct
import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kafka_peer import MESSAGES, damaged, made, sent, values_of
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.spark.topics.messages import decode_answer, encode_request

VERSIONS = {
    ApiKey.API_VERSIONS: 0,
    ApiKey.METADATA: 10,
    ApiKey.LIST_OFFSETS: 5,
    ApiKey.LOCATE_BATCHES: 1,
}
every_message = pytest.mark.parametrize("key", VERSIONS, ids=lambda key: key.name)


def answer(key, values):
    """Return an answer as a broker sends it, without its size."""
    version = VERSIONS[key]
    has_tags = MESSAGES[key, False].flexible_version_q(version) and key != ApiKey.API_VERSIONS
    body = made(MESSAGES[key, False], version, values).encode(version=version)
    return struct.pack(">i", 7) + (b"\0" if has_tags else b"") + bytes(body)


def same(found, values):
    """Whether an answer says these plain values, and no others."""
    if isinstance(values, dict):
        fields = vars(found)
        return fields.keys() == values.keys() and all(
            same(fields[name], one) for name, one in values.items()
        )
    if isinstance(values, list):
        return len(found) == len(values) and all(map(same, found, values))
    if isinstance(values, set):  # kafka-python's form of the bits of a number
        return found == sum(1 << one for one in values)
    return found == values


@every_message
@given(data=st.data())
def test_a_request_is_written_as_kafkas_clients_write_it(key, data):
    values = data.draw(values_of(MESSAGES[key, True]._struct, VERSIONS[key]))
    assert encode_request(key, values, 7, "client") == sent(key, VERSIONS[key], values)


@every_message
@given(data=st.data())
def test_an_answer_says_what_a_broker_has_written(key, data):
    values = data.draw(values_of(MESSAGES[key, False]._struct, VERSIONS[key]))
    assert same(decode_answer(key, answer(key, values)), values)


@every_message
@given(data=st.data())
def test_an_answer_that_is_cut_off_is_refused(key, data):
    whole = answer(key, data.draw(values_of(MESSAGES[key, False]._struct, VERSIONS[key])))
    size = data.draw(st.integers(4, len(whole) - 1))
    with pytest.raises(RemoteProtocolError, match="an answer that cannot be read"):
        decode_answer(key, whole[:size])


@every_message
@given(data=st.data())
def test_a_damaged_answer_is_read_or_refused(key, data):
    whole = answer(key, data.draw(values_of(MESSAGES[key, False]._struct, VERSIONS[key])))
    raw = data.draw(damaged(whole))
    assume(len(raw) >= 4)
    try:
        decode_answer(key, raw)
    except RemoteProtocolError:
        return


def test_fields_that_are_left_out_are_0():
    asked = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
    whole = sent(
        ApiKey.METADATA,
        VERSIONS[ApiKey.METADATA],
        asked
        | {
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        },
    )
    assert encode_request(ApiKey.METADATA, asked, 7, "client") == whole


def test_what_spark_reads_topics_with_is_loaded_without_kafka_python():
    """It would take each of Spark's Python processes 0.2 s."""
    program = "import sys, quorumlog.spark.topics.batch, quorumlog.spark.topics.stream; " + (
        "print([name for name in sys.modules if name.partition('.')[0] == 'kafka'])"
    )
    found = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert found.stdout == b"[]\n"
