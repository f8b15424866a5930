"""Groups that come and go on simulated machines, while these crash, are cut off and come back."""

import logging

import pytest

from quorumlog.sim import process
from quorumlog.sim.group_run import run_groups_seed
from quorumlog.storage.journal.writer import NodeJournal

SECONDS = 20
JOURNAL_SEEDS = range(3)
SEEDS = range(3, 7)


@pytest.fixture(autouse=True)
def _no_log_lines():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def passed(seed, seconds=SECONDS, nodes=3):
    """Return how a run ended that has to find nothing."""
    outcome = run_groups_seed(seed, seconds=seconds, nodes=nodes)
    lines = [line for story in outcome.histories.values() for line in story]
    assert outcome.finding is None, "\n".join([*lines, str(outcome.finding)])
    return outcome


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_163_a_group_is_at_all_its_members_or_at_none_in_the_end(seed):
    assert passed(seed).appended > 0


def test_groups_on_five_nodes():
    assert passed(100, nodes=5).appended > 0


def test_the_same_seed_is_the_same_run_to_the_byte():
    first, second = passed(7, seconds=5), passed(7, seconds=5)
    assert first.digest == second.digest
    assert first.histories == second.histories


@pytest.mark.timeout(300)
def test_several_groups_use_the_journal_its_room_again_and_again_and_are_settled(monkeypatch):
    append, settle, groups, settled = NodeJournal.append, process.settle_node, [], []
    reused = []

    def counted(self, items):
        groups.append(len({item.appended.group for item in items}))
        segment = self._current
        if not segment.offset and self._next_sequence > 1:
            reused.append(segment)
        append(self, items)

    def watched(*arguments):
        result = settle(*arguments)
        settled.extend(bytes_ for bytes_ in result.groups.values() if bytes_)
        return result

    monkeypatch.setattr(NodeJournal, "append", counted)
    monkeypatch.setattr(process, "settle_node", watched)
    for seed in JOURNAL_SEEDS:
        passed(seed)
    assert max(groups) > 1
    assert len(reused) > 20
    assert len(settled) > 5
