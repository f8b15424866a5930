"""A leader whose process ended: closed connections show it long before the election time-out."""

import pytest

from quorumlog.model.codes import Role, VoteResult
from quorumlog.raft import events as ev
from raft_cluster import Cluster
from raft_messages import vote_request


def led(count=3, seed=0):
    cluster = Cluster(count, seed).start()
    leader = cluster.elect()
    cluster.propose(count=10)
    cluster.converge()
    return cluster, leader


def lose(cluster, node_id, *followers):
    for follower in followers:
        cluster.step(cluster.nodes[follower], ev.PeerLost(node_id))


@pytest.mark.parametrize("seed", range(20))
def test_another_leads_within_heartbeats_rather_than_time_outs(seed):
    cluster, leader = led(3, seed)
    followers = cluster.followers()
    config = cluster.config_of(leader)
    cluster.crash(leader)
    started = cluster.now
    lose(cluster, leader, *followers)
    cluster.run_until(lambda: cluster.leader is not None)
    assert cluster.now - started < config.election_timeout_min_ms
    cluster.propose(count=5)
    cluster.converge()


def test_one_that_alone_takes_the_leader_for_dead_unseats_nobody():
    cluster, leader = led()
    follower = cluster.followers()[0]
    before = cluster.core(leader).term
    lose(cluster, leader, follower)
    cluster.run_for(5_000)
    assert cluster.leader == leader
    assert {cluster.core(node_id).term for node_id in cluster.nodes} == {before}
    assert cluster.core(follower).leader_id == leader


def test_the_end_of_somebody_else_changes_nothing():
    cluster, leader = led()
    follower, other = cluster.followers()
    core = cluster.core(follower)
    deadline = core.next_deadline_ms()
    lose(cluster, other, follower, leader)
    assert core.next_deadline_ms() == deadline
    assert (core.role, core.leader_id) == (Role.FOLLOWER, leader)
    assert cluster.leader == leader


def test_who_lost_its_leader_votes_for_another_at_once():
    cluster, leader = led()
    follower, other = cluster.followers()
    core = cluster.core(follower)
    end = (core.end_index, core.term)
    asked = vote_request(other, follower, core.term + 1, end, pre_vote=True)
    assert cluster.ask(asked).vote_result is VoteResult.REJECT_ALREADY_HAS_LEADER
    cluster.crash(leader)
    lose(cluster, leader, follower)
    assert cluster.ask(asked).vote_result is VoteResult.ACCEPT


def test_who_would_vote_for_another_lets_it_go_first():
    cluster, leader = led()
    follower, other = cluster.followers()
    core = cluster.core(follower)
    cluster.crash(leader)
    lose(cluster, leader, follower)
    soon = core.next_deadline_ms()
    end = (core.end_index, core.term)
    cluster.deliver(vote_request(other, follower, core.term + 1, end, pre_vote=True))
    assert core.next_deadline_ms() > soon
    assert core.next_deadline_ms() == cluster.now + cluster.config_of(leader).heartbeat_ms
