"""Consumers of logs, as far as a node knows of them: their requests, and how far they have come."""

from collections.abc import Callable, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Final, TypeAlias

from quorumlog.machine.cluster.consumer_groups import ConsumerGroupRecord
from quorumlog.machine.cluster.state import ClusterView
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import NodeConfig
from quorumlog.model.errors import error_for
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.client import ConsumerPosition
from quorumlog.model.messages.consumers import (
    CommitPositionsRequest,
    ConsumerHeartbeatRequest,
    ConsumerRequest,
    PositionsRequest,
)
from quorumlog.node.replica.replica import Replica

if TYPE_CHECKING:
    from quorumlog.kafka.groups.log_consumers import LogConsumers

POSITIONS_SHOWN: Final = 100
"""Positions in an answer about a replica: those that were committed last."""
CONSUMER_REQUESTS = (ConsumerHeartbeatRequest, CommitPositionsRequest, PositionsRequest)
Answer: TypeAlias = Callable[[Response], None]


class ConsumerService:
    """What a node has for consumers of logs.

    `coordinator`: what answers them, while the node is a broker and runs. `view` returns what
    `__cluster` holds, as far as is known here; `wall_ms` the Unix time.
    """

    def __init__(
        self, config: NodeConfig, view: Callable[[], ClusterView], wall_ms: Callable[[], int]
    ) -> None:
        self.coordinator: LogConsumers | None = None
        self._config = config
        self._view = view
        self._wall_ms = wall_ms
        self._indexed: ClusterView | None = None
        self._index: dict[tuple[str, bytes], list[ConsumerGroupRecord]] = {}
        """Of the view that is indexed: the consumer groups by name and identity of their log."""

    def answer(self, request: ConsumerRequest, host: str, answer: Answer) -> None:
        """Answer one of `CONSUMER_REQUESTS` once, now or later. Raises `RequestError`."""
        if self.coordinator is not None:
            self.coordinator.answer(request, host, answer)
        elif self._config.kafka_listen:
            text = f"node {self._config.self_id} starts, or stops"
            raise error_for(ResponseCode.NOT_LEADER, text)
        else:
            raise error_for(
                ResponseCode.UNSUPPORTED,
                f"node {self._config.self_id} coordinates no consumers, as it is no broker: set "
                "kafkaListen in its configuration, and add the group __cluster to its groups",
            )

    def positions(self, replica: Replica) -> list[ConsumerPosition]:
        """Return how far consumers of a log have come, the newest commit last; its leader says."""
        if replica.core.role is not Role.LEADER:
            return []
        now_ms = self._wall_ms()
        newest = nlargest(
            POSITIONS_SHOWN,
            (
                (one.at_ms, record.name, number, one.offset)
                for record in self._groups_of(replica.config.group, replica.core.identity)
                for number, one in record.positions.items()
            ),
        )
        return [
            ConsumerPosition(group, index, max(0, now_ms - at_ms), partition)
            for at_ms, group, partition, index in reversed(newest)
        ]

    def _groups_of(self, log: str, identity: bytes) -> Sequence[ConsumerGroupRecord]:
        """Return the consumer groups that read a log; all are looked through once for each view."""
        view = self._view()
        if view is not self._indexed:
            self._indexed, self._index = view, {}
            for record in view.consumer_groups.values():
                if record.log is not None:
                    key = record.log.log, record.log.identity
                    self._index.setdefault(key, []).append(record)
        return self._index.get((log, identity), ())
