"""quorumlog: a Raft-replicated commit log for Python and Spark."""
