"""Raft thesis sections 4.2.3, 6.2 and 9.6: pre-vote, check-quorum, stickiness, and their peace."""

import itertools

import pytest

from quorumlog.model.codes import ResponseCode, Role, VoteResult
from quorumlog.model.hard_state import HardState
from raft_cluster import Cluster
from raft_messages import heartbeat, log_of, vote_request


def led(count=3, seed=0):
    cluster = Cluster(count, seed).start()
    leader = cluster.elect()
    cluster.converge()
    return cluster, leader


def test_thesis_9_6_asking_for_pre_votes_changes_no_term_anywhere():
    cluster, leader = led()
    follower = cluster.followers()[0]
    term = cluster.core(leader).term
    cluster.isolate(follower)
    cluster.run_for(60_000)

    assert cluster.core(follower).role is Role.CANDIDATE
    assert {node.core.term for node in cluster.live()} == {term}


def test_thesis_9_6_granting_a_pre_vote_changes_nothing():
    cluster = Cluster(3, states={"n0": HardState(4, None)}).start("n0")
    before = cluster.core("n0").next_deadline_ms()
    for candidate in ("n1", "n2", "n1"):
        answer = cluster.ask(vote_request(candidate, "n0", 5, pre_vote=True))
        assert answer.vote_result is VoteResult.ACCEPT

    core = cluster.core("n0")
    assert (core.term, core.vote, core.role) == (4, None, Role.CANDIDATE)
    assert core.next_deadline_ms() == before


@pytest.mark.parametrize("seed", range(10))
def test_34_a_member_that_was_cut_off_does_not_unseat_the_leader(seed):
    cluster, leader = led(3, seed)
    term = cluster.core(leader).term
    follower = cluster.followers()[0]
    cluster.isolate(follower)
    cluster.run_for(10_000)
    numbers = [cluster.propose(leader) for _ in range(5)]
    cluster.heal()
    cluster.converge(3_000)

    assert (cluster.leader, cluster.core(leader).term) == (leader, term)
    assert {cluster.finished[number] for number in numbers} == {ResponseCode.SUCCESS}


@pytest.mark.parametrize("pre_vote", [True, False])
def test_thesis_4_2_3_a_follower_of_a_living_leader_refuses_and_adopts_nothing(pre_vote):
    cluster, leader = led()
    one, other = cluster.followers()
    answer = cluster.ask(vote_request(other, one, 99, (99, 99), pre_vote=pre_vote))

    assert answer.vote_result is VoteResult.REJECT_ALREADY_HAS_LEADER
    assert cluster.core(one).term == cluster.core(leader).term
    assert cluster.core(one).leader_id == leader


def test_thesis_4_2_3_the_protection_ends_with_the_smallest_time_out():
    cluster = Cluster(3).start("n0")
    cluster.ask(heartbeat("n1", "n0", 1))
    heard = cluster.now - cluster.sync_ms[1] - 1
    cluster.now = heard + 499
    assert cluster.ask(vote_request("n2", "n0", 2)).vote_result is (
        VoteResult.REJECT_ALREADY_HAS_LEADER
    )
    cluster.now = heard + 500
    assert cluster.ask(vote_request("n2", "n0", 2)).vote_result is VoteResult.ACCEPT


def test_thesis_6_2_a_leader_without_a_quorum_stops_leading_within_a_time_out():
    cluster, leader = led(5)
    ids = [leader, *cluster.followers()]
    cluster.split(ids[:2], ids[2:])
    cluster.run_for(600)

    assert cluster.core(leader).role is not Role.LEADER
    cluster.run_for(2_500)
    assert cluster.leaders() == [cluster.leader]
    assert cluster.leader in ids[2:]


def test_thesis_6_2_answers_that_are_lost_count_like_silence():
    """One-way partition: the followers hear the leader, it hears nobody."""
    cluster, leader = led()
    for follower in cluster.followers():
        cluster.cut(follower, leader, both=False)
    cluster.run_for(5_000)

    assert cluster.leader != leader
    assert cluster.leader is not None


def test_a_member_that_cannot_hear_the_leader_does_not_disturb_it():
    """Cloudflare, November 2020: it reaches everyone, but the leader does not reach it."""
    cluster, leader = led()
    follower = cluster.followers()[0]
    cluster.cut(leader, follower, both=False)
    term = cluster.core(leader).term
    cluster.run_for(30_000)

    assert (cluster.leader, cluster.core(leader).term) == (leader, term)
    cluster.heal()
    cluster.converge()
    assert (cluster.leader, cluster.core(leader).term) == (leader, term)


def test_a_member_with_a_higher_term_gets_back_in():
    """etcd 8334: stickiness must not shut out for ever who is ahead in term."""
    states = {"n2": HardState(50, "n2")}
    cluster = Cluster(3, states=states).start("n0", "n1")
    cluster.elect()
    cluster.converge()
    cluster.start("n2")
    cluster.converge(5_000)

    assert cluster.core("n2").term > 50
    cluster.run_for(10_000)
    assert len({node.core.term for node in cluster.live()}) == 1


def test_candidates_that_remember_the_old_leader_do_not_refuse_each_other_for_ever():
    """raft-rs 84."""
    for seed in range(20):
        cluster, leader = led(3, seed)
        cluster.crash(leader)
        cluster.run_until(cluster.agreed, limit_ms=4_000)


def test_a_candidate_with_a_shorter_log_and_a_higher_term_does_not_block_the_others():
    logs = {"n0": log_of((1, 5)), "n1": log_of((1, 5))}
    cluster = Cluster(3, logs=logs, states={"n2": HardState(30, "n2")}).start()
    cluster.converge(10_000)

    assert cluster.leader in ("n0", "n1")


def links(ids):
    return list(itertools.combinations(ids, 2))


@pytest.mark.parametrize("count", [3, 5])
def test_every_partial_graph_with_a_well_connected_majority_keeps_or_finds_a_leader(count):
    """All graphs of three members; of five, those with up to three links cut.

    Of graphs that differ only in the names of followers, one is tried.
    """
    ids = [f"n{number}" for number in range(count)]
    most, tried = 3, set()
    for cuts in itertools.chain.from_iterable(
        itertools.combinations(links(ids), number) for number in range(1, most + 1)
    ):
        cluster, first = led(count)
        shape = shape_of(cuts, [one for one in ids if one != first])
        if shape in tried:
            continue
        tried.add(shape)
        for cut in cuts:
            cluster.cut(*cut)
        cluster.run_for(8_000)
        able = [one for one in ids if reaches_a_majority(one, ids, cuts)]
        leaders = cluster.leaders()
        assert not able or leaders, f"no leader with {cuts}"
        assert all(leader in able for leader in leaders), f"{leaders} leads with {cuts}"


def shape_of(cuts, followers):
    """Return what is the same for all graphs that become this one when followers change names."""
    named = (
        dict(zip(followers, other, strict=True)) for other in itertools.permutations(followers)
    )
    return min(
        tuple(sorted(tuple(sorted(names.get(end, end) for end in cut)) for cut in cuts))
        for names in named
    )


def reaches_a_majority(one, ids, cuts):
    reached = [other for other in ids if (one, other) not in cuts and (other, one) not in cuts]
    return len(reached) > len(ids) // 2
