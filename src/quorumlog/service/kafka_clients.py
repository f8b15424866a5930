"""A node's broker and its port for Kafka clients, if it has them."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

from quorumlog.auth.admissions import Admissions
from quorumlog.auth.login import Logins
from quorumlog.auth.permits import Authorizer, Refused
from quorumlog.auth.throttles import Throttles
from quorumlog.broker.broker import Broker
from quorumlog.log_events import log_event
from quorumlog.machine.cluster.commands import AllocateProducerIds, ProducerIds
from quorumlog.machine.cluster.state import EMPTY_VIEW, ClusterView
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import CLUSTER_GROUP, NodeConfig, host_port, parse_address
from quorumlog.model.errors import error_for
from quorumlog.node.attachments import Attachments
from quorumlog.node.node import Node, wall_ms
from quorumlog.service.authorization import authorizer_of
from quorumlog.service.consumers import ConsumerService
from quorumlog.service.security import SecurityService
from quorumlog.service.security_check import SecurityCheck

if TYPE_CHECKING:
    from quorumlog.kafka.counters import KafkaCounters
    from quorumlog.kafka.groups.log_consumers import LogConsumers
    from quorumlog.kafka.listener import KafkaListener

logger = logging.getLogger(__name__)

ALLOCATE_MS: Final = 10_000
"""How long a client that wants a producer id waits for the leader of the cluster group."""


def load_kafka(config: NodeConfig) -> None:
    """Import what serves Kafka clients, where the configuration names an address for them.

    It takes 0.1 s and more, so it is done before the event loop runs, which others wait for.
    """
    if config.kafka_listen:
        import_module("quorumlog.kafka.listener")


def allocator_of(broker: Broker) -> Callable[[int], Awaitable[int]]:
    """Return what sets producer ids aside (`kafka.producer_ids.Allocate`)."""

    async def allocate(count: int) -> int:
        found = await broker.execute(AllocateProducerIds(count), ALLOCATE_MS)
        if not isinstance(found, ProducerIds):
            raise error_for(ResponseCode.INTERNAL_ERROR, f"no producer ids, but {found}")
        return found.first

    return allocate


def kafka_listener(
    node: Node,
    broker: Broker,
    logins: Logins | None = None,
    authorizer: Authorizer | None = None,
    throttles: Throttles | None = None,
) -> "KafkaListener":
    """Return what serves Kafka clients at the address that the configuration names.

    `authorizer`: by whom it is judged what they may do; None: everything. `throttles`: what they
    have used of their quotas; None: they have none.
    """
    config = node.config
    # it imports kafka-python, which takes 16 MiB: only such nodes pay for it
    from quorumlog.kafka.listener import KafkaListener  # noqa: PLC0415

    host, port = parse_address(config.kafka_listen)
    listener = KafkaListener(
        host,
        port,
        config,
        broker,
        allocator_of(broker),
        node.executor,
        node.turn.at_end,
        tls=node.tls,
        logins=logins,
        audit=node.instruments.audit,
        authorizer=authorizer,
        throttles=throttles,
    )
    listener.limit_connections(lambda: node.descriptors.kafka_connections)
    return listener


def _log_consumers(node: Node, broker: Broker, listener: "KafkaListener") -> "LogConsumers":
    from quorumlog.kafka.groups.log_consumers import LogConsumers  # noqa: PLC0415  (see above)

    def leader() -> str | None:
        replica = node.replicas.get(CLUSTER_GROUP)
        return None if replica is None else replica.core.leader_id

    return LogConsumers(listener.coordinator, listener.commits, broker, leader)


async def serve_kafka(node: Node, broker: Broker, listener: "KafkaListener") -> None:
    """Listen for Kafka clients, and say where.

    Raises `ConfigError` when the address cannot be used.
    """
    config = node.config
    host, port = parse_address(config.kafka_listen)
    await listener.start()
    if not listener.is_listening:
        return  # it was stopped meanwhile
    if not port and not config.kafka_advertised:
        broker.advertise(host, listener.port)
    log_event(
        logger,
        logging.INFO,
        "serves Kafka clients",
        node=config.self_id,
        listen=host_port(host, listener.port),
        advertised=config.kafka_advertised,
        connections_max=node.descriptors.kafka_connections,
    )


class KafkaService:
    """What a node is to Kafka clients: its broker and its port, as far as its configuration says.

    It is made before the node, which gets its `attachments`. `refused` is told when a client asks
    for what it may not do.
    """

    def __init__(
        self, config: NodeConfig, refused: Callable[[Refused], None] = lambda refused: None
    ) -> None:
        self._broker = None if config.cluster_group is None else Broker(config)
        self._listener: KafkaListener | None = None
        self.consumers = ConsumerService(config, self.view, wall_ms)
        self.security = SecurityService(config)
        self.authorizer = authorizer_of(
            config, lambda: self.view().security, refused, self.is_ready
        )
        """By whom it is judged what clients may do, on all ports; None: everything."""
        self.throttles = Throttles()
        """What clients have used of their quotas, on all ports."""
        self.admissions = Admissions(self.throttles)
        """Which connections they have, on all ports."""

    @property
    def attachments(self) -> Mapping[str, Attachments]:
        """What the broker has for groups of the node."""
        return {} if self._broker is None else self._broker.attachments

    @property
    def has_quotas(self) -> bool:
        """Whether there may be quotas: these are in `__cluster`."""
        return self._broker is not None

    @property
    def counters(self) -> "KafkaCounters | None":
        """What is counted of Kafka clients; None: they are not served."""
        return None if self._listener is None else self._listener.counters

    def view(self) -> ClusterView:
        """Return what `__cluster` holds, as far as is known here; on any thread."""
        return EMPTY_VIEW if self._broker is None else self._broker.view

    def is_ready(self) -> bool:
        """Whether all is known here that was committed in `__cluster` when this node started."""
        return self._broker is None or self._broker.knows_cluster

    async def start(self, node: Node, logins: Logins | None = None) -> None:
        """Take part and serve; the node was started. `logins`: how clients log in; None: they do
        not.

        Raises `ConfigError` when the address for Kafka clients cannot be used: `stop` all the same.
        """
        if self._broker is None:
            self.security.check = SecurityCheck(node, None)
            return
        self._broker.start(node)
        self._broker.when_security_changed(self._note_security)
        if logins is not None:
            self._broker.when_security_changed(self._watch_of_users(logins))
        self.throttles.use(self.view().security.quotas)
        self.security.broker = self._broker
        if node.config.kafka_listen:
            self._listener = kafka_listener(
                node, self._broker, logins, self.authorizer, self.throttles
            )
            self._listener.shared.strangers = node.listener.shared.strangers
            self._listener.shared.admissions = self.admissions
            self.consumers.coordinator = _log_consumers(node, self._broker, self._listener)
        self.security.check = SecurityCheck(node, self._listener)
        if self._listener is not None:
            await serve_kafka(node, self._broker, self._listener)

    async def stop(self) -> None:
        """Serve no more and take part no more; the node, which has to run, may be stopped then."""
        self.consumers.coordinator = self.security.broker = self.security.check = None
        if self._listener is not None:
            await self._listener.stop()
        if self._broker is not None:
            self._broker.stop()

    def _watch_of_users(self, logins: Logins) -> Callable[[], None]:
        """Return what has logins looked at if it is users that have changed."""
        seen = self.view().security.users

        def changed() -> None:
            nonlocal seen
            users = self.view().security.users
            before, seen = seen, users
            if users != before:  # quickly told: what has not changed is the same object
                names = {*before, *users}
                logins.users_changed(one for one in names if users.get(one) != before.get(one))

        return changed

    def _note_security(self) -> None:
        """Say that users, ACLs or quotas have changed: on each node, once they count there."""
        view = self.view().security
        self.throttles.use(view.quotas)
        log_event(
            logger,
            logging.INFO,
            "users, ACLs or quotas have changed",
            version=view.version,
            users=len(view.users),
            principals=len(view.acls),
            quotas=len(view.quotas),
        )
