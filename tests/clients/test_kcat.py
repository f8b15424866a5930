"""kcat, which is librdkafka on the command line, against a local cluster."""

import json
import shutil

import pytest

LINES = 1_000_000

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed"),
]


def test_a4_a_list_of_metadata_names_all_brokers_and_where_each_partition_is(kcat, cluster, topic):
    listed = json.loads(kcat("-L", "-J"))
    assert {one["name"] for one in listed["brokers"]} == set(cluster.bootstrap_servers.split(","))
    assert listed["controllerid"] in {one["id"] for one in listed["brokers"]}
    [found] = [one for one in listed["topics"] if one["topic"] == topic]
    for partition in found["partitions"]:
        assert partition["leader"] in {one["id"] for one in listed["brokers"]}
        assert len(partition["replicas"]) == 3


def test_a4_a_million_lines_from_a_pipe_are_read_back_once_and_in_order(kcat):
    lines = "".join(f"line {number}\n" for number in range(LINES))
    # what is not idempotent may be reordered, if a leader changes meanwhile
    kcat("-P", "-t", "million", "-p", 0, "-X", "enable.idempotence=true", given=lines)
    assert kcat("-C", "-t", "million", "-p", 0, "-e", "-q") == lines
    assert kcat("-Q", "-t", "million:0:-1").split() == ["million", "[0]", "offset", str(LINES)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a4_every_codec_is_read_back_with_keys_and_headers(kcat, codec, topic):
    written = "".join(f"key{number}:value {number}\n" for number in range(1_000))
    kcat("-P", "-t", topic, "-p", 0, "-K", ":", "-z", codec, "-H", "from=kcat", given=written)
    shown = kcat("-C", "-t", topic, "-p", 0, "-e", "-q", "-f", "%o %h %k:%s\n").splitlines()
    assert shown == [
        f"{number} from=kcat {line}" for number, line in enumerate(written.splitlines())
    ]


def test_a4_reading_starts_at_a_time(kcat, topic):
    for number in range(3):
        kcat("-P", "-t", topic, "-p", 0, given=f"{number}\n")
    times = kcat("-C", "-t", topic, "-p", 0, "-e", "-q", "-f", "%T\n").split()
    assert len(set(times)) == 3
    for number, time_ms in enumerate(times):
        from_time = kcat("-C", "-t", topic, "-p", 0, "-o", f"s@{time_ms}", "-e", "-q")
        assert from_time.split() == ["0", "1", "2"][number:]


def test_a4_offsets_are_asked_for_by_place(kcat, topic):
    kcat("-P", "-t", topic, "-p", 0, given="a\nb\nc\n")
    assert kcat("-Q", "-t", f"{topic}:0:-2").split()[-1] == "0"
    assert kcat("-Q", "-t", f"{topic}:0:-1").split()[-1] == "3"
    assert kcat("-C", "-t", topic, "-p", 0, "-o", "-1", "-e", "-q") == "c\n"
    assert kcat("-C", "-t", topic, "-p", 0, "-o", 1, "-c", 1, "-q") == "b\n"


def test_a4_both_isolation_levels_see_what_no_transaction_holds_back(kcat, topic):
    kcat("-P", "-t", topic, "-p", 0, "-X", "enable.idempotence=true", given="a\nb\n")
    for level in ("read_committed", "read_uncommitted"):
        read = kcat("-C", "-t", topic, "-p", 0, "-e", "-q", "-X", f"isolation.level={level}")
        assert read == "a\nb\n"
