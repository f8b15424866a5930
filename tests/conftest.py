"""Makes what several test folders share (such as `raft_cluster`) importable from all of them."""

import hypothesis
import pytest

from quorumlog.local import guarded

hypothesis.settings.register_profile("untimed", deadline=None)  # machines are shared and slow
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _no_node_outlives_the_tests(tmp_path_factory):
    """Whatever ends this process: nodes whose files are in its temporary directory end with it."""
    with guarded(tmp_path_factory.getbasetemp()):
        yield
