"""What a leader's heartbeats and pushes do at a follower (spec 90 groups A, C, D)."""

import pytest

from quorumlog.model.codes import PushType, ResponseCode, Role
from quorumlog.model.hard_state import HardState
from quorumlog.raft import effects as fx
from quorumlog.raft.events import Received
from raft_cluster import Cluster
from raft_messages import append_of, heartbeat, log_of, push

OK = ResponseCode.SUCCESS
INCONSISTENT = ResponseCode.INCONSISTENT_STATE
WRITES = (fx.AppendReceived, fx.TruncateLog, fx.SaveHardState)


def follower(log=None, term=5, committed=-1):
    """n0 of three, which has heard n1 lead `term`."""
    cluster = Cluster(3, logs={"n0": log} if log else None, states={"n0": HardState(term, None)})
    cluster.nodes["n0"].stored_commit = committed
    cluster.start("n0")
    cluster.ask(heartbeat("n1", "n0", term))
    return cluster


def compare(prev, term=5, **fields):
    return push(PushType.COMPARE, "n1", "n0", term, prev, **fields)


def truncate(prev, next_term, term=5, **fields):
    return push(PushType.TRUNCATE, "n1", "n0", term, prev, next_term=next_term, **fields)


def append(contents, first, last, term=5, **fields):
    return append_of(contents, "n1", "n0", term, first, last, **fields)


# -- heartbeats -----------------------------------------------------------------------------------


def test_26_heartbeats_of_strangers_and_in_my_own_name_are_refused():
    cluster = follower()

    assert cluster.ask(heartbeat("x9", "n0", 9)).code is ResponseCode.UNKNOWN_MEMBER
    assert cluster.ask(heartbeat("n0", "n0", 9)).code is ResponseCode.UNEXPECTED_MEMBER
    assert cluster.core("n0").term == 5


def test_27_an_old_heartbeat_is_answered_with_the_present_term():
    cluster = follower()
    answer = cluster.ask(heartbeat("n2", "n0", 4))

    assert (answer.code, answer.term) == (ResponseCode.EXPIRED_TERM, 5)


def test_27_the_stale_leader_steps_down():
    cluster = Cluster(3).start()
    old = cluster.elect()
    cluster.converge()
    other, third = cluster.followers()
    cluster.deliver(heartbeat(third, other, 9))

    cluster.run_until(lambda: cluster.core(old).role is not Role.LEADER, limit_ms=200)

    assert cluster.core(old).term == 9


def test_28_another_leader_of_the_same_term_is_refused_with_an_alarm():
    cluster = follower()
    answer = cluster.ask(heartbeat("n2", "n0", 5))

    assert answer.code is ResponseCode.INCONSISTENT_LEADER
    assert cluster.core("n0").leader_id == "n1"
    assert cluster.alarms


def test_29_the_leaders_heartbeat_is_answered_and_resets_the_timer():
    cluster = follower()
    before = cluster.core("n0").next_deadline_ms()
    cluster.now += 300
    answer = cluster.ask(heartbeat("n1", "n0", 5, number=7))

    assert (answer.code, answer.round, answer.term) == (OK, 7, 5)
    assert cluster.core("n0").next_deadline_ms() >= before + 300


def test_only_the_leader_resets_the_timer():
    cluster = follower()
    before = cluster.core("n0").next_deadline_ms()
    cluster.now += 300
    for message in (heartbeat("n2", "n0", 5), heartbeat("n2", "n0", 4), heartbeat("x9", "n0", 9)):
        cluster.deliver(message)

    assert cluster.core("n0").next_deadline_ms() == before


def test_30_a_heartbeat_of_a_higher_term_is_followed_at_once():
    cluster = follower()
    answer = cluster.ask(heartbeat("n2", "n0", 8))

    assert (answer.code, answer.term) == (OK, 8)
    assert cluster.core("n0").leader_id == "n2"
    assert cluster.nodes["n0"].stored_state == HardState(8, None)


def test_31_a_candidate_follows_the_leader_of_its_term():
    cluster = follower()
    cluster.run_for(2_000)
    assert cluster.core("n0").role is Role.CANDIDATE

    assert cluster.ask(heartbeat("n2", "n0", 5)).code is OK
    assert cluster.core("n0").role is Role.FOLLOWER
    assert cluster.core("n0").leader_id == "n2"


def test_heartbeats_do_not_wait_for_the_disk():
    cluster = follower()
    cluster.sync_ms = (400, 400)
    cluster.deliver(*append(log_of((5, 3)), 0, 2))
    cluster.sent.clear()
    cluster.deliver(heartbeat("n1", "n0", 5))

    assert [message.code for message in cluster.sent] == [OK]


