"""Simulated runs make many objects that live to the end of the run."""

import gc
from contextlib import contextmanager

from quorumlog.sim.campaign import GC_ALLOCATIONS


@contextmanager
def garbage_is_collected_seldom():
    """As in the processes of a campaign: looking for garbage as often as usual takes a fifth."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 50, 50)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()
