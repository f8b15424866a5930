"""Record batches on their way into the log: offsets without gaps, whatever is refused."""

import pytest
from isal.isal_zlib import crc32

from quorumlog.model.block import HEADER_SIZE, bodies_fit, decode_entries, encode_entry, parse_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import GroupConfig
from quorumlog.node.replica.proposals import Proposal, joined
from quorumlog.node.replica.stamped_proposals import StampedProposals
from quorumlog.node.replica.tables import Tables
from quorumlog.records.batch import batch_header, check_batch
from quorumlog.storage.log.memory_log import MemoryLog
from quorumlog.topics.entries import PartitionClosed, PartitionOpened
from quorumlog.topics.produced_batch import ProducedBatch, block_around
from record_batches import batch_of
from replica_context import Surroundings


class Core:
    """A leader's core, as far as stamps depend on it."""

    role, term, takes_proposals = Role.LEADER, 7, True


class Leader(Surroundings):
    """A leader of partitions on channels 3 and 4; what is proposed is appended at once."""

    def __init__(self):
        log = MemoryLog()
        config = GroupConfig(group="g", peers="n0-127.0.0.1:1", kind="partitions")
        super().__init__(config, core=Core(), log=log)
        self.tables = Tables(log, -1, None)
        self.refused = {}
        self.stamped = StampedProposals(self.context, self.tables, lambda batch: batch, self.refuse)
        for channel in (3, 4):
            self.write(PartitionOpened(channel, 0, bytes(16), "t").encode())

    def write(self, entry):
        self.append_block(parse_block(memoryview(bytearray(entry)), count=1, entry_bytes_max=1000))

    def append_block(self, block):
        first = self.context.log.end_index + 1
        self.context.log.append(block, Core.term)
        self.tables.appended(block, first)

    def step(self, event, *, prepare):
        if (batch := prepare()) is not None:
            self.append_block(batch.block)

    def refuse(self, answer, code, text):
        self.refused[answer] = (code, text)

    def propose(self, *batches):
        """Propose (channel, raw batch) together; each is answered by its number."""
        produced = [ProducedBatch(channel, batch_header(raw)) for channel, raw in batches]
        self.propose_all(produced, [raw for _, raw in batches])
        return produced

    def propose_all(self, produced, raws):
        members = []
        for number, (one, raw) in enumerate(zip(produced, raws, strict=True)):
            buffer = memoryview(bytearray(bytes(100) + bytes(raw)))
            block = block_around(buffer, 100, len(buffer), one.channel)
            members.append(Proposal(block, number, 0, one))
        self.stamped.propose(joined(members))

    def stored(self):
        log, entries = self.context.log, []
        while 2 + len(entries) <= log.end_index:
            run = log.read(2 + len(entries), log.end_index, 1 << 20)
            assert bodies_fit(run.block())
            entries += decode_entries(run.block())
        return entries


@pytest.fixture
def leader():
    return Leader()


def test_a_block_around_a_batch_is_the_entry_that_holds_it():
    raw = batch_of([1, 2, 3])
    buffer = memoryview(bytearray(bytes(100) + bytes(raw) + b"more"))
    block = block_around(buffer, 100, 100 + len(raw), 9)
    expected = bytearray(encode_entry(bytes(raw), channel=9))
    expected[40:44] = bytes(4)
    assert bytes(block.data) == expected
    assert block.data.obj is buffer.obj
    assert (block.offsets.tolist(), block.sizes.tolist()) == ([0], [HEADER_SIZE + len(raw)])


def test_batches_of_one_proposal_get_offsets_that_follow(leader):
    sizes = [(3, 5), (4, 2), (3, 1), (4, 7), (3, 2)]
    produced = leader.propose(*[(channel, batch_of(range(count))) for channel, count in sizes])
    assert [one.base_offset for one in produced] == [0, 0, 5, 2, 6]
    more = leader.propose((3, batch_of([1])), (4, batch_of([1])))
    assert [one.base_offset for one in more] == [8, 9]
    for entry, one in zip(leader.stored(), produced + more, strict=True):
        header = check_batch(memoryview(entry.body), 1 << 20)
        assert (header.base_offset, header.leader_epoch) == (one.base_offset, Core.term)
        assert (entry.channel, entry.body_crc) == (one.channel, crc32(entry.body))


def test_a_batch_whose_partition_was_closed_leaves_no_gap(leader):
    raws = [batch_of([1]), batch_of([1, 2]), batch_of([3])]
    produced = [
        ProducedBatch(channel, batch_header(raw))
        for channel, raw in zip((4, 3, 4), raws, strict=True)
    ]
    leader.write(PartitionClosed(3).encode())
    leader.propose_all(produced, raws)
    assert leader.refused[1][0] is ResponseCode.UNKNOWN_PARTITION
    assert [one.base_offset for one in produced] == [0, -1, 1]
    leader.propose((3, batch_of([1])))
    assert len(leader.stored()) == 3  # the closing, and two batches


def test_nothing_gets_an_offset_that_the_core_would_refuse(leader, monkeypatch):
    monkeypatch.setattr(Core, "takes_proposals", False)
    proposed = []
    leader.append_block = proposed.append
    (produced,) = leader.propose((3, batch_of([1])))
    assert (produced.base_offset, len(proposed)) == (-1, 1)


def test_log_append_time_does_not_go_back_in_a_partition(leader):
    found = []
    for leader.now_ms in (5_000, 4_000, 6_000):
        raw = batch_of([9_999_999])
        produced = ProducedBatch(3, batch_header(raw), gets_append_time=True)
        leader.propose_all([produced], [raw])
        found.append(produced.append_time)
    assert found == [5_000, 5_000, 6_000]
    raws = [batch_of([1]), batch_of([2])]
    together = [ProducedBatch(3, batch_header(raw), gets_append_time=True) for raw in raws]
    times = iter([8_000, 7_000])
    leader.context.environment.wall_ms = lambda: next(times)
    leader.propose_all(together, raws)
    found += [one.append_time for one in together]
    assert found[3:] == [8_000, 8_000]
    stored = [batch_header(entry.body) for entry in leader.stored()]
    assert [header.max_timestamp for header in stored] == found
    assert all(header.is_log_append_time for header in stored)
    for entry in leader.stored():
        check_batch(memoryview(entry.body), 1 << 20)