# -- who may push ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(PushType))
def test_118_a_stale_leaders_pushes_change_nothing(kind):
    cluster = follower(log_of((1, 3), (4, 4)), committed=1)
    before = list(cluster.nodes["n0"].log.entries)
    message = push(
        kind,
        "n2",
        "n0",
        3,
        (2, 1),
        commit_index=6,
        next_term=3,
        first_index=3,
        last_index=3,
        term_runs=[(3, 3)],
    )

    answer = cluster.ask(message)

    assert (answer.code, answer.term) == (ResponseCode.EXPIRED_TERM, 5)
    assert cluster.nodes["n0"].log.entries == before
    assert cluster.core("n0").committed_index == 1


@pytest.mark.parametrize("kind", list(PushType))
def test_pushes_of_others_than_the_leader_are_refused(kind):
    cluster = follower()

    def code(source):
        return cluster.ask(push(kind, source, "n0", 5, (-1, -1))).code

    assert code("n2") is ResponseCode.INCONSISTENT_LEADER
    assert code("x9") is ResponseCode.UNKNOWN_MEMBER
    assert code("n0") is ResponseCode.UNEXPECTED_MEMBER


def test_72_appends_with_a_wrong_index_term_or_leader_are_refused_and_nothing_is_written():
    log = log_of((5, 4))
    cluster = follower(log)
    far, far_entries = append(log_of((5, 9)), 6, 8)
    old, old_entries = append(log_of((4, 6)), 4, 5, term=4)
    other, other_entries = append_of(log_of((5, 6)), "n2", "n0", 5, 4, 5)

    assert cluster.ask(far, far_entries).code is INCONSISTENT
    assert cluster.ask(old, old_entries).code is ResponseCode.EXPIRED_TERM
    assert cluster.ask(other, other_entries).code is ResponseCode.INCONSISTENT_LEADER
    assert cluster.nodes["n0"].log.entries == log.entries


# -- compare --------------------------------------------------------------------------------------


def test_compare_before_the_first_entry_always_fits():
    answer = follower(log_of((1, 3))).ask(compare((-1, -1)))

    assert (answer.code, answer.match_index) == (OK, -1)


def test_114_a_conflict_names_its_term_and_where_that_begins():
    answer = follower(log_of((1, 3), (2, 900))).ask(compare((800, 4)))

    assert (answer.code, answer.x_term, answer.x_index) == (INCONSISTENT, 2, 3)


def test_115_a_shorter_follower_names_its_end():
    answer = follower(log_of((1, 3))).ask(compare((800, 4)))

    assert (answer.code, answer.x_term, answer.end_index) == (INCONSISTENT, -1, 2)


def test_116_at_the_boundary_the_boundarys_term_is_compared():
    cluster = follower(log_of((4, 2), base=9, base_term=3), committed=9)

    assert cluster.ask(compare((9, 3))).code is OK
    assert cluster.ask(compare((5, 1))).code is OK  # below it everything is committed
    assert not cluster.alarms
    assert cluster.ask(compare((9, 2))).code is INCONSISTENT
    assert cluster.alarms


def test_a_boundary_of_unknown_term_fits_what_is_committed():
    cluster = follower(log_of((4, 2), base=9, base_term=-1), committed=9)

    assert cluster.ask(compare((9, 3))).code is OK


def test_equal_terms_with_different_bytes_do_not_fit():
    cluster = follower(log_of((1, 5)), committed=2)
    answer = cluster.ask(compare((4, 1)), chain_matches=False)

    assert (answer.code, answer.x_term, answer.end_index) == (INCONSISTENT, -1, 3)
    assert not cluster.alarms


def test_entries_known_to_differ_are_replaced_although_their_terms_are_equal():
    cluster = follower(log_of((5, 6)))
    for index in (5, 4):
        cluster.ask(compare((index, 5)), chain_matches=False)
    cluster.ask(compare((3, 5)))
    message, entries = append(log_of((5, 6)), 4, 5)
    effects = cluster.step(cluster.nodes["n0"], Received(message), entries)

    assert [type(effect) for effect in effects[:2]] == [fx.TruncateLog, fx.AppendReceived]
    assert (effects[0].from_index, effects[1].first_index) == (4, 4)
    again = cluster.step(cluster.nodes["n0"], Received(message), entries)
    assert not any(isinstance(effect, WRITES) for effect in again)


def test_a_difference_below_committed_raises_the_alarm_and_changes_nothing():
    cluster = follower(log_of((1, 5)), committed=4)
    for message, fits in ((compare((4, 1)), False), (compare((3, 2)), True)):
        answer = cluster.ask(message, chain_matches=fits)
        assert answer.code is INCONSISTENT

    assert len(cluster.alarms) == 2
    assert cluster.core("n0").end_index == 4


# -- truncate -------------------------------------------------------------------------------------


