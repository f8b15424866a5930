"""The consensus core: Raft as a state machine that takes events and returns effects.

Elections, replication, membership changes, leadership transfer, linearizable reads and quiescence
live here, each in a module of its own around `core`. Nothing here has a clock, a socket, a file, a
thread or a random generator, or sees the bytes of an entry, so a run is repeated by its events. The
core imports `model` alone; `node` carries the effects out.
"""
