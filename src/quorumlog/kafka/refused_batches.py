"""Which batches of idempotent producers were refused, so that those after them are refused alike.

A producer has several batches under way. A leader that has just been elected may refuse the first
of them, and would judge the next. If that is out of order, librdkafka takes a new epoch, and may
append records of other partitions twice whose first outcome it does not know. The first refusal
says what is true of all of them: send it again.

The first one may have been refused elsewhere: librdkafka sends the next batch to a new leader
before it has put the one that the old leader refused back into its queue. So a batch that comes too
early is to be sent again as well, for a while; it is out of order if those before it do not come.
The same holds for a producer that is not known and does not begin at 0: if any sequence were taken
at once, the first batch would be lost.
"""

from typing import Final, NamedTuple, TypeAlias

from quorumlog.kafka.errors import ErrorCode
from quorumlog.topics.producers import is_later

REFUSED_MAX: Final = 65_536
"""Producers of partitions whose refusals are remembered; that of the oldest is forgotten first."""
REFUSED_S: Final = 5.0
"""How long later batches are refused alike after the last one that was."""
REFUSED_S_MAX: Final = 60.0
"""And after the first one. What is out of order then is so for itself."""
GAP_S: Final = 10.0
"""How long batches that come too early are to be sent again. Those of a producer that was forgotten
are taken then, others are out of order."""
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
    epoch: int
    sequence: int
    first_s: float
    last_s: float
    is_back: bool = False
    """Whether it has come again, and is judged now."""


class RefusedBatches:
    """The last refusals of one node. Times are in seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._refused: dict[Key, _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def refused(self, key: Key, epoch: int, sequence: int, error: ErrorCode, now_s: float) -> None:
        """Remember the refusal of a batch, unless that of an earlier one is remembered."""
        if error not in RETRIABLE:
            return
        before = self._refused.pop(key, None)
        if before is not None and (
            (before.epoch, before.sequence) == (epoch, sequence)
            or self._precedes(before, epoch, sequence, now_s)
        ):
            self._refused[key] = before._replace(last_s=now_s, is_back=False)
        else:
            self._refused[key] = _Refused(error, epoch, sequence, now_s, now_s)
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    def error_for(self, key: Key, epoch: int, sequence: int, now_s: float) -> ErrorCode | None:
        """Return the error of a batch refused before this one, which has not come again."""
        before = self._refused.get(key)
        if before is None or before.is_back or not self._precedes(before, epoch, sequence, now_s):
            return None
        return before.error

    def has_waited(self, key: Key, epoch: int, sequence: int, now_s: float) -> bool:
        """Whether those before a batch had time to come since it was refused for the first time."""
        before = self._refused.get(key)
        is_known = before is not None and (before.epoch, before.sequence) == (epoch, sequence)
        return before is not None and is_known and now_s - before.first_s > GAP_S

    @staticmethod
    def _precedes(before: _Refused, epoch: int, sequence: int, now_s: float) -> bool:
        is_recent = now_s - before.last_s <= REFUSED_S and now_s - before.first_s <= REFUSED_S_MAX
        return is_recent and epoch == before.epoch and is_later(sequence, before.sequence)

    def judged(self, key: Key, epoch: int, sequence: int) -> None:
        """A batch is about to be judged: until it is, later ones are not refused for it."""
        before = self._refused.get(key)
        if before is not None and (before.epoch, before.sequence) == (epoch, sequence):
            self._refused[key] = before._replace(is_back=True)

    def taken(self, key: Key, epoch: int, sequence: int) -> None:
        """A batch goes into the log, or is known to be there: so is what was refused before it."""
        before = self._refused.get(key)
        if before is None or epoch != before.epoch:
            return
        if sequence == before.sequence or is_later(sequence, before.sequence):
            del self._refused[key]
