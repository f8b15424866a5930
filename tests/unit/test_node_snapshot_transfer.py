"""Fetching and sending snapshots: chunks lost, late or wrong, disks that fail, the rate."""

import random

import msgspec
import pytest

from install_access import CHUNK_BYTES, CONFIG, DATA, DIRECTORY, TIME_OUT_MS, Side, chunk_of
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.peer import (
    InstallSnapshotRequest,
    SnapshotChunkRequest,
    SnapshotOfferRequest,
)
from quorumlog.node.replica.served_snapshots import SILENT_OFFERS
from quorumlog.raft.effects import ConfirmOffer, FetchSnapshot, OfferSnapshot
from quorumlog.raft.events import EntriesUnreadable, OfferConfirmed, Received, SnapshotFetched
from quorumlog.sim.disk import SimulatedFileSystem


@pytest.fixture
def leader():
    return Side("n0")


@pytest.fixture
def follower():
    return Side("n1")


@pytest.fixture
def offer(leader):
    return leader.has(40)


# -- the follower -------------------------------------------------------------------------------


def test_a_snapshot_is_fetched_chunk_by_chunk_then_the_core_is_told(follower, offer):
    follower.is_offered(offer)
    assert follower.fitness == [False], "meanwhile it does not campaign"
    assert follower.receiver.state == "installing"
    follower.fetches_all()
    assert [message.offset for message, _ in follower.sent] == list(
        range(0, len(DATA), CHUNK_BYTES)
    )
    assert sum(message.bytes_max for message, _ in follower.sent) == len(DATA)
    assert follower.steps == [SnapshotFetched(offer)]
    assert follower.fitness == [False, True]
    assert follower.receiver.state == "ready"
    assert follower.data_at(40) == DATA
    follower.files.power_loss()
    follower.start()
    assert follower.snapshots.newest().last_included_index == 40
    assert follower.data_at(40) == DATA


def test_an_empty_snapshot_needs_no_chunk(leader, follower):
    follower.is_offered(empty := leader.has(40, b""))
    assert follower.steps == [SnapshotFetched(empty)]
    assert not follower.sent


def test_a_lost_chunk_is_asked_for_again_at_a_later_offer(follower, offer):
    follower.is_offered(offer)
    follower.next_chunk()
    asked = len(follower.sent)
    follower.passes(TIME_OUT_MS - 1)
    follower.is_offered(offer)
    assert len(follower.sent) == asked, "it may still come"
    follower.passes(1)
    follower.is_offered(offer)
    assert len(follower.sent) == asked + 1
    assert follower.offset_asked() == CHUNK_BYTES
    follower.fetches_all()
    assert follower.data_at(40) == DATA


def test_a_chunk_may_come_twice(follower, offer):
    follower.is_offered(offer)
    for _ in range(3):
        offset = follower.offset_asked()
        chunk = follower.answers(DATA[offset : offset + CHUNK_BYTES])
        follower.receiver.chunk_received(chunk, memoryview(DATA[offset : offset + CHUNK_BYTES]))
        follower.work()
    assert follower.offset_asked() == 3 * CHUNK_BYTES
    follower.fetches_all()
    assert follower.data_at(40) == DATA


def test_a_chunk_that_comes_while_the_one_before_is_written_is_not_taken(follower, offer):
    follower.is_offered(offer)
    chunk = chunk_of(follower.sent[-1][0])
    follower.receiver.chunk_received(chunk, memoryview(DATA[:CHUNK_BYTES]))
    later = msgspec.structs.replace(chunk, request_id=chunk.request_id + 1, offset=CHUNK_BYTES)
    follower.receiver.chunk_received(later, memoryview(b"x" * CHUNK_BYTES))
    follower.work()
    follower.fetches_all()
    assert follower.data_at(40) == DATA
    assert not follower.alarms


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (b"x" * CHUNK_BYTES, {"request_id": 77}),
        (b"x" * CHUNK_BYTES, {"offset": 2 * CHUNK_BYTES}),
        (b"x" * CHUNK_BYTES, {"offset": 0}),
        (b"x" * 10_000, {}),
        (b"", {}),
        (b"", {"code": ResponseCode.LOAD_SNAPSHOT_ERROR}),
        (b"x" * CHUNK_BYTES, {"code": ResponseCode.LOAD_SNAPSHOT_ERROR}),
    ],
    ids=["another request", "gap", "overlap", "beyond the size", "empty", "gone", "gone, bytes"],
)
def test_a_wrong_chunk_changes_nothing_and_it_goes_on_at_a_later_offer(
    follower, offer, data, fields
):
    follower.is_offered(offer)
    follower.next_chunk()
    asked = len(follower.sent)
    follower.answers(data, **fields)
    assert len(follower.sent) == asked, "the leader is not asked in a tight loop"
    follower.passes(TIME_OUT_MS)
    follower.is_offered(offer)
    assert follower.offset_asked() == CHUNK_BYTES
    follower.fetches_all()
    assert follower.data_at(40) == DATA
    assert not follower.alarms


