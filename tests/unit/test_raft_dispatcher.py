"""How a leader brings a follower's log in step with its own (spec 90 groups C, D, I)."""

from itertools import pairwise

import pytest

from quorumlog.model.codes import PushType, ResponseCode, Role
from quorumlog.model.message import HeartBeatResponse, PushRequest, PushResponse
from quorumlog.raft import events as ev
from raft_cluster import ENTRY_BYTES, Cluster
from raft_messages import Contents, chained, log_of, push_response

COMPARE, TRUNCATE, APPEND = PushType.COMPARE, PushType.TRUNCATE, PushType.APPEND


def led(count=3, seed=0, **options):
    cluster = Cluster(count, seed, **options).start()
    leader = cluster.elect()
    cluster.settle()
    return cluster, leader


def led_by_n0(n0, n2, n1=None):
    """n0 leads with n1, whose log is the same; n2 has another and is started when asked for."""
    logs = {"n0": n0, "n1": n1 or n0, "n2": n2}
    cluster = Cluster(3, logs=logs)
    cluster.drop = lambda message: message.local_id == "n1" and hasattr(message, "ledger_end_index")
    cluster.start("n0", "n1")
    assert cluster.elect() == "n0"
    cluster.settle()
    cluster.drop = lambda message: False
    cluster.sent.clear()
    return cluster


def progress(cluster, leader, peer):
    (status,) = [s for s in cluster.core(leader).peer_progress() if s.peer_id == peer]
    return status


def unlike(*runs):
    """A log of (term, count) that shares no entry with `log_of`."""
    log = Contents()
    for term, count in runs:
        for _ in range(count):
            log.put(log.end + 1, [chained(log.chain_at(log.end), term, -7)])
    return log


# -- finding the common prefix --------------------------------------------------------------------


def test_114_a_thousand_divergent_entries_of_one_term_take_three_compares():
    common = log_of((1, 10))
    mine = log_of((1, 10), (3, 20))
    theirs = common.copy()
    for _ in range(1_000):
        theirs.put(theirs.end + 1, [chained(theirs.chain_at(theirs.end), 2, -9)])
    cluster = led_by_n0(mine, theirs)
    cluster.start("n2")
    cluster.settle()

    assert len({m.request_id for m in cluster.pushes(COMPARE, "n2")}) <= 3
    assert cluster.terms("n2") == cluster.terms("n0")


@pytest.mark.parametrize("terms", [1, 3, 6])
def test_114_k_divergent_terms_take_at_most_k_and_one_more_compares(terms):
    common = [(1, 5)]
    mine = log_of(*common, (20, 4))
    theirs = log_of(*common)
    for term in range(2, 2 + terms):
        for _ in range(50):
            theirs.put(theirs.end + 1, [chained(theirs.chain_at(theirs.end), term, -9)])
    cluster = led_by_n0(mine, theirs)
    cluster.start("n2")
    cluster.settle()

    # One more than k, and one because the follower is longer or shorter than the leader.
    assert len({m.request_id for m in cluster.pushes(COMPARE, "n2")}) <= terms + 2


def test_a_term_both_have_is_not_given_up_whole():
    """Published Raft: the leader jumps to its own last entry of the follower's term."""
    mine = log_of((1, 100), (3, 10))
    theirs = log_of((1, 200))
    cluster = led_by_n0(mine, theirs)
    cluster.start("n2")
    cluster.settle()

    compared = list(dict.fromkeys(m.prev_index for m in cluster.pushes(COMPARE, "n2")))
    assert compared[-1] == 99
    assert len(compared) <= 3
    assert not [m for m in cluster.pushes(APPEND, "n2") if m.first_index < 100]


def test_105_entries_of_a_lost_leader_are_replaced_everywhere():
    cluster = Cluster(3).start()
    old = cluster.elect()
    cluster.propose(old, count=4)
    cluster.settle()
    cluster.isolate(old)
    cluster.propose(old, count=5)
    cluster.run_for(50)
    cluster.crash(old)
    cluster.nodes[old].stored = cluster.nodes[old].log.copy()
    assert cluster.nodes[old].stored.end == 9

    cluster.run_until(lambda: cluster.leader not in (None, old))
    cluster.cuts.clear()
    cluster.start(old)
    cluster.settle()

    assert [node.core.end_index for node in cluster.live()] == [5, 5, 5]
    assert len({tuple(node.log.entries) for node in cluster.live()}) == 1


