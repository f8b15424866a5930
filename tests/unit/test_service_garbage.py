"""Looking at all objects for garbage takes long, so it is rare, and nothing in a node needs it."""

import gc
import weakref
from types import SimpleNamespace

import pytest

from quorumlog.model.block import encode_block, parse_block
from quorumlog.service.garbage import COLLECT_S, YOUNG_OBJECTS, GarbageCollection
from quorumlog.storage.log.tail_cache import CachedRun


class Loop:
    """Calls what was scheduled when the test says so."""

    def __init__(self):
        self.scheduled = []

    def call_later(self, delay_s, call):
        self.scheduled.append((delay_s, call))
        return SimpleNamespace(cancel=self.scheduled.clear)


class Knot:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self):
        self.me = self


@pytest.fixture
def collection():
    before = gc.get_threshold()
    made = GarbageCollection(Loop())
    made.start()
    yield made
    made.stop()
    gc.unfreeze()
    assert gc.get_threshold() == before


def test_a_full_collection_runs_only_once_a_minute(collection):
    knot = Knot()
    gc.collect(1)  # it is old now
    seen = weakref.ref(knot)
    del knot
    kept = [[] for _ in range(200_000)]
    assert seen() is not None, "Python itself would have looked at all objects by now"
    ((delay_s, collect),) = collection._loop.scheduled
    assert delay_s == COLLECT_S
    collect()
    assert seen() is None
    assert len(collection._loop.scheduled) == 2, "and again a minute later"
    assert len(kept) == 200_000


def test_what_a_started_node_has_is_not_looked_at_any_more(collection):
    knot = Knot()
    seen = weakref.ref(knot)
    collection.started()
    del knot
    gc.collect()
    assert seen() is not None


def test_young_objects_are_left_alone_for_longer_than_python_does(collection):
    gc.collect(0)
    knot = Knot()
    seen = weakref.ref(knot)
    del knot
    kept = [[] for _ in range(YOUNG_OBJECTS // 2)]
    assert seen() is not None, "Python itself would have looked at it after 700"
    kept += [[] for _ in range(2 * YOUNG_OBJECTS)]
    assert seen() is None


def test_what_a_node_keeps_of_an_entry_is_not_tracked_by_the_collector():
    data = memoryview(bytearray(encode_block([b"body"])))
    block = parse_block(data, count=1, entry_bytes_max=1_000)
    run = CachedRun(0, block, bytes(32))
    assert not gc.is_tracked(run)
    assert not gc.is_tracked(block)
    assert not gc.is_tracked(run.records)
