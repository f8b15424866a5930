"""What can go wrong with a cluster of local processes."""

from quorumlog.model.errors import QuorumlogError


class LocalClusterError(QuorumlogError):
    """The directory, a node process or the group is not as the operation needs it."""
