"""Raft paper section 5.4: safety."""

import pytest

from quorumlog.model.codes import PushType, Role, VoteResult
from quorumlog.model.hard_state import HardState
from raft_cluster import ENTRY_BYTES, Cluster
from raft_messages import log_of, vote_request


@pytest.mark.parametrize(
    ("mine", "candidate", "granted"),
    [
        ([(1, 1)], (0, 1), True),
        ([(1, 1)], (1, 1), True),
        ([(1, 2)], (0, 1), False),
        ([(1, 1)], (0, 2), True),
        ([(1, 2)], (0, 2), True),
        ([(1, 1), (2, 1)], (0, 1), False),
        ([(2, 1)], (5, 1), False),
        ([(2, 1)], (0, 3), True),
    ],
)
@pytest.mark.parametrize("pre_vote", [True, False])
def test_paper_5_4_1_a_voter_refuses_whoever_is_less_up_to_date(mine, candidate, granted, pre_vote):
    cluster = Cluster(3, logs={"n0": log_of(*mine)}).start("n0")
    answer = cluster.ask(vote_request("n1", "n0", 9, candidate, pre_vote=pre_vote))

    assert (answer.vote_result is VoteResult.ACCEPT) == granted


@pytest.mark.parametrize("seed", range(10))
def test_paper_5_4_1_only_a_member_with_all_committed_entries_can_win(seed):
    full, short = log_of((1, 10)), log_of((1, 4))
    logs = {"n0": short, "n1": full, "n2": full, "n3": full, "n4": short}
    cluster = Cluster(5, seed, logs=logs).start()

    assert cluster.elect() in ("n1", "n2", "n3")


def figure_8_c(*, first_of_old_term):
    """Figure 8 (c): n0 leads again, in term 4, and pushes its entry of term 2 to a majority.

    Its own NOOP, of term 4, does not get through unless `first_of_old_term` says so.
    """
    logs = {
        "n0": log_of((1, 1), (2, 1)),
        "n1": log_of((1, 1), (2, 1)),
        "n2": log_of((1, 1)),
        "n3": log_of((1, 1)),
        "n4": log_of((1, 1), (3, 1)),
    }
    states = {node_id: HardState(3, None) for node_id in logs}
    cluster = Cluster(5, logs=logs, states=states, push_bytes_max=ENTRY_BYTES)
    cluster.drop = lambda m: (
        getattr(m, "first_index", 0) == 2
        or (getattr(m, "type", None) is PushType.APPEND and m.remote_id == "n3")
        or (m.local_id != "n0" and hasattr(m, "ledger_end_index"))
    )
    cluster.start("n0", "n1", "n2", "n3")
    cluster.run_until(lambda: cluster.leader == "n0")
    assert cluster.core("n0").term == 4
    if first_of_old_term:
        cluster.run_for(300)
    else:
        cluster.drop = lambda m: m.local_id != "n0" and hasattr(m, "ledger_end_index")
        cluster.run_for(300)
    return cluster


def test_128_figure_8_an_old_entry_on_a_majority_is_not_committed_and_may_be_replaced():
    cluster = figure_8_c(first_of_old_term=True)
    assert [cluster.terms(node_id)[1:2] for node_id in ("n0", "n1", "n2")] == [[2]] * 3
    assert all(node.core.committed_index < 1 for node in cluster.live())

    # (d): n0 crashes, n4 wins with votes of n2 and n3, and replaces the entry of term 2.
    cluster.crash("n0")
    cluster.crash("n1")
    cluster.drop = lambda m: m.local_id in ("n2", "n3") and hasattr(m, "ledger_end_index")
    cluster.start("n4")
    cluster.run_until(lambda: cluster.leader == "n4")
    cluster.drop = lambda m: False
    cluster.start("n0", "n1")
    cluster.converge()

    assert {tuple(cluster.terms(node_id)[:2]) for node_id in cluster.ids} == {(1, 3)}


def test_128_figure_8_an_entry_of_the_own_term_on_a_majority_stays_for_ever():
    cluster = figure_8_c(first_of_old_term=False)
    assert cluster.core("n0").committed_index == 2

    # (e): n4 cannot win any more.
    cluster.crash("n0")
    cluster.drop = lambda m: False
    cluster.start("n4")
    cluster.run_until(cluster.agreed)
    assert cluster.leader != "n4"
    cluster.start("n0")
    cluster.converge()

    assert {tuple(cluster.terms(node_id)[:3]) for node_id in cluster.ids} == {(1, 2, 4)}


def test_paper_5_4_3_a_committed_entry_is_in_the_log_of_every_later_leader():
    cluster = Cluster(5).start()
    leader = cluster.elect()
    for _ in range(6):
        cluster.propose(leader, count=3)
        cluster.run_for(20)
        cluster.crash(leader)
        cluster.run_until(lambda: cluster.leader is not None)
        cluster.start(leader)
        leader = cluster.elect()  # the checker compares the log of each new leader
    cluster.converge()

    assert cluster.core(leader).role is Role.LEADER
    cluster.checker.finished()
