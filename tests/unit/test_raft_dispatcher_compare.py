"""How a leader finds what its log and a follower's have in common (spec 90 groups D, I)."""

import pytest

from quorumlog.model.codes import PushType, ResponseCode
from raft_cluster import Cluster
from raft_messages import Contents, chained, log_of, push

COMPARE, TRUNCATE, APPEND = PushType.COMPARE, PushType.TRUNCATE, PushType.APPEND


def led(count=3, seed=0, **options):
    cluster = Cluster(count, seed, **options).start()
    leader = cluster.elect()
    cluster.converge()
    return cluster, leader


def led_by_n0(n0, n2, n1=None):
    """n0 leads with n1, whose log is the same; n2 has another and is started when asked for."""
    logs = {"n0": n0, "n1": n1 or n0, "n2": n2}
    cluster = Cluster(3, logs=logs)
    cluster.drop = lambda message: message.local_id == "n1" and hasattr(message, "ledger_end_index")
    cluster.start("n0", "n1")
    assert cluster.elect() == "n0"
    cluster.converge()
    cluster.drop = lambda message: False
    cluster.sent.clear()
    return cluster


def unlike(*runs):
    """A log of (term, count) that shares no entry with `log_of`."""
    log = Contents()
    for term, count in runs:
        for _ in range(count):
            log.put(log.end + 1, [chained(log.chain_at(log.end), term, -7)])
    return log


def test_114_a_thousand_divergent_entries_of_one_term_take_three_compares():
    common = log_of((1, 10))
    mine = log_of((1, 10), (3, 20))
    theirs = common.copy()
    for _ in range(1_000):
        theirs.put(theirs.end + 1, [chained(theirs.chain_at(theirs.end), 2, -9)])
    cluster = led_by_n0(mine, theirs)
    cluster.start("n2")
    cluster.converge()

    assert len({m.request_id for m in cluster.pushes(COMPARE, "n2")}) <= 3
    assert cluster.terms("n2") == cluster.terms("n0")


@pytest.mark.parametrize("terms", [1, 3, 6])
def test_114_k_divergent_terms_take_k_and_one_more_compares(terms):
    """The leader has none of them, so each conflict leads to the end of the term before."""
    mine = log_of((1, 5), (20, 50 * terms))
    theirs = log_of((1, 5))
    for term in range(2, 2 + terms):
        for _ in range(50):
            theirs.put(theirs.end + 1, [chained(theirs.chain_at(theirs.end), term, -9)])
    cluster = led_by_n0(mine, theirs)
    cluster.start("n2")
    cluster.converge()

    ends = [4 + 50 * number for number in reversed(range(terms + 1))]
    compared = list(dict.fromkeys(m.prev_index for m in cluster.pushes(COMPARE, "n2")))
    assert compared == ends
    assert len({m.request_id for m in cluster.pushes(COMPARE, "n2")}) == terms + 1
    assert cluster.terms("n2") == cluster.terms("n0")


def test_a_term_both_have_is_not_given_up_whole():
    """Published Raft: the leader jumps to its own last entry of the follower's term."""
    mine = log_of((1, 100), (3, 10))
    theirs = log_of((1, 200))
    cluster = led_by_n0(mine, theirs)
    cluster.start("n2")
    cluster.converge()

    compared = list(dict.fromkeys(m.prev_index for m in cluster.pushes(COMPARE, "n2")))
    assert compared[-1] == 99
    assert len(compared) <= 3
    assert not [m for m in cluster.pushes(APPEND, "n2") if m.first_index < 100]


def test_105_entries_of_a_lost_leader_are_replaced_everywhere():
    cluster = Cluster(3).start()
    old = cluster.elect()
    cluster.propose(old, count=4)
    cluster.converge()
    cluster.isolate(old)
    cluster.propose(old, count=5)
    cluster.run_for(50)
    cluster.crash(old)
    cluster.nodes[old].stored = cluster.nodes[old].log.copy()
    assert cluster.nodes[old].stored.end == 9

    cluster.run_until(lambda: cluster.leader not in (None, old))
    cluster.cuts.clear()
    cluster.start(old)
    cluster.converge()

    assert [node.core.end_index for node in cluster.live()] == [5, 5, 5]
    assert len({tuple(node.log.entries) for node in cluster.live()}) == 1


