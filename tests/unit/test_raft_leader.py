"""Leading: NOOP, heartbeats, check-quorum, commit, pending appends (spec 90 groups A, C, E)."""

import pytest

from quorumlog.model.codes import PushType, ResponseCode, Role, VoteResult
from quorumlog.model.hard_state import HardState
from quorumlog.model.messages.peer import HeartBeatRequest, HeartBeatResponse
from quorumlog.raft import effects as fx
from quorumlog.raft import events as ev
from quorumlog.raft.dispatcher import COMMIT_DELAY_MS
from raft_cluster import Cluster
from raft_messages import heartbeat, log_of, push_response, vote_request


def led(count=3, seed=0, **options):
    """A converged group and its leader."""
    cluster = Cluster(count, seed, **options).start()
    leader = cluster.elect()
    cluster.converge()
    return cluster, leader


# -- the term begins ------------------------------------------------------------------------------


def test_a_leader_begins_with_a_noop_heartbeats_and_compares():
    cluster = Cluster(3, logs=dict.fromkeys(["n0", "n1", "n2"], log_of((1, 5)))).start()
    cluster.sync_ms = (1, 1)
    leader = cluster.elect()

    at = next(i for i, c in enumerate(cluster.changes) if c[1] is Role.LEADER)
    assert cluster.changes[at][0] == leader
    assert cluster.nodes[leader].log.at(5).term == cluster.core(leader).term
    first = cluster.pushes(PushType.COMPARE)[:2]
    assert [message.prev_index for message in first] == [4, 4]


def test_32_a_leader_whose_heartbeats_are_not_answered_steps_down():
    cluster, leader = led()
    cluster.drop = lambda message: isinstance(message, HeartBeatResponse)
    started = cluster.now
    cluster.run_until(lambda: cluster.core(leader).role is not Role.LEADER, limit_ms=700)

    assert cluster.now - started >= 400
    assert cluster.core(leader).leader_id is None


def test_an_answer_to_a_push_is_a_sign_of_life_too():
    cluster, leader = led()
    cluster.drop = lambda message: isinstance(message, HeartBeatResponse)
    for _ in range(40):
        cluster.propose(leader)
        cluster.run_for(100)

    assert cluster.core(leader).role is Role.LEADER


def test_answers_of_an_older_term_are_no_sign_of_life():
    cluster, leader = led()
    follower = cluster.followers()[0]
    cluster.drop = lambda message: message.remote_id == leader
    term = cluster.core(leader).term
    for _ in range(10):
        cluster.deliver(
            push_response(
                PushType.APPEND, follower, leader, term - 1, 1, ResponseCode.UNKNOWN_MEMBER
            )
        )
        cluster.run_for(100)

    assert cluster.core(leader).role is Role.CANDIDATE


def test_two_of_five_followers_keep_a_leader_and_one_does_not():
    cluster, leader = led(5)
    followers = cluster.followers()
    for follower in followers[:2]:
        cluster.crash(follower)
    cluster.run_for(3_000)
    assert cluster.core(leader).role is Role.LEADER

    cluster.crash(followers[2])
    cluster.run_for(700)
    assert cluster.core(leader).role is Role.CANDIDATE


def test_a_new_leader_has_a_whole_time_out_to_hear_its_followers():
    """Spec 10 W7: the time before the election does not count against it."""
    cluster = Cluster(3).start()
    cluster.run_until(lambda: cluster.leader is not None)
    leader, elected = cluster.leader, cluster.now
    cluster.isolate(leader)
    cluster.run_until(lambda: cluster.core(leader).role is not Role.LEADER)

    assert cluster.now - elected >= 499


def test_heartbeats_are_sent_each_interval():
    cluster, _ = led()
    cluster.sent.clear()
    cluster.run_for(1_000)
    beats = [m for m in cluster.sent if isinstance(m, HeartBeatRequest)]

    assert len(beats) in (20, 22)
    assert len({(beat.remote_id, beat.round) for beat in beats}) == len(beats)


def test_a_leader_told_of_another_leader_in_its_term_steps_down_with_an_alarm():
    cluster, leader = led()
    follower = cluster.followers()[0]
    cluster.deliver(
        HeartBeatResponse(
            group="g",
            local_id=follower,
            remote_id=leader,
            term=cluster.core(leader).term,
            code=ResponseCode.INCONSISTENT_LEADER,
            round=1,
            end_index=0,
        )
    )

    assert cluster.core(leader).role is Role.CANDIDATE
    assert cluster.alarms


