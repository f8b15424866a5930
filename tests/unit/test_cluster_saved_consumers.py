"""Members by the consumer protocol in the state of `__cluster`: what each command of a coordinator
does to them.
"""

import pytest
from msgspec.structs import replace

from cluster_commands import BILLS, ORDERS, TERM, Coordinated
from quorumlog.machine.cluster import consumer_groups
from quorumlog.machine.cluster.commands import (
    CommitOffsets,
    Envelope,
    ForgetGroups,
    OffsetToCommit,
    SaveConsumers,
    SavedConsumer,
    SavedMember,
    SaveGroup,
    encode,
)
from quorumlog.machine.cluster.state import ClusterState
from quorumlog.model.codes import ResponseCode

OK, OUTDATED = ResponseCode.SUCCESS, ResponseCode.INCONSISTENT_TERM
MEMBER = SavedConsumer(
    "m", None, None, "client", "host", 60_000, ["orders"], "", "", 4, 3, {ORDERS: [0, 1]}, {}
)
CLASSIC = SavedMember("c", None, "client", "host", 10_000, 60_000, b"topics", b"part")


class Cluster(Coordinated):
    """The state, with two topics, as its machine has it."""

    @property
    def groups(self):
        return self.machine.view.consumer_groups

    def save(self, *changed, version=0, epoch=4, removed=(), name="g", **fields):
        command = SaveConsumers(TERM, name, version, epoch, list(changed), list(removed))
        return self.do(command, **fields).code

    def commit(self, epoch, member_id="m", place=(ORDERS, 0)):
        offsets = [OffsetToCommit(*place, 7)]
        return self.do(CommitOffsets(TERM, "g", epoch, offsets, member_id)).code


@pytest.fixture
def cluster():
    return Cluster()


def test_b4_members_are_saved_and_removed_one_by_one(cluster):
    other = replace(MEMBER, member_id="n", assigned={ORDERS: [2]}, revoking={BILLS: [0]})
    assert cluster.save(MEMBER, other) is OK
    assert cluster.groups["g"].consumers == {"m": MEMBER, "n": other}
    moved = replace(other, member_id="o", epoch=5)
    assert cluster.save(moved, version=1, epoch=5, removed=["n", "x"], at_ms=9) is OK
    found = cluster.groups["g"]
    assert found.consumers == {"m": MEMBER, "o": moved}
    assert (found.generation, found.version, found.changed_ms) == (5, 2, 9)
    assert found.member_count == 2


@pytest.mark.parametrize(("version", "epoch"), [(0, 9), (2, 9), (1, 3)])
def test_b4_a_save_that_was_judged_by_another_record_changes_nothing(cluster, version, epoch):
    cluster.save(MEMBER)
    assert cluster.save(version=version, epoch=epoch, removed=["m"]) is OUTDATED
    assert cluster.groups["g"].consumers == {"m": MEMBER}


@pytest.mark.parametrize("term", [TERM - 1, TERM + 1])
def test_b4_what_a_coordinator_decided_counts_only_in_its_term(cluster, term):
    assert cluster.save(MEMBER, term=term) is ResponseCode.NOT_LEADER
    assert cluster.groups == {}


def test_b5_a_member_commits_with_the_epoch_that_was_saved(cluster):
    assert cluster.commit(4) is OUTDATED, "its group is not saved"
    assert cluster.groups == {}
    cluster.save(MEMBER)
    assert [cluster.commit(epoch) for epoch in (3, 4, 5)] == [OUTDATED, OK, OUTDATED]
    assert cluster.commit(4, "n") is OUTDATED
    assert cluster.groups["g"].version == 1, "a commit is no save of members"
    cluster.save(version=1, epoch=5, removed=["m"])
    assert cluster.commit(4) is OUTDATED
    assert cluster.groups["g"].offsets[ORDERS, 0].offset == 7


def test_a3_a_group_with_members_is_not_forgotten(cluster):
    cluster.save(MEMBER)
    forget = ForgetGroups(TERM, ["g"])
    assert cluster.do(forget).codes == [ResponseCode.CHANGE_IN_PROGRESS]
    cluster.save(version=1, removed=["m"])
    assert cluster.do(forget).codes == [OK]
    assert cluster.groups == {}


def test_b4_a_group_changes_its_protocol_and_keeps_its_offsets(cluster):
    cluster.do(SaveGroup(TERM, "g", 3, "consumer", "range", "c", [CLASSIC]))
    cluster.do(CommitOffsets(TERM, "g", 3, [OffsetToCommit(ORDERS, 0, 7)]))
    assert cluster.save(MEMBER, version=1) is OK
    found = cluster.groups["g"]
    assert (found.members, found.leader, found.offsets[ORDERS, 0].offset) == ((), "", 7)
    late = SaveGroup(TERM, "g", 3, "consumer", "range", "c", [CLASSIC])
    assert cluster.do(late).code is OUTDATED
    assert cluster.do(SaveGroup(TERM, "g", 5, "consumer", "range", "c", [CLASSIC])).code is OK
    found = cluster.groups["g"]
    assert (found.consumers, found.member_count, found.offsets[ORDERS, 0].offset) == (None, 1, 7)
    assert cluster.save(MEMBER, version=found.version, epoch=4) is OUTDATED


def test_c4_there_are_so_many_bytes_and_members_and_no_more(cluster, monkeypatch):
    monkeypatch.setattr(consumer_groups, "BYTES_MAX", 2_000)
    large = replace(MEMBER, topics=["t" * 900] * 2)
    assert cluster.save(MEMBER) is OK
    assert cluster.save(large, version=1) is ResponseCode.CLUSTER_FULL
    assert cluster.save(version=1, removed=["m"]) is OK, "what shrinks is always taken"
    monkeypatch.setattr(consumer_groups, "MEMBERS_MAX", 1)
    assert cluster.save(MEMBER, version=2) is OK
    other = replace(MEMBER, member_id="n")
    assert cluster.save(other, version=3) is ResponseCode.CLUSTER_FULL
    assert cluster.save(other, version=3, removed=["m"]) is OK
    monkeypatch.setattr(consumer_groups, "GROUPS_MAX", 1)
    assert cluster.save(MEMBER, name="second") is ResponseCode.CLUSTER_FULL


def test_a_snapshot_has_all_of_it_and_counts_its_bytes_alike(cluster):
    cluster.save(MEMBER, replace(MEMBER, member_id="n", instance_id="i", assigned={}))
    cluster.save(replace(MEMBER, revoking={ORDERS: [3]}), version=1, removed=["n"])
    cluster.do(SaveGroup(TERM, "c", 3, "consumer", "range", "c", [CLASSIC]))
    cluster.save(MEMBER, version=1, name="c")
    state = cluster.machine._state
    restored = ClusterState.decode(state.encode()).consumer_groups
    assert restored.records == state.consumer_groups.records
    assert restored.size_bytes == state.consumer_groups.size_bytes > 0


@pytest.mark.parametrize(("changed", "makes_room"), [([], True), ([MEMBER], False)])
def test_on_full_disks_members_that_go_are_saved(cluster, changed, makes_room):
    command = SaveConsumers(TERM, "g", 1, 5, changed, ["n"])
    body = memoryview(encode(Envelope(bytes(16), 1, command)))
    assert cluster.machine.releases(body) is makes_room
