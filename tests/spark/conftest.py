"""One Spark session and two clusters of processes, one with topics, for all Spark tests."""

import pytest

from quorumlog.client import SyncClient, SyncProducer
from quorumlog.local import LocalCluster
from quorumlog.spark import session

ENTRIES = 10_000


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    output = tmp_path_factory.mktemp("spark") / "spark.log"
    made = session("tests", master="local[2,2]", output=output)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Three nodes; group `g` holds ENTRIES bodies b"0", b"1" …, group `empty` nothing.

    Streams read what they append to `live` themselves; `other` is there for reading several, and
    `results` for the examples.
    """
    made = LocalCluster.create(
        tmp_path_factory.mktemp("cluster") / "nodes",
        groups=("g", "empty", "live", "other", "results"),
        data_file_bytes=8 << 20,
    )
    made.up()
    with SyncProducer(made.servers, "g", batch_bytes=8 * 1024, idempotent=False) as producer:
        for number in range(ENTRIES):
            producer.send(str(number).encode())
    yield made
    made.down()


@pytest.fixture(scope="session")
def bounds(cluster):
    """First index kept and last committed index of `g`."""
    with SyncClient(cluster.servers, "g") as client:
        return client.bounds()


@pytest.fixture(scope="session")
def brokers(tmp_path_factory):
    """Three nodes that serve Kafka's clients; tests make topics with names of their own."""
    made = LocalCluster.create(
        tmp_path_factory.mktemp("brokers") / "nodes", topics=True, kafka_port=0
    )
    made.up()
    yield made
    made.down()
