"""Elections: who asks, who grants, who leads (spec 90 group A)."""

from itertools import pairwise

import pytest

from quorumlog.model.codes import ResponseCode, Role, VoteResult
from quorumlog.model.hard_state import HardState
from quorumlog.model.messages.peer import VoteRequest
from quorumlog.raft import effects as fx
from quorumlog.raft import events as ev
from raft_cluster import Cluster
from raft_messages import heartbeat, log_of, vote_request, vote_response


def votes_asked(cluster, *, pre_vote):
    return [
        message
        for message in cluster.sent
        if isinstance(message, VoteRequest) and message.pre_vote is pre_vote
    ]


# -- elections of whole groups --------------------------------------------------------------------


def test_01_a_single_member_elects_itself_and_commits_appends():
    cluster = Cluster(1).start()
    cluster.run_for(1_000)

    numbers = [cluster.propose() for _ in range(10)]
    cluster.run_for(100)

    assert cluster.leader == "n0"
    assert {cluster.finished[number] for number in numbers} == {ResponseCode.SUCCESS}
    assert cluster.core("n0").committed_index == 10


def test_02_a_restarted_single_member_leads_again_in_a_higher_term():
    cluster = Cluster(1).start()
    cluster.run_for(1_000)
    cluster.propose(count=9)
    cluster.run_for(100)
    before = cluster.core("n0").term

    cluster.crash("n0")
    cluster.start("n0")
    cluster.run_for(1_000)

    assert cluster.leader == "n0"
    assert cluster.core("n0").term > before
    assert cluster.core("n0").committed_index == 10


@pytest.mark.parametrize("seed", range(10))
def test_03_three_members_agree_on_one_leader(seed):
    cluster = Cluster(3, seed).start()
    cluster.run_for(2_000)

    assert cluster.agreed()
    assert sorted(node.core.role.name for node in cluster.live()) == [
        "FOLLOWER",
        "FOLLOWER",
        "LEADER",
    ]


def test_04_ten_changes_of_leader_raise_the_term_each_time():
    cluster = Cluster(3).start()
    cluster.elect()
    cluster.converge()
    terms = [cluster.core("n0").term]

    for _ in range(10):
        old = cluster.leader
        cluster.isolate(old)
        cluster.run_until(lambda old=old: cluster.leader not in (None, old))
        cluster.heal()
        cluster.converge()
        terms.append(cluster.core("n0").term)

    assert terms == sorted(set(terms))


def test_05_restarting_a_follower_changes_neither_leader_nor_term():
    cluster = Cluster(3).start()
    leader = cluster.elect()
    term = cluster.core(leader).term

    follower = cluster.followers()[0]
    cluster.crash(follower)
    cluster.run_for(3_000)
    cluster.start(follower)
    cluster.run_for(3_000)

    assert cluster.agreed()
    assert (cluster.leader, cluster.core(leader).term) == (leader, term)


@pytest.mark.parametrize("seed", range(10))
def test_06_a_lost_leader_is_replaced_in_a_higher_term(seed):
    cluster = Cluster(3, seed).start()
    old = cluster.elect()
    term = cluster.core(old).term

    cluster.crash(old)
    cluster.run_until(cluster.agreed, limit_ms=2_500)

    assert cluster.leader != old
    assert cluster.core(cluster.leader).term > term


def test_07_a_leader_without_followers_becomes_candidate_in_the_same_term():
    cluster = Cluster(3).start()
    leader = cluster.elect()
    term = cluster.core(leader).term

    for follower in cluster.followers():
        cluster.crash(follower)
    cluster.run_for(4_000)

    assert cluster.core(leader).role is Role.CANDIDATE
    assert cluster.core(leader).leader_id is None
    assert cluster.core(leader).term == term


def test_08_one_follower_back_is_enough_for_a_leader():
    cluster = Cluster(3).start()
    leader = cluster.elect()
    cluster.converge()
    followers = cluster.followers()
    for follower in followers:
        cluster.crash(follower)
    cluster.run_until(lambda: cluster.core(leader).role is not Role.LEADER)

    cluster.start(followers[0])
    cluster.run_until(cluster.agreed, limit_ms=3_000)

    assert cluster.leader in (leader, followers[0])


def test_33_a_follower_that_hears_nothing_becomes_candidate():
    cluster = Cluster(3).start()
    cluster.elect()
    follower = cluster.followers()[0]
    cluster.isolate(follower)

    cluster.run_for(1_000)

    assert cluster.core(follower).role is Role.CANDIDATE
    assert cluster.core(follower).leader_id is None


