"""Why certificates cannot be made or used."""

from quorumlog.model.errors import QuorumlogError


class PkiError(QuorumlogError):
    """Something stands in the way; the message says what, where, and what to do."""
