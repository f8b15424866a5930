"""Cases at the edge of a bound, or in which a clock jumps over it."""

import pytest

from quorumlog.model.codes import PushType, ResponseCode, Role
from quorumlog.model.hard_state import HardState
from quorumlog.model.messages.peer import HeartBeatRequest, HeartBeatResponse, PushRequest
from quorumlog.raft import effects as fx
from quorumlog.raft import events as ev
from quorumlog.raft.leadership import RETENTION_LIVENESS_MS
from raft_cluster import Cluster
from raft_members import started_group
from raft_messages import append_of, heartbeat, log_of, push

STALLED_MS = 600_000


def late_tick(cluster, node_id, late_ms):
    """The process saw nothing for a while, and only then looks at its clock."""
    cluster.now += late_ms
    return cluster.step(cluster.nodes[node_id], ev.Ticked())


def test_a_leader_that_slept_past_the_bound_still_gives_up_for_a_stalled_disk():
    cluster = Cluster(1).start()
    cluster.elect()
    cluster.converge()
    cluster.sync_ms = (STALLED_MS, STALLED_MS)
    cluster.propose()
    late_tick(cluster, "n0", 5_000)

    assert cluster.core("n0").role is not Role.LEADER


def test_a_hand_over_that_was_slept_through_ends_all_the_same():
    group, leader = started_group()
    target = group.followers()[0]
    group.isolate(leader)
    number = group.transfer(target)
    late_tick(group, leader, 60_000)

    assert group.answers[number] is ResponseCode.TAKE_LEADERSHIP_FAILED


@pytest.mark.parametrize(
    ("silent_ms", "keeps"),
    [(RETENTION_LIVENESS_MS - 2_000, True), (RETENTION_LIVENESS_MS + 2_000, False)],
)
def test_entries_are_kept_for_a_silent_peer_for_a_while(silent_ms, keeps):
    cluster = Cluster(3).start()
    leader = cluster.elect()
    cluster.converge()
    lagging = cluster.followers()[0]
    held = cluster.core(lagging).end_index
    cluster.crash(lagging)
    for _ in range(5):
        cluster.propose(leader)
        cluster.run_for(silent_ms // 5)

    floor = cluster.core(leader).retention_floor
    assert floor == (held if keeps else cluster.core(leader).end_index)


@pytest.mark.parametrize("last", [9, 4], ids=["all there already", "some of it"])
def test_a_full_disk_acknowledges_what_it_holds_already(last):
    log = log_of((5, 10))
    cluster = Cluster(3, logs={"n0": log}, states={"n0": HardState(5, None)}).start("n0")
    message, entries = append_of(log, "n1", "n0", 5, 0, last)
    event = ev.Received(message, True, disk_full=True)
    cluster.deliver(heartbeat("n1", "n0", 5))
    effects = cluster.step(cluster.nodes["n0"], event, entries)

    codes = [effect.message.code for effect in effects if isinstance(effect, fx.Send)]
    assert codes == [ResponseCode.SUCCESS]


def test_committed_entries_of_term_0_are_compared_like_others():
    cluster = Cluster(3, logs={"n0": log_of((0, 5))}, states={"n0": HardState(5, None)})
    cluster.nodes["n0"].stored_commit = 4
    cluster.start("n0")
    cluster.deliver(heartbeat("n1", "n0", 5))
    answer = cluster.ask(push(PushType.COMPARE, "n1", "n0", 5, (3, 1)))

    assert answer.code is ResponseCode.INCONSISTENT_STATE


def test_a_peer_that_lost_entries_wakes_up_a_quiescent_leader():
    cluster = Cluster(3).start()
    leader = cluster.elect()
    cluster.converge()
    cluster.run_for(1_500)
    core, peer = cluster.core(leader), cluster.followers()[0]
    beats = [message for message in cluster.sent if isinstance(message, HeartBeatRequest)]
    cluster.step(cluster.nodes[leader], ev.Quiesced(leader, core.term))
    assert core.is_quiescent
    cluster.deliver(
        HeartBeatResponse(
            group="g",
            local_id=peer,
            remote_id=leader,
            term=core.term,
            code=ResponseCode.SUCCESS,
            round=beats[-1].round,
            end_index=-1,
            committed_index=-1,
        )
    )

    assert not core.is_quiescent


def test_a_leader_compares_right_behind_the_last_entry_of_a_term_that_both_have():
    """One step back for each term in which they differ, and no entry is compared twice."""
    logs = {"n0": log_of((1, 10), (2, 3), (3, 20)), "n1": log_of((1, 10), (2, 20))}
    cluster = Cluster(3, logs=logs)
    cluster.start()
    cluster.elect("n0")
    cluster.converge()

    compared = [
        message.prev_index
        for message in cluster.sent
        if isinstance(message, PushRequest)
        and (message.remote_id, message.type) == ("n1", PushType.COMPARE)
    ]
    assert compared == [32, 29, 12]


def test_the_history_names_learners_and_only_them():
    group, leader = started_group()
    group.start_stranger("n7")
    group.add("n7", joining=False)
    group.converge()

    told = [text for _, text in group.core(leader).history.lines() if "membership of index" in text]
    assert told[-1].endswith("voters n0, n1, n2; learners n7")
    assert "learners" not in told[0]


def test_an_emptied_voter_is_not_taken_out_while_too_few_others_could_decide():
    group, leader = started_group(5)
    emptied, *_, one, two = group.followers()
    group.crash(one)
    group.crash(two)
    group.run_for(800)
    before = group.core(leader).membership_index
    group.wipe(emptied)
    group.start(emptied)
    group.run_for(300)

    assert group.core(leader).membership_index == before
    assert emptied in group.core(leader).membership.voters
