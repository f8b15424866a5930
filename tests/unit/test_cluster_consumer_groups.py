"""Consumer groups in the state of `__cluster`: what each command of a coordinator does."""

import io

import pytest
from msgspec.structs import replace

from cluster_commands import BILLS, ORDERS, TERM, Coordinated
from quorumlog.machine.cluster import consumer_groups
from quorumlog.machine.cluster.commands import (
    AllocateProducerIds,
    CommitOffsets,
    CommitTogether,
    DeleteOffsets,
    DeleteTopics,
    ForgetGroups,
    OffsetToCommit,
    SavedMember,
    SaveGroup,
    TopicToDelete,
)
from quorumlog.machine.cluster.consumer_groups import CommittedOffset
from quorumlog.machine.cluster.state import ClusterState
from quorumlog.model.codes import ResponseCode

OK = ResponseCode.SUCCESS
MEMBER = SavedMember("m", None, "client", "host", 10_000, 60_000, b"topics", b"part")


class Cluster(Coordinated):
    """The state, with two topics, as its machine has it."""

    @property
    def groups(self):
        return self.machine.view.consumer_groups

    def save(self, name="g", generation=1, members=(MEMBER,), **fields):
        command = SaveGroup(TERM, name, generation, "consumer", "range", "m", list(members))
        return self.do(command, **fields)

    def commit(self, *offsets, name="g", generation=-1, **fields):
        found = [OffsetToCommit(*one) for one in offsets]
        return self.do(CommitOffsets(TERM, name, generation, found), **fields)

    def offsets(self, name="g"):
        return {place: one.offset for place, one in self.groups[name].offsets.items()}


@pytest.fixture
def cluster():
    return Cluster()


def test_b5_the_last_commit_of_a_partition_counts(cluster):
    assert cluster.commit((ORDERS, 0, 10), (ORDERS, 1, 20)).codes == [OK, OK]
    assert cluster.commit((ORDERS, 1, 25, 4, "note"), at_ms=9).codes == [OK]
    assert cluster.offsets() == {(ORDERS, 0): 10, (ORDERS, 1): 25}
    assert cluster.groups["g"].offsets[ORDERS, 1] == CommittedOffset(25, 4, "note", 9)


def test_b5_commits_that_come_together_count_one_after_the_other_and_each_by_itself(cluster):
    cluster.save(generation=4)
    commits = [
        CommitOffsets(TERM, "g", 4, [OffsetToCommit(ORDERS, 0, 10)]),
        CommitOffsets(TERM, "g", 3, [OffsetToCommit(ORDERS, 0, 5)]),
        CommitOffsets(
            TERM, "h", -1, [OffsetToCommit(ORDERS, 0, 7), OffsetToCommit(bytes(16), 0, 1)]
        ),
        CommitOffsets(TERM, "g", 4, [OffsetToCommit(ORDERS, 0, 12)]),
    ]
    results = cluster.do(CommitTogether(TERM, commits)).results
    assert [one.code for one in results] == [OK, ResponseCode.INCONSISTENT_TERM, OK, OK]
    assert results[2].codes == [OK, ResponseCode.UNKNOWN_TOPIC]
    assert (cluster.offsets("g"), cluster.offsets("h")) == ({(ORDERS, 0): 12}, {(ORDERS, 0): 7})
    late = cluster.do(CommitTogether(TERM - 1, commits))
    assert late.code is ResponseCode.NOT_LEADER
    assert cluster.offsets("g") == {(ORDERS, 0): 12}


def test_b5_a_commit_to_a_topic_that_is_gone_is_refused_alone(cluster):
    answer = cluster.commit((ORDERS, 0, 1), (bytes(16), 0, 1))
    assert answer.codes == [OK, ResponseCode.UNKNOWN_TOPIC]
    assert cluster.offsets() == {(ORDERS, 0): 1}


def test_b5_offsets_go_with_their_topic(cluster):
    cluster.commit((ORDERS, 0, 1), (BILLS, 0, 2))
    cluster.do(DeleteTopics([TopicToDelete("orders")]))
    assert cluster.offsets() == {(BILLS, 0): 2}


def test_b5_a_member_of_an_earlier_generation_commits_nothing(cluster):
    cluster.save(generation=4)
    assert cluster.commit((ORDERS, 0, 1), generation=3).code is ResponseCode.INCONSISTENT_TERM
    assert cluster.commit((ORDERS, 0, 2), generation=4).code is OK
    assert cluster.offsets() == {(ORDERS, 0): 2}


@pytest.mark.parametrize("term", [TERM - 1, TERM + 1])
def test_b4_what_a_coordinator_decided_counts_only_in_its_term(cluster, term):
    assert cluster.save(term=term).code is ResponseCode.NOT_LEADER
    assert cluster.commit((ORDERS, 0, 1), term=term).code is ResponseCode.NOT_LEADER
    assert cluster.groups == {}


def test_b4_a_saved_group_keeps_its_offsets(cluster):
    cluster.commit((ORDERS, 0, 1))
    cluster.save(generation=2, at_ms=7)
    found = cluster.groups["g"]
    assert (found.generation, found.members, found.changed_ms) == (2, (MEMBER,), 7)
    assert cluster.offsets() == {(ORDERS, 0): 1}


