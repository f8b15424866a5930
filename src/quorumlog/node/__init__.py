"""Where the core meets disk, network and time: one node a process, one replica a group.

Here live the threads, timers and connections that all replicas of a node share; what belongs to one
group is in `quorumlog.node.replica`. Rules of Raft are in `quorumlog.raft`, file formats in
`quorumlog.storage`, and requests of clients in `quorumlog.service`: none of that may be here.
"""
