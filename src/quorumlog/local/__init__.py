"""A cluster of node processes on this machine, kept in one directory."""

from quorumlog.local.cluster import LocalCluster
from quorumlog.local.errors import LocalClusterError

__all__ = ["LocalCluster", "LocalClusterError"]
