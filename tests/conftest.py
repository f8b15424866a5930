"""Makes what several test folders share (such as `raft_cluster`) importable from all of them."""

import os

import hypothesis
import pytest

from quorumlog.local import guarded
from small_files import directory_in_memory

hypothesis.settings.register_profile("untimed", deadline=None)  # machines are shared and slow
hypothesis.settings.load_profile("untimed")

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that do not live long: a third less processor time for a start."""
os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JAVA)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JAVA)


@pytest.fixture(scope="session", autouse=True)
def _no_node_outlives_the_tests(tmp_path_factory):
    """Whatever ends this process: nodes whose files are in its temporary directory end with it."""
    with guarded(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture
def memory_path(tmp_path):
    """A directory on a disk that never stalls, where there is one."""
    with directory_in_memory(tmp_path) as path:
        yield path
