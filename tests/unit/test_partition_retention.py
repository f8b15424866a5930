"""Retention of partitions: what is given up, when its space comes back, and what stays."""

import random

import pytest

from partition_group import PartitionGroup
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import GroupConfig
from quorumlog.node.replica import partition_retention
from quorumlog.storage.files.space import DiskState
from quorumlog.topics.batch_index import SealLimits
from quorumlog.topics.entries import PartitionClosed, PartitionOpened
from quorumlog.topics.retention import PartitionSpace, RetentionRule

OK, OUTSIDE = ResponseCode.SUCCESS, ResponseCode.INDEX_OUT_OF_RANGE
VALUE = bytes(1_000)


class Group(PartitionGroup):
    """A group of small data files, whose partitions are retained by rules."""

    def __init__(self, seed=1, **settings):
        limits = SealLimits(batches=20)
        super().__init__(seed, seal_limits=limits, clean_interval=100, **settings)
        self.file_bytes = self.leader().running.config.data_file_bytes

    def set_rules(self, rules, *confirm):
        for node in self.cluster.nodes.values():
            if node.is_up:
                node.running.partition_retention.set_rules(rules, *confirm)

    def pass_(self, ms):
        self.cluster.run_until(self.cluster.clock.now_ms + ms)

    def fill(self, channel, count):
        for _ in range(count):
            assert self.produce(channel, value=VALUE)[0] is OK

    def start_of(self, channel):
        return self.leader().running.partition_reads.partition(channel).log_start

    def delete(self, channel, offset):
        (found,) = self.call(
            lambda replica, answer: replica.partition_retention.delete_records(
                channel, offset, answer
            )
        )
        return found

    def sizes(self, channel):
        retained = [node.running.partition_retention for node in self.cluster.nodes.values()]
        return [one.known_bytes(channel) for one in retained]

    def log_bytes(self):
        return [node.running.log.size_bytes for node in self.cluster.nodes.values()]

    def readable_bytes(self):
        replica = self.leader().running
        channels = replica.tables.partitions.partitions
        return sum(map(replica.partition_retention.readable_bytes, channels))

    def wait_for_space(self):
        """Wait until all replicas have given back what is not offered."""
        self.wait(lambda: max(self.log_bytes()) <= self.readable_bytes() + 2 * self.file_bytes)

    def digests(self):
        found = [node.running.tables.digests(-1) for node in self.cluster.nodes.values()]
        return [{name: one[name] for name in ("partitions.2", "marks.1")} for one in found]


@pytest.fixture
def group():
    return Group()


def test_b9_records_are_deleted_on_request(group):
    group.fill(1, 10)
    assert group.delete(1, 4).log_start == 4
    assert (group.read(1, 3).code, group.read(1, 4).code) == (OUTSIDE, OK)
    again = group.delete(1, 2)
    assert (again.code, again.log_start) == (OK, 4)
    beyond = group.delete(1, 11)
    assert (beyond.code, beyond.log_start) == (OUTSIDE, 4)
    assert group.delete(1, -2).code is OUTSIDE
    assert group.delete(1, partition_retention.HIGH_WATERMARK).log_start == 10
    assert group.delete(9, 0).code is ResponseCode.UNKNOWN_PARTITION
    assert group.produce(1)[1].base_offset == 10


