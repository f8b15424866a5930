"""One replica of one group: events go into its core, the effects come out and are carried out.

Each module is one part of a replica; it gets a `ReplicaContext` and the parts that it works with,
and never the whole `Replica`. Everything that differs between a real and a simulated run comes in
through `quorumlog.node.environment`: no part opens a file or a socket, reads a clock or starts a
thread.
"""
