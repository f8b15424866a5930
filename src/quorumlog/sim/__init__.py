"""Whole groups of real replicas on simulated disks, clocks and networks, checked after every event.

Everything that a run draws comes from its seed, so that a finding can be repeated. The product
knows nothing of this package: only the command line and the tests import it.
"""
