"""How a leader pushes: window, repetition, lost and found peers (spec 90 groups C, D)."""

import itertools
from itertools import pairwise

import pytest

from quorumlog.model.codes import PushType, ResponseCode, Role
from quorumlog.model.messages.peer import HeartBeatResponse, PushRequest, PushResponse
from quorumlog.raft import effects as fx
from quorumlog.raft import events as ev
from raft_cluster import ENTRY_BYTES, Cluster
from raft_messages import push_response

MORE_THAN_A_PUSH = 15
"""Entries that one push cannot carry, so that the leader asks for them."""
COMPARE, TRUNCATE, APPEND = PushType.COMPARE, PushType.TRUNCATE, PushType.APPEND


def led(count=3, seed=0, **options):
    cluster = Cluster(count, seed, **options).start()
    leader = cluster.elect()
    cluster.converge()
    return cluster, leader


def progress(cluster, leader, peer):
    (status,) = [s for s in cluster.core(leader).peer_progress() if s.peer_id == peer]
    return status


# -- the window -----------------------------------------------------------------------------------


def test_89_a_push_is_a_range_of_consecutive_entries():
    cluster, leader = led()
    cluster.propose(leader, count=95)
    cluster.converge()
    for follower in cluster.followers():
        sent = cluster.pushes(APPEND, follower)
        ranges = [(m.first_index, m.last_index) for m in sent]
        assert all(one[1] + 1 == two[0] for one, two in pairwise(ranges))
        assert max(last - first + 1 for first, last in ranges) == 10


@pytest.mark.parametrize(
    ("window_bytes", "window_requests", "expected"),
    [(40 * ENTRY_BYTES, 100, 4), (1_000 * ENTRY_BYTES, 3, 3), (10 * ENTRY_BYTES, 100, 1)],
)
def test_90_the_window_bounds_what_is_in_flight(window_bytes, window_requests, expected):
    cluster, leader = led(push_window_bytes=window_bytes, push_window_requests=window_requests)
    follower = cluster.followers()[0]
    cluster.sent.clear()
    cluster.drop = lambda message: isinstance(message, PushResponse)
    cluster.propose(leader, count=500)
    cluster.run_for(300)
    status = progress(cluster, leader, follower)

    assert len(cluster.pushes(APPEND, follower)) == expected
    assert (status.in_flight_requests, status.in_flight_bytes) == (
        expected,
        expected * 10 * ENTRY_BYTES,
    )
    cluster.drop = lambda message: False
    cluster.converge()


def test_a_push_leaves_with_its_proposal():
    """What was just appended is in memory, so nobody is asked for it."""
    cluster, leader = led()
    effects = cluster.step(cluster.nodes[leader], ev.Proposed(1_000, 3, 3 * ENTRY_BYTES))
    kinds = [type(effect) for effect in effects]
    assert kinds == [fx.AppendProposal, fx.PushEntries, fx.PushEntries]
    followers = {effect.message.remote_id for effect in effects[1:]}
    assert followers == set(cluster.followers())
    last = cluster.core(leader).end_index
    assert {effect.message.last_index for effect in effects[1:]} == {last}


def test_a_peer_that_lacks_earlier_entries_gets_those_first():
    cluster, leader = led()
    cluster.read_ms = (50, 50)
    first = cluster.core(leader).end_index + 1
    cluster.propose(leader, count=MORE_THAN_A_PUSH)
    cluster.sent.clear()
    cluster.propose(leader)
    assert not cluster.pushes(APPEND), "the entries before are still being read"
    cluster.converge()
    assert cluster.pushes(APPEND, cluster.followers()[0])[0].first_index == first


def test_an_entry_larger_than_the_window_travels_alone():
    cluster, leader = led(push_bytes_max=10, push_window_bytes=10)
    cluster.propose(leader, count=5)
    cluster.converge()

    assert {m.last_index - m.first_index for m in cluster.pushes(APPEND)} == {0}


def test_91_an_unanswered_push_is_sent_again():
    cluster, leader = led()
    follower = cluster.followers()[0]
    lost = []

    def lose_first(message):
        if getattr(message, "type", None) is APPEND and message.remote_id == follower and not lost:
            lost.append(message)
            return True
        return False

    cluster.drop = lose_first
    cluster.sent.clear()
    cluster.propose(leader)
    cluster.converge(1_500)

    assert len(cluster.pushes(APPEND, follower)) == 2
    assert cluster.core(follower).committed_index == 1


