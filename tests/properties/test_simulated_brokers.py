"""Brokers on simulated machines: consumer groups and transactions, and everything goes wrong."""

import logging

import pytest

from quorumlog.sim.broker_run import BrokerRun, run_brokers_seed

SECONDS = 5
SEED = 1


@pytest.fixture(autouse=True)
def _no_log_lines():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def passed(seed, seconds=SECONDS):
    """Return how a run ended that has to find nothing."""
    outcome = run_brokers_seed(seed, seconds=seconds)
    lines = [line for story in outcome.histories.values() for line in story]
    assert outcome.finding is None, "\n".join([*lines, str(outcome.finding)])
    return outcome


def test_b14_the_same_seed_is_the_same_run_to_the_byte():
    first, second = passed(7, seconds=1), passed(7, seconds=1)
    assert first.digest == second.digest
    assert first.histories == second.histories


def test_b14_coordinators_keep_their_word_and_clients_get_on():
    """That a run finds nothing says nothing if its clients do nothing."""
    run = BrokerRun(SEED)
    run.run(SECONDS)
    outcomes = run.cluster.coordination.outcomes.values()
    assert 0 < sum(outcomes) < len(outcomes), "transactions were committed, and aborted"
    assert all(group.acknowledged for group in run.groups)
    assert run.reader.reads > 5
