"""A session of a process of its own: what it says at start."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

LONG = "a temporary directory with a path too long for sockets in it"
START = """
from quorumlog.spark import session
spark = session()
print(spark.range(10).count(), spark.conf.get("spark.sql.python.filterPushdown.enabled"))
print(spark.sparkContext.parallelize([1, 2]).map(lambda number: number + 1).sum())
"""


def test_a_session_starts_silently_and_creates_no_file(tmp_path):
    """Also where Spark's sockets have no room: `LONG` is the temporary directory."""
    (tmp_path / LONG).mkdir()
    done = subprocess.run(
        [sys.executable, "-c", START],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"TMPDIR": str(tmp_path / LONG)},
    )
    assert done.stderr == ""
    assert done.stdout == "10 true\n5\n"
    assert not list((tmp_path / LONG).iterdir())
