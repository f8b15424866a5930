"""Processes that were started without standard input, output or error."""

import os
import subprocess
import sys

import pytest

CLIENT = """
from quorumlog import RequestError, SyncClient
try:
    with SyncClient("127.0.0.1:1", "g", timeout_ms=300) as client:
        client.bounds()
except RequestError:
    raise SystemExit(7)
"""
COMMAND = (sys.executable, "-m", "quorumlog")
CLOSED = [(0,), (1,), (2,), (0, 1, 2)]


def run(arguments, closed):
    """Run a process without some of the standard streams; (exit status, what it printed)."""
    closing = " ".join(f"{number}>&-" for number in closed)
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closing}', "sh", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=os.environ,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("closed", CLOSED, ids=str)
def test_a_client_lives_without_standard_streams(closed):
    assert run([sys.executable, "-c", CLIENT], closed) == (7, "", "")


@pytest.mark.parametrize("closed", CLOSED, ids=str)
def test_a_command_fails_as_ever_without_standard_streams(closed):
    where = ("--servers", "127.0.0.1:1", "--group", "g", "--timeout", "0.3")
    status, out, err = run([*COMMAND, "append", "hello", *where], closed)
    assert (status, out) == (1, "")
    assert ("body 1 not appended" in err) is (2 not in closed)


def test_lines_of_a_closed_standard_input_are_none():
    status, out, err = run([*COMMAND, "append", "--servers", "127.0.0.1:1"], (0,))
    assert (status, out) == (1, "")
    assert err == ("quorumlog: nothing to append: no body is given, and standard input is closed\n")
