"""Failures that a command words itself, and exit statuses."""

from quorumlog.model.errors import QuorumlogError

EXIT_FAILED = 1
EXIT_BEYOND_END = 3


class CommandError(QuorumlogError):
    """The operation failed; the message is all that the user is shown."""


class BeyondEndError(CommandError):
    """An index lies beyond the end of the log: nothing is there, or nothing yet."""
