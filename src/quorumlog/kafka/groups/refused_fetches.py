"""Who asks for committed offsets at a broker that does not coordinate: soon it asks another one.

librdkafka fetches the offsets of partitions that its member was assigned once. If the answer is
NOT_COORDINATOR, it looks for the coordinator again, but neither asks that one nor begins with the
partitions: the group stands still there until the next rebalance. After
COORDINATOR_LOAD_IN_PROGRESS all clients ask again, and a member's heartbeats say meanwhile that the
coordinator is another one. A client that is no member sends none, so it is told after a while;
requests that name a member, as those of the consumer protocol do, never are.
"""

from typing import Final
from weakref import WeakKeyDictionary

from quorumlog.kafka.errors import ErrorCode

MOVED_S: Final = 30.0
"""How long a connection that may be a member's is told to ask again; half the time that Java's
consumers give to a question for offsets."""


class RefusedFetches:
    """Since when connections have asked here in vain, as long as they are open.

    Times are in seconds of a clock that never goes back.
    """

    def __init__(self) -> None:
        self._asked: WeakKeyDictionary[object, tuple[float, float]] = WeakKeyDictionary()

    def error(self, connection: object, now_s: float, member_id: str | None) -> ErrorCode:
        """Return what a connection is told that asks for offsets which are not known here.

        `member_id`: of the member that asks, if the request says that.
        """
        if member_id:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        first_s, last_s = self._asked.get(connection, (now_s, now_s))
        if now_s - last_s >= MOVED_S:  # it has asked elsewhere since
            first_s = now_s
        self._asked[connection] = first_s, now_s
        if now_s - first_s < MOVED_S:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NOT_COORDINATOR