def test_a_newer_snapshot_takes_the_place_of_the_one_that_is_fetched(follower, offer):
    follower.is_offered(offer)
    follower.next_chunk()
    newer = Side("n0").has(50, DATA * 2)
    follower.is_offered(newer)
    request = follower.sent[-1][0]
    assert (request.last_included_index, request.offset) == (50, 0)
    follower.fetches_all(DATA * 2)
    assert follower.steps == [SnapshotFetched(newer)]
    assert follower.snapshots.indexes() == [50]
    assert follower.data_at(50) == DATA * 2


def test_a_newer_one_that_is_offered_while_a_chunk_is_written_is_begun_by_the_next_offer(
    follower, offer
):
    follower.is_offered(offer)
    newer = Side("n0").has(50, DATA * 2)
    chunk = chunk_of(follower.sent[-1][0])
    follower.receiver.chunk_received(chunk, memoryview(DATA[:CHUNK_BYTES]))
    follower.is_offered(newer)
    follower.is_offered(newer)
    follower.fetches_all(DATA * 2)
    assert follower.steps == [SnapshotFetched(newer)]
    assert follower.data_at(50) == DATA * 2


def test_silence_makes_it_fit_again_and_a_later_offer_goes_on_where_it_was(follower, offer):
    follower.is_offered(offer)
    follower.next_chunk()
    give_up_ms = follower.now_ms + SILENT_OFFERS * TIME_OUT_MS
    assert follower.context.timers.next_due_ms() == give_up_ms
    follower.passes(SILENT_OFFERS * TIME_OUT_MS - 1)
    assert follower.machine.is_installing
    follower.passes(1)
    assert not follower.machine.is_installing
    assert follower.fitness == [False, True]
    assert follower.context.timers.next_due_ms() > follower.now_ms + 1_000_000
    follower.passes(100_000)
    follower.is_offered(offer)
    assert follower.fitness == [False, True, False]
    assert follower.offset_asked() == CHUNK_BYTES
    follower.fetches_all()
    assert follower.data_at(40) == DATA


def test_offers_that_go_on_keep_it_from_being_given_up(follower, offer):
    follower.is_offered(offer)
    for _ in range(10):
        follower.passes(SILENT_OFFERS * TIME_OUT_MS - 1)
        follower.is_offered(offer)
    assert follower.machine.is_installing


def test_after_a_restart_it_goes_on_where_it_was(follower, offer):
    follower.is_offered(offer)
    for _ in range(3):
        follower.next_chunk()
    follower.files.kill()
    follower.start()
    assert not follower.machine.is_installing
    follower.is_offered(offer)
    assert follower.offset_asked() == 3 * CHUNK_BYTES
    follower.fetches_all()
    assert follower.data_at(40) == DATA


@pytest.mark.parametrize("seed", range(8))
def test_after_a_loss_of_power_it_is_whole_in_the_end(follower, offer, seed):
    follower.files = SimulatedFileSystem(random.Random(seed))
    follower.files.make_directory(DIRECTORY)
    follower.start()
    follower.is_offered(offer)
    for _ in range(3):
        follower.next_chunk()
    follower.files.power_loss()
    follower.start()
    follower.is_offered(offer)
    follower.fetches_all()
    assert follower.steps == [SnapshotFetched(offer)]
    assert follower.data_at(40) == DATA


def test_damaged_bytes_are_fetched_again_with_one_alarm(follower, offer):
    follower.is_offered(offer)
    follower.next_chunk()
    follower.answers(b"?" * CHUNK_BYTES)
    while not follower.alarms:
        follower.next_chunk()
    (alarm,) = follower.alarms
    assert "40 came damaged" in alarm
    assert follower.steps == []
    assert follower.receiver.state == "installing"
    assert follower.offset_asked() > 0, "it does not begin again before the next offer"
    follower.now_ms += TIME_OUT_MS
    follower.is_offered(offer)
    follower.fetches_all()
    assert follower.steps == [SnapshotFetched(offer)]
    assert len(follower.alarms) == 1
    assert follower.data_at(40) == DATA