def test_36_each_change_is_reported_once_and_in_order():
    cluster = Cluster(3).start()
    leader = cluster.elect()
    cluster.run_for(1_000)
    for node_id in cluster.ids:
        mine = [change[1:] for change in cluster.changes if change[0] == node_id]
        assert all(one != two for one, two in pairwise(mine))
        assert [term for _, term, _ in mine] == sorted(term for _, term, _ in mine)
        expected = Role.LEADER if node_id == leader else Role.FOLLOWER
        assert mine[-1] == (expected, cluster.core(leader).term, leader)


# -- the voter ------------------------------------------------------------------------------------


def voter(log=None, term=5, vote=None):
    """n0 of three, alone, at `term`."""
    cluster = Cluster(
        3, logs={"n0": log or log_of((1, 3), (4, 2))}, states={"n0": HardState(term, vote)}
    )
    return cluster.start("n0")


def test_11_an_unknown_candidate_is_refused_and_changes_nothing():
    cluster = voter()

    answer = cluster.ask(vote_request("x9", "n0", 99, (50, 50)))

    assert answer.vote_result is VoteResult.REJECT_UNKNOWN_LEADER
    assert cluster.core("n0").term == 5


def test_12_a_foreign_request_in_my_own_name_is_refused():
    cluster = voter()

    answer = cluster.ask(vote_request("n0", "n0", 99, (50, 50)))

    assert answer.vote_result is VoteResult.REJECT_UNEXPECTED_LEADER
    assert cluster.core("n0").term == 5


def test_13_an_older_last_term_is_refused_although_the_term_asked_for_is_higher():
    cluster = voter()

    answer = cluster.ask(vote_request("n1", "n0", 9, (50, 3)))

    assert answer.vote_result is VoteResult.REJECT_EXPIRED_LEDGER_TERM
    assert (cluster.core("n0").term, cluster.core("n0").vote) == (9, None)


def test_14_shorter_log_is_refused():
    cluster = voter()

    answer = cluster.ask(vote_request("n1", "n0", 9, (3, 4)))

    assert answer.vote_result is VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    assert cluster.core("n0").vote is None


def test_15_an_old_term_is_refused_with_the_present_one():
    cluster = voter()

    answer = cluster.ask(vote_request("n1", "n0", 4, (50, 4)))

    assert answer.vote_result is VoteResult.REJECT_EXPIRED_VOTE_TERM
    assert (answer.term, answer.request_term) == (5, 4)


def test_16_a_vote_already_given_is_not_given_again():
    cluster = voter(vote="n2")

    answer = cluster.ask(vote_request("n1", "n0", 5, (50, 4)))
    assert answer.vote_result is VoteResult.REJECT_ALREADY_VOTED

    cluster.ask(heartbeat("n2", "n0", 5))
    cluster.now += 499
    answer = cluster.ask(vote_request("n1", "n0", 5, (50, 4)))
    assert answer.vote_result is VoteResult.REJECT_ALREADY_HAS_LEADER

    cluster.now += 1  # the leader is silent for too long to be protected, but still known
    answer = cluster.ask(vote_request("n1", "n0", 5, (50, 4)))
    assert answer.vote_result is VoteResult.REJECT_ALREADY_HAS_LEADER


def test_17_a_term_below_the_ledgers_is_refused_and_the_group_elects_above_it():
    """A store of the original may have lost its term file: the log is newer than the term."""
    cluster = voter(term=2)

    answer = cluster.ask(vote_request("n1", "n0", 3, (50, 4)))
    assert answer.vote_result is VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
    assert answer.term == 4

    cluster.start("n1", "n2")
    leader = cluster.elect()
    assert cluster.core(leader).term > 4


def test_18_a_higher_term_is_adopted_and_voted_in_at_once():
    cluster = voter()

    answer = cluster.ask(vote_request("n1", "n0", 9, (4, 4)))

    assert answer.vote_result is VoteResult.ACCEPT
    assert (cluster.core("n0").term, cluster.core("n0").vote) == (9, "n1")
    assert cluster.nodes["n0"].stored_state == HardState(9, "n1")


def test_19_the_same_candidate_is_accepted_twice():
    cluster = voter()
    first = cluster.ask(vote_request("n1", "n0", 9, (4, 4)))
    second = cluster.ask(vote_request("n1", "n0", 9, (4, 4)))

    assert first.vote_result is second.vote_result is VoteResult.ACCEPT