@pytest.mark.parametrize("kind", list(PushType))
def test_a_higher_term_in_any_answer_to_a_push_ends_leadership(kind):
    """Spec 95.16: also an answer that belongs to nothing outstanding."""
    cluster, leader = led()
    number = cluster.propose(leader)
    follower = cluster.followers()[0]
    cluster.deliver(push_response(kind, follower, leader, 9, 123_456, ResponseCode.EXPIRED_TERM))

    assert (cluster.core(leader).role, cluster.core(leader).term) == (Role.FOLLOWER, 9)
    assert cluster.finished[number] is ResponseCode.TERM_CHANGED


def test_a_leader_refuses_candidates_without_adopting_their_term():
    cluster, leader = led()
    for pre_vote in (True, False):
        (answer,) = cluster.deliver(
            vote_request("n1" if leader != "n1" else "n2", leader, 9, (99, 9), pre_vote=pre_vote)
        )
        assert answer.vote_result is VoteResult.REJECT_ALREADY_HAS_LEADER

    assert cluster.core(leader).role is Role.LEADER


# -- appends --------------------------------------------------------------------------------------


def test_76_ten_appends_are_on_all_replicas():
    cluster, leader = led()
    for _ in range(10):
        cluster.propose(leader)
    cluster.converge(2_000)

    assert {node.core.committed_index for node in cluster.live()} == {10}
    assert len({tuple(node.log.entries) for node in cluster.live()}) == 1


def test_77_a_follower_started_later_gets_everything():
    cluster = Cluster(3).start("n0", "n1")
    leader = cluster.elect()
    for _ in range(10):
        cluster.propose(leader)
    cluster.converge()
    cluster.start("n2")
    cluster.converge(2_000)

    assert cluster.core("n2").committed_index == 10


def test_78_a_follower_refuses_appends_and_knows_the_leader():
    cluster, leader = led()
    follower = cluster.followers()[0]
    number = cluster.propose(follower)

    assert cluster.finished[number] is ResponseCode.NOT_LEADER
    assert cluster.core(follower).leader_id == leader


def test_79_without_followers_no_append_stays_unanswered():
    cluster, leader = led()
    for follower in cluster.followers():
        cluster.crash(follower)
    numbers = [cluster.propose(leader) for _ in range(10)]
    cluster.run_for(1_000)

    assert {cluster.finished[number] for number in numbers} == {ResponseCode.TERM_CHANGED}


def test_82_one_follower_coming_and_going_fails_no_append():
    cluster, leader = led()
    follower = cluster.followers()[0]
    numbers = []
    for _ in range(5):
        cluster.crash(follower)
        numbers += [cluster.propose(leader) for _ in range(5)]
        cluster.run_for(500)
        cluster.start(follower)
        cluster.run_for(500)
    cluster.converge()

    assert {cluster.finished[number] for number in numbers} == {ResponseCode.SUCCESS}


def test_104_an_append_in_an_idle_group_waits_for_no_timer():
    """One way 2 ms, an fsync 1 ms: committed after both ways and one fsync, anywhere in a beat."""
    cluster, leader = led()
    cluster.sync_ms = (1, 1)
    for idle_ms in (1_000, 1_033, 1_099, 7):
        cluster.run_for(idle_ms)
        cluster.sent.clear()
        proposed = cluster.now
        number = cluster.propose(leader)
        cluster.run_for(0)
        assert {m.remote_id for m in cluster.pushes(PushType.APPEND)} == set(cluster.followers())
        cluster.run_until(lambda number=number: number in cluster.finished)
        assert cluster.now - proposed == 2 + 1 + 2
        committed = cluster.core(leader).end_index
        cluster.run_for(COMMIT_DELAY_MS + 2)
        assert {cluster.core(one).committed_index for one in cluster.followers()} == {committed}


# -- commit ---------------------------------------------------------------------------------------


def test_the_leaders_own_copy_counts_only_when_durable():
    """RELIABILITY R3: with one follower's copy durable and its own not, nothing is committed."""
    cluster, leader = led()
    one, other = cluster.followers()
    cluster.crash(other)
    cluster.sync_ms = (1, 1)
    node = cluster.nodes[leader]
    node.syncing = 1  # the leader's disk is busy for ever
    number = cluster.propose(leader)
    cluster.run_for(300)

    assert cluster.core(one).durable_index == 1
    assert number not in cluster.finished
    node.syncing = 0
    cluster._sync(node)
    cluster.run_for(50)
    assert cluster.finished[number] is ResponseCode.SUCCESS