def test_106_a_tail_of_an_older_term_is_replaced():
    cluster = led_by_n0(log_of((1, 7), (3, 3)), log_of((1, 7), (2, 3)))
    cluster.start("n2")
    cluster.settle()

    assert cluster.terms("n2")[:10] == [1] * 7 + [3] * 3


def test_107_a_longer_follower_loses_its_tail():
    cluster = led_by_n0(log_of((1, 5)), log_of((1, 9)))
    cluster.start("n2")
    cluster.settle()

    assert cluster.terms("n2") == cluster.terms("n0")


def test_108_an_empty_follower_gets_everything_from_the_beginning():
    cluster = led_by_n0(log_of((1, 30), (2, 30)), Contents())
    cluster.start("n2")
    cluster.settle()

    assert cluster.nodes["n2"].log.entries == cluster.nodes["n0"].log.entries
    assert [m.prev_index for m in cluster.pushes(COMPARE, "n2")] == [59, -1]


def test_115_a_shorter_follower_is_compared_at_its_end_next():
    cluster = led_by_n0(log_of((1, 500)), log_of((1, 20)))
    cluster.start("n2")
    cluster.settle()

    assert [m.prev_index for m in cluster.pushes(COMPARE, "n2")] == [499, 19]


def test_117_truncate_follows_each_successful_compare():
    cluster = led_by_n0(log_of((1, 5)), log_of((1, 5)))
    cluster.start("n2")
    cluster.settle()

    kinds = [m.type for k in PushType for m in cluster.pushes(k, "n2")]
    assert kinds.count(TRUNCATE) == 1
    (message,) = cluster.pushes(TRUNCATE, "n2")
    assert (message.prev_index, message.next_term) == (4, cluster.core("n0").term)


def test_206_a_long_time_follower_that_leads_first_compares_at_its_end():
    cluster, leader = led()
    cluster.propose(leader, count=1_000)
    cluster.settle()
    removed = []
    watched = cluster._TruncateLog
    cluster._TruncateLog = lambda *args: removed.append(args) or watched(*args)
    cluster.crash(leader)
    cluster.sent.clear()
    cluster.run_until(lambda: cluster.leader not in (None, leader))
    cluster.start(leader)
    cluster.settle()

    assert [m.prev_index for m in cluster.pushes(COMPARE)][:2] == [1_000, 1_000]
    assert not removed


def test_113_a_follower_beyond_the_leaders_log_is_found_in_one_step():
    cluster = led_by_n0(log_of((1, 5)), log_of((1, 500)))
    cluster.start("n2")
    cluster.settle()

    assert len(cluster.pushes(COMPARE, "n2")) <= 2


def test_109_110_entries_that_are_gone_raise_one_alarm_and_no_busy_loop():
    """Until snapshots come: the peer waits, the group works on without it."""
    trimmed = log_of((1, 50), base=99, base_term=1)
    cluster = led_by_n0(trimmed, Contents(), trimmed)
    cluster.start("n2")
    cluster.run_for(10_000)

    assert len([text for _, text in cluster.alarms if "n2 needs entries" in text]) == 1
    assert len(cluster.pushes(COMPARE, "n2")) <= 25
    number = cluster.propose("n0")
    cluster.run_for(100)
    assert cluster.finished[number] is ResponseCode.SUCCESS


def test_116_a_follower_that_ends_where_the_leader_begins_catches_up():
    trimmed = log_of((1, 50), base=99, base_term=1)
    cluster = led_by_n0(trimmed, Contents(base=99, base_term=1), trimmed)
    cluster.start("n2")
    cluster.settle()

    assert not cluster.alarms


def test_different_bytes_under_equal_terms_are_found_and_replaced():
    """Two entries with one (index, term): the chain CRC tells (DESIGN section 5)."""
    cluster = led_by_n0(log_of((1, 8)), unlike((1, 8)))
    cluster.judge.logs_match = lambda *_: None  # this is what such logs violate
    cluster.start("n2")
    cluster.settle()

    assert cluster.nodes["n2"].log.entries == cluster.nodes["n0"].log.entries


def test_a_difference_below_the_followers_commit_is_not_repaired_but_reported():
    cluster = led_by_n0(log_of((1, 8)), unlike((1, 8)))
    cluster.judge.logs_match = lambda *_: None
    cluster.nodes["n2"].stored_commit = 7
    cluster.start("n2")
    cluster.run_for(5_000)

    assert {node_id for node_id, _ in cluster.alarms} == {"n0", "n2"}
    assert len(cluster.alarms) < 12
    assert cluster.nodes["n2"].log.entries == unlike((1, 8)).entries


