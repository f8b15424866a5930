"""Spark on top of the log: the data source `quorumlog` and a local session that is set up right."""
