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
        create_topic(made, "first", 16)
        yield made
    finally:
        made.down()


@pytest.fixture
def topic(cluster, request):
    """A topic of one partition, which is named after the test; every broker knows of it."""
    name = request.node.name.replace("[", "-").rstrip("]")
    create_topic(cluster, name, 1)
    return name


def create_topic(cluster, name, partitions):
    """Create a topic, and wait until each broker says that preferred leaders lead.

    A broker hears of a topic after another, and leaders of new partition groups hand over: clients
    complain of either.
    """
    servers, deadline = cluster.bootstrap_servers.split(","), time.monotonic() + SECONDS
    admin = AdminClient({"bootstrap.servers": servers[0]})
    admin.create_topics([NewTopic(name, partitions)])[name].result(SECONDS)
    for server in servers:
        while not is_led_as_preferred(server, name):
            assert time.monotonic() < deadline, f"{server}: others than the preferred leaders lead"
            time.sleep(0.1)


def is_led_as_preferred(server, topic):
    """Whether this broker, which a new client asks, says so of all partitions."""
    known = AdminClient({"bootstrap.servers": server}).list_topics(topic, timeout=SECONDS)
    partitions = known.topics[topic].partitions.values()
    return bool(partitions) and all(one.replicas[:1] == [one.leader] for one in partitions)


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
