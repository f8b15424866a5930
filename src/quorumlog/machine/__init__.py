"""Replicated state machines: what a user writes, and those that come with quorumlog.

`base` is the protocol of a machine, and `kv` a map of keys to values. A machine knows entries and
snapshots; it knows nothing of Raft, of the log's files or of clocks.
"""

from quorumlog.machine.base import FrozenState, SnapshotReader, SnapshotWriter, StateMachine

__all__ = ["FrozenState", "SnapshotReader", "SnapshotWriter", "StateMachine"]
