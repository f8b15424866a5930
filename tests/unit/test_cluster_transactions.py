"""Transactions in the state of `__cluster`: what each command does, and which come too late."""

import io

import msgspec
import pytest

from cluster_commands import BILLS, ORDERS, TERM, Coordinated
from quorumlog.machine.cluster import consumer_groups, transactions
from quorumlog.machine.cluster.commands import (
    AddToTransaction,
    AddTransactionOffsets,
    Changed,
    CommitOffsets,
    DecideTransaction,
    DeleteTopics,
    ForgetTransactions,
    InitTransaction,
    MarkersWritten,
    OffsetToCommit,
    SavedMember,
    SaveGroup,
    TopicToDelete,
)
from quorumlog.machine.cluster.machine import ClusterMachine
from quorumlog.model.codes import ResponseCode

OK, LATE = ResponseCode.SUCCESS, ResponseCode.INCONSISTENT_TERM
FULL = ResponseCode.CLUSTER_FULL


class Cluster(Coordinated):
    """The state, with two topics, as its machine has it; commands name the present version."""

    @property
    def view(self):
        return self.machine.view.transactions

    def record(self, name="t"):
        return self.view.records[name]

    def version(self, name="t"):
        return self.record(name).version if name in self.view.records else 0

    def init(self, name="t", producer_id=7, epoch=0, *, is_same=False, **fields):
        version = self.version(name)
        command = InitTransaction(TERM, name, version, producer_id, epoch, 60_000, is_same)
        return self.do(command, **fields).code

    def add(self, *partitions, groups=(), name="t", **fields):
        places, version = list(partitions), self.version(name)
        return self.do(AddToTransaction(TERM, name, version, places, list(groups)), **fields).code

    def offset(self, *offset, group="g", name="t"):
        found = [OffsetToCommit(*offset)]
        return self.do(AddTransactionOffsets(TERM, name, self.version(name), group, found))

    def decide(self, *, commits, epoch=0, name="t", is_same=False):
        command = DecideTransaction(TERM, name, self.version(name), commits, epoch, is_same)
        return self.do(command).code

    def written(self, *partitions, number=1, name="t"):
        found = self.do(MarkersWritten([(name, number, list(partitions))]))
        assert isinstance(found, Changed)
        return found.count

    def committed(self, group="g"):
        record = self.machine.view.consumer_groups.get(group)
        return {} if record is None else {key: one.offset for key, one in record.offsets.items()}


@pytest.fixture
def cluster():
    made = Cluster()
    assert made.init() is OK
    return made


def test_b3_a_transaction_is_complete_once_all_its_partitions_have_markers(cluster):
    assert cluster.record().state == "Empty"
    assert cluster.add((ORDERS, 0), (BILLS, 1)) is OK
    assert cluster.add((ORDERS, 0), (ORDERS, 2)) is OK
    assert cluster.record().partitions == ((ORDERS, 0), (BILLS, 1), (ORDERS, 2))
    assert cluster.decide(commits=True) is OK
    assert cluster.record().state == "PrepareCommit"
    assert list(cluster.view.prepared) == ["t"]
    assert cluster.written((ORDERS, 0), (ORDERS, 2)) == 1
    assert cluster.record().partitions == ((BILLS, 1),)
    assert cluster.written((BILLS, 1)) == 1
    assert cluster.record().state == "CompleteCommit"
    assert not cluster.view.prepared
    assert cluster.written((BILLS, 1)) == 0, "it is known"


def test_b3_one_without_partitions_is_complete_at_once(cluster):
    cluster.add(groups=["g"])
    assert cluster.decide(commits=False) is OK
    assert cluster.record().state == "CompleteAbort"


def test_b3_markers_of_an_earlier_transaction_do_not_count_for_a_later_one(cluster):
    for _ in range(2):
        cluster.add((ORDERS, 0))
        cluster.decide(commits=True)
        if cluster.record().number == 1:
            cluster.written((ORDERS, 0))
    assert cluster.record().number == 2
    assert cluster.written((ORDERS, 0), number=1) == 0
    assert cluster.record().state == "PrepareCommit"


