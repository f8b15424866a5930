"""A session of a process of its own: what it says at start."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

START = """
from quorumlog.spark import session
spark = session()
print(spark.range(10).count(), spark.conf.get("spark.sql.python.filterPushdown.enabled"))
"""


def test_a_session_starts_without_a_word():
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == "10 true\n"
