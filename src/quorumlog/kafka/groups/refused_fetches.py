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

RETRY_S: Final = 30.0
"""How long a connection that may be a member's is told to ask again, before it is sent to the
coordinator; half the time that Java's consumers give to a question for offsets."""


class RefusedFetches:
    """When connections were first refused here, of those that are open.

    Times are in seconds of a clock that never goes back.
    """

    def __init__(self) -> None:
        self._refused: WeakKeyDictionary[object, float] = WeakKeyDictionary()

    def error(self, connection: object, now_s: float, member_id: str | None) -> ErrorCode:
        """Return what a connection is told that asks for offsets which are not known here.

        `member_id`: of the member that asks, if the request says that.
        """
        if member_id or now_s - self._refused.setdefault(connection, now_s) < RETRY_S:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NOT_COORDINATOR

    def coordinates(self) -> None:
        """The broker coordinates: whoever it refuses after that is refused for the first time."""
        self._refused.clear()