def test_107_a_tail_the_leader_does_not_have_is_removed():
    cluster = follower(log_of((1, 10)))
    answer = cluster.ask(truncate((5, 1), -1))

    assert (answer.code, answer.match_index, answer.end_index) == (OK, 5, 5)
    assert cluster.nodes["n0"].stored.end == 5


def test_117_a_truncate_with_nothing_to_remove_succeeds():
    cluster = follower(log_of((1, 5)))
    answer = cluster.ask(truncate((4, 1), 5))

    assert (answer.code, answer.match_index) == (OK, 4)
    assert cluster.core("n0").end_index == 4


def test_119_committed_entries_are_never_removed():
    cluster = follower(log_of((1, 10)), committed=7)

    assert cluster.ask(truncate((5, 1), 5)).code is INCONSISTENT
    assert cluster.ask(truncate((6, 1), -1)).code is INCONSISTENT
    message, entries = append(log_of((1, 6), (5, 3)), 6, 8)
    assert cluster.ask(message, entries).code is INCONSISTENT
    assert cluster.core("n0").end_index == 9
    assert len(cluster.alarms) == 3


def test_207_a_truncate_at_an_equal_entry_removes_nothing():
    cluster = follower(log_of((1, 1_000)), committed=990)
    answer = cluster.ask(truncate((500, 1), 1))

    assert answer.code is OK
    assert cluster.core("n0").end_index == 999
    assert not cluster.alarms


def test_a_late_truncate_does_not_remove_what_this_leader_pushed_since():
    log = log_of((5, 6))
    cluster = follower(log_of((5, 3)))
    late = truncate((2, 5), -1)
    cluster.ask(late)
    cluster.ask(*append(log, 3, 5))

    assert cluster.ask(late).code is OK
    assert cluster.core("n0").end_index == 5


def test_a_late_truncate_after_a_restart_does_not_remove_what_this_leader_pushed_since():
    """Nothing is known to be committed here, and the leader's log had ended at index 2 then."""
    cluster = follower(log_of((1, 3), (5, 3)))

    assert cluster.ask(truncate((2, 1), -1)).code is OK
    assert cluster.core("n0").end_index == 5


def test_a_truncate_removes_entries_of_an_older_term_behind_the_leaders_end():
    cluster = follower(log_of((1, 3), (4, 3)))

    assert cluster.ask(truncate((2, 1), -1)).code is OK
    assert cluster.core("n0").end_index == 2


def test_a_truncate_that_does_not_fit_is_refused():
    answer = follower(log_of((1, 5))).ask(truncate((4, 3), 5))

    assert (answer.code, answer.x_term, answer.x_index) == (INCONSISTENT, 1, 0)


# -- append ---------------------------------------------------------------------------------------


def test_entries_are_stored_and_acknowledged_when_durable():
    cluster = follower()
    cluster.sync_ms = (50, 50)
    cluster.deliver(*append(log_of((5, 3)), 0, 2))
    before = [message for message in cluster.sent if getattr(message, "match_index", -1) == 2]
    cluster.run_for(51)
    after = [message for message in cluster.sent if getattr(message, "match_index", -1) == 2]

    assert (len(before), len(after)) == (0, 1)


def test_92_entries_already_stored_are_acknowledged_again():
    cluster = follower()
    message, entries = append(log_of((5, 3)), 0, 2)
    cluster.ask(message, entries)
    effects = cluster.step(cluster.nodes["n0"], Received(message), entries)

    assert not any(isinstance(effect, WRITES) for effect in effects)
    assert cluster.sent[-1].match_index == 2


def test_94_a_repeated_push_waits_for_the_same_write():
    """RELIABILITY R22: the original answers REPEATED_PUSH; here both get the same answer."""
    cluster = follower()
    cluster.sync_ms = (50, 50)
    message, entries = append(log_of((5, 3)), 0, 2)
    cluster.sent.clear()
    cluster.deliver(message, entries)
    cluster.deliver(message, entries)
    assert not cluster.sent
    cluster.run_for(51)

    assert [(answer.code, answer.match_index) for answer in cluster.sent] == [(OK, 2), (OK, 2)]


def test_93_a_different_entry_before_the_push_is_inconsistent():
    cluster = follower(log_of((1, 5)))
    answer = cluster.ask(*append(log_of((4, 5), (5, 2)), 5, 6))

    assert (answer.code, answer.x_term, answer.x_index) == (INCONSISTENT, 1, 0)
    assert cluster.core("n0").end_index == 4


def test_95_a_gap_is_answered_at_once_with_the_end():
    cluster = follower(log_of((5, 3)))
    answer = cluster.ask(*append(log_of((5, 9)), 5, 8))

    assert (answer.code, answer.end_index) == (INCONSISTENT, 2)


def test_96_after_a_gap_the_same_index_is_accepted():
    cluster = follower(log_of((5, 3)))
    log = log_of((5, 9))
    cluster.ask(*append(log, 5, 8))
    cluster.ask(*append(log, 3, 4))

    assert cluster.ask(*append(log, 5, 8)).match_index == 8


