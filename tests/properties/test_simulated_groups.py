"""Groups that come and go on simulated machines, while these crash, are cut off and come back."""

import logging

import pytest

from quorumlog.node.group_sync import GroupSync
from quorumlog.sim.finding import Finding
from quorumlog.sim.group_changes import GroupChanges
from quorumlog.storage.metadata.group_files import GroupFiles

SECONDS = 20


@pytest.fixture(autouse=True)
def _no_log_lines():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(12))
def test_163_a_group_is_at_all_its_members_or_at_none_in_the_end(seed):
    run = GroupChanges(seed)
    try:
        run.run(SECONDS)
    except Finding as finding:
        pytest.fail("\n".join([*run.happened, str(finding)]))
    assert run.counts["appended"] > 0


def _leaves_files(monkeypatch):
    """A deleted group's files stay where its successor finds them."""

    def bury(self, record):
        self._make_deleted()
        self._write(self._grave(record), record)

    monkeypatch.setattr(GroupFiles, "bury", bury)


def _tells_nobody(monkeypatch):
    """Who was away is not told that a group was deleted."""
    monkeypatch.setattr(GroupSync, "_learn_deletion", lambda self, peer, record: None)


def _never_gives_up(monkeypatch):
    """What an interrupted creation left stays."""
    monkeypatch.setattr("quorumlog.node.group_sync.FOUNDING_MS", 1 << 60)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("put_back", [_leaves_files, _tells_nobody, _never_gives_up])
def test_a_bug_that_is_put_back_is_found(put_back, monkeypatch):
    put_back(monkeypatch)
    for seed in range(12):
        try:
            GroupChanges(seed).run(SECONDS)
        except Finding:
            return
    pytest.fail("nothing was found")