def test_one_fetched_in_the_place_of_another_of_its_index_is_the_one_that_is_offered(
    follower, offer
):
    before = msgspec.structs.replace(follower.has(40), sha256=b"of another replica")
    follower.machine.newest = before
    follower.is_offered(offer)
    follower.fetches_all()
    assert follower.machine.newest == follower.snapshots.meta_of(40) != before


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_disk_error_while_a_chunk_is_written_delays_it_only(follower, offer, kind, kept):
    follower.is_offered(offer)
    for _ in range(kept):
        follower.next_chunk()
    follower.files.fail_next("snapshot/installing", kind)
    follower.next_chunk()
    assert follower.machine.is_installing
    assert follower.steps == []
    follower.passes(TIME_OUT_MS)
    follower.is_offered(offer)
    assert follower.offset_asked() == 0, "after a failed write nothing written is believed"
    follower.fetches_all()
    assert follower.steps == [SnapshotFetched(offer)]
    assert follower.data_at(40) == DATA
    assert not follower.alarms


def test_a_replica_without_a_machine_fetches_nothing_and_says_so(offer):
    plain = Side("n1", has_machine=False)
    plain.is_offered(offer)
    (alarm,) = plain.alarms
    assert "give all members the same stateMachine" in alarm
    assert not plain.sent
    assert not plain.machine.is_installing


def test_an_offer_that_names_no_readable_membership_is_dropped(follower, offer):
    follower.receiver.offer_received(msgspec.structs.replace(offer, config=(2, b"nonsense")), b"")
    (alarm,) = follower.alarms
    assert "n0 offers a log that cannot be read" in alarm
    assert follower.steps == []
    follower.receiver.offer_received(offer, b"")
    assert follower.steps == [Received(offer)]


# -- the leader ---------------------------------------------------------------------------------


def request_of(offset, *, peer="n1", number=1, index=40, bytes_max=CHUNK_BYTES):
    return SnapshotChunkRequest(
        group="g",
        local_id=peer,
        remote_id="n0",
        term=4,
        request_id=number,
        last_included_index=index,
        offset=offset,
        bytes_max=bytes_max,
    )


def test_an_offer_says_what_the_newest_snapshot_is(leader, offer):
    meta = leader.machine.newest
    assert (offer.last_included_index, offer.last_included_term, offer.chain_crc) == (40, 3, 9)
    assert (offer.size_bytes, offer.sha256) == (len(DATA), meta.sha256)
    assert offer.config == (2, CONFIG)
    assert (offer.local_id, offer.remote_id, offer.request_id) == ("n0", "n1", 40)


@pytest.mark.parametrize("newest", [None, 29])
def test_no_snapshot_that_reaches_the_log_is_said_and_nothing_offered(leader, newest):
    if newest is not None:
        assert leader.has(newest) is None
        leader.steps.clear()
    leader.sender.offer(OfferSnapshot("n1", 5))
    (event,) = leader.steps
    assert (type(event), event.peer_id, event.request_id) == (EntriesUnreadable, "n1", 5)
    assert not leader.sent


def test_a_plain_log_offers_where_it_begins():
    plain = Side("n0", has_machine=False)
    plain.sender.offer(OfferSnapshot("n1", 5))
    ((offer, _),) = plain.sent
    assert isinstance(offer, InstallSnapshotRequest)
    assert (offer.last_included_index, offer.last_included_term, offer.chain_crc) == (30, 3, 55)
    assert offer.config == (30, CONFIG), "not one that lies behind it"
    assert (offer.size_bytes, offer.sha256) == (0, b""), "nothing is to be fetched"
    plain.sender.send_chunk(request_of(0))
    assert plain.sent[-1][0].code is ResponseCode.LOAD_SNAPSHOT_ERROR


def test_a_chunk_is_what_was_asked_for_and_no_larger_than_a_push(leader, offer):
    for offset, asked, expected in (
        (0, 10, 10),
        (7, CHUNK_BYTES, CHUNK_BYTES),
        (0, 10_000, CHUNK_BYTES),
        (9, -1, 0),
    ):
        leader.sender.send_chunk(request_of(offset, number=offset, bytes_max=asked))
        leader.work()
        chunk, data = leader.sent[-1]
        assert (chunk.code, chunk.offset, chunk.request_id) == (200, offset, offset)
        assert data == DATA[offset : offset + expected]


