"""Replicated state machines: what a user writes, and those that come with quorumlog."""

from quorumlog.machine.base import FrozenState, SnapshotReader, SnapshotWriter, StateMachine

__all__ = ["FrozenState", "SnapshotReader", "SnapshotWriter", "StateMachine"]
