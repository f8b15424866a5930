"""Connections of Kafka clients on a port of their own, and what they share."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import uuid4

import msgspec

from quorumlog.auth.login import Logins
from quorumlog.auth.permits import Authorizer
from quorumlog.auth.throttles import Throttles
from quorumlog.kafka.broker_view import BrokerView
from quorumlog.kafka.connection import KafkaConnection
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.frames import FRAME_BYTES_MAX
from quorumlog.kafka.groups.coordinator import GroupCoordinator
from quorumlog.kafka.groups.offset_commits import OffsetCommits
from quorumlog.kafka.memory import KafkaMemory
from quorumlog.kafka.producer_ids import Allocate
from quorumlog.kafka.services import ServiceEnvironment, broker_changed, make_services
from quorumlog.model.audit_events import NO_AUDIT, Audit
from quorumlog.model.config import NodeConfig
from quorumlog.model.topic_configs import effective
from quorumlog.node.executor import ThreadExecutor
from quorumlog.transport.acceptor import Acceptor
from quorumlog.transport.budget import RequestMemory
from quorumlog.transport.first_bytes import TlsPort
from quorumlog.transport.node_tls import IsRevoked, NodeTls
from quorumlog.transport.shared_resources import SharedResources
from quorumlog.transport.stream import TransportCounters

logger = logging.getLogger(__name__)

CHECK_S: Final = 1.0
"""Pause between checks for frames that do not arrive and answers that are not read."""
ANSWER_BYTES_MIN: Final = 64 * 1024
"""Bytes of records that an answer may have in any case."""
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of records in an answer, whatever the client asks for; one batch may be larger."""
STOP_TURNS: Final = 100
"""The most turns of the loop to wait until all aborted connections have reported their end."""


