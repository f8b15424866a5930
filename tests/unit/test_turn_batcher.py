"""What comes in one turn of the loop leaves together, within bounds and in order."""

from quorumlog.model.turn_batcher import TurnBatcher


class Turn:
    """A turn of an event loop that ends when it is told to."""

    def __init__(self, **bounds):
        self.deferred = []
        self.delivered = []
        options = {"bytes_max": 10, "entries_max": 3} | bounds
        self.batcher = TurnBatcher(self.deferred.append, self.delivered.extend, **options)

    def end(self):
        deferred, self.deferred[:] = list(self.deferred), []
        for flush in deferred:
            flush()
        delivered, self.delivered[:] = list(self.delivered), []
        return delivered


def test_items_of_one_turn_are_one_batch_and_one_flush():
    turn = Turn()
    turn.batcher.add("k", "a", 1)
    turn.batcher.add("k", "b", 2)
    assert (len(turn.batcher), turn.batcher.size_bytes, len(turn.deferred)) == (2, 3, 1)
    assert turn.end() == [("k", ["a", "b"])]
    assert (len(turn.batcher), turn.batcher.size_bytes) == (0, 0)
    turn.batcher.add("k", "c", 1)
    assert turn.end() == [("k", ["c"])]


def test_a_batch_stays_within_bytes_and_entries():
    turn = Turn(lead_bytes=2)
    for number, size in enumerate((4, 4, 1, 20, 1, 1, 1, 1)):
        turn.batcher.add("k", number, size)
    assert [batch for _, batch in turn.end()] == [[0, 1], [2], [3], [4, 5, 6], [7]]


def test_an_item_may_have_several_entries():
    turn = Turn()
    for number, entries in enumerate((2, 2, 1)):
        turn.batcher.add("k", number, 1, entries)
    assert [batch for _, batch in turn.end()] == [[0], [1, 2]]


def test_items_of_different_keys_do_not_share_a_batch():
    turn = Turn()
    for key, item in (("x", 1), ("y", 2), ("x", 3)):
        turn.batcher.add(key, item, 1)
    assert turn.end() == [("x", [1, 3]), ("y", [2])]


def test_what_is_added_during_a_delivery_waits_for_the_next_turn():
    turn = Turn()
    turn.batcher._deliver = lambda batches: turn.batcher.add("k", "later", 1)
    turn.batcher.add("k", "now", 1)
    turn.end()
    assert len(turn.deferred) == len(turn.batcher) == 1
