"""The programs in examples/ that use Kafka's clients, run as they are."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafka_nodes import SECONDS, kafka_nodes
from topic_rows import make_topics, read_rows

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTITIONS = 3
RECORDS = 2_000


@pytest.fixture
def cluster(tmp_path):
    with kafka_nodes(tmp_path) as nodes:
        yield nodes


def started(name, *arguments):
    words = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def produce(cluster, topic, values):
    producer = Producer({"bootstrap.servers": cluster.servers, "linger.ms": 5})
    for number, value in enumerate(values):
        producer.produce(topic, value, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(SECONDS) == 0


def test_b3_a_chain_that_is_killed_makes_one_invoice_of_each_order(cluster):
    make_topics(cluster.servers, ["orders", "invoices"], PARTITIONS)
    orders = [{"id": number, "count": 2, "price": number} for number in range(RECORDS)]
    produce(cluster, "orders", [json.dumps(order).encode() for order in orders])
    arguments = ("kafka_chain.py", cluster.servers, "orders", "invoices")
    killed = started(*arguments)
    deadline = time.monotonic() + SECONDS
    while not read_rows(cluster.servers, ["invoices"], PARTITIONS, "read_uncommitted"):
        assert time.monotonic() < deadline
    killed.kill()
    killed.wait()
    again = started(*arguments)
    said, _ = again.communicate(timeout=2 * SECONDS)
    assert again.returncode == 0
    assert said.endswith("orders done\n")
    rows = read_rows(cluster.servers, ["invoices"], PARTITIONS)
    found = sorted((json.loads(row.value()) for row in rows), key=lambda one: one["order"])
    assert found == [{"order": number, "total": 2 * number} for number in range(RECORDS)]


def test_members_of_a_service_share_questions_and_answer_what_they_took_when_told_to_end(cluster):
    make_topics(cluster.servers, ["questions", "answers"], PARTITIONS)
    arguments = ("aiokafka_service.py", cluster.servers, "questions", "answers")
    members = [started(*arguments) for _ in range(2)]
    for member in members:
        assert member.stdout.readline() == "ready\n"
    produce(cluster, "questions", [b"what %d" % number for number in range(300)])
    deadline, answers = time.monotonic() + SECONDS, []
    while len(answers) < 300:
        answers = read_rows(cluster.servers, ["answers"], PARTITIONS)
        assert time.monotonic() < deadline
    for member in members:
        member.send_signal(signal.SIGTERM)
    said = [member.communicate(timeout=SECONDS)[0] for member in members]
    assert {row.value() for row in answers} == {b"WHAT %d" % number for number in range(300)}
    assert sum(int(one.split()[0]) for one in said) >= 300
