"""Which batches of idempotent producers were refused, so that those after them are refused alike.

A producer has several batches under way. If a leader that has just been elected refuses the first
of them and would take the next, that one is out of order. librdkafka then takes a new epoch, and
may append records of other partitions twice whose first outcome it does not know. The first
refusal says what is true of all of them: send it again.
"""

from typing import Final, NamedTuple, TypeAlias

from quorumlog.kafka.errors import ErrorCode

REFUSED_MAX: Final = 4_096
"""Producers of partitions whose refusals are remembered; that of the oldest is forgotten first."""
REFUSED_S: Final = 5.0
"""How long later batches are refused alike. What is out of order after that is so for itself."""
RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors after which producers send a batch again."""
Key: TypeAlias = tuple[int, str, int]
"""Producer id, topic and partition."""


class _Refused(NamedTuple):
    error: ErrorCode
    at_s: float


class RefusedBatches:
    """The last refusals of one node. Times are in seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._refused: dict[Key, _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def error_for(self, key: Key, error: ErrorCode, now_s: float) -> ErrorCode:
        """Remember a refusal, and return the error that the producer is to be told."""
        if error in RETRIABLE:
            self._refused.pop(key, None)
            self._refused[key] = _Refused(error, now_s)
            if len(self._refused) > REFUSED_MAX:
                del self._refused[next(iter(self._refused))]
        elif error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            before = self._refused.get(key)
            if before is not None and now_s - before.at_s <= REFUSED_S:
                return before.error
        return error

    def appended(self, key: Key) -> None:
        """A batch was appended: what was refused before it has come again."""
        self._refused.pop(key, None)
