"""How a node becomes a broker of the cluster, and stays one at the address where it is."""

import logging
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Final, Protocol

from quorumlog.broker.commands import Done
from quorumlog.log_events import log_event
from quorumlog.machine.cluster.commands import (
    ID_BYTES,
    AnyCommand,
    AnyResult,
    RegisterBroker,
    Registered,
)
from quorumlog.machine.cluster.state import BrokerRecord, ClusterView
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import parse_address

logger = logging.getLogger(__name__)

REGISTER_MS: Final = 5_000
"""How long one attempt takes at most, and the pause after one that was refused."""
RETRY_MS: Final = 200
"""Pause after an attempt: what came of it must show in the view first."""


class Registrar(Protocol):
    """What the registration needs around it."""

    def now_ms(self) -> int:
        """Return the time of a monotonic clock."""
        ...

    def view(self) -> ClusterView:
        """Return what `__cluster` holds, as far as is known here."""
        ...

    def leader(self) -> str | None:
        """Return the node that leads `__cluster`, as far as is known here."""
        ...

    def order(self, command: AnyCommand, timeout_ms: int, done: Done) -> None:
        """Have `__cluster` apply a command; `done` is called once."""
        ...


class Registration:
    """The registration of one node.

    `address` returns where other nodes reach it, `advertised` where clients do (empty: nowhere, or
    not known yet); a cluster's id is made of `random_bytes`. All methods run on the event loop's
    thread.
    """

    def __init__(
        self,
        node_id: str,
        rack: str,
        registrar: Registrar,
        address: Callable[[], str],
        advertised: Callable[[], str],
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._node_id = node_id
        self._rack = rack
        self._registrar = registrar
        self._address = address
        self._advertised = advertised
        self._random_bytes = random_bytes
        self.refusal = ""
        """Why the cluster does not take this node as a broker; empty: it does, or nobody said."""
        self._due_ms = 0
        self._is_under_way = False

    def tick(self) -> None:
        """Register, if `__cluster` does not know this broker as it is."""
        advertised, registrar = self._advertised(), self._registrar
        if not advertised or self._is_under_way or registrar.now_ms() < self._due_ms:
            return
        if registrar.leader() is None:
            return
        place = (self._node_id, self._address(), *parse_address(advertised), self._rack)
        known = registrar.view().broker_of(self._node_id)
        if known is not None and known == BrokerRecord(known.broker_id, *place):
            return
        self._is_under_way = True
        cluster_id = urlsafe_b64encode(self._random_bytes(ID_BYTES)).decode().rstrip("=")
        registrar.order(RegisterBroker(*place, cluster_id), REGISTER_MS, self._done)

    def _done(self, code: ResponseCode, text: str, result: AnyResult | None) -> None:
        self._is_under_way = False
        self._due_ms = self._registrar.now_ms() + RETRY_MS
        if not isinstance(result, Registered):
            return
        if result.code is ResponseCode.SUCCESS:
            self.refusal = ""
            return
        if result.text != self.refusal:
            log_event(logger, logging.ERROR, "broker not registered", text=result.text)
        self.refusal = result.text
        self._due_ms += REGISTER_MS
