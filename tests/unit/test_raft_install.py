"""Followers that need removed entries (spec 40 section 5, spec 90 groups D, F)."""

import pytest

from quorumlog.model.codes import PushType, ResponseCode
from quorumlog.model.messages.peer import InstallSnapshotRequest, InstallSnapshotResponse
from quorumlog.raft import effects as fx
from quorumlog.raft import events as ev
from raft_cluster import Cluster
from raft_members import started_group
from raft_messages import Contents, log_of, push_response

TRIMMED = log_of((1, 150))
TRIMMED.reset(99, 1, TRIMMED.chain_at(99))


def offer(index, term=1, *, sender_term=2, source="n0", sha256=b"", request_id=7):
    return InstallSnapshotRequest(
        group="g",
        local_id=source,
        remote_id="n2",
        term=sender_term,
        request_id=request_id,
        last_included_index=index,
        last_included_term=term,
        chain_crc=0,
        sha256=sha256,
    )


def follower(contents, committed=-1):
    """n2 with this log, which follows nobody yet."""
    cluster = Cluster(3, logs={"n2": contents})
    cluster.nodes["n2"].stored_commit = committed
    return cluster.start("n2")


def led(lagging, fetch_ms=None):
    """n0 leads with n1; both removed entries up to 99. n2 has `lagging` and is down."""
    logs = {"n0": TRIMMED, "n1": TRIMMED, "n2": lagging}
    cluster = Cluster(3, logs=logs)
    cluster.fetch_ms = fetch_ms
    cluster.start("n0", "n1")
    cluster.elect()
    cluster.converge()
    return cluster


def test_155_a_conflicting_tail_behind_what_was_installed_is_discarded():
    theirs = log_of((1, 30), (2, 100))
    cluster = follower(theirs, committed=20)
    answer = cluster.ask(offer(99, term=3, sender_term=4))

    assert (answer.code, answer.committed_index) == (ResponseCode.SUCCESS, 99)
    stored = cluster.nodes["n2"].stored
    assert (stored.base, stored.base_term, stored.entries) == (99, 3, [])


def test_155_entries_behind_it_stay_when_the_one_at_its_end_is_the_leaders():
    theirs = log_of((1, 130))
    cluster = follower(theirs, committed=20)
    answer = cluster.ask(offer(99, term=1))

    assert (answer.code, answer.committed_index) == (ResponseCode.SUCCESS, 99)
    assert cluster.nodes["n2"].stored.entries == theirs.entries[100:]
    assert cluster.core("n2").end_index == 129


@pytest.mark.parametrize("index", [60, 99])
def test_150_an_older_or_equal_snapshot_is_refused_and_changes_nothing(index):
    cluster = follower(log_of((1, 130)), committed=99)
    for sha256 in (b"", b"snapshot"):
        answer = cluster.ask(offer(index, sha256=sha256))
        assert answer.code is ResponseCode.INSTALL_SNAPSHOT_ERROR
        assert answer.committed_index == 99
    assert cluster.nodes["n2"].stored.base == -1


def test_150_the_leader_goes_on_where_such_a_follower_is():
    cluster = led(log_of((1, 120)))
    cluster.nodes["n2"].stored_commit = 110
    cluster.start("n2")
    cluster.converge()
    assert cluster.nodes["n2"].stored.base == -1, "nothing was removed"


def test_152_two_installs_in_a_row_both_work():
    cluster = follower(log_of((1, 5)))
    for index in (99, 199):
        answer = cluster.ask(offer(index))
        assert (answer.code, answer.committed_index) == (ResponseCode.SUCCESS, index)
    assert cluster.nodes["n2"].stored.base == 199


def test_118_a_stale_leader_installs_nothing():
    cluster = follower(log_of((1, 5), (3, 5)))
    answer = cluster.ask(offer(99, sender_term=2))
    assert (answer.code, answer.term) == (ResponseCode.EXPIRED_TERM, 3)
    assert cluster.nodes["n2"].stored.base == -1


def test_of_two_leaders_of_a_term_the_second_installs_nothing():
    cluster = follower(Contents())
    cluster.ask(offer(9, sender_term=2))
    answer = cluster.ask(offer(99, sender_term=2, source="n1"))
    assert answer.code is ResponseCode.INCONSISTENT_LEADER
    assert cluster.core("n2").committed_index == 9


def test_nothing_is_answered_before_the_new_begin_is_durable():
    cluster = follower(log_of((1, 5)))
    (effect,) = [
        effect
        for effect in cluster.step(cluster.nodes["n2"], ev.Received(offer(99)))
        if isinstance(effect, fx.Send) and isinstance(effect.message, InstallSnapshotResponse)
    ]
    assert effect.after is not None
    assert cluster.nodes["n2"].stored.base == -1