def test_20_a_granted_vote_survives_a_restart():
    cluster = voter()
    cluster.ask(vote_request("n1", "n0", 9, (4, 4)))
    cluster.crash("n0")
    cluster.start("n0")

    answer = cluster.ask(vote_request("n2", "n0", 9, (50, 8)))

    assert answer.vote_result is VoteResult.REJECT_ALREADY_VOTED


def test_a_vote_leaves_only_when_it_is_durable():
    cluster = voter()
    cluster.sync_ms = (50, 50)

    cluster.deliver(vote_request("n1", "n0", 9, (4, 4)))
    assert not cluster.sent
    cluster.run_for(50)

    assert [message.vote_result for message in cluster.sent] == [VoteResult.ACCEPT]


def test_a_vote_that_was_not_durable_was_never_given():
    cluster = voter()
    cluster.sync_ms = (50, 50)
    cluster.deliver(vote_request("n1", "n0", 9, (4, 4)))
    cluster.nodes["n0"].writes.clear()
    cluster.crash("n0")
    cluster.start("n0")

    assert cluster.core("n0").term == 5
    assert not cluster.sent


# -- the candidate --------------------------------------------------------------------------------


def candidate(term=5):
    """n0 of three with no answers yet to its pre-vote in term + 1."""
    cluster = voter(term=term)
    cluster.run_until(lambda: votes_asked(cluster, pre_vote=True))
    return cluster


def test_21_a_higher_term_in_a_refusal_is_used_for_the_next_round():
    cluster = candidate()

    cluster.deliver(
        vote_response("n1", "n0", 8, VoteResult.REJECT_EXPIRED_VOTE_TERM, 6, pre_vote=True)
    )
    assert cluster.core("n0").term == 8
    assert cluster.core("n0").last_vote_result is VoteResult.REJECT_EXPIRED_VOTE_TERM
    cluster.sent.clear()
    cluster.run_until(lambda: votes_asked(cluster, pre_vote=True))

    assert {message.term for message in votes_asked(cluster, pre_vote=True)} == {9}


def test_23_without_answers_the_term_stays():
    cluster = candidate()
    cluster.run_for(10_000)

    assert cluster.core("n0").term == 5
    assert {message.term for message in votes_asked(cluster, pre_vote=True)} == {6}
    assert not votes_asked(cluster, pre_vote=False)


def test_22_voters_of_older_terms_vote_in_the_first_round():
    """The original's voters are not ready for a higher term, and are asked again; ours never."""
    cluster = Cluster(3, states={"n0": HardState(7, None)})
    cluster.drop = lambda message: isinstance(message, VoteRequest) and message.local_id != "n0"
    cluster.start()
    cluster.run_until(lambda: cluster.leader is not None)

    asked = votes_asked(cluster, pre_vote=False)
    assert [message.remote_id for message in asked] == ["n1", "n2"]
    assert {node.core.term for node in cluster.live()} == {8}


@pytest.mark.parametrize(
    "refusal",
    [None, VoteResult.REJECT_ALREADY_HAS_LEADER, VoteResult.REJECT_SMALL_LEDGER_END_INDEX],
)
def test_25_the_next_round_comes_after_a_new_time_out(refusal):
    """Between electionTimeoutMin and Max, where the original waits 300 to 1000 ms.

    Nor does it wait 6000 ms more when it is told that there is a leader: pre-votes disturb nobody.
    """
    cluster = candidate()
    cluster.sent.clear()
    rounds = [cluster.now]
    for _ in range(40):
        if refusal is not None:
            for voter_id in ("n1", "n2"):
                cluster.deliver(vote_response(voter_id, "n0", 5, refusal, 6, pre_vote=True))
        cluster.run_until(lambda: votes_asked(cluster, pre_vote=True))
        rounds.append(cluster.now)
        cluster.sent.clear()

    waits = [two - one for one, two in pairwise(rounds)]
    assert min(waits) >= 500
    assert max(waits) < 1_000
    assert len(set(waits)) > 20
    assert max(waits) - min(waits) > 300


def test_24_voters_with_a_bigger_ledger_do_not_raise_the_term():
    cluster = Cluster(3, logs={"n1": log_of((1, 5)), "n2": log_of((1, 5))}).start()
    cluster.cut("n1", "n2")
    cluster.drop = lambda message: isinstance(message, VoteRequest) and message.local_id != "n0"
    cluster.run_for(10_000)

    assert {node.core.term for node in cluster.live()} == {1}
    assert cluster.core("n0").last_vote_result is VoteResult.REJECT_EXPIRED_LEDGER_TERM


