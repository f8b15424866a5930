"""Which batches of idempotent producers were refused, so that those after them are refused alike.

A producer has several batches under way. A leader that has just been elected may refuse the first
of them, and would judge the next. If that is out of order, librdkafka takes a new epoch, and may
append records of other partitions twice whose first outcome it does not know. If the leader does
not know the producer, any sequence may begin: the next batch would be taken, and librdkafka takes
its acknowledgement for one of the first. The first refusal says what is true of all of them: send
it again.
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
SEQUENCES: Final = 1 << 31
"""How many sequence numbers there are before they begin at 0 again."""
LATER: Final = range(1, SEQUENCES // 2)
"""How much larger the sequence of a later batch is."""
Key: TypeAlias = tuple[int, str, int]
"""Producer id, topic and partition."""


class _Refused(NamedTuple):
    error: ErrorCode
    epoch: int
    sequence: int
    at_s: float


class RefusedBatches:
    """The last refusals of one node. Times are in seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._refused: dict[Key, _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def refused(self, key: Key, epoch: int, sequence: int, error: ErrorCode, now_s: float) -> None:
        """Remember the refusal of a batch, unless an earlier one of the producer is remembered."""
        if error not in RETRIABLE or self.error_for(key, epoch, sequence, now_s) is not None:
            return
        self._refused.pop(key, None)
        self._refused[key] = _Refused(error, epoch, sequence, now_s)
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    def error_for(self, key: Key, epoch: int, sequence: int, now_s: float) -> ErrorCode | None:
        """Return the error of a batch refused before this one, which has not come again."""
        before = self._refused.get(key)
        if before is None or epoch != before.epoch or now_s - before.at_s > REFUSED_S:
            return None
        return before.error if (sequence - before.sequence) % SEQUENCES in LATER else None

    def taken(self, key: Key, epoch: int, sequence: int) -> None:
        """A batch goes into the log: if it is the one that was refused, later ones may follow."""
        before = self._refused.get(key)
        if before is not None and (epoch, sequence) == (before.epoch, before.sequence):
            del self._refused[key]