def test_a_crash_before_that_leaves_the_log_as_it_was():
    cluster = follower(log_of((1, 5)))
    cluster.step(cluster.nodes["n2"], ev.Received(offer(99)))
    cluster.random.randint = lambda low, high: 0  # nothing of it got through
    cluster.crash("n2")
    cluster.start("n2")
    assert cluster.nodes["n2"].log.entries == log_of((1, 5)).entries


def test_a_snapshot_is_fetched_before_anything_is_removed():
    cluster = led(log_of((1, 50)), fetch_ms=3_000)
    cluster.start("n2")
    cluster.run_for(2_500)
    assert cluster.core("n2").end_index == 49
    number = cluster.propose()
    cluster.run_for(100)
    assert cluster.finished[number] is ResponseCode.SUCCESS, "the others go on meanwhile"
    cluster.converge()
    assert cluster.nodes["n2"].stored.base == 99
    assert not cluster.alarms


def test_151_while_it_is_fetched_the_leader_offers_it_again_but_not_in_a_busy_loop():
    cluster = led(Contents(), fetch_ms=5_000)
    cluster.sent.clear()
    cluster.start("n2")
    cluster.converge()
    offers = [message for message in cluster.sent if isinstance(message, InstallSnapshotRequest)]
    assert 3 <= len(offers) <= 10


def test_what_was_fetched_too_late_is_left_alone():
    cluster = follower(log_of((1, 150)), committed=120)
    cluster.step(cluster.nodes["n2"], ev.SnapshotFetched(offer(99, sha256=b"snapshot")))
    cluster.run_for(50)
    assert cluster.nodes["n2"].stored.base == -1
    assert cluster.core("n2").committed_index == 120


def test_a_leader_that_had_a_snapshot_fetched_before_ignores_it():
    cluster = led(Contents())
    leader = cluster.nodes[cluster.leader]
    cluster.step(leader, ev.SnapshotFetched(offer(999, sha256=b"snapshot")))
    assert leader.core.end_index < 999


def test_a_follower_that_falls_behind_while_it_is_fetched_begins_once_more():
    cluster = led(Contents(), fetch_ms=1_500)
    cluster.start("n2")
    cluster.run_for(500)
    for _ in range(5):
        cluster.propose(count=50)
        cluster.run_for(50)
    for node_id in ("n0", "n1"):
        cluster.trim(node_id, 300)
    cluster.converge()
    assert cluster.nodes["n2"].stored.base == 300


def test_one_that_loses_its_new_begin_is_asked_anew_for_all_that_it_acknowledged():
    """Its disk fails behind its answer; where its log ends is the first that the leader hears."""
    cluster = Cluster(3).start()
    leader = cluster.elect()
    cluster.propose(count=50)
    cluster.converge()
    lost, other = cluster.followers()
    cluster.crash(lost)
    cluster.propose(count=100)
    cluster.converge()
    for node_id in (leader, other):
        cluster.trim(node_id, 100)
    cluster.drop = lambda message: (
        message.remote_id == lost and getattr(message, "type", None) is PushType.COMPARE
    )
    cluster.start(lost)
    cluster.run_until(lambda: cluster.nodes[lost].stored.base == 100)
    cluster.run_for(50)
    asked = cluster.pushes(PushType.COMPARE, lost)[-1]
    assert asked.prev_index >= 100
    code = ResponseCode.INCONSISTENT_STATE
    cluster.deliver(
        push_response(
            PushType.COMPARE, lost, leader, asked.term, asked.request_id, code, end_index=-1
        )
    )
    assert [text for _, text in cluster.alarms if f"{lost} had acknowledged" in text]
    cluster.drop = lambda message: False
    cluster.converge()


def test_the_membership_that_was_left_out_comes_along():
    group, leader = started_group(3)
    group.propose(count=20)
    group.converge()
    wiped, other = group.followers()
    group.propose(count=20)
    group.converge()
    for node_id in (leader, other):
        group.trim(node_id, 30)
    group.wipe(wiped)
    group.start(wiped)
    core = group.core(wiped)
    group.run_until(lambda: core.membership_index >= 0 and group.in_step(), 20_000)
    assert group.nodes[wiped].stored.base == 30
    assert core.membership == group.core(leader).membership


def test_a_removed_begin_that_a_live_follower_does_not_need_costs_it_nothing():
    cluster = led(TRIMMED)
    cluster.start("n2")
    cluster.converge()
    cluster.propose(count=30)
    cluster.converge()
    cluster.trim(cluster.leader, 160)
    cluster.propose()
    cluster.converge()
    assert not [m for m in cluster.sent if isinstance(m, InstallSnapshotRequest)]
