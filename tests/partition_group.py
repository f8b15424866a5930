"""A simulated group that holds partitions, for tests: produce to it, read it, kill its nodes."""

from quorumlog.model.block import Block, parse_block
from quorumlog.model.codes import ResponseCode, WriteLevel
from quorumlog.node.replica.partition_reads import PartitionRead
from quorumlog.records.batch import batch_header
from quorumlog.sessions.entries import decode_system_entry
from quorumlog.sim.cluster import SimulatedCluster
from quorumlog.topics.entries import PartitionOpened
from quorumlog.topics.produced_batch import ProducedBatch, block_around
from record_batches import batch_of

ROOM = 64


class PartitionGroup:
    """Three nodes; every call runs until it is answered."""

    def __init__(self, seed=1, channels=(1, 2, 3), **settings):
        self.cluster = SimulatedCluster(seed, 3, kind="partitions", **settings)
        for node in self.cluster.nodes.values():
            node.start()
        self.write(*[PartitionOpened(at, at, bytes(16), "t").encode() for at in channels])

    def wait(self, is_done, limit_ms=20_000):
        end_ms = self.cluster.clock.now_ms + limit_ms
        while not is_done():
            assert self.cluster.clock.now_ms < end_ms, self.cluster.describe()
            self.cluster.run_until(self.cluster.clock.now_ms + 10)

    def leader(self):
        def is_ready():
            found = self.cluster.leader()
            return found is not None and found.core.is_ready

        self.wait(is_ready)
        return self.cluster.leader()

    def call(self, act):
        """Return the answer to what `act` asks of the leader's replica."""
        leader, answers = self.leader(), []
        leader.enter(lambda: act(leader.running, lambda *answer: answers.append(answer)))
        self.wait(lambda: answers)
        return answers[0]

    def write(self, *entries):
        """Append entries of the system channel."""
        data = memoryview(bytearray(b"".join(entries)))
        block = parse_block(data, count=len(entries), entry_bytes_max=4_096)
        first = decode_system_entry(data[48 : len(entries[0])])
        response, _ = self.call(lambda replica, answer: replica.propose(block, answer, first))
        assert response.code == ResponseCode.SUCCESS, response

    def produce(self, channel, batch=None, *, level=WriteLevel.REPLICATION, **fields):
        """Return (code, the batch as it was produced)."""
        produced, block = prepared(channel, batch, **fields)
        response, _ = self.call(
            lambda replica, answer: replica.propose(block, answer, produced, level)
        )
        return ResponseCode(response.code), produced

    def read(self, channel, offset, bytes_max=1 << 20):
        """Return the answer of the leader for one partition."""
        reads = [PartitionRead(channel, offset, bytes_max)]
        ((found,),) = self.call(
            lambda replica, answer: replica.partition_reads.read(reads, bytes_max, answer, None)
        )
        return found

    def find(self, channel, timestamp):
        """Return the answer of the leader to a look-up by time."""
        (found,) = self.call(
            lambda replica, answer: replica.partition_times.find(channel, timestamp, answer)
        )
        return found

    def values(self, channel):
        """Return (base offset, count) of all batches of a partition."""
        found, offset = [], 0
        while True:
            answer = self.read(channel, offset)
            assert answer.code is ResponseCode.SUCCESS, answer
            if not answer.batches:
                return found
            headers = [batch_header(one) for one in answer.batches]
            found += [(header.base_offset, header.count) for header in headers]
            offset = headers[-1].last_offset + 1


def prepared(
    channel, batch=None, *, count=1, gets_append_time=False, **fields
) -> tuple[ProducedBatch, Block]:
    """Return a batch and the block in which it is proposed."""
    batch = batch_of(range(count), **fields) if batch is None else batch
    buffer = memoryview(bytearray(bytes(ROOM) + bytes(batch)))
    block = block_around(buffer, ROOM, len(buffer), channel)
    return ProducedBatch(channel, batch_header(batch), gets_append_time), block