def test_b4_a_delayed_save_does_not_undo_a_later_generation(cluster):
    cluster.save(generation=3)
    assert cluster.save(generation=2, members=()).code is ResponseCode.INCONSISTENT_TERM
    assert cluster.groups["g"].members == (MEMBER,)


def test_b5_deleted_offsets_are_forgotten(cluster):
    cluster.commit((ORDERS, 0, 1), (ORDERS, 1, 2))
    assert cluster.do(DeleteOffsets(TERM, "g", [(ORDERS, 0), (BILLS, 0)])).code is OK
    assert cluster.offsets() == {(ORDERS, 1): 2}
    assert cluster.do(DeleteOffsets(TERM, "x", [])).code is ResponseCode.UNKNOWN_GROUP


def test_a3_groups_without_members_can_be_forgotten(cluster):
    cluster.save("full")
    cluster.save("empty", members=())
    answer = cluster.do(ForgetGroups(TERM, ["full", "empty", "none"]))
    assert answer.codes == [ResponseCode.CHANGE_IN_PROGRESS, OK, ResponseCode.UNKNOWN_GROUP]
    assert list(cluster.groups) == ["full"]


def test_b5_a_group_that_was_used_meanwhile_is_not_old(cluster):
    cluster.commit((ORDERS, 0, 1), at_ms=100)
    answer = cluster.do(ForgetGroups(TERM, ["g"], 99))
    assert answer.codes == [ResponseCode.CHANGE_IN_PROGRESS]
    assert cluster.do(ForgetGroups(TERM, ["g"], 100)).codes == [OK]


def test_c4_there_are_so_many_groups_and_offsets_and_no_more(cluster, monkeypatch):
    monkeypatch.setattr(consumer_groups, "GROUPS_MAX", 2)
    monkeypatch.setattr(consumer_groups, "OFFSETS_MAX", 3)
    cluster.save("one")
    assert cluster.commit((ORDERS, 0, 1), (ORDERS, 1, 1), name="two").code is OK
    assert cluster.save("three").code is ResponseCode.CLUSTER_FULL
    assert cluster.commit((ORDERS, 0, 1), name="three").code is ResponseCode.CLUSTER_FULL
    answer = cluster.commit((ORDERS, 0, 1), (ORDERS, 1, 1), name="one")
    assert answer.codes == [OK, ResponseCode.CLUSTER_FULL]
    assert cluster.commit((ORDERS, 0, 9), name="one").codes == [OK]
    cluster.do(DeleteOffsets(TERM, "two", [(ORDERS, 0)]))
    assert cluster.commit((ORDERS, 1, 1), name="one").codes == [OK]


def test_a_snapshot_has_all_of_it(cluster):
    cluster.commit((ORDERS, 0, 1, 2, "note"))
    cluster.save()
    saved = io.BytesIO()
    cluster.machine.save_snapshot(saved)
    other = Cluster()
    other.machine.load_snapshot(io.BytesIO(saved.getvalue()))
    assert other.groups == cluster.groups
    assert other.machine.digest() == cluster.machine.digest()


def test_commits_leave_what_metadata_is_made_of_as_it_is(cluster):
    version = cluster.machine.view.version
    cluster.commit((ORDERS, 0, 1))
    assert cluster.machine.view.version == version
    cluster.do(AllocateProducerIds(1))
    assert cluster.machine.view.version > version


def test_c4_all_groups_together_have_so_many_bytes_and_no_more(cluster, monkeypatch):
    monkeypatch.setattr(consumer_groups, "BYTES_MAX", 4_000)
    assert cluster.commit((ORDERS, 0, 1, -1, "x" * 3_000)).codes == [OK]
    answer = cluster.commit((ORDERS, 0, 2, -1, "y" * 2_000), (ORDERS, 1, 1, -1, "z" * 2_000))
    assert answer.codes == [OK, ResponseCode.CLUSTER_FULL], "what shrinks is always taken"
    large = replace(MEMBER, metadata=bytes(2_000))
    assert cluster.save(members=(large,)).code is ResponseCode.CLUSTER_FULL
    assert cluster.save(members=()).code is OK
    cluster.do(ForgetGroups(TERM, ["g"]))
    assert cluster.save(members=(large,)).code is OK


def test_c4_the_bytes_of_groups_are_counted_alike_after_a_snapshot(cluster):
    cluster.commit((ORDERS, 0, 1, -1, "a note"), (BILLS, 0, 1))
    cluster.save("other")
    cluster.save("other", generation=2, members=())
    cluster.commit((ORDERS, 0, 2), (ORDERS, 3, 1, -1, "ä"), name="new")
    cluster.do(DeleteOffsets(TERM, "new", [(ORDERS, 0)]))
    cluster.do(DeleteTopics([TopicToDelete("bills")]))
    groups = cluster.machine._state.consumer_groups
    restored = ClusterState.decode(cluster.machine._state.encode()).consumer_groups
    assert groups.size_bytes == restored.size_bytes > 0
    assert groups.offset_count == restored.offset_count


def test_b5_a_commit_of_which_nothing_is_taken_makes_no_group(cluster):
    assert cluster.commit((bytes(16), 0, 1)).codes == [ResponseCode.UNKNOWN_TOPIC]
    assert cluster.groups == {}