def test_83_every_third_push_lost():
    cluster, leader = led()
    numbered = iter(range(1_000_000))
    cluster.drop = lambda message: isinstance(message, PushRequest) and next(numbered) % 3 == 0
    numbers = []
    for _ in range(10):
        numbers.append(cluster.propose(leader))
        cluster.run_for(100)
    cluster.run_for(3_000)

    assert {cluster.finished[number] for number in numbers} == {ResponseCode.SUCCESS}


@pytest.mark.parametrize("seed", range(5))
def test_84_duplicates_and_reordering_change_nothing(seed):
    cluster = Cluster(3, seed).start()
    cluster.delay_ms, cluster.duplicates = (1, 40), 0.5
    leader = cluster.elect()
    for _ in range(30):
        cluster.propose(leader, count=3)
        cluster.run_for(5)
    cluster.converge()

    assert [entry.payload for entry in cluster.nodes[leader].log.entries][-3:] == [89, 90, 91]
    assert len({tuple(node.log.entries) for node in cluster.live()}) == 1


def test_85_appends_of_many_entries_are_whole():
    cluster, leader = led()
    first = cluster.propose(leader, count=7)
    cluster.converge()

    assert cluster.finished[first] is ResponseCode.SUCCESS
    assert cluster.core(leader).end_index == 7


def test_88_small_batches_lose_and_repeat_nothing():
    """Scenarios 76 to 85 with at most 300 bytes a push: three entries."""
    cluster = Cluster(3, push_bytes_max=300, push_window_bytes=900).start("n0", "n1")
    leader = cluster.elect()
    numbers = [cluster.propose(leader) for _ in range(10)]
    cluster.converge()
    cluster.start("n2")
    dropped = itertools.count()
    cluster.drop = lambda m: isinstance(m, PushRequest) and next(dropped) % 3 == 2
    cluster.duplicates, cluster.delay_ms = 0.3, (1, 30)
    numbers += [cluster.propose(leader, count) for count in range(1, 11)]
    cluster.run_until(lambda: set(numbers) <= set(cluster.finished))
    cluster.converge()

    assert {cluster.finished[number] for number in numbers} == {ResponseCode.SUCCESS}
    assert max(m.last_index - m.first_index + 1 for m in cluster.pushes(APPEND)) == 3
    assert len({tuple(node.log.entries) for node in cluster.live()}) == 1
    assert cluster.core("n2").committed_index == 10 + 55


# -- losing and finding a peer --------------------------------------------------------------------


def test_120_a_wiped_follower_rejoins_although_nobody_writes():
    cluster, leader = led()
    cluster.propose(leader, count=50)
    cluster.converge()
    follower = cluster.followers()[0]
    cluster.wipe(follower)
    cluster.start(follower)
    cluster.converge(2_000)

    assert cluster.core(follower).end_index == 50


def test_120_even_when_its_connections_never_broke():
    """RELIABILITY R13: only the heartbeats tell."""
    cluster, leader = led()
    cluster.propose(leader, count=50)
    cluster.converge()
    follower = cluster.followers()[0]
    cluster.wipe(follower)
    others = [node for node in cluster.live() if node.id != follower]
    for node in others:
        node.up = False  # so that nobody is told of a new connection
    cluster.start(follower)
    for node in others:
        node.up = True
    cluster.converge(2_000)

    assert cluster.core(follower).end_index == 50
    assert [text for node_id, text in cluster.alarms if "lost data" in text and node_id == leader]


def test_a_late_heartbeat_answer_accuses_nobody():
    cluster, leader = led()
    follower = cluster.followers()[0]
    late = [m for m in cluster.sent if isinstance(m, HeartBeatResponse)]
    cluster.propose(leader, count=5)
    cluster.converge()
    cluster.run_for(200)
    for message in late:
        if message.remote_id == leader:
            cluster.deliver(message)

    assert not cluster.alarms
    assert progress(cluster, leader, follower).dispatcher == "APPEND"


def test_a_new_connection_starts_again_where_the_match_is():
    cluster, leader = led()
    follower = cluster.followers()[0]
    cluster.propose(leader, count=20)
    cluster.converge()
    cluster.propose(leader, count=30)
    cluster.sent.clear()
    cluster.reconnect(leader, follower)
    assert progress(cluster, leader, follower).in_flight_requests == 0
    cluster.converge(500)

    assert cluster.pushes(COMPARE, follower)[0].prev_index == 20