def test_a_snapshot_that_was_removed_meanwhile_is_said_to_be_gone(leader, offer):
    leader.has(50)
    leader.snapshots.keep_newest(1)
    leader.sender.send_chunk(request_of(0, index=40))
    leader.work()
    chunk, data = leader.sent[-1]
    assert (chunk.code, data) == (ResponseCode.LOAD_SNAPSHOT_ERROR, b"")


def test_the_rate_is_bounded_and_what_is_held_is_sent_later():
    leader = Side("n0", quota=3 * CHUNK_BYTES)
    leader.has(40)
    sent_in, offset = {}, 0
    leader.sender.send_chunk(request_of(0))
    while offset < len(DATA):
        leader.work()
        if leader.sent:
            _, data = leader.sent.pop()
            second = leader.now_ms // 1_000
            sent_in[second] = sent_in.get(second, 0) + len(data)
            offset += len(data)
            leader.sender.send_chunk(
                request_of(offset, bytes_max=min(CHUNK_BYTES, len(DATA) - offset))
            )
        else:
            due_ms = leader.context.timers.next_due_ms()
            assert leader.now_ms < due_ms <= leader.now_ms + 1_000
            leader.passes(due_ms - leader.now_ms)
    assert list(sent_in.values()) == [3 * CHUNK_BYTES, 3 * CHUNK_BYTES, len(DATA) - 6 * CHUNK_BYTES]


def test_one_request_a_peer_is_held_the_last(leader, offer):
    leader = Side("n0", quota=1)
    leader.has(40)
    leader.sender.send_chunk(request_of(0))
    leader.work()
    leader.sent.clear()
    for number in range(5):
        leader.sender.send_chunk(request_of(CHUNK_BYTES, number=number))
        leader.sender.send_chunk(request_of(0, number=number, peer="n2"))
    leader.passes(999)
    leader.work()
    assert not leader.sent
    for _ in range(2):
        leader.passes(1_000)
        leader.work()
    assert sorted((m.remote_id, m.request_id) for m, _ in leader.sent) == [("n1", 4), ("n2", 4)]
    assert leader.context.timers.next_due_ms() > leader.now_ms + 1_000_000, "nothing is left"


def test_while_nobody_leads_a_peer_gives_its_snapshot_and_is_not_taken_for_a_leader(
    leader, follower, offer
):
    """For a machine whose entries are damaged here and removed there."""
    loaded = []
    follower.machine.applied, follower.applier.load = 10, loaded.append
    follower.core.role = leader.core.role = Role.CANDIDATE
    follower.core.leader_id = leader.core.leader_id = None
    follower.requests.ask("n0")
    wanted = follower.sent.pop()[0]
    assert isinstance(wanted, SnapshotOfferRequest)
    leader.sender.offer_requested(wanted)
    given = leader.sent.pop()[0]
    assert not given.from_leader
    follower.receiver.offer_received(given, memoryview(b""))
    follower.work()
    assert follower.steps == []
    follower.fetches_all()
    assert follower.steps == [SnapshotFetched(given)]
    assert [meta.last_included_index for meta in loaded] == [40]
    assert follower.data_at(40) == DATA


def test_a_peer_that_knows_a_leader_leaves_it_to_that_one(leader, follower, offer):
    leader.core.role = Role.FOLLOWER
    follower.requests.ask("n0")
    leader.sender.offer_requested(follower.sent.pop()[0])
    assert leader.sent == []


# -- whether the leader made it -----------------------------------------------------------------


def asks_about(follower, offer, table=b"table"):
    """The core holds entries, so the leader is asked; return the query."""
    follower.receiver.confirm(ConfirmOffer(offer), table)
    return follower.sent[-1][0]


def answer_of(leader, query):
    leader.sender.query_received(query)
    return leader.sent.pop()[0]


def test_the_leader_confirms_its_own_offer_and_the_core_is_told(leader, follower, offer):
    query = asks_about(follower, offer)
    follower.receiver.response_received(answer_of(leader, query))
    assert follower.steps == [OfferConfirmed(offer)]
    assert not follower.alarms


