"""A local cluster with topics, for clients that are programs of their own."""

import subprocess
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from quorumlog.local import LocalCluster

SECONDS = 240


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Three nodes that serve Kafka's clients, as `quorumlog cluster up` starts them."""
    made = LocalCluster.create(tmp_path_factory.mktemp("clients") / "c", topics=True, kafka_port=0)
    made.up()
    try:
        settle(made)
        yield made
    finally:
        made.down()


def settle(cluster):
    """Have partition groups made, and wait until each broker says that preferred leaders lead.

    Before that a leader hands over, of which clients complain.
    """
    servers, deadline = cluster.bootstrap_servers.split(","), time.monotonic() + SECONDS
    first = NewTopic("first", 16)
    admin = AdminClient({"bootstrap.servers": servers[0]})
    admin.create_topics([first])[first.topic].result(SECONDS)
    for server in servers:
        while not is_led_as_preferred(server, first.topic):
            assert time.monotonic() < deadline, f"{server}: others than the preferred leaders lead"
            time.sleep(0.1)


def is_led_as_preferred(server, topic):
    """Whether this broker, which a new client asks, says so of all partitions."""
    known = AdminClient({"bootstrap.servers": server}).list_topics(topic, timeout=SECONDS)
    partitions = known.topics[topic].partitions.values()
    return bool(partitions) and all(one.leader == one.replicas[0] for one in partitions)


@pytest.fixture
def kcat(cluster):
    """Run kcat with some options; return what it prints. It must succeed, and complain of nothing.

    It reports the ends of partitions on standard error, unless it is told to be quiet (-q).
    """

    def run(*options, given=""):
        done = subprocess.run(
            ["kcat", "-b", cluster.bootstrap_servers, *map(str, options)],
            input=given,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    return run
