"""What `make test` runs, and what it says at its end, with a pytest that only tells of its call."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
PYTEST = """#!/bin/sh
# says what it was called with; fails where a file "fail" names one of its arguments
echo "called: $*"
for word in "$@"; do
    if [ -e "$word.fails" ]; then
        echo "FAILED $word::test_it - it failed"
        echo "1 failed"
        exit 1
    fi
    if [ -e "$word.hangs" ]; then
        trap 'touch ended; exit 3' TERM
        touch hanging
        while :; do sleep 0.05; done
    fi
done
echo "1 passed"
"""


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tests" / "integration").mkdir(parents=True)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    command = tmp_path / ".venv" / "bin" / "pytest"
    command.write_text(PYTEST)
    command.chmod(0o755)
    (tmp_path / "scripts").mkdir()
    for name in ("suite.py", "test.sh", "test-clients.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    return tmp_path


def start(tree, *arguments):
    return subprocess.Popen(
        ["sh", str(tree / "scripts" / "test.sh"), *arguments], stdout=subprocess.PIPE, text=True
    )


def run(tree, *arguments):
    """Return the exit status and the lines that were written."""
    process = start(tree, *arguments)
    out, _ = process.communicate(timeout=60)
    return process.returncode, out.splitlines()


def calls(lines):
    return [line.split()[3:] for line in lines if line.startswith("called: ")]


def test_every_test_is_in_one_part_or_run_by_test_clients(tree):
    kafka, other = "tests/integration/test_kafka_x.py", "tests/integration/test_x.py"
    half, rest = "tests/unit/test_a.py", "tests/unit/test_b.py"
    (tree / "tests" / "unit").mkdir()
    for path in (kafka, other, half, rest):
        (tree / path).touch()
    status, lines = run(tree)
    assert status == 0
    integration, spark = "tests/integration", ["tests/compat", "tests/spark"]
    computed = ["tests/mutants", "tests/properties"]
    elsewhere = [integration, *spark, *computed, "tests/clients", half]
    assert calls(lines) == [
        [integration, f"--ignore={kafka}"],
        [f"--ignore={name}" for name in elsewhere],
        spark,
        [kafka],
        computed,
        [half],
    ]
    assert [line.split(" in ")[0] for line in lines[-6:]] == [
        "started: passed",
        "others: passed",
        "with Spark: passed",
        "with Kafka's clients: passed",
        "simulated: passed",
        "half of the unit tests: passed",
    ]


@pytest.mark.parametrize(("user", "is_ci", "status"), [("1000", "true", 0), ("0", "true", 1)])
def test_clients_that_cannot_be_had_are_named_and_left_out_but_in_ci(tree, user, is_ci, status):
    place = tree / "bin"
    place.mkdir()
    for name in ("sh", "dirname", "rm"):
        (place / name).symlink_to(shutil.which(name))
    for name, says in (("id", f"echo {user}"), ("apt-get", "exit 1")):
        (place / name).write_text(f"#!/bin/sh\n{says}\n")
        (place / name).chmod(0o755)
    done = subprocess.run(
        ["sh", str(tree / "scripts" / "test-clients.sh")],
        env={"PATH": str(place), "CI": is_ci},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "called: tests/clients -rs" in done.stdout) == (status, status == 0)
    assert (
        "test-clients: lacks kcat node a compiler with headers, whose tests are skipped"
        in done.stdout
    )


def test_nothing_is_missed_if_there_are_no_tests_with_kafkas_clients(tree):
    status, lines = run(tree)
    assert (status, len(calls(lines))) == (0, 4)


@pytest.mark.parametrize(
    "failing",
    [
        "tests/spark",
        "tests/mutants",
        "tests/integration/test_topics.py",
        "--ignore=tests/spark",
    ],
)
def test_a_part_that_fails_fails_all_and_is_named_at_the_end(tree, failing):
    (tree / "tests/integration/test_topics.py").touch()
    mark = tree / f"{failing}.fails"
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    status, lines = run(tree)
    assert status == 1
    assert f"FAILED {failing}::test_it - it failed" in lines[-6:]
    assert [": passed" in line for line in lines[-6:]].count(True) == 4


def test_a_signal_ends_what_runs(tree):
    (tree / "tests/spark.hangs").touch()
    process = start(tree)
    while not (tree / "hanging").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert (tree / "ended").exists()


def test_with_arguments_pytest_is_called_with_these(tree):
    assert run(tree, "tests/unit", "-k", "x") == (0, ["called: tests/unit -k x", "1 passed"])