def test_b3_markers_of_an_id_that_was_forgotten_do_not_count_once_it_is_made_anew(cluster):
    cluster.add((ORDERS, 0))
    cluster.decide(commits=True)
    for producer_ids, state in (([6], "PrepareCommit"), ([7], "CompleteCommit")):
        cluster.do(MarkersWritten([("t", 1, [(ORDERS, 0)])], producer_ids))
        assert cluster.record().state == state


def test_b3_commands_that_were_judged_by_an_older_record_change_nothing(cluster):
    old = cluster.version()
    cluster.add((ORDERS, 0))
    before = cluster.record()
    for command in (
        InitTransaction(TERM, "t", old, 9, 0, 1, False),
        AddToTransaction(TERM, "t", old, [(ORDERS, 1)]),
        AddTransactionOffsets(TERM, "t", old, "g", []),
        DecideTransaction(TERM, "t", old, True, 0),
        DecideTransaction(TERM, "other", 1, True, 0),
        InitTransaction(TERM, "t", cluster.version(), 9, 0, 1, False),  # while one is ongoing
    ):
        assert cluster.do(command).code is LATE, command
    late = DecideTransaction(TERM, "t", cluster.version(), True, 0)
    assert cluster.do(late, term=TERM + 1).code is ResponseCode.NOT_LEADER
    assert cluster.record() == before


def test_b3_offsets_of_a_member_that_was_succeeded_are_not_committed_with_a_transaction(cluster):
    """It was a member when it asked, and another generation was saved before the command came."""
    cluster.add((ORDERS, 0), groups=["g"])
    found = [OffsetToCommit(ORDERS, 0, 5)]

    def added(generation, member_id=""):
        version = cluster.version()
        command = AddTransactionOffsets(TERM, "t", version, "g", found, generation, member_id)
        return cluster.do(command).code

    late = ResponseCode.CONSUMER_FENCED
    assert added(3) is OK, "a group that was not saved yet has no later generation"
    member = SavedMember("c", None, "client", "host", 10_000, 60_000, b"topics", b"part")
    cluster.do(SaveGroup(TERM, "g", 4, "consumer", "range", "c", [member]))
    assert (added(3), added(4), added(-1)) == (late, OK, OK)
    assert added(4, "m") is late, "no member by the consumer protocol is saved"


@pytest.mark.parametrize("is_same", [True, False])
def test_b3_only_a_producer_that_begins_anew_itself_is_known_by_its_last_epoch(cluster, is_same):
    """Another one that took its id must not be taken for it: it would get that one's epoch."""
    cluster.add((ORDERS, 0))
    assert cluster.decide(commits=False, epoch=1, is_same=is_same) is OK
    record = cluster.record()
    assert record.epoch == 1
    assert (record.last_producer_id, record.last_epoch) == ((7, 0) if is_same else (-1, -1))
    cluster.written((ORDERS, 0))
    assert cluster.init(producer_id=8, epoch=0, is_same=is_same) is OK
    record = cluster.record()
    assert (record.last_producer_id, record.last_epoch) == ((7, 1) if is_same else (-1, -1))
    assert cluster.view.of_producer(8) == record
    assert cluster.view.of_producer(7) is None


# -- offsets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
def test_b3_b5_offsets_are_committed_in_the_entry_that_decides(cluster, commits):
    cluster.do(CommitOffsets(TERM, "g", -1, [OffsetToCommit(ORDERS, 0, 3)]))
    cluster.add((BILLS, 0), groups=["g"])
    assert cluster.offset(ORDERS, 0, 9).codes == [OK]
    assert cluster.offset(ORDERS, 1, 4).codes == [OK]
    assert cluster.view.has_pending("g", (ORDERS, 1))
    assert not cluster.view.has_pending("g", (ORDERS, 2))
    assert cluster.committed() == {(ORDERS, 0): 3}
    cluster.decide(commits=commits)
    expected = {(ORDERS, 0): 9, (ORDERS, 1): 4} if commits else {(ORDERS, 0): 3}
    assert cluster.committed() == expected
    assert not cluster.view.pending


def test_b5_what_a_group_has_committed_itself_later_is_not_overwritten(cluster):
    cluster.add((BILLS, 0), groups=["g"])
    cluster.offset(ORDERS, 0, 15)
    cluster.offset(ORDERS, 1, 4)
    cluster.do(CommitOffsets(TERM, "g", -1, [OffsetToCommit(ORDERS, 0, 16)]))
    assert not cluster.view.has_pending("g", (ORDERS, 0))
    cluster.decide(commits=True)
    assert cluster.committed() == {(ORDERS, 0): 16, (ORDERS, 1): 4}
    groups = cluster.machine._state.consumer_groups
    assert (groups.reserved_count, groups.reserved_bytes) == (0, 0)