def test_132_a_single_member_commits_when_durable():
    cluster = Cluster(1)
    cluster.sync_ms = (50, 50)
    cluster.start()
    cluster.run_until(cluster.agreed)
    cluster.run_for(200)
    number = cluster.propose()
    cluster.run_for(49)
    assert number not in cluster.finished
    cluster.run_for(60)

    assert cluster.finished[number] is ResponseCode.SUCCESS


def test_126_old_entries_commit_with_the_first_of_the_new_term():
    logs = {node_id: log_of((1, 3)) for node_id in ("n0", "n1", "n2")}
    cluster = Cluster(3, logs=logs).start()
    cluster.drop = lambda message: getattr(message, "type", None) is PushType.APPEND
    leader = cluster.elect()
    cluster.run_for(1_000)
    assert [status.match_index for status in cluster.core(leader).peer_progress()] == [2, 2]
    assert cluster.core(leader).committed_index == -1

    cluster.drop = lambda message: False
    cluster.run_for(1_500)
    assert cluster.core(leader).committed_index == 3


def test_127_the_noop_commits_old_entries_without_traffic_and_takes_one_index():
    logs = {node_id: log_of((1, 1)) for node_id in ("n0", "n1", "n2")}
    cluster = Cluster(3, logs=logs).start()
    leader = cluster.elect()
    cluster.converge()
    assert cluster.core(leader).committed_index == 1

    cluster.propose()
    cluster.converge()
    assert cluster.core(leader).end_index == 2


def test_123_a_late_answer_does_not_lower_what_is_known():
    cluster, leader = led()
    follower = cluster.followers()[0]
    cluster.propose(leader, count=5)
    cluster.converge()
    before = cluster.core(leader).peer_progress()
    for match_index in (0, 3, 99):
        cluster.deliver(
            push_response(
                PushType.APPEND,
                follower,
                leader,
                cluster.core(leader).term,
                1,
                ResponseCode.SUCCESS,
                match_index=match_index,
                end_index=match_index,
            )
        )

    assert cluster.core(leader).peer_progress() == before


def test_124_pending_appends_end_when_a_new_term_is_known():
    cluster, leader = led()
    number = cluster.propose(leader)
    effects = cluster.step(
        cluster.nodes[leader], ev.Received(heartbeat(cluster.followers()[0], leader, 9))
    )

    kinds = [type(effect) for effect in effects]
    assert kinds.index(fx.FailPending) < kinds.index(fx.RoleChanged)
    assert kinds.count(fx.FailPending) == 1
    assert cluster.finished[number] is ResponseCode.TERM_CHANGED


def test_125_pending_appends_end_when_the_leader_steps_down_in_its_term():
    cluster, leader = led()
    term = cluster.core(leader).term
    cluster.isolate(leader)
    number = cluster.propose(leader)
    cluster.run_until(lambda: cluster.core(leader).role is not Role.LEADER)

    assert cluster.core(leader).term == term
    assert cluster.finished[number] is ResponseCode.TERM_CHANGED
    assert cluster.failed[leader] == 1


def test_131_each_append_is_answered_exactly_once():
    cluster, leader = led()
    numbers = [cluster.propose(leader) for _ in range(20)]
    cluster.isolate(leader)
    cluster.run_for(2_000)
    cluster.heal()
    cluster.converge()

    assert sorted(cluster.finished) == numbers  # the cluster raises at a second answer


def test_99_an_idle_follower_learns_of_the_commit_at_once():
    cluster, leader = led()
    cluster.sent.clear()
    cluster.propose(leader)
    cluster.run_for(40)

    assert {node.core.committed_index for node in cluster.live()} == {1}
    assert len(cluster.pushes(PushType.COMMIT)) <= 2


def test_a_lost_commit_is_repeated():
    cluster, leader = led()
    cluster.drop = lambda message: getattr(message, "type", None) is PushType.COMMIT
    cluster.propose(leader)
    cluster.run_for(1_000)
    behind = [node.id for node in cluster.live() if node.core.committed_index < 1]
    assert behind
    cluster.drop = lambda message: False
    cluster.run_for(150)
    cluster.sent.clear()

    assert {node.core.committed_index for node in cluster.live()} == {1}
    cluster.run_for(1_000)
    assert not cluster.pushes(PushType.COMMIT)


def test_a_restarted_process_does_not_lead_its_old_term_again():
    """Spec 95.1, with the hard state of a leader on disk."""
    states = {"n0": HardState(7, "n0")}
    cluster = Cluster(1, logs={"n0": log_of((7, 3))}, states=states).start()
    cluster.run_for(1_500)

    assert cluster.core("n0").term == 8
