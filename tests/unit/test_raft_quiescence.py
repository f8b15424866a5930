"""A leader of an idle group quiesces, and what wakes it up; what a quiescent follower waits for."""

import pytest

from quorumlog.model.codes import PushType, Role
from quorumlog.model.messages.peer import HeartBeatRequest, TimeoutNowRequest
from quorumlog.raft import events as ev
from raft_cluster import Cluster
from raft_messages import heartbeat, vote_request

LONG_MS = 20_000


def idle(count=3, seed=0, **options):
    """A converged group in which nothing has happened for a while, and its leader."""
    cluster = Cluster(count, seed, **options).start()
    leader = cluster.elect()
    cluster.converge()
    cluster.run_for(1_500)
    return cluster, leader


def quiesce(cluster, leader, *node_ids):
    term = cluster.core(leader).term
    for node_id in node_ids or cluster.ids:
        cluster.step(cluster.nodes[node_id], ev.Quiesced(leader, term))


def quiescent(**options):
    cluster, leader = idle(**options)
    quiesce(cluster, leader)
    assert all(node.core.is_quiescent for node in cluster.live())
    return cluster, leader


def heartbeats_in(cluster, duration_ms):
    before = len(cluster.sent)
    cluster.run_for(duration_ms)
    return sum(isinstance(message, HeartBeatRequest) for message in cluster.sent[before:])


def test_a_quiescent_group_sends_nothing_and_keeps_its_leader():
    cluster, leader = quiescent()
    sent, term = len(cluster.sent), cluster.core(leader).term
    cluster.run_for(LONG_MS)

    assert len(cluster.sent) == sent
    assert (cluster.leader, cluster.core(leader).term) == (leader, term)
    assert all(peer.live for peer in cluster.core(leader).peer_progress())


def test_a_leader_that_was_just_busy_does_not_quiesce():
    cluster, leader = idle()
    assert cluster.core(leader).confirming_peers() == tuple(cluster.followers())
    cluster.propose(leader)
    cluster.run_for(150)
    assert cluster.core(leader).confirming_peers() == ()
    quiesce(cluster, leader, leader)
    assert not cluster.core(leader).is_quiescent


def test_a_leader_does_not_quiesce_while_a_live_peer_lacks_entries():
    cluster, leader = idle()
    cluster.drop = lambda message: (
        getattr(message, "type", None) is PushType.APPEND
        and (message.remote_id == cluster.followers()[0])
    )
    cluster.propose(leader)
    cluster.run_for(3_000)
    assert cluster.core(leader).confirming_peers() == ()


def test_a_leader_does_not_quiesce_while_a_preferred_one_is_live():
    cluster, _ = idle(preferred_leader_ids=("n0",))
    cluster.run_until(lambda: cluster.leader == "n0")
    cluster.run_for(1_500)
    assert cluster.core("n0").confirming_peers() == ("n1", "n2")
    cluster.drop = lambda message: isinstance(message, TimeoutNowRequest)
    cluster.isolate("n0")
    cluster.run_until(lambda: cluster.leader not in (None, "n0"))
    other = cluster.leader
    cluster.run_for(1_500)
    assert cluster.core(other).confirming_peers(), "without it there is nothing to wait for"
    cluster.heal()
    cluster.run_for(3_000)
    assert cluster.leader == other
    assert not cluster.core(other).confirming_peers()


def test_a_leader_quiesces_without_a_dead_peer_and_wakes_up_when_it_is_back():
    cluster, leader = idle()
    dead, alive = cluster.followers()
    cluster.crash(dead)
    cluster.run_for(3_000)
    assert cluster.core(leader).confirming_peers() == (alive,)
    quiesce(cluster, leader, leader, alive)
    assert cluster.core(leader).is_quiescent
    cluster.start(dead)
    assert not cluster.core(leader).is_quiescent


@pytest.mark.parametrize(
    "activity",
    [
        ev.Proposed(7_000, 1, 100),
        ev.ReadRequested(7_001),
        ev.TransferRequested(7_002, "n1"),
        ev.PeerConnected("n1"),
        ev.PeerConnected("n2"),
        ev.ChangeRequested(7_003, ev.RemoveMember("n2")),
    ],
    ids=lambda event: type(event).__name__,
)
def test_whatever_happens_wakes_a_leader_up(activity):
    cluster, leader = quiescent()
    cluster.step(cluster.nodes[leader], activity)
    assert not cluster.core(leader).is_quiescent
    assert heartbeats_in(cluster, 250) >= 4
    assert cluster.leader is not None


def test_a_read_is_confirmed_by_a_round_of_its_own():
    cluster, leader = quiescent()
    cluster.run_for(LONG_MS)
    cluster.drop = lambda message: message.remote_id == leader
    cluster.step(cluster.nodes[leader], ev.ReadRequested(9))
    cluster.run_for(300)
    assert 9 not in cluster.answers
    cluster.drop = lambda message: False
    cluster.run_for(300)
    assert cluster.answers[9] == cluster.core(leader).committed_index


def test_a_leader_that_wakes_up_without_a_quorum_steps_down_within_a_time_out():
    cluster, leader = quiescent()
    cluster.run_for(LONG_MS)
    cluster.isolate(leader)
    cluster.step(cluster.nodes[leader], ev.Unquiesced(cluster.now - 250))
    assert cluster.core(leader).role is Role.LEADER
    cluster.run_for(510)
    assert cluster.core(leader).role is not Role.LEADER
    assert not cluster.core(leader).is_quiescent


def test_a_follower_counts_from_its_last_contact_with_the_leader():
    cluster, _ = quiescent()
    cluster.run_for(LONG_MS)
    follower = cluster.core(cluster.followers()[0])
    assert follower.next_deadline_ms() > cluster.now + LONG_MS
    last_contact_ms = cluster.now - 250
    follower.step(ev.Unquiesced(last_contact_ms), cluster.now)
    assert last_contact_ms + 500 <= follower.next_deadline_ms() < last_contact_ms + 1_000


def test_a_quiescent_follower_refuses_others_and_follows_a_newer_term():
    cluster, _ = quiescent()
    one, two = cluster.followers()
    term = cluster.core(one).term
    asked = vote_request(two, one, term + 1, end=(99, term))
    (answer,) = cluster.deliver(asked)
    assert answer.vote_result.name == "REJECT_ALREADY_HAS_LEADER"
    assert cluster.core(one).is_quiescent
    cluster.deliver(heartbeat(two, one, term + 1))
    assert (cluster.core(one).leader_id, cluster.core(one).is_quiescent) == (two, False)
    assert cluster.core(one).next_deadline_ms() >= cluster.now + 500


def test_what_is_said_of_another_leader_or_term_has_nobody_quiesce():
    cluster, leader = idle()
    follower = cluster.followers()[0]
    term = cluster.core(leader).term
    for said in (ev.Quiesced(leader, term - 1), ev.Quiesced(follower, term)):
        for node in cluster.live():
            cluster.step(node, said)
            assert not node.core.is_quiescent


def test_a_request_for_a_vote_wakes_the_leader_up():
    cluster, leader = quiescent()
    cluster.deliver(vote_request(cluster.followers()[0], leader, cluster.core(leader).term + 1))
    assert not cluster.core(leader).is_quiescent
    assert cluster.core(leader).role is Role.LEADER
