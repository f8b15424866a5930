"""The port of a node for Kafka clients, if it has one."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Final

from quorumlog.broker.broker import Broker
from quorumlog.log_events import log_event
from quorumlog.machine.cluster.commands import AllocateProducerIds, ProducerIds
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import NodeConfig, parse_address
from quorumlog.model.errors import error_for
from quorumlog.node.node import Node

if TYPE_CHECKING:
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


async def serve_kafka(node: Node, broker: Broker | None) -> "KafkaListener | None":
    """Serve Kafka clients where the configuration says; None: it names no address.

    Raises `ConfigError` when the address cannot be used.
    """
    config = node.config
    if broker is None or not config.kafka_listen:
        return None
    # it imports kafka-python, which takes 16 MiB: only such nodes pay for it
    from quorumlog.kafka.listener import KafkaListener  # noqa: PLC0415

    async def allocate(count: int) -> int:
        found = await broker.execute(AllocateProducerIds(count), ALLOCATE_MS)
        if not isinstance(found, ProducerIds):
            raise error_for(ResponseCode.INTERNAL_ERROR, f"no producer ids, but {found}")
        return found.first

    host, port = parse_address(config.kafka_listen)
    listener = KafkaListener(host, port, config, broker, allocate, node.executor, node.turn.at_end)
    await listener.start()
    if not port and not config.kafka_advertised:
        broker.advertise(host, listener.port)
    log_event(
        logger,
        logging.INFO,
        "serves Kafka clients",
        node=config.self_id,
        listen=f"{host}:{listener.port}",
        advertised=config.kafka_advertised,
    )
    return listener
