"""Clients that are made while the process has no file descriptors left for them."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, resource, sys
from quorumlog import Outcome, RequestError, SyncClient, SyncProducer

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for _ in range(int(sys.argv[1])):
    os.close(held.pop())
for kind in (SyncClient, SyncProducer):
    try:
        kind("127.0.0.1:1", "g")
    except RequestError as error:
        assert error.outcome is Outcome.DID_NOT_HAPPEN
        print(error)
while held:
    os.close(held.pop())
SyncClient("127.0.0.1:1", "g").close()
"""


@pytest.mark.parametrize("left", [0, 2, 5])
def test_a_client_without_descriptors_is_refused_in_words(left):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(left)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = "no client can be made: Too many open files; close files or connections, or raise the "
    assert done.stdout == f"{said}limit (ulimit -n)\n" * 2
    assert (done.returncode, done.stderr) == (0, "")
