"""The README's examples run as printed, against the cluster that their command starts; so do
those of the pages about transactions, topics and Kafka's clients."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog.local import LocalCluster

README = Path(__file__).parent.parent.parent / "README.md"
DOCS = README.parent / "docs"
README_SERVERS = "127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103"
README_BROKER = "127.0.0.1:9092"
SECONDS = 60


def first_example():
    return re.search(r"```python\n(import asyncio\n.*?)```", README.read_text(), re.DOTALL)[1]


@pytest.mark.processes
def test_the_ten_line_example_runs(tmp_path):
    cluster = LocalCluster.create(tmp_path / "flights", groups=("flights",))
    cluster.up()
    try:
        example = first_example()
        assert README_SERVERS in example
        assert "quorumlog cluster up --dir /tmp/flights --group flights --port 7101" in (
            README.read_text()
        )
        script = example.replace(README_SERVERS, cluster.servers)
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.stderr == ""
        index, term, position = done.stdout.splitlines()[0].split()
        assert (int(index), int(term)) == (1, 1)
        assert int(position) > 48, "the entry that names the members comes first"
        assert done.stdout.splitlines()[1:] == [f"{index} b'hello'"]
    finally:
        cluster.down()


@pytest.mark.processes
def test_the_example_of_transactions_writes_one_batch_each_time(tmp_path):
    page = (README.parent / "docs/howto/transactions.md").read_text()
    example = re.search(r"```python\n(import asyncio\n.*?)```", page, re.DOTALL)[1]
    assert README_SERVERS in example
    cluster = LocalCluster.create(tmp_path / "flights", groups=("flights",))
    cluster.up()
    try:
        script = example.replace(README_SERVERS, cluster.servers)
        for batches in (1, 2):
            done = subprocess.run(
                [sys.executable, "-c", script],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.stderr == ""
            rows = [
                b"%d/%d/%d" % (batch, partition, row)
                for batch in range(batches)
                for partition in range(2)
                for row in range(3)
            ]
            assert done.stdout == f"{rows}\n"
    finally:
        cluster.down()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    directory = tmp_path_factory.mktemp("brokers") / "mycluster"
    cluster = LocalCluster.create(directory, topics=True, kafka_port=0)
    cluster.up()
    yield cluster
    cluster.down()


def printed_by_example(brokers, page, beginning):
    """Run the example of a page that begins so, with a broker's real address; return its output."""
    example = re.search(rf"```python\n({re.escape(beginning)}.*?)```", page.read_text(), re.DOTALL)[
        1
    ]
    assert README_BROKER in example
    script = example.replace(README_BROKER, brokers.bootstrap_servers)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.processes
def test_kafkas_clients_produce_and_consume_as_the_readme_says(brokers):
    assert "quorumlog cluster up --dir mycluster" in README.read_text()
    beginning = "from confluent_kafka import Consumer, Producer"
    assert printed_by_example(brokers, README, beginning) == "0 b'hello'\n"
    beginning = "from confluent_kafka import Consumer\n"
    printed = printed_by_example(brokers, DOCS / "kafka.md", beginning)
    assert printed == "0 0 b'hello'\n", "the page consumes what the README produced"


@pytest.mark.processes
def test_the_tutorials_record_is_read_back(brokers):
    page = DOCS / "tutorial.md"
    printed = printed_by_example(brokers, page, "from kafka import KafkaConsumer")
    assert printed == "0 b'12 minutes'\n"


def test_every_page_the_readme_names_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