@pytest.fixture
def rivals(cluster):
    """Two transactions, "t" and "u", that may commit offsets of the same group."""
    assert cluster.init("u", 8) is OK
    for name in ("t", "u"):
        assert cluster.add(groups=["g"], name=name) is OK
    return cluster


def reserved(cluster):
    groups = cluster.machine._state.consumer_groups
    return groups.reserved_count, groups.reserved_bytes


def restarted(cluster):
    """Have the state be that of a node that begins with a snapshot of it."""
    written = io.BytesIO()
    cluster.machine.save_snapshot(written)
    before, cluster.machine = cluster.machine.digest(), ClusterMachine()
    cluster.machine.load_snapshot(io.BytesIO(written.getvalue()))
    assert cluster.machine.digest() == before


@pytest.mark.parametrize("restarts", [False, True])
def test_b5_a_stalled_transaction_does_not_take_a_group_back(rivals, restarts):
    """Of two transactions the offset counts that was added last, whichever is committed first."""
    rivals.offset(ORDERS, 0, 100)
    rivals.offset(ORDERS, 1, 5)
    rivals.offset(ORDERS, 0, 200, name="u")
    if restarts:
        restarted(rivals)
    assert rivals.decide(commits=True, name="u") is OK
    assert rivals.committed() == {(ORDERS, 0): 200}
    assert not rivals.view.has_pending("g", (ORDERS, 0)), "readers need not wait for it"
    assert rivals.decide(commits=True) is OK
    assert rivals.committed() == {(ORDERS, 0): 200, (ORDERS, 1): 5}
    assert reserved(rivals) == (0, 0)


def test_b5_an_offset_that_was_added_later_counts_once_its_transaction_is_committed(rivals):
    rivals.offset(ORDERS, 0, 100)
    rivals.offset(ORDERS, 0, 200, name="u")
    rivals.offset(ORDERS, 0, 150)
    rivals.decide(commits=True, name="u")
    assert rivals.view.has_pending("g", (ORDERS, 0))
    rivals.decide(commits=True)
    assert rivals.committed() == {(ORDERS, 0): 150}
    assert reserved(rivals) == (0, 0)


def test_b5_what_is_aborted_takes_no_offset_of_others_away(rivals):
    rivals.offset(ORDERS, 0, 100)
    rivals.offset(ORDERS, 0, 200, name="u")
    rivals.decide(commits=False, name="u")
    rivals.decide(commits=True)
    assert rivals.committed() == {(ORDERS, 0): 100}
    assert reserved(rivals) == (0, 0)


def test_b5_a_snapshot_of_an_earlier_version_has_offsets_without_numbers(rivals):
    rivals.offset(ORDERS, 0, 100)
    saved = msgspec.msgpack.decode(rivals.machine._state.encode())
    del saved[15:]
    assert saved.pop() == 1, "how many commands have added offsets"
    (offsets,) = next(one[13] for one in saved[10] if one[0] == "t").values()
    assert [one.pop() for one in offsets.values()] == [1]
    rivals.machine = ClusterMachine()
    rivals.machine.load_snapshot(io.BytesIO(msgspec.msgpack.encode(saved)))
    rivals.offset(ORDERS, 0, 200, name="u")
    rivals.decide(commits=True, name="u")
    rivals.decide(commits=True)
    assert rivals.committed() == {(ORDERS, 0): 200}


def test_b3_offsets_need_the_group_in_the_transaction(cluster):
    cluster.add((BILLS, 0), groups=["g"])
    assert cluster.offset(ORDERS, 0, 9, group="other").code is LATE
    assert cluster.offset(bytes(16), 0, 9).codes == [ResponseCode.UNKNOWN_TOPIC]