@pytest.mark.parametrize(
    "fields",
    [
        {"last_included_index": 41},
        {"last_included_term": 4},
        {"chain_crc": 8},
        {"config": (3, CONFIG)},
        {"sha256": bytes(32)},
        {"size_bytes": 1},
        {"term": 5},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_an_offer_that_differs_from_the_leaders_is_not_confirmed(leader, follower, offer, fields):
    query = asks_about(follower, msgspec.structs.replace(offer, **fields))
    follower.receiver.response_received(answer_of(leader, query))
    assert not follower.steps
    assert "nothing was removed" in follower.alarms[0]


def test_nor_one_with_other_sessions_nor_of_one_that_leads_no_more(leader, follower, offer):
    assert answer_of(leader, asks_about(follower, offer, b"x")).code is not ResponseCode.SUCCESS
    leader.core.role = Role.FOLLOWER
    assert answer_of(leader, asks_about(follower, offer)).code is not ResponseCode.SUCCESS


def test_an_answer_to_another_question_confirms_nothing(leader, follower, offer):
    answer = answer_of(leader, asks_about(follower, offer))
    guessed = msgspec.structs.replace(answer, request_id=answer.request_id + 1)
    follower.receiver.response_received(guessed)
    follower.receiver.response_received(msgspec.structs.replace(answer, local_id="n2"))
    assert not follower.steps
    follower.receiver.response_received(answer)
    assert follower.steps == [OfferConfirmed(offer)]
    follower.receiver.response_received(answer)
    assert len(follower.steps) == 1, "it may come twice"


def test_one_that_nobody_confirms_is_given_up_with_an_alarm(follower, offer):
    for _ in range(SILENT_OFFERS):
        asks_about(follower, offer)
        assert not follower.alarms
        follower.passes(TIME_OUT_MS)
    assert "does not confirm it" in follower.alarms[0]
    assert not follower.steps


def test_offers_that_cross_with_questions_about_those_before_are_confirmed(leader, follower, offer):
    query = asks_about(follower, offer)
    leader.sender.offer(OfferSnapshot("n1", 41))
    later = leader.sent.pop()[0]
    assert answer_of(leader, query).code is ResponseCode.SUCCESS
    assert answer_of(leader, asks_about(follower, later)).code is ResponseCode.SUCCESS


def test_sessions_of_an_offer_are_not_taken_before_the_snapshot_is(follower, offer):
    follower.receiver.offer_received(offer, b"table")
    assert follower.steps == [Received(offer)]
    assert not follower.learned, "the core has not looked at its term yet"
    follower.receiver.fetch(FetchSnapshot(offer), b"table")
    follower.work()
    follower.fetches_all()
    assert follower.learned == [b"table"]


def test_a_snapshot_that_nobody_asked_this_peer_for_is_not_fetched(follower, offer):
    unasked = msgspec.structs.replace(offer, from_leader=False, request_id=0)
    follower.machine.applied = 0
    follower.receiver.offer_received(unasked, b"")
    follower.requests.ask("n0")
    wanted = follower.sent[-1][0]
    follower.receiver.offer_received(unasked, b"")
    guessed = msgspec.structs.replace(unasked, request_id=wanted.request_id, local_id="n2")
    follower.receiver.offer_received(guessed, b"")
    assert not follower.machine.is_installing
    follower.receiver.offer_received(msgspec.structs.replace(guessed, local_id="n0"), b"")
    assert follower.machine.is_installing


# -- damaged entries that others have removed ----------------------------------------------------


def test_what_a_peer_has_removed_is_removed_here_with_what_producers_stored_in_it():
    plain = Side("n1", has_machine=False)
    plain.receiver.skip_removed(12, "n7", 20, b"")
    assert (plain.learned, plain.removed) == ([], []), "the peer does not know the sessions either"
    plain.receiver.skip_removed(12, "n7", 20, b"table")
    assert (plain.learned, plain.removed) == ([b"table"], [19])


def test_what_a_machine_applied_is_removed_only_once_it_is_in_a_snapshot(follower):
    """Else nothing would hold it after a restart, and the replica could not be opened."""
    follower.machine.applied, follower.machine.newest = 29, None
    follower.receiver.skip_removed(12, "n7", 15, b"table")
    assert len(follower.saving) == 1
    follower.has(40)
    follower.receiver.skip_removed(12, "n7", 15, b"table")
    assert len(follower.saving) == 1


def test_what_the_machine_needs_comes_from_the_peer_that_has_removed_it(follower):
    follower.machine.applied = 9
    follower.receiver.skip_removed(12, "n7", 20, b"table")
    ((request, _),) = follower.sent
    assert isinstance(request, SnapshotOfferRequest)
    assert (request.remote_id, follower.removed) == ("n7", [])
