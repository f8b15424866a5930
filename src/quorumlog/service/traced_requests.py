"""Requests of a client of a node that traces appends."""

from quorumlog.node.instruments import Tracer
from quorumlog.node.node import Node, monotonic_us
from quorumlog.service.consumers import ConsumerService
from quorumlog.service.requests import ClientRequests
from quorumlog.transport.connection import Connection
from quorumlog.wire.frame import Frame


class TracedRequests(ClientRequests):
    """Notes when each request begins to be handled: before it is parsed and its CRCs checked."""

    def __init__(self, node: Node, tracer: Tracer, consumers: ConsumerService | None) -> None:
        super().__init__(node, consumers)
        self._tracer = tracer

    def frame_received(self, connection: Connection, frame: Frame) -> None:
        """See `ConnectionHandler`."""
        self._tracer.arrived_us = monotonic_us()
        super().frame_received(connection, frame)
        self._tracer.arrived_us = 0


def requests_of(node: Node, consumers: ConsumerService | None = None) -> ClientRequests:
    """Return the handler of a client's connection; `consumers`: what the node has for them."""
    tracer = node.instruments.tracer
    if tracer is None:
        return ClientRequests(node, consumers)
    return TracedRequests(node, tracer, consumers)