class KafkaListener:
    """Serves Kafka clients at an address, with what `broker` knows.

    `allocate`: see `producer_ids.Allocate`. `defer` calls a function at the end of the turn.
    `tls`: what is spoken before anything else; None: nothing is encrypted.
    `logins`: how clients log in; None: they do not.
    `audit` takes what is recorded of clients.
    `authorizer`: by whom it is judged what clients may do; None: everything. `throttles`: what they
    have used of their quotas; None: they have none.
    """

    def __init__(  # noqa: PLR0913
        self,
        host: str,
        port: int,
        config: NodeConfig,
        broker: BrokerView,
        allocate: Allocate,
        executor: ThreadExecutor,
        defer: Callable[[Callable[[], object]], object],
        *,
        tls: NodeTls | None = None,
        logins: Logins | None = None,
        audit: Audit = NO_AUDIT,
        authorizer: Authorizer | None = None,
        throttles: Throttles | None = None,
    ) -> None:
        bytes_max = config.limits.kafka_request_bytes_max
        self._limits = msgspec.structs.replace(
            config.limits, receive_bytes_max=bytes_max, frame_bytes_max=FRAME_BYTES_MAX
        )
        self._descriptors: Callable[[], int] = lambda: config.limits.kafka_connections_max
        self.counters = KafkaCounters()
        self.transport_counters = TransportCounters()
        total = RequestMemory(bytes_max)
        self.shared = SharedResources(self._limits, lambda hello: False, appends=total)
        self.shared.audit = audit
        self._services = make_services(
            broker,
            config,
            allocate,
            self.counters,
            ServiceEnvironment(
                executor,
                defer,
                time.monotonic,
                lambda: int(time.time() * 1000),
                lambda: str(uuid4()),
                audit,
                authorizer,
                throttles,
            ),
            logger,
            self._answer_bytes_max,
        )
        self._memory = KafkaMemory(total, self.counters)
        self._logins = logins
        self.connections: set[KafkaConnection] = set()
        self._unproven: dict[KafkaConnection, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._counted_version = -1
        self._end_watch: Callable[[], None] | None = None
        self._tls_port: TlsPort | None = None
        if tls is not None:
            self._tls_port = TlsPort(tls, lambda: tls.current.kafka)
            tls.when_revoked.append(self._end_revoked)
        self._acceptor = Acceptor(
            host,
            port,
            self._has_room,
            self._make,
            self.transport_counters,
            lambda: self.shared.strangers,
            self._places,
        )

    @property
    def port(self) -> int:
        """Where it listens; 0 before the start if any port will do."""
        return self._acceptor.port

    @property
    def coordinator(self) -> GroupCoordinator:
        """The coordinator of consumer groups."""
        return self._services.coordinator

    @property
    def commits(self) -> OffsetCommits:
        """The commits of offsets that this node carries out as the coordinator."""
        return self._services.commits

    @property
    def is_listening(self) -> bool:
        """Whether connections are accepted."""
        return self._acceptor.is_listening

    def limit_connections(self, descriptors: Callable[[], int]) -> None:
        """Have no more connections than `descriptors` returns, which may change."""
        self._descriptors = descriptors

    async def start(self) -> None:
        """Start to listen. Raises `ConfigError` when the address cannot be used.

        It listens nowhere if it was stopped meanwhile (see `is_listening`).
        """
        await self._acceptor.start()
        if not self.is_listening:
            return
        self._end_watch = self._services.broker.when_changed(
            partial(broker_changed, self._services)
        )
        self._check_later()

    async def stop(self) -> None:
        """Listen no more and end all connections."""
        self._acceptor.stop()
        self._services.coordinator.end()
        self._services.transactions.end()
        if self._end_watch is not None:
            self._end_watch()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.abort("the node is stopping")
        for _ in range(STOP_TURNS):
            if not self.connections:
                break
            await asyncio.sleep(0)

    def _answer_bytes_max(self) -> int:
        """Return a quarter of what unread answers may still take."""
        left = self._limits.send_bytes_max - self.shared.budgets.answers.used
        return max(ANSWER_BYTES_MIN, min(ANSWER_BYTES_MAX, left // 4))

    def _places(self) -> int:
        return min(self._limits.kafka_connections_max, self._descriptors())

    def _has_room(self) -> bool:
        """Whether there is room for one more connection; if need be, another one is closed.

        That is one that waits for its turn, or else one that is unproven.
        """
        count = len(self.connections) + self._acceptor.set_up
        if count < self._places() or self._acceptor.end_waiting():
            return True
        while self._unproven:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            if not oldest.answered:
                self.transport_counters.ended_for_places += 1
                oldest.abort("others need its place, and none of its requests was answered")
                return True
        return False

    def _make(self) -> asyncio.BaseProtocol:
        connection = KafkaConnection(
            self._services,
            self._memory,
            self._limits,
            self.transport_counters,
            on_lost=self._lost,
            shared=self.shared,
            logins=self._logins,
        )
        self.connections.add(connection)
        self.counters.connections = len(self.connections)
        self._unproven[connection] = None
        return connection if self._tls_port is None else self._tls_port.protocol_for(connection)

    def _end_revoked(self, is_revoked: IsRevoked) -> None:
        """End connections of whoever shows a certificate that is revoked now."""
        for connection in list(self.connections):
            connection.end_if(is_revoked)

    def _lost(self, connection: KafkaConnection) -> None:
        self.connections.discard(connection)
        self.counters.connections = len(self.connections)
        self._unproven.pop(connection, None)

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _check(self) -> None:
        self._check_later()
        self.transport_counters.late_frames += self.shared.check()
        for queue in list(self._services.held):
            queue.end_if_in_vain()
        self._count_topics()

    def _count_topics(self) -> None:
        """Count the topics that are to be compacted, if topics or configs may have changed."""
        broker = self._services.broker
        if self._counted_version != broker.version:
            self._counted_version = broker.version
            policies = (
                effective("cleanup.policy", topic.configs, broker.defaults)
                for topic in broker.topics.values()
            )
            self.counters.compacted_topics = sum("compact" in policy for policy in policies)
