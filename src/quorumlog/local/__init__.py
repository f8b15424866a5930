"""A cluster of node processes on this machine, kept in one directory."""

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
