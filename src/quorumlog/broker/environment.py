"""What a broker needs from outside: clocks, chance, and the node around it."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from quorumlog.broker.pace import PaceTimer
from quorumlog.model.block import Buffer
from quorumlog.model.config import NodeConfig
from quorumlog.model.hooks import RoleListener
from quorumlog.model.messages.cluster import ClusterMessage
from quorumlog.node.group_lifecycle import GroupLifecycle
from quorumlog.node.node import monotonic_ms, wall_ms
from quorumlog.node.replica.replica import Replica


class BrokerEnvironment(NamedTuple):
    """Where a broker has its time and its random bytes from.

    `now_ms` reads a clock that never goes back, `wall_ms` Unix time, both in milliseconds;
    `random_bytes` returns a number of bytes that nobody else gets.
    """

    now_ms: Callable[[], int]
    wall_ms: Callable[[], int]
    random_bytes: Callable[[int], bytes]


OF_THE_SYSTEM: Final = BrokerEnvironment(monotonic_ms, wall_ms, os.urandom)


class BrokerLinks(Protocol):
    """The links to other nodes."""

    def send(
        self, peer_id: str, message: ClusterMessage, attachments: Sequence[Buffer] = ()
    ) -> bool:
        """Send to another node, or return False when that is impossible now."""
        ...

    def features_of(self, peer_id: str) -> int | None:
        """Return the features that a node took when it was connected last; None: it never was."""
        ...


class BrokerHosting(Protocol):
    """The groups of the node; the functions are called with what the broker is to hear of."""

    cluster_received: Callable[[ClusterMessage, memoryview], None]
    role_changed: RoleListener
    peer_reached: Callable[[str], None]
    peer_silent: Callable[[str], None]

    @property
    def lifecycle(self) -> GroupLifecycle:
        """Makes and deletes replicas of groups."""
        ...


class HostNode(Protocol):
    """The node that a broker is a part of (`node.Node`)."""

    @property
    def config(self) -> NodeConfig:
        """Its configuration."""
        ...

    @property
    def replicas(self) -> Mapping[str, Replica]:
        """The replica of each group that is served, by name."""
        ...

    @property
    def hosting(self) -> BrokerHosting:
        """Its groups."""
        ...

    @property
    def links(self) -> BrokerLinks:
        """Its links to other nodes."""
        ...

    @property
    def own_address(self) -> str:
        """Where members reach it, as far as it knows."""
        ...

    def new_timer(self) -> PaceTimer:
        """Return another timer."""
        ...
