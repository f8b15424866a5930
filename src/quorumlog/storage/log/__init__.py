"""A live log: appends, truncation, retention, hard state, snapshots.

The newest entries stay in memory, and writes are plans that the disk thread carries out. Which
entries are appended or removed, and when, is decided elsewhere.
"""
