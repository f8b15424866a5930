"""Appends on their way through a leader: queued, joined, waiting for a majority."""

from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.limits import Limits
from quorumlog.node.replica.proposals import PendingAppends, Proposal, ProposalQueue


def block_of(*sizes):
    data = memoryview(bytearray(encode_block([b"x" * size for size in sizes])))
    return parse_block(data, count=len(sizes), entry_bytes_max=1 << 20)


def proposal(*sizes, accepted_us=0):
    return Proposal(block_of(*sizes), lambda response: None, accepted_us)


def batches_of(*proposals, **limits):
    """Return the batches in which proposals of one turn of the loop are staged."""
    deferred, batches = [], []
    queue = ProposalQueue(Limits(**limits), deferred.append, batches.append)
    for item in proposals:
        queue.add(item)
    (flush,) = deferred
    flush()
    return batches


def test_small_proposals_of_one_turn_share_a_block():
    items = [proposal(10), proposal(20, 30), proposal(5)]
    (batch,) = batches_of(*items)
    assert batch.members == items
    assert batch.block.count == 4
    assert bytes(batch.block.data) == b"".join(bytes(item.block.data) for item in items)
    assert (batch.block.sizes - 48).tolist() == [10, 20, 30, 5]


def test_joined_blocks_stay_below_the_push_size():
    items = [proposal(400) for _ in range(10)]
    batches = batches_of(*items, push_bytes_max=1_000)
    assert [len(batch.block.data) for batch in batches] == [896] * 5
    assert [member for batch in batches for member in batch.members] == items


def test_one_large_proposal_is_not_copied():
    item = proposal(5_000)
    (batch,) = batches_of(item, push_bytes_max=1_000)
    assert batch.block is item.block


def test_a_queue_that_is_flushed_early_proposes_nothing_twice():
    deferred, batches = [], []
    queue = ProposalQueue(Limits(), deferred.append, batches.append)
    queue.add(proposal(1))
    queue.add(proposal(1))
    assert (queue.queued.count, len(deferred)) == (2, 1)
    queue.flush()
    assert (queue.queued.count, queue.queued.size_bytes, len(batches)) == (0, 0, 1)
    deferred.pop()()
    assert len(batches) == 1
    queue.add(proposal(1))
    assert len(deferred) == 1


def pending_of(batch, first_index, positions, wait_ms=2_500):
    pending = PendingAppends(wait_ms)
    pending.add(batch, first_index, 3, positions)
    return pending


def test_131_each_append_is_answered_once_when_its_last_entry_is_committed():
    (batch,) = batches_of(proposal(1, 1), proposal(1), proposal(1, 1, 1))
    pending = pending_of(batch, 10, [(10, 0)])
    assert pending.pop_committed(10) == []
    assert [item.last_index for item in pending.pop_committed(12)] == [11, 12]
    assert [item.last_index for item in pending.pop_committed(99)] == [15]
    assert pending.pop_beyond(-1) == []
    assert pending.size_bytes == 0


def test_positions_of_members_follow_from_the_spans_of_the_batch():
    (batch,) = batches_of(proposal(2), proposal(4, 6), proposal(8))
    # entries of 50, 52, 54 and 56 bytes; the third one starts a new file at 4096
    pending = pending_of(batch, 100, [(100, 1000), (102, 4096)])
    positions = [item.positions for item in pending.pop_beyond(-1)]
    assert positions == [[(100, 1000)], [(101, 1050), (102, 4096)], [(103, 4150)]]


def test_81_expired_appends_no_longer_count_as_pending():
    (batch,) = batches_of(proposal(1, accepted_us=5_000), proposal(1, accepted_us=9_000))
    pending = pending_of(batch, 0, [(0, 0)], wait_ms=100)
    assert pending.next_deadline_ms() == 105
    assert pending.pop_expired(104) == []
    assert len(pending.pop_expired(105)) == 1
    assert len(pending) == 1
    assert len(pending.pop_expired(109)) == 1
    assert pending.next_deadline_ms() == NEVER_MS
