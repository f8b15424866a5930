"""Raft paper section 5.3: log replication."""

import itertools

import pytest

from quorumlog.model.codes import PushType, ResponseCode
from quorumlog.model.hard_state import HardState
from raft_cluster import Cluster
from raft_messages import append_of, heartbeat, log_of, push

OK, INCONSISTENT = ResponseCode.SUCCESS, ResponseCode.INCONSISTENT_STATE


def led(count=3):
    cluster = Cluster(count).start()
    leader = cluster.elect()
    cluster.converge()
    return cluster, leader


def test_the_leader_appends_and_pushes_in_parallel():
    cluster, leader = led(5)
    cluster.sent.clear()
    at = cluster.now
    cluster.propose(leader, count=3)

    assert cluster.core(leader).end_index == 3
    cluster.run_for(0)
    pushes = cluster.pushes(PushType.APPEND)
    assert cluster.now == at
    assert sorted(m.remote_id for m in pushes) == sorted(cluster.followers())
    assert {(m.first_index, m.last_index, m.prev_index) for m in pushes} == {(1, 3, 0)}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_an_entry_is_committed_when_a_majority_has_stored_it(count):
    for answering in range(count):
        cluster, leader = led(count)
        heard = cluster.followers()[:answering]
        cluster.drop = lambda m, heard=heard, leader=leader: (
            hasattr(m, "request_id") and m.local_id != leader and m.local_id not in heard
        )
        number = cluster.propose(leader)
        cluster.run_for(400)

        assert (number in cluster.finished) == (answering + 1 > count // 2)


def test_entries_of_earlier_leaders_commit_with_it():
    logs = {node_id: log_of((1, 2), (2, 3)) for node_id in ("n0", "n1", "n2")}
    cluster = Cluster(3, logs=logs).start()
    cluster.elect()
    cluster.converge()

    assert {node.core.committed_index for node in cluster.live()} == {5}


def test_followers_learn_of_commits_from_the_leader_and_in_order():
    cluster, leader = led()
    for expected in range(1, 6):
        cluster.propose(leader)
        cluster.run_for(50)
        assert {node.core.committed_index for node in cluster.live()} == {expected}


@pytest.mark.parametrize(
    ("prev", "fits"),
    [
        ((-1, -1), True),
        ((0, 1), True),
        ((1, 2), True),
        ((0, 2), False),
        ((1, 1), False),
        ((2, 2), False),
        ((9, 1), False),
    ],
)
def test_a_follower_refuses_entries_that_do_not_follow_on_its_own(prev, fits):
    cluster = Cluster(3, logs={"n0": log_of((1, 1), (2, 1))}).start("n0")
    answer = cluster.ask(
        push(
            PushType.APPEND,
            "n1",
            "n0",
            3,
            prev,
            first_index=prev[0] + 1,
            last_index=prev[0] + 1,
            term_runs=[(3, prev[0] + 1)],
        ),
        log_of((3, 1)).entries,
    )

    assert answer.code is (OK if fits else INCONSISTENT)


@pytest.mark.parametrize(
    ("leaders", "first", "last", "expected"),
    [
        ([(1, 1), (2, 1), (3, 1)], 2, 2, [1, 2, 3]),
        ([(1, 1), (3, 2)], 1, 2, [1, 3, 3]),
        ([(1, 1), (2, 1)], 0, 0, [1, 2]),
        ([(1, 1), (2, 1), (3, 1)], 0, 2, [1, 2, 3]),
        ([(3, 1)], 0, 0, [3]),
    ],
)
def test_conflicting_entries_are_replaced_and_others_kept(leaders, first, last, expected):
    cluster = Cluster(3, logs={"n0": log_of((1, 1), (2, 1))}).start("n0")
    message, entries = append_of(log_of(*leaders), "n1", "n0", 4, first, last)
    cluster.ask(message, entries)

    assert cluster.terms("n0") == expected


LEADER_OF_FIGURE_7 = [(1, 3), (4, 2), (5, 2), (6, 3)]


@pytest.mark.parametrize(
    "follower",
    [
        [(1, 3), (4, 2), (5, 2), (6, 2)],
        [(1, 3), (4, 1)],
        [(1, 3), (4, 2), (5, 2), (6, 4)],
        [(1, 3), (4, 2), (5, 2), (6, 3), (7, 2)],
        [(1, 3), (4, 4)],
        [(1, 3), (2, 3), (3, 5)],
    ],
    ids="abcdef",
)
def test_figure_7_every_follower_is_brought_in_step(follower):
    logs = {
        "n0": log_of(*LEADER_OF_FIGURE_7),
        "n1": log_of(*LEADER_OF_FIGURE_7),
        "n2": log_of(*follower),
    }
    states = {node_id: HardState(7, None) for node_id in logs}
    cluster = Cluster(3, logs=logs, states=states)
    cluster.start("n0", "n1")
    leader = cluster.elect()
    cluster.start("n2")
    cluster.converge()

    assert cluster.leader == leader
    assert cluster.terms("n2")[:10] == [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]
    assert not cluster.alarms


def test_a_leader_never_overwrites_or_removes_its_own_entries():
    cluster, leader = led()
    kept = []
    for _ in range(10):
        cluster.propose(leader, count=2)
        cluster.reconnect(leader, cluster.followers()[0])
        cluster.run_for(30)
        assert cluster.nodes[leader].log.entries[: len(kept)] == kept
        kept = list(cluster.nodes[leader].log.entries)


def test_retried_pushes_are_idempotent():
    cluster = Cluster(3).start("n0")
    cluster.ask(heartbeat("n1", "n0", 1))
    log = log_of((1, 20))
    ranges = [(0, 4), (2, 9), (5, 7), (0, 9), (8, 12), (10, 19), (0, 19)]
    for (first, last), _ in itertools.product(ranges, range(2)):
        message, entries = append_of(log, "n1", "n0", 1, first, last)
        assert cluster.ask(message, entries).match_index == last

    assert cluster.nodes["n0"].stored.entries == log.entries
