"""Reads a group as a data frame or a stream: options, offsets, plans and tasks.

Entries come from servers, or from files of a replica on the same machine. Files of stopped nodes
are read by `quorumlog.spark.store`.
"""
