"""Sessions of processes of their own: what they say at start, and the archive of classes."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

START = """
import pathlib, sys
from quorumlog.spark import session
directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None
spark = session(class_archive=directory)
print(spark.range(10).count(), spark.conf.get("spark.sql.python.filterPushdown.enabled"))
"""


def start(*arguments):
    done = subprocess.run(
        [sys.executable, "-c", START, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


def test_a_session_starts_without_a_word_and_its_archive_of_classes_is_made_once(tmp_path):
    directory = tmp_path / "classes"
    assert start(str(directory)) == "10 true\n"
    (archive,) = directory.iterdir()
    made = archive.stat().st_mtime_ns
    assert archive.stat().st_size > 50_000_000
    assert start(str(directory)) == "10 true\n"
    assert [path.stat().st_mtime_ns for path in directory.iterdir()] == [made]
