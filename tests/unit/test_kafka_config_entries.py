"""Configs in requests of Kafka's clients."""

from types import SimpleNamespace

from quorumlog.kafka.config_entries import problem_of_lengths
from quorumlog.model.topic_configs import VALUE_LENGTH_MAX


def test_a_config_too_long_for_a_command_is_refused_before_it_is_one():
    good = SimpleNamespace(name="retention.ms", value="1" * VALUE_LENGTH_MAX)
    without = SimpleNamespace(name="retention.ms", value=None)
    assert problem_of_lengths([good, without]) == ""
    for name, value in (("x" * 30_000, "1"), ("retention.ms", "1" * 40_000)):
        problem = problem_of_lengths([good, SimpleNamespace(name=name, value=value)])
        assert len(problem) < 250
        assert name[:20] in problem
