"""Makes what several test folders share (such as `raft_cluster`) importable from all of them."""

import fcntl
import os
import tempfile
from pathlib import Path

import hypothesis
import pytest

from quorumlog.local import guarded, ports
from small_files import directory_in_memory

hypothesis.settings.register_profile("untimed", deadline=None)  # machines are shared and slow
hypothesis.settings.load_profile("untimed")

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that do not live long: a third less processor time for a start."""
os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JAVA)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", QUICK_JAVA)

os.environ["QUORUMLOG_CONTEXTS"] = os.devnull  # contexts of whoever runs the tests are not theirs


@pytest.fixture(scope="session", autouse=True)
def _no_node_outlives_the_tests(tmp_path_factory):
    """Whatever ends this process: nodes whose files are in its temporary directory end with it."""
    with guarded(tmp_path_factory.getbasetemp()):
        yield


PORT_RANGES = [range(first, first + 1_000) for first in range(2_000, 9_000, 1_000)]
"""Below the ports that clusters get by themselves: each run of pytest has a range of its own."""


@pytest.fixture(scope="session", autouse=True)
def _ports_of_this_run(monkeypatch_session):
    """Two runs beside each other cannot choose the same port before either listens on it.

    A further run, for which no range is left, takes ports as users' clusters do.
    """
    for number, taken in enumerate(PORT_RANGES):
        path = Path(tempfile.gettempdir()) / f"quorumlog-tests-{os.getuid()}-ports-{number}"
        with path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            monkeypatch_session.setattr(ports, "PORT_FIRST", taken.start)
            monkeypatch_session.setattr(ports, "PORT_LAST", taken[-1])
            yield
            return
    yield


@pytest.fixture(scope="session")
def monkeypatch_session():
    """Patches that hold for a whole run."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture
def memory_path(tmp_path):
    """A directory on a disk that never stalls, where there is one."""
    with directory_in_memory(tmp_path) as path:
        yield path
