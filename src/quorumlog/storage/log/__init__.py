"""A live log: appends, truncation, retention, hard state, snapshots.

The newest entries stay in memory; group commits are written by plans that the disk thread runs.
"""
