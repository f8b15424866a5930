"""The programs in examples/ that need no Spark: each runs as its first lines say."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from default_signals import default_signals
from quorumlog.client import SyncClient
from quorumlog.local import LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES_MAX = 60
LONGER = {"lock_service.py", "message_store.py", "register.py", "spark_flights.py"}
"""Shows rather than starting points."""

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("name", ["produce", "consume", "transactions", "counter", "register"])
def test_a_program_without_its_arguments_says_what_they_are(name):
    program = EXAMPLES / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert f"python examples/{name}.py" in done.stderr


def run(name, *arguments, text=None):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.splitlines()


def bodies(cluster):
    with SyncClient(cluster.servers, "g") as client:
        return [entry.body for entry in client.read(follow=False)]


def consumed(cluster, last):
    """Start the consumer, read its lines up to a body, and interrupt it as Ctrl-C does."""
    with default_signals():
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "consume.py"), cluster.servers, "g", "printers"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        lines = []
        while last not in lines:
            lines.append(process.stdout.readline().split()[1])
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert errors == ""
    assert process.returncode == 0
    return lines + [line.split()[1] for line in rest.splitlines()]


def test_produced_lines_are_stored_in_order(cluster):
    text = "".join(f"line {number}\n" for number in range(1000))
    (last,) = run("produce.py", cluster.servers, "g", text=text)
    assert re.fullmatch(r"the last line is at index \d+", last)
    assert bodies(cluster) == text.encode().splitlines()
    assert run("produce.py", cluster.servers, "g", text="") == []


@pytest.fixture
def brokers(tmp_path):
    made = LocalCluster.create(tmp_path / "brokers", groups=("g",), topics=True, kafka_port=0)
    made.up()
    yield made
    made.down()


def test_a_consumer_continues_where_the_run_before_stopped(brokers):
    cluster = brokers
    run("produce.py", cluster.servers, "g", text="a\nb\nc\n")
    assert consumed(cluster, "c") == ["a", "b", "c"]
    run("produce.py", cluster.servers, "g", text="d\ne\n")
    continued = consumed(cluster, "e")
    assert continued == ["d", "e"] or continued[-2:] == ["d", "e"], "the last block may come again"


def test_a_batch_is_seen_as_a_whole_and_written_once(cluster):
    hidden, shown = run("transactions.py", cluster.servers, "g", "0")
    assert hidden.endswith("readers see 0 more entries")
    assert shown.endswith("readers see 200 more entries")
    assert run("transactions.py", cluster.servers, "g", "0") == ["batch 0 was written before"]
    assert len(bodies(cluster)) == 200


def test_a_machine_of_ones_own_counts(tmp_path, monkeypatch):
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    )
    made = LocalCluster.create(tmp_path / "counted", state_machine="counter:Counters")
    made.up()
    try:
        assert run("counter.py", made.servers, "apples", "apples", "pears") == [
            "apples 2",
            "pears 1",
        ]
        assert run("counter.py", made.servers, "pears") == ["pears 2"]
    finally:
        made.down()


def test_138_a_register_is_written_and_read_now_or_stale(tmp_path, monkeypatch):
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    )
    made = LocalCluster.create(tmp_path / "registers", state_machine="register:Registers")
    made.up()
    try:
        assert run("register.py", made.servers, "read", "1") == ["-1"], "absent"
        for factor, before in ((10, "-1"), (20, None)):
            for key in (1, 2):
                said = before or str(10 * key)
                written = run("register.py", made.servers, "write", str(key), str(factor * key))
                assert written == [f"before: {said}"]
        assert run("register.py", made.servers, "read", "2") == ["40"]
        assert run("register.py", made.servers, "read", "2", "--stale")[0] in ("-1", "20", "40")
    finally:
        made.down()


def test_a_message_store_goes_on_in_order_with_another_leader():
    assert run("message_store.py") == [
        *(
            f"queue {queue} has a message at place {place}"
            for place in range(3)
            for queue in (1, 2)
        ),
        "the leader has stopped, another one serves",
        "queue 1 goes on at place 3",
        *(f"message {number} of queue 1" for number in range(4)),
    ]


def test_examples_are_short_and_listed():
    page = (EXAMPLES / "README.md").read_text()
    for example in EXAMPLES.glob("*.py"):
        assert f"]({example.name})" in page
        if example.name not in LONGER:
            assert len(example.read_text().splitlines()) <= LINES_MAX, example.name
