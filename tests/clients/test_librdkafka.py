"""librdkafka's own tests, built from its sources, against a cluster of three nodes.

The runner exits with an error if any of its threads is left, whatever the tests found: what counts
is what it prints about each test.
"""

import os
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from kafka.admin import ConfigResource, KafkaAdminClient

from quorumlog.local import LocalCluster
from quorumlog.model.topic_configs import AUTO_CREATE

SOURCES = Path(__file__).parents[2] / "build/librdkafka/package/deps/librdkafka"
TABLE = tomllib.loads(Path(__file__).with_name("librdkafka_tests.toml").read_text())
KAFKA_VERSION = "3.4.0"
"""What the tests take the cluster for: they skip what newer brokers have."""
AT_ONCE = 8
SECONDS = 270
WORKS_S = 0.001
"""A test that ends sooner has done nothing."""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        not (SOURCES / "tests/built").exists(), reason="librdkafka is not there (make test-clients)"
    ),
]
_OUTCOME = re.compile(r"/ *([0-9.]+)s\] =+ Test (\w+) (PASSED|FAILED|SKIPPED) =+")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster that has no topics of other tests."""
    made = LocalCluster.create(tmp_path_factory.mktemp("tests") / "c", topics=True, kafka_port=0)
    made.up()
    yield made
    made.down()


@pytest.fixture
def runner(cluster, tmp_path):
    """Run tests; return how each ended, after how many seconds, and what was printed."""
    settings = tmp_path / "test.conf"
    settings.write_text(
        f"metadata.broker.list={cluster.bootstrap_servers}\n"
        "test.topic.random=true\n"
        "test.timeout.multiplier=3\n"
    )

    def run(names, *options, at_once=AT_ONCE):
        numbers = sorted({name.partition("_")[0] for name in names})
        inherited = {name: value for name, value in os.environ.items() if name != "CI"}
        environment = {
            **inherited,  # some would skip themselves in CI
            "BROKERS": cluster.bootstrap_servers,
            "KAFKA_PATH": str(Path(__file__).with_name("kafka")),
            "LD_LIBRARY_PATH": "../src:../src-cpp",
            "PYTHON": sys.executable,
            "RDKAFKA_TEST_CONF": str(settings),
            "TEST_KAFKA_VERSION": KAFKA_VERSION,
            "TESTS": ",".join(numbers),
        }
        command = ["./test-runner", "-L", f"-p{at_once}", *options]
        output = tmp_path / "printed"
        with output.open("wb") as file, suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                cwd=SOURCES / "tests",
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
        printed = _COLOUR.sub("", output.read_text(errors="replace"))
        found = {name: (state, float(s)) for s, name, state in _OUTCOME.findall(printed)}
        return {name: found.get(name, ("NOT RUN", 0.0)) for name in names}, printed

    return run


def test_a5_the_table_has_every_test_that_needs_a_broker():
    source = (SOURCES / "tests/test.c").read_text()
    listed = re.findall(r"^ +_TEST\(\s*(\w+),\s*(\w*)", source, re.MULTILINE)
    names = sorted(name for name, flag in listed if flag != "TEST_F_LOCAL")
    excluded = [name for reason in TABLE["excluded"] for name in reason["tests"]]
    run = [name for mode in ("quick", "alone", "whole", "noautocreate") for name in TABLE[mode]]
    assert sorted([*run, *excluded]) == names


def check(names, outcome):
    """All must have passed, and done something."""
    found, printed = outcome
    failed = {
        name: (state, seconds)
        for name, (state, seconds) in found.items()
        if state != "PASSED" or seconds < WORKS_S
    }
    lines = printed.splitlines()
    why = [" ".join(lines[at : at + 2]) for at, line in enumerate(lines) if "###" in line]
    told = [line for line in lines if any(f"[{name}" in line for name in failed)]
    assert not failed, "\n".join([str(failed), *why, *told[-100:]])
    assert list(found) == names


runs_all = pytest.mark.skipif(
    "LIBRDKAFKA_TESTS" not in os.environ,
    reason="some of them want a machine that does nothing else: LIBRDKAFKA_TESTS=1 runs them",
)


@runs_all
def test_a5_tests_pass_in_quick_mode(runner):
    check(TABLE["quick"], runner(TABLE["quick"], "-Q"))


@runs_all
def test_a5_tests_pass_that_want_quick_answers(runner):
    check(TABLE["alone"], runner(TABLE["alone"], "-Q", at_once=1))


@runs_all
def test_a5_tests_pass_that_do_nothing_in_quick_mode(runner):
    check(TABLE["whole"], runner(TABLE["whole"]))


@runs_all
def test_a5_tests_pass_if_topics_are_not_created_when_clients_ask_for_them(runner, cluster):
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    admin.alter_configs([ConfigResource("BROKER", "0", {AUTO_CREATE: "false"})])
    try:
        names = TABLE["noautocreate"]
        check(names, runner(names, "-s", "noautocreate"))
    finally:
        admin.reset_configs([ConfigResource("BROKER", "0", [AUTO_CREATE])])
        admin.close()