# -- the window -----------------------------------------------------------------------------------


def test_89_a_push_is_a_range_of_consecutive_entries():
    cluster, leader = led()
    cluster.propose(leader, count=95)
    cluster.settle()
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
    cluster.settle()


def test_an_entry_larger_than_the_window_travels_alone():
    cluster, leader = led(push_bytes_max=10, push_window_bytes=10)
    cluster.propose(leader, count=5)
    cluster.settle()

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
    cluster.settle(1_500)

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
    cluster.settle()

    assert [entry.payload for entry in cluster.nodes[leader].log.entries][-3:] == [89, 90, 91]
    assert len({tuple(node.log.entries) for node in cluster.live()}) == 1


def test_85_appends_of_many_entries_are_whole():
    cluster, leader = led()
    first = cluster.propose(leader, count=7)
    cluster.settle()

    assert cluster.finished[first] is ResponseCode.SUCCESS
    assert cluster.core(leader).end_index == 7


# -- losing and finding a peer --------------------------------------------------------------------


def test_120_a_wiped_follower_rejoins_although_nobody_writes():
    cluster, leader = led()
    cluster.propose(leader, count=50)
    cluster.settle()
    follower = cluster.followers()[0]
    cluster.wipe(follower)
    cluster.start(follower)
    cluster.settle(2_000)

    assert cluster.core(follower).end_index == 50


def test_120_even_when_its_connections_never_broke():
    """RELIABILITY R13: only the heartbeats tell."""
    cluster, leader = led()
    cluster.propose(leader, count=50)
    cluster.settle()
    follower = cluster.followers()[0]
    cluster.wipe(follower)
    others = [node for node in cluster.live() if node.id != follower]
    for node in others:
        node.up = False  # so that nobody is told of a new connection
    cluster.start(follower)
    for node in others:
        node.up = True
    cluster.settle(2_000)

    assert cluster.core(follower).end_index == 50
    assert [text for node_id, text in cluster.alarms if "lost data" in text and node_id == leader]


def test_a_late_heartbeat_answer_accuses_nobody():
    cluster, leader = led()
    follower = cluster.followers()[0]
    late = [m for m in cluster.sent if isinstance(m, HeartBeatResponse)]
    cluster.propose(leader, count=5)
    cluster.settle()
    for message in late:
        if message.remote_id == leader:
            cluster.deliver(message)

    assert not cluster.alarms
    assert progress(cluster, leader, follower).dispatcher == "APPEND"


def test_a_new_connection_starts_again_where_the_match_is():
    cluster, leader = led()
    follower = cluster.followers()[0]
    cluster.propose(leader, count=20)
    cluster.settle()
    cluster.propose(leader, count=30)
    cluster.sent.clear()
    cluster.reconnect(leader, follower)
    assert progress(cluster, leader, follower).in_flight_requests == 0
    cluster.settle(500)

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
    cluster.settle()
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
    number = cluster.propose(leader)
    cluster.run_for(4_500)
    assert number not in cluster.finished
    assert len(cluster.alarms) == 2  # one for each follower
    cluster.nodes[leader].unreadable = 0
    cluster.run_for(1_000)

    assert cluster.finished[number] is ResponseCode.SUCCESS


def test_a_read_for_an_earlier_connection_is_not_pushed():
    cluster, leader = led()
    cluster.read_ms = (100, 100)
    cluster.propose(leader, count=5)
    follower = cluster.followers()[0]
    cluster.reconnect(leader, follower)
    cluster.sent.clear()
    cluster.run_for(101)

    assert not cluster.pushes(APPEND, follower)


def test_a_disk_slower_than_the_push_time_out_still_catches_up():
    cluster, leader = led()
    cluster.sync_ms = (1_500, 1_500)
    cluster.propose(leader, count=100)
    cluster.settle(20_000)

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
    cluster.settle()

    assert len(cluster.judge.acknowledged) >= 30
    cluster.judge.finished()


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


def test_pushes_carry_the_terms_of_their_entries():
    cluster = led_by_n0(log_of((1, 4), (2, 3)), Contents())
    cluster.start("n2")
    cluster.settle()
    message = cluster.pushes(APPEND, "n2")[0]

    assert message.term_runs == [(1, 0), (2, 4), (cluster.core("n0").term, 7)]
    assert (message.prev_index, message.prev_term) == (-1, -1)