@pytest.mark.parametrize("kind", list(PushType))
def test_answers_to_what_was_not_asked_are_ignored(kind):
    """RELIABILITY R8."""
    cluster, leader = led()
    follower = cluster.followers()[0]
    cluster.isolate(follower)
    cluster.propose(leader, count=20)
    cluster.run_for(50)
    before = progress(cluster, leader, follower)
    cluster.deliver(
        push_response(
            kind,
            follower,
            leader,
            cluster.core(leader).term,
            999_999,
            ResponseCode.SUCCESS,
            match_index=20,
            end_index=20,
        )
    )

    assert progress(cluster, leader, follower) == before


def test_answers_of_an_older_term_are_ignored():
    cluster, leader = led()
    old = [m for m in cluster.sent if isinstance(m, PushResponse) and m.remote_id == leader]
    followers = cluster.followers()
    cluster.isolate(leader)
    cluster.run_until(lambda: cluster.leader in followers)
    cluster.heal()
    cluster.converge()
    before = cluster.core(cluster.leader).peer_progress()
    for message in old:
        cluster.deliver(message)

    assert cluster.core(cluster.leader).peer_progress() == before


def test_an_acknowledgement_of_more_than_was_sent_raises_the_alarm():
    cluster, leader = led()
    follower = cluster.followers()[0]
    cluster.drop = lambda message: isinstance(message, PushResponse)
    cluster.propose(leader, count=5)
    cluster.run_for(20)
    request = cluster.pushes(APPEND, follower)[-1]
    cluster.deliver(
        push_response(
            APPEND,
            follower,
            leader,
            request.term,
            request.request_id,
            ResponseCode.SUCCESS,
            match_index=99,
        )
    )

    assert cluster.alarms
    assert cluster.core(leader).committed_index == 0


def test_unreadable_entries_are_tried_again_with_one_alarm():
    cluster, leader = led()
    cluster.nodes[leader].unreadable = 1_000_000
    number = cluster.propose(leader, count=MORE_THAN_A_PUSH)
    cluster.run_for(4_500)
    assert number not in cluster.finished
    assert len(cluster.alarms) == 2  # one for each follower
    cluster.nodes[leader].unreadable = 0
    cluster.run_for(1_000)

    assert cluster.finished[number] is ResponseCode.SUCCESS


def test_a_read_for_an_earlier_connection_is_not_pushed():
    cluster, leader = led()
    cluster.read_ms = (100, 100)
    cluster.propose(leader, count=MORE_THAN_A_PUSH)
    follower = cluster.followers()[0]
    cluster.reconnect(leader, follower)
    cluster.sent.clear()
    cluster.run_for(101)

    assert not cluster.pushes(APPEND, follower)


def test_a_disk_slower_than_the_push_time_out_still_catches_up():
    cluster, leader = led(election_timeout_min_ms=2_000, election_timeout_max_ms=4_000)
    cluster.sync_ms = (1_500, 1_500)
    cluster.propose(leader, count=100)
    cluster.converge(20_000)

    assert cluster.leader == leader


def test_121_a_rolling_restart_keeps_every_acknowledged_entry():
    cluster = Cluster(3).start()
    cluster.elect()
    for node_id in cluster.ids:
        for _ in range(5):
            cluster.propose(count=3)
            cluster.run_for(20)
        cluster.crash(node_id)
        cluster.run_for(1_500)
        cluster.start(node_id)
        cluster.run_until(cluster.agreed)
    cluster.converge()

    assert len(cluster.checker.acknowledged) >= 30
    cluster.checker.finished()


# -- views ----------------------------------------------------------------------------------------


def test_peer_progress_tells_phase_lag_and_life():
    cluster, leader = led()
    follower = cluster.followers()[0]
    status = progress(cluster, leader, follower)
    assert (status.dispatcher, status.match_index, status.lag, status.live) == (
        "APPEND",
        0,
        0,
        True,
    )
    assert cluster.core(follower).peer_progress() == ()

    cluster.crash(follower)
    cluster.propose(leader, count=100)
    cluster.run_for(3_000)
    status = progress(cluster, leader, follower)
    assert (status.lag, status.live) == (100, False)


def test_a_core_has_no_state_left_from_an_earlier_leadership():
    cluster, leader = led()
    cluster.isolate(leader)
    cluster.run_until(lambda: cluster.core(leader).role is not Role.LEADER)
    node = cluster.nodes[leader]

    assert node.core.peer_progress() == ()
    for event in (
        ev.EntriesRead("n1", 1, 0, 1),
        ev.EntriesUnreadable("n1", 1, "gone"),
        ev.PeerConnected("n1"),
    ):
        assert cluster.step(node, event) == []
