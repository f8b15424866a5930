"""Requests of a client of a node that traces appends."""

from quorumlog.auth.permits import Authorizer
from quorumlog.node.instruments import Tracer
from quorumlog.node.node import Node, monotonic_us
from quorumlog.service.consumers import ConsumerService
from quorumlog.service.requests import ClientRequests
from quorumlog.service.security import SecurityService
from quorumlog.transport.connection import Connection
from quorumlog.wire.frame import Frame


class TracedRequests(ClientRequests):
    """Notes when each request begins to be handled: before it is parsed and its CRCs checked."""

    def __init__(
        self,
        node: Node,
        tracer: Tracer,
        consumers: ConsumerService | None,
        security: SecurityService | None,
        authorizer: Authorizer | None,
    ) -> None:
        super().__init__(node, consumers, security, authorizer)
        self._tracer = tracer

    def frame_received(self, connection: Connection, frame: Frame) -> None:
        """See `ConnectionHandler`."""
        self._tracer.arrived_us = monotonic_us()
        super().frame_received(connection, frame)
        self._tracer.arrived_us = 0


def requests_of(
    node: Node,
    consumers: ConsumerService | None = None,
    security: SecurityService | None = None,
    authorizer: Authorizer | None = None,
) -> ClientRequests:
    """Return the handler of a client's connection; see `ClientRequests`."""
    tracer = node.instruments.tracer
    if tracer is None:
        return ClientRequests(node, consumers, security, authorizer)
    return TracedRequests(node, tracer, consumers, security, authorizer)
