"""Raft paper section 5.2: leader election."""

import itertools

import pytest

from quorumlog.model.codes import PushType, Role, VoteResult
from quorumlog.model.hard_state import HardState
from quorumlog.model.messages.peer import HeartBeatRequest, VoteRequest
from raft_cluster import Cluster
from raft_messages import heartbeat, log_of, push, vote_request, vote_response


def campaigner(count, term=1):
    """n0 of `count`, alone, in a vote round for `term` + 1 with its own vote durable."""
    cluster = Cluster(count, states={"n0": HardState(term, None)}).start("n0")
    if count > 1:
        cluster.run_until(lambda: cluster.sent)
        answer_all(cluster, count // 2, term, pre_vote=True)
    cluster.run_for(20)
    return cluster


def answer_all(cluster, granting, term, *, pre_vote, refusing=0):
    for number in range(1, 1 + granting + refusing):
        result = VoteResult.ACCEPT if number <= granting else VoteResult.REJECT_ALREADY_VOTED
        cluster.deliver(
            vote_response(
                f"n{number}",
                "n0",
                term,
                result,
                term if not pre_vote else term + 1,
                pre_vote=pre_vote,
            )
        )


def test_a_server_stays_follower_while_the_leader_is_heard():
    cluster = Cluster(3).start("n0")
    for number in range(100):
        cluster.deliver(heartbeat("n1", "n0", 1, number))
        cluster.run_for(400)

    assert cluster.core("n0").role is Role.FOLLOWER
    assert cluster.core("n0").term == 1


@pytest.mark.parametrize("kind", list(PushType))
def test_any_push_of_the_leader_counts_as_a_heartbeat(kind):
    cluster = Cluster(3).start("n0")
    for _ in range(20):
        cluster.deliver(push(kind, "n1", "n0", 1, (-1, -1)))
        cluster.run_for(400)

    assert cluster.core("n0").role is Role.FOLLOWER


def test_leaders_send_heartbeats_to_all_followers():
    cluster = Cluster(5).start()
    cluster.elect()
    cluster.sent.clear()
    cluster.run_for(350)
    beats = [message.remote_id for message in cluster.sent if isinstance(message, HeartBeatRequest)]

    assert {beats.count(follower) for follower in cluster.followers()} <= {3, 4}


def test_a_campaign_raises_the_term_votes_for_itself_and_asks_all_others():
    cluster = campaigner(5)
    core = cluster.core("n0")
    asked = [m for m in cluster.sent if isinstance(m, VoteRequest) and not m.pre_vote]

    assert (core.role, core.term, core.vote) == (Role.CANDIDATE, 2, "n0")
    assert cluster.nodes["n0"].stored_state == HardState(2, "n0")
    assert sorted(m.remote_id for m in asked) == ["n1", "n2", "n3", "n4"]
    assert {m.term for m in asked} == {2}


@pytest.mark.parametrize(
    ("count", "granting", "refusing", "wins"),
    [
        (1, 0, 0, True),
        (2, 1, 0, True),
        (2, 0, 1, False),
        (3, 1, 1, True),
        (3, 0, 2, False),
        (4, 2, 1, True),
        (4, 1, 2, False),
        (5, 2, 2, True),
        (5, 1, 3, False),
        (5, 1, 0, False),
    ],
)
def test_a_majority_of_votes_makes_a_leader(count, granting, refusing, wins):
    cluster = campaigner(count)
    answer_all(cluster, granting, 2, pre_vote=False, refusing=refusing)

    assert (cluster.core("n0").role is Role.LEADER) == wins
    assert cluster.core("n0").term == 2


@pytest.mark.parametrize(
    ("voted", "candidate", "granted"),
    [(None, "n1", True), (None, "n2", True), ("n1", "n1", True), ("n1", "n2", False)],
)
def test_a_server_votes_for_one_candidate_a_term_first_come_first_served(voted, candidate, granted):
    cluster = Cluster(3, states={"n0": HardState(1, voted)}).start("n0")
    answer = cluster.ask(vote_request(candidate, "n0", 1))

    assert (answer.vote_result is VoteResult.ACCEPT) == granted


@pytest.mark.parametrize("term", [2, 5])
def test_a_candidate_that_hears_a_leader_of_its_term_or_later_follows(term):
    cluster = campaigner(3)
    cluster.deliver(heartbeat("n2", "n0", term))

    core = cluster.core("n0")
    assert (core.role, core.term, core.leader_id) == (Role.FOLLOWER, term, "n2")


def test_a_candidate_that_hears_a_leader_of_an_older_term_goes_on():
    cluster = campaigner(3)
    cluster.deliver(heartbeat("n2", "n0", 1))
    assert cluster.core("n0").role is Role.CANDIDATE

    answer_all(cluster, 1, 2, pre_vote=False)
    assert cluster.core("n0").role is Role.LEADER


def test_a_candidate_without_a_majority_starts_again_after_its_time_out():
    cluster = campaigner(3)
    cluster.sent.clear()
    cluster.run_for(1_000)

    assert {m.term for m in cluster.sent if isinstance(m, VoteRequest)} == {3}


@pytest.mark.parametrize("seed", range(20))
def test_split_votes_are_resolved_quickly(seed):
    """All campaign at the same moment; random time-outs part them."""
    cluster = Cluster(4, seed).start()
    for node in cluster.live():
        node.core._state.election_deadline_ms = cluster.now + 10
        cluster._wake(node)
    cluster.run_until(cluster.agreed, limit_ms=5_000)


def test_a_vote_granted_postpones_an_own_campaign():
    cluster = Cluster(3).start("n0")
    cluster.run_for(450)
    cluster.ask(vote_request("n1", "n0", 1))

    assert cluster.core("n0").next_deadline_ms() >= cluster.now + 490


def test_a_vote_refused_does_not():
    cluster = Cluster(3, logs={"n0": log_of((1, 3))}).start("n0")
    before = cluster.core("n0").next_deadline_ms()
    cluster.run_for(300)
    cluster.ask(vote_request("n1", "n0", 5))

    assert cluster.core("n0").next_deadline_ms() == before


@pytest.mark.parametrize("seed", range(2))
def test_35_at_most_one_leader_a_term_over_ten_minutes_of_partitions(seed):
    """The checker inside the cluster raises when a term has two leaders."""
    cluster = Cluster(3, seed).start()
    cluster.delay_ms = (1, 50)
    for _ in range(200):
        ids = cluster.random.sample(cluster.ids, 3)
        at = cluster.random.randint(0, 3)
        cluster.split(ids[:at], ids[at:])
        cluster.run_for(2_000)
        cluster.heal()
        cluster.run_for(1_000)

    assert len(cluster.checker.leaders) > 10  # a leader is cut off in one of six partitions


@pytest.mark.parametrize("count", [3, 5])
def test_every_majority_that_can_talk_elects_a_leader(count):
    ids = [f"n{number}" for number in range(count)]
    for side in itertools.combinations(ids, count // 2 + 1):
        cluster = Cluster(count)
        cluster.split(side, [node_id for node_id in ids if node_id not in side])
        cluster.start()
        cluster.run_for(4_000)

        assert cluster.leader in side
        assert len(cluster.leaders()) == 1