def test_c4_room_for_offsets_is_kept_until_the_transaction_ends(cluster, monkeypatch):
    monkeypatch.setattr(consumer_groups, "OFFSETS_MAX", 2)
    cluster.add(groups=["g"])
    assert cluster.offset(ORDERS, 0, 1).codes == [OK]
    assert cluster.offset(ORDERS, 0, 2).codes == [OK], "in the place of the first"
    assert cluster.offset(ORDERS, 1, 1).codes == [OK]
    assert cluster.offset(ORDERS, 2, 1).codes == [FULL]
    plain = CommitOffsets(TERM, "plain", -1, [OffsetToCommit(BILLS, 0, 3)])
    assert cluster.do(plain).codes == [FULL]
    cluster.decide(commits=True)
    assert cluster.do(plain).codes == [FULL]
    assert cluster.committed() == {(ORDERS, 0): 2, (ORDERS, 1): 1}
    cluster.add(groups=["g"])
    assert cluster.offset(ORDERS, 0, 5).codes == [OK], "in the place of what is committed"
    assert cluster.offset(ORDERS, 2, 5).codes == [FULL]


def test_c4_what_was_kept_for_an_aborted_transaction_is_free_again(cluster, monkeypatch):
    monkeypatch.setattr(consumer_groups, "OFFSETS_MAX", 1)
    for _ in range(3):
        cluster.add(groups=["g"])
        assert cluster.offset(ORDERS, 0, 1).codes == [OK]
        cluster.decide(commits=False)
    groups = cluster.machine._state.consumer_groups
    assert (groups.reserved_count, groups.reserved_bytes) == (0, 0)


# -- bounds, deletion, snapshots ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("TRANSACTIONAL_IDS_MAX", lambda cluster: cluster.init("other", 8)),
        ("PLACES_MAX", lambda cluster: cluster.add((ORDERS, 0), (ORDERS, 1))),
        ("CONSUMER_GROUPS_MAX", lambda cluster: cluster.add(groups=["g", "h"])),
    ],
)
def test_c4_transactions_are_bounded(cluster, monkeypatch, name, is_refused):
    monkeypatch.setattr(transactions, name, 1)
    assert is_refused(cluster) is FULL
    assert cluster.record().state == "Empty"


def test_c4_transactions_make_no_more_groups_than_there_may_be(cluster, monkeypatch):
    monkeypatch.setattr(consumer_groups, "GROUPS_MAX", 1)
    assert cluster.add(groups=["g", "h"]) is FULL
    assert cluster.add(groups=["g"]) is OK
    cluster.offset(ORDERS, 0, 1)
    cluster.decide(commits=True)
    assert cluster.add(groups=["h"]) is FULL
    assert cluster.add(groups=["g"]) is OK


def test_b3_a_deleted_topic_keeps_no_transaction_from_ending(cluster):
    cluster.add((ORDERS, 0), groups=["g"])
    cluster.offset(ORDERS, 0, 1)
    cluster.offset(BILLS, 0, 1)
    cluster.add((BILLS, 0))
    cluster.do(DeleteTopics([TopicToDelete("orders")]))
    assert cluster.record().partitions == ((BILLS, 0),)
    cluster.decide(commits=True)
    assert cluster.committed() == {(BILLS, 0): 1}
    cluster.do(DeleteTopics([TopicToDelete("bills")]))
    assert cluster.record().state == "CompleteCommit"


def test_ids_that_nobody_uses_are_forgotten_and_no_others(cluster):
    cluster.init("young", 8, at_ms=50)
    cluster.init("busy", 9)
    cluster.add((ORDERS, 0), name="busy")
    found = cluster.do(ForgetTransactions(TERM, ["t", "young", "busy", "none"], 10))
    refused = ResponseCode.CHANGE_IN_PROGRESS
    assert found.codes == [OK, refused, refused, refused]
    assert sorted(cluster.view.records) == ["busy", "young"]
    assert cluster.view.of_producer(7) is None


def test_b3_a_snapshot_has_all_of_it(cluster):
    cluster.add((ORDERS, 0), groups=["g"])
    cluster.offset(ORDERS, 0, 9)
    cluster.init("other", 8)
    written = io.BytesIO()
    cluster.machine.save_snapshot(written)
    restored = ClusterMachine()
    restored.load_snapshot(io.BytesIO(written.getvalue()))
    assert restored.view.transactions == cluster.view
    assert restored.digest() == cluster.machine.digest()
    there, here = restored._state.consumer_groups, cluster.machine._state.consumer_groups
    assert (there.reserved_count, there.reserved_bytes) == (
        here.reserved_count,
        here.reserved_bytes,
    )
