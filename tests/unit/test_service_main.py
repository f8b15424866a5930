"""A node process that has to stop does, whatever it waits for."""

import subprocess
import sys

WAITS_FOR_EVER = """
import threading
from quorumlog.service.main import exit_within
threading.Thread(target=threading.Event().wait).start()  # as a thread in a disk that hangs
exit_within(0.1, "n0")
"""


def test_a_process_whose_threads_do_not_return_ends_and_says_why():
    ended = subprocess.run(
        [sys.executable, "-c", WAITS_FOR_EVER], capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert b"quorumlog: n0: could not stop within 0.1 s" in ended.stderr
