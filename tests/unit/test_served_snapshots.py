"""A leader whose newest snapshot changes while a member fetches the one before."""

from types import SimpleNamespace

import pytest
from test_node_snapshot_transfer import DATA, TIME_OUT_MS, Side

from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.peer import SnapshotChunkRequest
from quorumlog.node.replica.served_snapshots import SILENT_OFFERS
from quorumlog.raft.effects import FetchSnapshot, OfferSnapshot, ResetLog
from quorumlog.transport.peers import UNKNOWN_PEERS_MAX

SILENCE_MS = SILENT_OFFERS * TIME_OUT_MS


@pytest.fixture
def leader():
    made = Side("n0")
    assert made.has(40).last_included_index == 40
    return made


def ask(leader, index, offset, peer="n1"):
    request = SnapshotChunkRequest(
        group="g",
        local_id=peer,
        remote_id="n0",
        term=4,
        request_id=1,
        last_included_index=index,
        offset=offset,
        bytes_max=4,
    )
    leader.sender.send_chunk(request)
    leader.work()
    return leader.sent.pop()[0].code


def offered(leader, peer="n1"):
    leader.sender.offer(OfferSnapshot(peer, 1))
    return leader.sent.pop()[0].last_included_index


def test_who_fetches_a_snapshot_is_offered_it_to_the_end_others_the_newest(leader):
    for round_number in range(5):
        assert ask(leader, 40, 4 * round_number) is ResponseCode.SUCCESS
        assert leader.has(50 + round_number, DATA * 2).last_included_index == 40
        leader.now_ms += SILENCE_MS - 1
    assert leader.served.indexes() == [40]
    assert offered(leader, "n2") == 54
    assert sorted(leader.served.indexes()) == [40, 54]


def test_of_those_that_are_no_members_only_so_many_are_known(leader):
    for number in range(1, 100):
        offered(leader, f"n{number}")
    served = leader.served._served
    assert [*served][-1] == "n99"
    assert len(served) <= UNKNOWN_PEERS_MAX + len(leader.core.membership.ids)
    assert "n1" in served, "a member"


def test_it_is_kept_although_many_newer_ones_are(leader):
    ask(leader, 40, 0)
    for index in range(50, 55):
        leader.has(index)
        leader.snapshots.keep_newest(1, leader.served.indexes())
    assert leader.snapshots.indexes() == [40, 54]
    leader.now_ms += SILENCE_MS
    leader.snapshots.keep_newest(1, leader.served.indexes())
    assert leader.snapshots.indexes() == [54]


@pytest.mark.parametrize(
    "reason", ["silence", "again from the beginning", "gone", "log begins later"]
)
def test_there_is_an_end_to_it(leader, reason):
    ask(leader, 40, 4)
    leader.has(50)
    if reason == "silence":
        leader.now_ms += SILENCE_MS
    elif reason == "again from the beginning":
        ask(leader, 40, 0)
    elif reason == "gone":
        leader.snapshots.keep_newest(1)
        assert ask(leader, 40, 8) is ResponseCode.LOAD_SNAPSHOT_ERROR
    else:
        leader.log.before_begin_index = 45
    assert offered(leader) == 50


def test_nothing_is_due_while_a_slow_disk_works(leader):
    follower = Side("n1")
    follower.receiver.fetch(FetchSnapshot(Side("n0").has(40)))
    assert follower.jobs, "the beginning is made beside the loop"
    follower.now_ms += SILENCE_MS
    follower.tick()
    assert follower.machine.is_installing
    assert follower.context.timers.next_due_ms() > follower.now_ms + SILENCE_MS
    follower.work()
    assert follower.context.timers.next_due_ms() <= follower.now_ms, "it is given up now"


def test_a_machine_that_is_ahead_of_what_was_fetched_is_not_taken_back():
    loaded = []
    follower = Side("n1")
    follower.counters = SimpleNamespace(log_resets=0)
    follower.tables.log_reset = lambda index: None
    follower.log.end_index = 20
    follower.log.note_committed = lambda index: None
    follower.log.reset = lambda *place: None
    follower.applier.load = loaded.append
    follower.receiver._environment.disk = SimpleNamespace(submit=lambda *write: None)
    offer = Side("n0").has(40)
    follower.is_offered(offer)
    follower.fetches_all()
    for applied, wanted in ((41, []), (39, [40])):
        follower.machine.applied = applied
        follower.receiver.reset(ResetLog(40, 3, 9, -1, (2, b""), 1))
        assert [meta.last_included_index for meta in loaded] == wanted
