"""How a node divides the file descriptors that it may have."""

import re
import resource

import msgspec
import pytest

from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.model.errors import ConfigError
from quorumlog.model.limits import Limits
from quorumlog.node.descriptors import (
    CONNECTIONS_MIN,
    LIMIT_MAX,
    RESERVE,
    plan_descriptors,
    raise_limit,
)

PEERS = "n0-127.0.0.1:7101;n1-127.0.0.1:7102;n2-127.0.0.1:7103"
UNLIMITED = resource.RLIM_INFINITY


def node(groups=1, limits=None, **options):
    return NodeConfig(
        self_id="n0",
        store_base_dir="/data",
        groups=[GroupConfig(group=f"g{n}", peers=PEERS, **options) for n in range(groups)],
        limits=limits or Limits(),
    )


@pytest.mark.parametrize("groups", [1, 3, 50])
@pytest.mark.parametrize("limit", [2_048, 4_096, 65_536])
def test_no_more_is_given_away_than_there_is(groups, limit):
    plan = plan_descriptors(node(groups), limit)
    assert plan.own + plan.peers + plan.connections + RESERVE <= limit
    assert CONNECTIONS_MIN <= plan.connections <= Limits().connections_max
    assert plan.own >= groups * 2 * plan.maps_max


def test_the_usual_limit_is_enough_for_some_groups_and_500_clients():
    assert plan_descriptors(node(3), 1_024).connections >= 500


def test_a_limit_of_20_000_is_enough_for_1_000_groups_and_all_connections():
    assert plan_descriptors(node(1_000), 20_000).connections == Limits().connections_max


def test_connections_are_no_more_than_the_configuration_wants():
    assert plan_descriptors(node(limits=Limits(connections_max=100)), 65_536).connections == 100


def test_fewer_than_wanted_by_the_configuration_are_enough():
    plan = plan_descriptors(node(limits=Limits(connections_max=5)), 65_536)
    assert plan.connections == 5


def broker(limits=None):
    cluster = GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers=PEERS)
    return msgspec.structs.replace(node(limits=limits), groups=[cluster])


@pytest.mark.parametrize("limit", [512, 1_024, 2_048, 4_096, 65_536])
def test_kafka_clients_and_others_share_what_files_and_peers_leave(limit):
    plan = plan_descriptors(broker(), limit)
    given = plan.own + plan.peers + plan.connections + plan.kafka_connections + RESERVE
    assert given <= limit
    assert CONNECTIONS_MIN <= plan.kafka_connections <= Limits().kafka_connections_max
    assert CONNECTIONS_MIN <= plan.connections <= Limits().connections_max
    assert plan.connections >= plan.kafka_connections


def test_kafka_clients_get_what_others_do_not_want():
    limits = Limits(connections_max=20, kafka_connections_max=5_000)
    plan = plan_descriptors(broker(limits), 4_096)
    assert plan.connections == 20
    assert plan.kafka_connections == 4_096 - plan.own - plan.peers - RESERVE - 20
    assert plan_descriptors(broker(limits), 65_536).kafka_connections == 5_000


def test_a_node_that_is_no_broker_keeps_nothing_for_kafka_clients():
    assert plan_descriptors(node(), 65_536).kafka_connections == 0


def test_a_broker_needs_descriptors_for_both_kinds_of_clients():
    with pytest.raises(ConfigError, match="ulimit -n") as caught:
        plan_descriptors(broker(), 200)
    needed = int(re.search(r"need (\d+)", str(caught.value))[1])
    assert plan_descriptors(broker(), needed).kafka_connections == CONNECTIONS_MIN


def test_groups_with_machines_and_groups_in_memory_take_what_they_need():
    own = plan_descriptors(node(), 4_096).own
    assert plan_descriptors(node(state_machine="kv"), 4_096).own > own
    assert plan_descriptors(node(store_type="MEMORY"), 4_096).own < own


@pytest.mark.parametrize("groups", [1, 2, 20, 100])
@pytest.mark.parametrize("limit", [1, 64, 128, 200])
def test_what_is_said_to_be_needed_is_enough_and_no_less_is(groups, limit):
    config = node(groups)
    with pytest.raises(ConfigError, match=f"^{limit} file descriptors.*ulimit -n") as caught:
        plan_descriptors(config, limit)
    needed = int(re.search(r"need (\d+)", str(caught.value))[1])
    assert plan_descriptors(config, needed).connections >= CONNECTIONS_MIN
    with pytest.raises(ConfigError):
        plan_descriptors(config, needed - 1)


@pytest.fixture
def limits(monkeypatch):
    """The limits of a process as they are set and read, without touching those of this one."""
    present = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(present))
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: present.__setitem__(..., wanted))

    def set_limits(_, wanted):
        present[:] = wanted

    monkeypatch.setattr(resource, "setrlimit", set_limits)
    return present


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [
        (1_024, 1_048_576, LIMIT_MAX),
        (1_024, UNLIMITED, LIMIT_MAX),
        (1_024, 4_096, 4_096),
        (100_000, 1_048_576, 100_000),
        (1_024, 1_024, 1_024),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_may_be_and_never_lowered(limits, soft, hard, then):
    limits[:] = soft, hard
    assert raise_limit(node()) == (soft, then)
    assert limits == [then, hard]


def test_it_is_raised_further_for_a_configuration_that_needs_more(limits):
    limits[:] = 1_024, UNLIMITED
    config = node(limits=Limits(connections_max=100_000))
    _, after = raise_limit(config)
    assert plan_descriptors(config, after).connections == 100_000


def test_no_limit_is_left_alone(limits):
    limits[:] = UNLIMITED, UNLIMITED
    assert raise_limit(node()) == (LIMIT_MAX, LIMIT_MAX)
    assert limits == [UNLIMITED, UNLIMITED]


@pytest.mark.parametrize("kind", [OSError, ValueError])
def test_a_limit_that_cannot_be_raised_is_lived_with(limits, monkeypatch, kind):
    limits[:] = 1_024, 1_048_576

    def refuse(*_):
        raise kind

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_limit(node()) == (1_024, 1_024)
