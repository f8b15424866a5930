"""Full disks and blocks of producers: none is pushed, stored or acknowledged in part."""

import pytest
from test_sessions import block_of

from quorumlog.model.codes import ResponseCode
from quorumlog.sim.cluster import LIMITS, SimulatedCluster
from quorumlog.storage.files.space import DiskState

FULL = DiskState("the disk is full", is_tight=True)
COUNT = 20


class Cluster:
    """Three nodes; the disks of the followers become full without the leader knowing it."""

    def __init__(self, seed):
        self.cluster = SimulatedCluster(
            seed, 3, has_sessions=True, mapped_file_size_for_entry_index=32 * 4096
        )
        for node in self.cluster.nodes.values():
            node.start()
        self.sequence = 0
        self.leader = self.wait_leader()
        self.followers = [one for one in self.cluster.nodes.values() if one is not self.leader]

    def wait(self, condition, within_ms=20_000):
        end_ms = self.cluster.clock.now_ms + within_ms
        while not condition():
            assert self.cluster.clock.now_ms < end_ms, self.cluster.describe()
            self.run_for(10)

    def run_for(self, time_ms):
        self.cluster.run_until(self.cluster.clock.now_ms + time_ms)

    def wait_leader(self):
        self.wait(lambda: (found := self.cluster.leader()) is not None and found.core.is_ready)
        return self.cluster.leader()

    def propose(self, producer_id, sequence, bodies):
        entry, block = block_of(producer_id, sequence, bodies)
        answers = []
        leader = self.wait_leader()
        leader.enter(
            lambda: leader.propose(block, lambda response, _: answers.append(response), entry)
        )
        return answers

    def append(self, size):
        answers = self.propose(9, self.sequence, [bytes(size)])
        self.sequence += 1
        self.wait(lambda: answers)
        assert answers[0].code == ResponseCode.SUCCESS

    def set_disks(self, state):
        for node in self.followers:
            space = node.running.maintenance.space
            space._read_state, space.disk = (lambda config: state), state
            if state is FULL:
                space.report = lambda: None  # the leader does not know yet

    def fill(self, bytes_left):
        """Append until followers take at most `bytes_left` further bytes."""
        self.set_disks(FULL)
        taken = LIMITS.push_bytes_max + bytes_left
        while min(one.running.log.free_space().size_bytes for one in self.followers) > taken:
            self.append(300)


@pytest.mark.parametrize("seed", range(3))
def test_a_full_follower_takes_a_producers_block_as_a_whole_or_not_at_all(seed):
    """A repeated block would else be taken for one that is there, and what it says be lost."""
    world = Cluster(seed)
    world.fill(2_600)
    first = world.leader.running.log.end_index + 1
    bodies = [b"%02d" % number + bytes(298) for number in range(COUNT)]
    answers = world.propose(7, 0, bodies)
    world.run_for(3_000)
    for node in world.followers:
        assert node.running.log.end_index == first - 1
    assert not any(one.code == ResponseCode.SUCCESS for one in answers)
    world.leader.stop(power=True, why="loss of power")
    world.set_disks(DiskState())
    world.run_for(3_000)
    for _ in range(COUNT + 5):
        world.append(10)
    again = world.propose(7, 0, bodies)
    world.wait(lambda: again)
    (found,) = again
    assert found.code == ResponseCode.SUCCESS
    log, index, stored = world.wait_leader().running.log, found.first_index, []
    while index <= found.last_index:
        run = log.read(index, found.last_index, 1 << 20)
        block = run.block()
        for offset, size in zip(block.offsets.tolist(), block.sizes.tolist(), strict=True):
            stored.append(bytes(block.data[offset + 48 : offset + size]))
        index = run.last_index + 1
    assert stored[-COUNT:] == bodies


def test_what_fits_into_the_files_of_a_full_follower_is_taken_block_by_block():
    world = Cluster(5)
    world.fill(8_000)
    first = world.leader.running.log.end_index + 1
    small = world.propose(7, 0, [bytes(300)] * 5)
    large = world.propose(8, 0, [bytes(600)] * COUNT)
    world.run_for(3_000)
    assert [one.code for one in small] == [ResponseCode.SUCCESS]
    assert not any(one.code == ResponseCode.SUCCESS for one in large)
    assert {one.running.log.end_index for one in world.followers} == {first + 5}
