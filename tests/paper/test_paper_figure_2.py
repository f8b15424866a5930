"""Raft paper figure 2, rule by rule, as far as sections 5.1 to 5.4 do not test them already."""

import pytest

from quorumlog.model.codes import PushType, ResponseCode, Role, VoteResult
from quorumlog.model.hard_state import HardState
from quorumlog.model.messages.peer import HeartBeatRequest
from quorumlog.raft import effects as fx
from quorumlog.raft import events as ev
from raft_cluster import Cluster
from raft_messages import append_of, heartbeat, log_of, push, vote_request

OK = ResponseCode.SUCCESS


def led(count=3, seed=0, **options):
    cluster = Cluster(count, seed, **options).start()
    leader = cluster.elect()
    cluster.converge()
    return cluster, leader


def follower(log=None, term=5):
    cluster = Cluster(3, logs={"n0": log} if log else None, states={"n0": HardState(term, None)})
    cluster.start("n0")
    cluster.ask(heartbeat("n1", "n0", term))
    return cluster


# -- persistent state: updated on stable storage before responding --------------------------------


@pytest.mark.parametrize(
    ("request_made", "written"),
    [
        (heartbeat("n1", "n0", 9), fx.SaveHardState),
        (vote_request("n2", "n0", 9), fx.SaveHardState),
        (push(PushType.COMPARE, "n1", "n0", 9, (-1, -1)), fx.SaveHardState),
    ],
)
def test_current_term_and_voted_for_are_stored_before_the_answer(request_made, written):
    cluster = Cluster(3).start("n0")
    cluster.now += 5_000
    effects = cluster.step(cluster.nodes["n0"], ev.Received(request_made))

    (saved,) = [effect for effect in effects if isinstance(effect, written)]
    (answer,) = [effect for effect in effects if isinstance(effect, fx.Send)]
    assert answer.after >= saved.token


def test_log_entries_are_stored_before_the_answer():
    cluster = follower()
    message, entries = append_of(log_of((5, 3)), "n1", "n0", 5, 0, 2)
    effects = cluster.step(cluster.nodes["n0"], ev.Received(message), entries)

    (stored,) = [effect for effect in effects if isinstance(effect, fx.AppendReceived)]
    (answer,) = [effect for effect in effects if isinstance(effect, fx.Send)]
    assert answer.after >= stored.token


def test_persistent_state_is_what_a_restart_finds():
    cluster = follower(log_of((5, 2)))
    cluster.now += 5_000
    cluster.ask(vote_request("n2", "n0", 8, (9, 7)))
    cluster.crash("n0")
    cluster.start("n0")

    core = cluster.core("n0")
    assert (core.term, core.vote, core.end_index) == (8, "n2", 1)


# -- volatile state -------------------------------------------------------------------------------


def test_commit_index_rises_monotonically():
    cluster = follower(log_of((5, 4)))
    seen = []
    for commit_index in (1, 3, 2, 0, 3):
        cluster.ask(push(PushType.COMPARE, "n1", "n0", 5, (3, 5), commit_index=commit_index))
        seen.append(cluster.core("n0").committed_index)

    assert seen == [1, 3, 3, 3, 3]


def test_next_index_and_match_index_are_initialised_anew_after_each_election():
    cluster, leader = led()
    cluster.propose(leader, count=5)
    cluster.converge()
    assert {status.match_index for status in cluster.core(leader).peer_progress()} == {5}
    cluster.isolate(leader)
    cluster.run_until(lambda: cluster.core(leader).role is not Role.LEADER)
    cluster.drop = lambda m: m.local_id != leader and hasattr(m, "ledger_end_index")
    cluster.heal()
    cluster.run_until(lambda: leader in cluster.leaders())

    progress = cluster.core(leader).peer_progress()
    assert {(status.match_index, status.write_index) for status in progress} == {(-1, 6)}


# -- AppendEntries, rule 5 ------------------------------------------------------------------------


