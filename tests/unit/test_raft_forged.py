"""Messages that no member of the group can have sent: they change nothing durable."""

import msgspec
import pytest

from quorumlog.model.bounds import (
    FIRST_TERM_MAX,
    INDEX_JUMP_MAX,
    INDEX_MAX,
    TERM_JUMP_MAX,
    TERM_MAX,
)
from quorumlog.model.codes import PushType, ResponseCode, VoteResult
from quorumlog.model.hard_state import HardState
from quorumlog.model.messages.peer import InstallSnapshotRequest, TimeoutNowRequest
from quorumlog.raft import events as ev
from raft_cluster import Cluster
from raft_messages import (
    Contents,
    heartbeat,
    log_of,
    push,
    push_response,
    vote_request,
    vote_response,
)

FAR = [TERM_MAX, TERM_JUMP_MAX + 4]


def offer(index, term=1, *, sender_term=2, source="n0", **fields):
    return InstallSnapshotRequest(
        group="g",
        local_id=source,
        remote_id="n2",
        term=sender_term,
        request_id=7,
        last_included_index=index,
        last_included_term=term,
        **fields,
    )


def follower(contents, committed=-1):
    cluster = Cluster(3, logs={"n2": contents})
    cluster.nodes["n2"].stored_commit = committed
    return cluster.start("n2")


def of_term(term):
    """One message of every kind through which a term reaches the core."""
    code = ResponseCode.EXPIRED_TERM
    timeout_now = TimeoutNowRequest(
        group="g", local_id="n0", remote_id="n2", term=term, end_index=-1
    )
    return [
        heartbeat("n0", "n2", term),
        push(PushType.COMPARE, "n0", "n2", term, (-1, -1)),
        push_response(PushType.COMPARE, "n0", "n2", term, 1, code),
        vote_request("n0", "n2", term, (99, 3)),
        vote_request("n0", "n2", term, (99, 3), pre_vote=True),
        vote_response("n0", "n2", term, VoteResult.REJECT_EXPIRED_VOTE_TERM, 4),
        offer(99, sender_term=term),
        timeout_now,
    ]


@pytest.mark.parametrize("term", FAR)
@pytest.mark.parametrize("number", range(len(of_term(1))))
def test_a_term_that_the_group_cannot_have_reached_is_not_adopted(term, number):
    cluster = follower(log_of((3, 10)), committed=5)
    assert cluster.deliver(of_term(term)[number]) == []
    cluster.run_for(50)
    assert cluster.core("n2").term == 3
    assert cluster.nodes["n2"].stored_state.term == 3
    assert [text for _, text in cluster.alarms if f"speaks of term {term}" in text]
    cluster.start("n0", "n1")
    cluster.converge()
    assert cluster.leader is not None


def test_it_is_said_once_however_often_it_comes():
    cluster = follower(log_of((3, 10)))
    for number in range(5):
        cluster.deliver(heartbeat("n0", "n2", TERM_MAX, number))
    assert len(cluster.alarms) == 1


def test_a_term_of_many_elections_that_were_missed_is_adopted():
    cluster = follower(log_of((3, 10)))
    cluster.ask(heartbeat("n0", "n2", 3 + TERM_JUMP_MAX))
    assert cluster.core("n2").term == 3 + TERM_JUMP_MAX


def test_one_that_knows_nothing_yet_takes_the_term_of_its_group():
    cluster = Cluster(3, states={"n2": HardState()}).start("n2")
    cluster.ask(heartbeat("n0", "n2", 9 * TERM_JUMP_MAX))
    assert cluster.core("n2").term == 9 * TERM_JUMP_MAX


@pytest.mark.parametrize("number", range(len(of_term(1))))
def test_nor_does_it_take_one_that_leaves_no_room_for_elections(number):
    cluster = Cluster(3, states={"n2": HardState()}).start("n2")
    cluster.deliver(of_term(TERM_MAX)[number])
    cluster.run_for(50)
    assert cluster.core("n2").term < 10
    assert [text for _, text in cluster.alarms if f"speaks of term {TERM_MAX}" in text]
    cluster.start("n0", "n1")
    cluster.converge()
    assert cluster.leader is not None


