"""A local cluster with topics, for clients that are programs of their own."""

import subprocess

import pytest

from quorumlog.local import LocalCluster

SECONDS = 240


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Three nodes that serve Kafka's clients, as `quorumlog cluster up` starts them."""
    made = LocalCluster.create(tmp_path_factory.mktemp("clients") / "c", topics=True, kafka_port=0)
    made.up()
    yield made
    made.down()


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