def test_97_an_overlap_stores_only_what_is_new():
    cluster = follower(log_of((5, 3)))
    message, entries = append(log_of((5, 9)), 1, 6)
    effects = cluster.step(cluster.nodes["n0"], Received(message), entries)

    assert [effect for effect in effects if isinstance(effect, WRITES)] == [
        fx.AppendReceived(3, 6, effects[0].token)
    ]


def test_only_what_conflicts_is_replaced():
    """RELIABILITY R7."""
    cluster = follower(log_of((1, 3), (2, 4)))
    message, entries = append(log_of((1, 3), (5, 2)), 1, 4)
    effects = cluster.step(cluster.nodes["n0"], Received(message), entries)

    kinds = [type(effect) for effect in effects]
    assert kinds[:2] == [fx.TruncateLog, fx.AppendReceived]
    assert (effects[0].from_index, effects[1].first_index) == (3, 3)
    assert cluster.terms("n0") == [1, 1, 1, 5, 5]


def test_a_shorter_late_push_removes_nothing():
    """RELIABILITY R7: what follows the push may have been acknowledged."""
    cluster = follower(log_of((5, 9)))
    answer = cluster.ask(*append(log_of((5, 9)), 2, 4))

    assert (answer.code, answer.match_index, answer.end_index) == (OK, 4, 8)
    assert cluster.core("n0").end_index == 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_index": 1},
        {"last_index": -1},
        {"term_runs": []},
        {"term_runs": [(5, 1)]},
        {"term_runs": [(6, 0)]},
        {"term_runs": [(5, 0), (4, 1)]},
        {"term_runs": [(4, 0), (5, 0)]},
        {"term_runs": [(4, 0), (5, 9)]},
    ],
)
def test_impossible_pushes_are_refused(wrong):
    cluster = follower()
    fields = {"first_index": 0, "last_index": 2, "term_runs": [(5, 0)], **wrong}
    answer = cluster.ask(push(PushType.APPEND, "n1", "n0", 5, (-1, -1), **fields))

    assert answer.code is ResponseCode.UNEXPECTED_ARGUMENT
    assert cluster.core("n0").end_index == -1


def test_98_no_push_waits_at_a_follower_for_a_compare_to_forget():
    """The original keeps pushes ahead of the end, and a COMPARE empties them; ours keeps none."""
    cluster = follower(log_of((5, 3)))
    log, other = log_of((5, 9)), log_of((5, 3), (6, 2))
    cluster.ask(*append(log, 5, 8))
    cluster.ask(compare((2, 5), 6))
    cluster.ask(truncate((2, 5), -1, 6))
    assert cluster.ask(*append(other, 3, 4, 6)).match_index == 4
    cluster.run_for(2_000)

    assert cluster.nodes["n0"].log.entries == other.entries


# -- commit ---------------------------------------------------------------------------------------


def test_100_a_follower_commits_no_more_than_it_knows_to_be_equal():
    cluster = follower(log_of((1, 10)))
    cluster.ask(compare((3, 1), commit_index=8))
    assert cluster.core("n0").committed_index == 3

    cluster.ask(*append(log_of((1, 10)), 4, 6, commit_index=5))
    assert cluster.core("n0").committed_index == 5

    cluster.ask(push(PushType.COMMIT, "n1", "n0", 5, (6, 1), commit_index=99))
    assert cluster.core("n0").committed_index == 6


def test_101_a_push_without_news_of_commits_is_answered():
    cluster = follower()
    answer = cluster.ask(*append(log_of((5, 3)), 0, 2, commit_index=-1))

    assert answer.code is OK
    assert cluster.core("n0").committed_index == -1


def test_a_restarted_follower_asks_to_be_compared_before_it_commits():
    cluster = follower(log_of((5, 6)))
    commit = push(PushType.COMMIT, "n1", "n0", 5, (5, 5), commit_index=5)

    assert cluster.ask(commit).code is INCONSISTENT
    cluster.ask(compare((5, 5)))
    assert cluster.ask(commit).code is OK
    assert cluster.core("n0").committed_index == 5


def test_what_one_leader_verified_does_not_count_for_the_next():
    cluster = follower(log_of((1, 10)))
    cluster.ask(compare((9, 1)))
    cluster.ask(push(PushType.COMPARE, "n2", "n0", 6, (3, 1), commit_index=9))

    assert cluster.core("n0").committed_index == 3


def test_a_commit_index_on_disk_beyond_the_log_is_cut():
    """RELIABILITY R6."""
    assert follower(log_of((1, 4)), committed=99).core("n0").committed_index == 3
    trimmed = follower(log_of((1, 4), base=9, base_term=1), committed=-1)
    assert trimmed.core("n0").committed_index == 9
