"""Writes data frames and streams to a group, each row exactly once.

The options of the sink are here, and the writers that run in Spark's tasks and on its driver. How
transactions work is known to `quorumlog.client` alone.
"""
