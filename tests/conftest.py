"""Makes what several test folders share (such as `raft_cluster`) importable from all of them."""

import hypothesis
import pytest

from quorumlog.local import guarded
from small_files import directory_in_memory

hypothesis.settings.register_profile("untimed", deadline=None)  # machines are shared and slow
hypothesis.settings.load_profile("untimed")


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