def test_106_a_tail_of_an_older_term_is_replaced():
    cluster = led_by_n0(log_of((1, 7), (3, 3)), log_of((1, 7), (2, 3)))
    cluster.start("n2")
    cluster.converge()

    assert cluster.terms("n2")[:10] == [1] * 7 + [3] * 3


def test_107_a_longer_follower_loses_its_tail():
    cluster = led_by_n0(log_of((1, 5)), log_of((1, 9)))
    cluster.start("n2")
    cluster.converge()

    assert cluster.terms("n2") == cluster.terms("n0")


def test_108_an_empty_follower_gets_everything_from_the_beginning():
    cluster = led_by_n0(log_of((1, 30), (2, 30)), Contents())
    cluster.start("n2")
    cluster.converge()

    assert cluster.nodes["n2"].log.entries == cluster.nodes["n0"].log.entries
    assert [m.prev_index for m in cluster.pushes(COMPARE, "n2")] == [59, -1]


def test_113_115_a_shorter_follower_is_compared_at_its_end_next():
    cluster = led_by_n0(log_of((1, 500)), log_of((1, 20)))
    cluster.start("n2")
    cluster.converge()

    assert [m.prev_index for m in cluster.pushes(COMPARE, "n2")] == [499, 19]


def test_117_truncate_follows_each_successful_compare():
    cluster = led_by_n0(log_of((1, 5)), log_of((1, 5)))
    cluster.start("n2")
    cluster.converge()

    kinds = [m.type for k in PushType for m in cluster.pushes(k, "n2")]
    assert kinds.count(TRUNCATE) == 1
    (message,) = cluster.pushes(TRUNCATE, "n2")
    assert (message.prev_index, message.next_term) == (4, cluster.core("n0").term)


def test_206_a_long_time_follower_that_leads_first_compares_at_its_end():
    cluster, leader = led()
    cluster.propose(leader, count=1_000)
    cluster.converge()
    removed = []
    watched = cluster._TruncateLog
    cluster._TruncateLog = lambda *args: removed.append(args) or watched(*args)
    cluster.crash(leader)
    cluster.sent.clear()
    cluster.run_until(lambda: cluster.leader not in (None, leader))
    cluster.start(leader)
    cluster.converge()

    assert [m.prev_index for m in cluster.pushes(COMPARE)][:2] == [1_000, 1_000]
    assert not removed


def test_107_a_follower_beyond_the_leaders_log_is_found_in_one_step():
    cluster = led_by_n0(log_of((1, 5)), log_of((1, 500)))
    cluster.start("n2")
    cluster.converge()

    assert len(cluster.pushes(COMPARE, "n2")) <= 2
    assert cluster.terms("n2") == cluster.terms("n0")


def test_109_an_empty_follower_starts_where_the_leaders_log_begins():
    trimmed = log_of((1, 50), base=99, base_term=1)
    cluster = led_by_n0(trimmed, Contents(), trimmed)
    cluster.start("n2")
    cluster.converge()

    assert cluster.nodes["n2"].stored.base == 99
    assert cluster.nodes["n2"].log.entries == cluster.nodes["n0"].log.entries
    assert not cluster.alarms


def test_a_leader_without_a_snapshot_raises_one_alarm_and_keeps_no_busy_loop():
    trimmed = log_of((1, 50), base=99, base_term=1)
    cluster = led_by_n0(trimmed, Contents(), trimmed)
    cluster.has_snapshots = False
    cluster.start("n2")
    cluster.run_for(10_000)

    assert len([text for _, text in cluster.alarms if "n2 needs removed entries" in text]) == 1
    assert len(cluster.pushes(COMPARE, "n2")) <= 25
    number = cluster.propose("n0")
    cluster.run_for(100)
    assert cluster.finished[number] is ResponseCode.SUCCESS


