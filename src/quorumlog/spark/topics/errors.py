"""What can be wrong with topics that are to be read."""

from quorumlog.model.errors import QuorumlogError


class UnknownTopicError(QuorumlogError):
    """The cluster has no such topic or partition."""

    def __init__(self, message: str, topic: str) -> None:
        super().__init__(message)
        self.topic = topic


class OffsetOutOfRangeError(QuorumlogError):
    """An offset is below the first one that a partition keeps, or beyond its end."""


class PassingError(QuorumlogError):
    """A broker could not answer, or does not lead: the same may succeed in a moment."""