def test_rounds_are_spread_between_the_two_time_outs():
    starts = set()
    for seed in range(30):
        cluster = Cluster(3, seed).start("n0")
        starts.add(cluster.core("n0").next_deadline_ms() - cluster.now)

    assert len(starts) > 20
    assert all(500 <= start < 1_000 for start in starts)


def test_a_pre_vote_granted_by_a_voter_of_the_asked_term_still_counts():
    cluster = candidate()

    cluster.deliver(vote_response("n1", "n0", 6, VoteResult.ACCEPT, 6, pre_vote=True))
    cluster.run_for(10)

    assert (cluster.core("n0").term, cluster.core("n0").vote) == (6, "n0")
    assert {message.term for message in votes_asked(cluster, pre_vote=False)} == {6}


@pytest.mark.parametrize(("request_term", "pre_vote"), [(5, True), (7, True), (6, False)], ids=str)
def test_votes_of_another_round_do_not_count(request_term, pre_vote):
    cluster = candidate()

    cluster.deliver(
        vote_response("n1", "n0", 5, VoteResult.ACCEPT, request_term, pre_vote=pre_vote)
    )

    assert cluster.core("n0").term == 5


def test_votes_of_strangers_and_repeated_votes_do_not_count():
    cluster = Cluster(5).start("n0")
    cluster.run_until(lambda: votes_asked(cluster, pre_vote=True))

    for source in ("n1", "n1", "x9"):
        cluster.deliver(vote_response(source, "n0", 0, VoteResult.ACCEPT, 1, pre_vote=True))
    assert cluster.core("n0").term == 0

    cluster.deliver(vote_response("n2", "n0", 0, VoteResult.ACCEPT, 1, pre_vote=True))
    assert cluster.core("n0").term == 1


def test_own_vote_counts_only_when_durable():
    cluster = Cluster(1)
    cluster.sync_ms = (300, 300)
    cluster.start()
    cluster.run_for(299)
    cluster.step(cluster.nodes["n0"], ev.WritesDurable(0))  # some earlier write, not the vote
    assert cluster.core("n0").role is Role.CANDIDATE
    cluster.run_for(2)

    assert cluster.core("n0").role is Role.LEADER


def test_a_slow_disk_is_not_given_new_votes_to_write():
    cluster = Cluster(1)
    cluster.sync_ms = (5_000, 5_000)
    cluster.start()
    cluster.run_for(4_900)

    assert cluster.core("n0").term == 1
    cluster.run_for(200)
    assert cluster.core("n0").role is Role.LEADER


# -- after the disk failed ------------------------------------------------------------------------


def test_a_replica_whose_disk_failed_promises_nothing_any_more():
    cluster = Cluster(3).start()
    leader = cluster.elect()
    number = cluster.propose()

    effects = cluster.fail_disk(leader)
    assert [type(effect) for effect in effects] == [fx.FailPending, fx.RoleChanged]
    assert cluster.finished[number] is ResponseCode.TERM_CHANGED
    node = cluster.nodes[leader]
    for event in (
        ev.Ticked(),
        ev.WritesDurable(1),
        ev.Received(vote_request("n1", leader, 99, (99, 99))),
        ev.Received(heartbeat("n1", leader, 99)),
        ev.StorageFailed("again"),
    ):
        assert cluster.step(node, event) == []
    assert node.core.next_deadline_ms() > cluster.now + 1_000_000_000
    assert cluster.step(node, ev.Proposed(7, 1, 99)) == [
        fx.RefuseProposal(7, ResponseCode.DISK_ERROR)
    ]

    cluster.run_until(lambda: cluster.leader not in (None, leader), limit_ms=2_500)


@pytest.mark.parametrize(
    ("pre_voter", "asks_soon"), [("n1", True), ("n2", False)], ids=["expected", "unexpected"]
)
def test_after_a_split_vote_the_next_round_comes_in_a_heartbeat_or_two(pre_voter, asks_soon):
    """Only when those that said they would vote for me do not: others may still."""
    cluster = candidate()
    cluster.deliver(vote_response(pre_voter, "n0", 5, VoteResult.ACCEPT, 6, pre_vote=True))
    cluster.run_until(lambda: votes_asked(cluster, pre_vote=False))
    cluster.sent.clear()
    since = cluster.now

    cluster.deliver(vote_response("n1", "n0", 6, VoteResult.REJECT_ALREADY_VOTED, 6))
    cluster.run_until(lambda: votes_asked(cluster, pre_vote=True))

    assert {message.term for message in votes_asked(cluster, pre_vote=True)} == {7}
    if asks_soon:
        assert 100 <= cluster.now - since < 200
    else:
        assert cluster.now - since >= 400