@pytest.mark.parametrize(("leader_commit", "expected"), [(-1, -1), (1, 1), (2, 2), (99, 2)])
def test_commit_index_is_the_smaller_of_leader_commit_and_the_last_new_entry(
    leader_commit, expected
):
    cluster = follower(log_of((4, 2), (5, 7)))
    log = log_of((4, 2), (5, 7))
    message, entries = append_of(log, "n1", "n0", 5, 1, 2, commit_index=leader_commit)
    cluster.ask(message, entries)

    assert cluster.core("n0").committed_index == expected


# -- RequestVote ----------------------------------------------------------------------------------


def test_a_vote_already_given_to_this_candidate_is_given_again_also_after_a_restart():
    cluster = Cluster(3).start("n0")
    cluster.ask(vote_request("n1", "n0", 4))
    cluster.crash("n0")
    cluster.start("n0")

    assert cluster.ask(vote_request("n1", "n0", 4)).vote_result is VoteResult.ACCEPT
    assert cluster.ask(vote_request("n2", "n0", 4)).vote_result is VoteResult.REJECT_ALREADY_VOTED


# -- rules for leaders ----------------------------------------------------------------------------


def test_upon_election_heartbeats_go_to_each_server_at_once():
    cluster = Cluster(5).start()
    cluster.run_until(lambda: cluster.leader is not None)
    beats = [m for m in cluster.sent if isinstance(m, HeartBeatRequest)]

    assert {beat.remote_id for beat in beats} == set(cluster.ids) - {cluster.leader}
    assert cluster.changes[-1][1] is Role.LEADER


def test_a_client_is_answered_only_after_its_entry_is_committed():
    cluster, leader = led()
    number = cluster.propose(leader)
    while number not in cluster.finished:
        assert cluster.core(leader).committed_index < cluster.core(leader).end_index
        cluster._next()

    assert cluster.core(leader).committed_index == cluster.core(leader).end_index


def test_a_follower_is_sent_what_it_lacks_from_next_index_on():
    logs = {"n0": log_of((1, 9)), "n1": log_of((1, 9)), "n2": log_of((1, 4))}
    cluster = Cluster(3, logs=logs)
    cluster.drop = lambda m: m.local_id != "n0" and hasattr(m, "ledger_end_index")
    cluster.start()
    cluster.elect()
    cluster.converge()

    assert cluster.pushes(PushType.APPEND, "n2")[0].first_index == 4
    assert cluster.pushes(PushType.APPEND, "n1")[0].first_index == 9


def test_after_a_failed_consistency_check_next_index_falls_and_it_is_tried_again():
    logs = {
        "n0": log_of((1, 2), (3, 4)),
        "n1": log_of((1, 2), (3, 4)),
        "n2": log_of((1, 2), (2, 3)),
    }
    cluster = Cluster(3, logs=logs)
    cluster.drop = lambda m: m.local_id != "n0" and hasattr(m, "ledger_end_index")
    cluster.start()
    cluster.elect()
    cluster.converge()

    compared = [m.prev_index for m in cluster.pushes(PushType.COMPARE, "n2")]
    assert compared == sorted(compared, reverse=True)
    assert compared[-1] == 1
    assert cluster.terms("n2") == cluster.terms("n0")


@pytest.mark.parametrize("count", [3, 4, 5, 7])
def test_commit_index_is_the_largest_that_a_majority_matches(count):
    cluster, leader = led(count)
    followers = cluster.followers()
    cluster.drop = lambda m: (
        getattr(m, "first_index", -1) > 1 + followers.index(m.remote_id)
        if m.remote_id in followers
        else False
    )
    for _ in range(count + 2):
        cluster.propose(leader)
        cluster.run_for(20)
    matches = sorted(
        [status.match_index for status in cluster.core(leader).peer_progress()]
        + [cluster.core(leader).durable_index],
        reverse=True,
    )

    assert len(set(matches)) > 2
    assert cluster.core(leader).committed_index == matches[count // 2]