def test_a_group_that_begins_with_the_newest_term_that_is_taken_elects_leaders():
    cluster = Cluster(3, states=dict.fromkeys(("n0", "n1", "n2"), HardState())).start()
    for name in ("n0", "n1", "n2"):
        cluster.ask(heartbeat("n0" if name != "n0" else "n1", name, FIRST_TERM_MAX))
    cluster.converge()
    assert cluster.core(cluster.leader).term > FIRST_TERM_MAX


@pytest.mark.parametrize("index", [INDEX_MAX, INDEX_JUMP_MAX + 10])
def test_a_stranger_with_an_impossible_membership_is_not_believed(index):
    cluster = follower(log_of((3, 10)), committed=5)
    for message in (
        msgspec.structs.replace(heartbeat("n9", "n2", 4), membership_index=index),
        msgspec.structs.replace(vote_request("n9", "n2", 4, (99, 3)), membership_index=index),
    ):
        cluster.deliver(message)
    cluster.run_for(50)
    core = cluster.core("n2")
    assert (core.term, core.leader_id, core.vote) == (3, None, None)


# -- offers of another begin ----------------------------------------------------------------------


@pytest.mark.parametrize("index", [8, 12, 1_000])
@pytest.mark.parametrize("sha256", [b"", b"snapshot"])
def test_entries_stay_until_the_leader_confirms_that_it_offers_to_begin_without_them(index, sha256):
    cluster = follower(log_of((1, 10)), committed=5)
    cluster.confirms_offers = False
    for _ in range(3):
        cluster.deliver(offer(index, sha256=sha256))
        cluster.run_for(50)
    stored = cluster.nodes["n2"].stored
    assert (stored.base, stored.end) == (-1, 9)

    cluster.confirms_offers = True
    cluster.fetch_ms = 1
    cluster.deliver(offer(index, sha256=sha256))
    cluster.run_for(50)
    assert cluster.nodes["n2"].stored.base == index


def test_also_those_that_are_not_known_to_be_committed_after_a_restart():
    cluster = follower(log_of((1, 10)), committed=-1)
    cluster.confirms_offers = False
    cluster.deliver(offer(1_000))
    cluster.run_for(50)
    assert cluster.nodes["n2"].stored.end == 9


@pytest.mark.parametrize("sha256", [b"", b"snapshot"])
def test_one_that_holds_nothing_asks_as_well(sha256):
    """It would count the entries left out as its own, and acknowledge what comes after them."""
    cluster = follower(Contents())
    cluster.confirms_offers = False
    for _ in range(3):
        assert cluster.deliver(offer(1_000, sha256=sha256)) == []
        cluster.run_for(50)
    assert cluster.nodes["n2"].stored.base == -1
    assert cluster.core("n2").committed_index == -1

    cluster.confirms_offers = True
    cluster.fetch_ms = 1
    cluster.deliver(offer(1_000, sha256=sha256))
    cluster.run_for(50)
    assert cluster.nodes["n2"].stored.base == 1_000


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (offer(99, term=2, sender_term=7), "of term 3"),
        (offer(99, term=9, sender_term=7), "of term 9"),
        (offer(99, term=3, sender_term=7, config=(100, b"")), "membership of index 100"),
        (offer(INDEX_MAX, term=3, sender_term=7), "after this log"),
    ],
)
@pytest.mark.parametrize("is_fetched", [False, True])
def test_an_offer_that_no_leader_of_this_log_could_make_changes_nothing(forged, why, is_fetched):
    cluster = follower(log_of((1, 5), (3, 10)), committed=9)
    cluster.step(cluster.nodes["n2"], ev.Received(heartbeat("n0", "n2", 7)))
    if is_fetched:
        cluster.step(cluster.nodes["n2"], ev.SnapshotFetched(forged))
    else:
        assert cluster.ask(forged).code is ResponseCode.INCONSISTENT_STATE
    cluster.run_for(50)
    stored = cluster.nodes["n2"].stored
    assert (stored.base, stored.end) == (-1, 14)
    assert [text for _, text in cluster.alarms if why in text]


def test_a_leader_that_was_deposed_meanwhile_confirms_in_vain():
    cluster = follower(log_of((1, 10)), committed=5)
    cluster.confirms_offers = False
    late = offer(1_000, sender_term=2)
    cluster.deliver(late)
    cluster.ask(heartbeat("n1", "n2", 3))
    cluster.step(cluster.nodes["n2"], ev.OfferConfirmed(late))
    cluster.run_for(50)
    assert cluster.nodes["n2"].stored.end == 9
