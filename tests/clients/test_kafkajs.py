"""kafkajs, which shares no code with librdkafka or Python's clients, against a local cluster.

kcat reads what it produced; it consumes itself in the example of a web service.
"""

import json
import shutil
import signal
import subprocess
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kafka_load import KAFKAJS as PACKAGE
from kafka_load import KAFKAJS_SCRIPT as SCRIPT
from kafka_load import produce_by_kafkajs
from kafka_lost_answers import broker_that_loses_answers, check_stored_once

SERVICE = Path(__file__).parents[2] / "examples/kafkajs/service.js"
SECONDS = 240
RECORDS = 1_000
EXPECTED = {
    "Response CreateTopics(key: 19, version: 3): Topic creation errors",
    "Response Metadata(key: 3, version: 6): There is no leader for this topic-partition as we are "
    "in the middle of a leadership election",
    "Response Metadata(key: 3, version: 6): This server does not host this topic-partition",
}
"""The step creates a topic twice; a broker may hear of it, or of its leaders, after another."""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(not PACKAGE.exists(), reason="kafkajs is not there (make test-clients)"),
]


@pytest.fixture
def kafkajs(cluster):
    """Have kafkajs do a step; return the result. It must succeed, and complain of those alone."""

    def run(step, *options, complaints=frozenset()):
        words = [PACKAGE, cluster.bootstrap_servers, step, *options]
        done = subprocess.run(
            ["node", SCRIPT, *map(str, words)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert set(answer["complaints"]) <= complaints, answer["complaints"]
        return answer["result"]

    return run


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
@pytest.mark.parametrize("codec", ["None", "GZIP"])
def test_what_kafkajs_produces_is_read_back_by_kcat(kcat, kafkajs, codec, topic):
    kcat("-P", "-t", topic, "-p", 0, given="before\n")
    assert kafkajs("produce", topic, codec, RECORDS) == list(range(1, RECORDS, 100))
    shown = kcat("-C", "-t", topic, "-p", 0, "-o", 1, "-e", "-q", "-f", "%o %h %k:%s\n")
    assert shown.splitlines() == [
        f"{number + 1} from=kafkajs key{number}:value {number}" for number in range(RECORDS)
    ]


def test_b2_a_batch_of_kafkajs_whose_answer_was_lost_is_stored_once(tmp_path):
    with broker_that_loses_answers(tmp_path) as broker:
        check_stored_once(broker, "kafkajs", produce_by_kafkajs)


def test_kafkajs_makes_describes_alters_and_deletes_a_topic(cluster, kafkajs):
    found = kafkajs("administer", "made-by-kafkajs", complaints=EXPECTED)
    assert (found["created"], found["createdAgain"]) == (True, False)
    assert found["configs"] == {"retention.ms": "604800000", "retention.bytes": "1000000"}
    assert sorted(found["brokers"]) == sorted(cluster.bootstrap_servers.split(","))
    assert found["replicas"] == [3, 3, 3]
    ends = {one["partition"]: (one["low"], one["high"]) for one in found["offsets"]}
    assert ends == {0: ("0", "0"), 1: ("0", "3"), 2: ("0", "0")}
    assert {one["partition"]: one["offset"] for one in found["fromTime"]}[1] == "1"
    lows = {one["partition"]: one["low"] for one in found["offsetsAfterDeletion"]}
    assert lows == {0: "0", 1: "2", 2: "0"}
    assert (found["isListed"], found["isGone"]) == (True, True)


@pytest.fixture
def service(cluster, topic, tmp_path):
    """Start the example; return its process and connections to it."""
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/kafkajs").symlink_to(PACKAGE)
    for name in ("service.js", "package.json"):
        shutil.copy(SERVICE.with_name(name), tmp_path)
    started = subprocess.Popen(
        ["node", tmp_path / "service.js", cluster.bootstrap_servers, topic, "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address = urlsplit(started.stdout.readline().strip())
        yield started, lambda: HTTPConnection(address.netloc, timeout=SECONDS)
    finally:
        started.kill()
        started.communicate()


def asked(connection, method, path, body=None):
    connection.request(method, path, body)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_the_example_produces_what_is_posted_and_streams_what_is_consumed(kcat, topic, service):
    process, connect = service
    stream = connect()
    stream.request("GET", "/records")
    events = stream.getresponse()
    assert events.getheader("content-type") == "text/event-stream"
    assert events.readline() == b": records from now on\n"
    posted = [asked(connect(), "POST", f"/records?key=k{n}", f"é {n}".encode()) for n in range(2)]
    assert posted == [(201, {"partition": 0, "offset": str(n)}) for n in range(2)]
    kcat("-P", "-t", topic, "-p", 0, given="by another\n")
    lines = [events.readline().decode() for _ in range(10)]
    assert [line for line in lines if line.startswith("id")] == [f"id: 0-{n}\n" for n in range(3)]
    shown = [json.loads(line[5:]) for line in lines if line.startswith("data:")]
    assert [(one["key"], one["value"]) for one in shown] == [
        *(("k0", "é 0"), ("k1", "é 1"), (None, "by another"))
    ]
    assert asked(connect(), "GET", "/")[0] == 404
    assert asked(connect(), "PUT", "/records", b"")[0] == 405
    assert asked(connect(), "POST", "/records", bytes(1024 * 1024 + 1))[0] == 413
    process.send_signal(signal.SIGTERM)
    assert events.read() == b""
    complaints = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 0, complaints