def test_the_size_of_a_partition_is_known_at_all_replicas_after_its_log_start_moved(
    group,
):
    group.fill(1, 10)
    sizes = group.sizes(1)
    assert len(set(sizes)) == 1
    group.delete(1, 4)
    group.wait(lambda: None not in group.sizes(1) and group.sizes(1) != sizes)
    group.pass_(200)
    assert set(group.sizes(1)) == {sizes[0] * 6 // 10}
    group.delete(1, 10)
    group.pass_(200)
    assert set(group.sizes(1)) == {0}


def test_only_a_leader_deletes_records(group):
    leader, found = group.leader(), []
    (other, _) = [node for node in group.cluster.nodes.values() if node is not leader]
    retention = other.running.partition_retention
    other.enter(lambda: retention.delete_records(1, 0, found.append))
    assert found[0].code is ResponseCode.NOT_LEADER


def test_b9_bytes_above_the_bound_are_given_up_by_whole_batches(group):
    group.fill(1, 30)
    group.fill(2, 5)
    size = group.readable_bytes() // 35
    group.set_rules({1: RetentionRule(None, 10 * size + 1), 2: RetentionRule(None, 10 * size)})
    group.wait(lambda: group.start_of(1) > 0)
    group.pass_(1_000)
    assert (group.start_of(1), group.start_of(2)) == (19, 0)
    group.fill(1, 3)
    group.wait(lambda: group.start_of(1) == 22)
    assert group.readable_bytes() == 16 * size


def test_b9_nothing_is_given_up_by_rules_of_which_nobody_says_that_they_are_the_newest(group):
    group.fill(1, 30)
    rules, asked = {1: RetentionRule(None, 10 * group.readable_bytes() // 30)}, []

    def answer(are_newest):
        group.wait(lambda: asked)
        group.pass_(1_000)
        assert len(asked) == 1, "one question at a time"
        done = asked.pop()
        group.leader().enter(lambda: done(are_newest))

    group.set_rules(rules, asked.append)
    answer(are_newest=False)
    group.wait(lambda: asked)
    group.set_rules({1: RetentionRule(None, 1 << 30)}, asked.append)
    answer(are_newest=True)
    group.pass_(1_000)
    assert group.start_of(1) == 0, "it keeps more by the present rules"
    group.set_rules(rules, asked.append)
    answer(are_newest=True)
    group.wait(lambda: group.start_of(1) == 20)


def test_b9_records_are_given_up_by_their_age(group):
    group.set_rules({1: RetentionRule(4_000, None), 2: RetentionRule(None, None)})
    group.fill(1, 5)
    group.fill(2, 5)
    group.pass_(2_500)
    group.fill(1, 5)
    assert group.start_of(1) == 0
    group.wait(lambda: group.start_of(1) == 5, 3_000)
    assert group.read(1, 4).code is OUTSIDE
    group.wait(lambda: group.start_of(1) == 10, 6_000)
    assert group.start_of(2) == 0
    group.pass_(6_000)
    end = group.leader().running.log.end_index
    group.pass_(3_000)
    assert group.leader().running.log.end_index == end  # time need not be recorded any more


def test_time_is_recorded_as_often_as_the_records_that_are_still_there_need(group):
    group.set_rules({1: RetentionRule(1_000, None), 2: RetentionRule(7 * 86_400_000, None)})
    group.fill(2, 3)
    group.fill(1, 5)
    group.wait(lambda: group.start_of(1) == 5, 6_000)
    end = group.leader().running.log.end_index
    group.pass_(20_000)
    assert group.leader().running.log.end_index == end
    assert group.start_of(2) == 0
    group.fill(1, 1)
    group.wait(lambda: group.start_of(1) == 6, 6_000)


def test_b9_space_comes_back_within_two_files_of_what_is_readable(group):
    group.fill(1, 60)
    for start in (20, 45, 60):
        group.delete(1, start)
        group.wait_for_space()
    assert group.readable_bytes() == 0
    group.fill(2, 3)
    assert [offset for offset, _ in group.values(2)] == [0, 1, 2]


def test_b9_an_idle_partition_keeps_its_old_data_and_what_lies_after_it(group):
    group.fill(2, 1)
    group.fill(1, 40)
    group.delete(1, 40)
    group.pass_(3_000)
    assert min(group.log_bytes()) > 40 * len(VALUE)
    assert [offset for offset, _ in group.values(2)] == [0]
    group.delete(2, 1)
    group.wait_for_space()


def test_b9_the_space_of_a_deleted_topic_comes_back_and_its_records_do_not(group):
    group.fill(1, 40)
    group.write(PartitionClosed(1).encode())
    group.wait_for_space()
    group.write(PartitionOpened(9, 0, bytes(15) + b"x", "t").encode())
    assert (group.read(9, 0).high_watermark, group.read(9, 0).batches) == (0, [])
    group.produce(9, value=b"new")
    assert len(group.read(9, 0).batches) == 1


def test_a_full_disk_takes_no_records_but_lets_go_of_those_that_are_there(group):
    group.fill(1, 5)
    full = DiskState("the disk is full", is_tight=True)
    for node in group.cluster.nodes.values():
        space = node.running.maintenance.space
        space.disk, space._read_state = full, lambda config: full
    assert group.produce(1)[0] is ResponseCode.DISK_FULL
    assert group.delete(1, 4).log_start == 4
    group.write(PartitionClosed(1).encode(), PartitionClosed(2).encode())
    assert group.leader().running.partition_reads.partition(1) is None
    with pytest.raises(AssertionError, match="DISK_FULL"):
        group.write(PartitionOpened(9, 0, bytes(15) + b"x", "t").encode())


def test_what_was_appended_before_the_disks_were_full_does_not_keep_back_what_makes_room():
    """The leader had room, and did not know yet that its followers have none."""
    group = Group(mapped_file_size_for_entry_index=32 * 1_024)
    group.fill(1, 5)
    full = DiskState("the disk is full", is_tight=True)
    leader = group.leader()
    for node in group.cluster.nodes.values():
        if node is not leader:
            space = node.running.maintenance.space
            space.disk, space._read_state = full, lambda config: full
    assert group.produce(1)[0] is ResponseCode.SUCCESS
    assert len(group.values(1)) == 6
    for node in group.cluster.nodes.values():
        if node is not leader:
            node.enter(node.running.maintenance.space.report)
    group.wait(lambda: group.leader().core.no_room_text)
    code, _ = group.produce(1)
    assert code is ResponseCode.DISK_FULL
    assert group.delete(1, 4).log_start == 4


def test_the_age_of_data_files_takes_nothing_from_a_partition():
    hours = ";".join(map(str, range(24)))
    group = Group(file_reserved_hours=1, hour_ms=200, delete_when=hours, retention_bytes=1)
    group.fill(1, 40)
    group.pass_(2_000)
    assert len(group.values(1)) == 40


def test_index_files_of_batches_go_with_the_log(group):
    group.fill(1, 45)
    group.wait(lambda: group.leader().running.tables.batches.sealed)
    group.pass_(300)
    nodes = list(group.cluster.nodes.values())
    assert all(node.files.names("/node/g/quorumlog.batches") for node in nodes)
    group.delete(1, 45)
    group.wait_for_space()
    group.fill(1, 21)
    group.wait(
        lambda: all(
            int(name[:20]) > node.running.log.before_begin_index - 60
            for node in nodes
            for name in node.files.names("/node/g/quorumlog.batches")
        )
    )
    firsts = [node.running.tables.batches.sealed[0].last_index for node in nodes]
    assert min(firsts) > min(node.running.log.before_begin_index for node in nodes)


def test_data_files_of_groups_with_partitions_are_small_by_themselves():
    def size(**settings):
        return GroupConfig(group="g", peers="n0-h:1", **settings).data_file_bytes

    assert size() == 1 << 30
    assert size(kind="partitions") == 256 << 20
    assert size(kind="partitions", mapped_file_size_for_entry_data=8 << 20) == 8 << 20


@pytest.mark.parametrize("seed", range(3))
def test_b9_replicas_agree_whatever_is_killed_while_records_are_given_up(seed):
    choice, group = random.Random(seed), Group(seed)
    rules = {1: RetentionRule(5_000, 12_000), 2: RetentionRule(None, 5_000)}
    group.set_rules(rules)
    produced = {1: [], 2: [], 3: []}
    for _ in range(4):
        for _ in range(12):
            channel = choice.choice([1, 2, 3])
            code, batch = group.produce(channel, value=VALUE[: choice.choice([10, 500, 1_000])])
            assert code is OK
            produced[channel].append(batch.base_offset)
        if choice.random() < 0.5:
            group.delete(3, choice.choice(produced[3] or [0]))
        group.pass_(choice.choice([10, 100, 3_000]))
        node = choice.choice(list(group.cluster.nodes.values()))
        node.stop(power=choice.random() < 0.5)
        group.leader()
        group.pass_(choice.choice([0, 200]))
        node.start()
        group.set_rules(rules)
    group.fill(1, 1)
    group.wait_for_space()
    group.pass_(2_000)
    ends = {node.running.core.committed_index for node in group.cluster.nodes.values()}
    first, *others = group.digests()
    assert len(ends) == 1
    assert others == [first, first]
    for channel, offsets in produced.items():
        start = group.start_of(channel)
        kept = [offset for offset in offsets if offset >= start]
        answer = group.read(channel, start)
        assert answer.code is OK
        found = [int.from_bytes(one[:8]) for one in answer.batches]
        assert [offset for offset in found if offset in kept] == kept


def test_partitions_are_looked_at_again_only_when_something_has_happened(group, monkeypatch):
    looked = []
    for name in ("readable_bytes", "start_by"):
        method = getattr(PartitionSpace, name)

        def noted(space, channel, *more, method=method):
            looked.append(channel)
            return method(space, channel, *more)

        monkeypatch.setattr(PartitionSpace, name, noted)
    group.fill(1, 10)
    group.set_rules({1: RetentionRule(7 * 86_400_000, None), 2: RetentionRule(None, 1 << 30)})
    group.pass_(1_000)
    assert looked
    looked.clear()
    group.pass_(20_000)
    assert looked == []
    group.fill(1, 1)
    group.pass_(200)
    assert set(looked) >= {1, 2}
    looked.clear()
    group.set_rules({1: RetentionRule(None, 1)})
    group.wait(lambda: group.start_of(1) == 10)
