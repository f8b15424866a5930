"""A cluster of node processes on this machine, kept in one directory.

It starts, stops and kills processes and asks them as any client does; it shares no code with nodes.
For tests, demonstrations and first steps: it is no way to run a cluster on several machines.
"""

from quorumlog.local.cluster import LocalCluster
from quorumlog.local.errors import LocalClusterError
from quorumlog.local.guard import Guard, ending_in_order, guarded, guarded_directory

__all__ = [
    "Guard",
    "LocalCluster",
    "LocalClusterError",
    "ending_in_order",
    "guarded",
    "guarded_directory",
]