def test_110_a_follower_that_ends_before_the_log_begins_starts_where_that_begins():
    trimmed = log_of((1, 50), base=99, base_term=1)
    cluster = led_by_n0(trimmed, log_of((1, 50)), trimmed)
    cluster.start("n2")
    cluster.converge()

    assert cluster.nodes["n2"].stored.base == 99
    assert cluster.nodes["n2"].log.entries == cluster.nodes["n0"].log.entries
    told = [text for _, text in cluster.core("n2").history.lines()]
    assert any("starts its log after index 99" in text and "ended at 49" in text for text in told)
    assert not cluster.alarms


def test_111_a_follower_that_begins_behind_the_leaders_end_keeps_what_it_removed_as_committed():
    """The original empties it and starts it at the leader's begin.

    Ours takes what it removed for equal, as only committed entries are removed, and replaces what
    conflicts once the leader has entries there.
    """
    cluster = led_by_n0(log_of((1, 50)), log_of((1, 50), base=99, base_term=1))
    cluster.start("n2")
    cluster.run_for(3_000)
    assert cluster.nodes["n2"].log.entries == log_of((1, 50), base=99, base_term=1).entries
    assert cluster.core("n2").committed_index == 99

    cluster.propose("n0", count=120)
    cluster.converge()
    assert cluster.nodes["n2"].log.entries == cluster.nodes["n0"].log.entries[100:]


def test_112_a_compare_below_the_followers_begin_fits_and_removes_nothing():
    """The original truncates to the leader's begin."""
    trimmed = log_of((1, 20), base=59, base_term=1)
    cluster = Cluster(3, logs={"n2": trimmed}).start("n2")
    for kind in (COMPARE, TRUNCATE):
        request = push(kind, "n0", "n2", 2, (30, 1), next_term=1)
        answer = cluster.ask(request)
        assert (answer.code, answer.match_index) == (ResponseCode.SUCCESS, 30)

    assert cluster.nodes["n2"].log.entries == trimmed.entries
    assert cluster.core("n2").committed_index == 59


def test_112_a_difference_at_the_followers_begin_is_reported_and_nothing_is_removed():
    leads = log_of((1, 60), (2, 30))
    trimmed = log_of((1, 14), base=65, base_term=1)
    cluster = led_by_n0(leads, trimmed)
    cluster.start("n2")
    cluster.run_for(10_000)

    assert cluster.nodes["n2"].log.entries == trimmed.entries
    assert any("n2 committed something else at index 65" in text for _, text in cluster.alarms)
    number = cluster.propose("n0")
    cluster.run_for(100)
    assert cluster.finished[number] is ResponseCode.SUCCESS


def test_116_a_follower_that_ends_where_the_leader_begins_catches_up():
    trimmed = log_of((1, 50), base=99, base_term=1)
    cluster = led_by_n0(trimmed, Contents(base=99, base_term=1), trimmed)
    cluster.start("n2")
    cluster.converge()

    assert not cluster.alarms


def test_different_bytes_under_equal_terms_are_found_and_replaced():
    """Two entries with one (index, term): the chain CRC tells (DESIGN section 5)."""
    cluster = led_by_n0(log_of((1, 8)), unlike((1, 8)))
    cluster.checker.logs_match = lambda *_: None  # this is what such logs violate
    cluster.start("n2")
    cluster.converge()

    assert cluster.nodes["n2"].log.entries == cluster.nodes["n0"].log.entries


def test_a_difference_below_the_followers_commit_is_not_repaired_but_reported():
    cluster = led_by_n0(log_of((1, 8)), unlike((1, 8)))
    cluster.checker.logs_match = lambda *_: None
    cluster.nodes["n2"].stored_commit = 7
    cluster.start("n2")
    cluster.run_for(5_000)

    assert {node_id for node_id, _ in cluster.alarms} == {"n0", "n2"}
    assert len(cluster.alarms) < 12
    assert cluster.nodes["n2"].log.entries == unlike((1, 8)).entries


def test_pushes_carry_the_terms_of_their_entries():
    cluster = led_by_n0(log_of((1, 4), (2, 3)), Contents())
    cluster.start("n2")
    cluster.converge()
    message = cluster.pushes(APPEND, "n2")[0]

    assert message.term_runs == [(1, 0), (2, 4), (cluster.core("n0").term, 7)]
    assert (message.prev_index, message.prev_term) == (-1, -1)
