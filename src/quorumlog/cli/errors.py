"""Failures that a command words itself."""

from quorumlog.model.errors import QuorumlogError


class CommandError(QuorumlogError):
    """The operation failed; the message is all that the user is shown."""
