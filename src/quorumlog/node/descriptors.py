"""File descriptors: how many a node needs for itself, and how many are left for connections."""

import resource
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Self

from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.errors import ConfigError
from quorumlog.model.limits import Limits
from quorumlog.storage.files.file_sequence import MAPS_MAX, WRITABLE_MAX
from quorumlog.storage.journal.writer import JournalLimits
from quorumlog.transport.acceptor import ACCEPTS_PER_TURN
from quorumlog.transport.listener import PEERS_RESERVE, REFUSALS_MAX
from quorumlog.transport.peers import UNKNOWN_PEERS_MAX

LIMIT_MAX = 65_536
"""The limit of the process is raised no further than this, or than what the configuration needs."""
BASE = 48
"""Of the process: standard streams, event loop, pipes, the admin port and its connections."""
JOURNAL = 2 + JournalLimits().segments_max
"""Of the journal: its lock, its segments, and a file that is being settled."""
AT_WORK = 48
"""What threads have open only while they work: about twenty threads, two descriptors each."""
SEQUENCES = 2
"""Of a group: its data files, and its index files."""
PER_GROUP = 2 + SEQUENCES * WRITABLE_MAX
"""Of a group: the lock of its directory, its durable hint, and files that are open to be written.
All its other small files are open only while a thread reads or writes them."""
PER_MACHINE = 12
"""Of a state machine: its database, and snapshots that are saved, loaded, fetched and served."""
SPARE = 16
"""Held open for storage, see `SpareDescriptors`."""
RESERVE = SPARE + ACCEPTS_PER_TURN + REFUSALS_MAX
"""Descriptors that lasting connections never get."""
CONNECTIONS_MIN = 16
"""Fewest connections of a kind, or the node does not start."""
KAFKA = 4 + ACCEPTS_PER_TURN
"""Of a broker: sockets that listen for Kafka clients, and connections that are refused."""


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """How `limit` descriptors are divided."""

    limit: int
    own: int
    peers: int
    """Connections that only peers may make, beyond those below."""
    connections: int
    """Accepted connections; at most `connectionsMax`."""
    kafka_connections: int
    """Accepted connections of Kafka clients; at most `kafkaConnectionsMax`, and 0 if the node is no
    broker."""
    maps_max: int
    """Data files, and index files, of each group that are mapped at a time."""


@dataclass(slots=True)
class Demand:
    """What the groups of a node need: how many there are of each kind, and their members."""

    groups: int = 0
    stored: int = 0
    directories: int = 0
    machines: int = 0
    brokers: int = 0
    """1 if it has the group that brokers share."""
    members: Counter[str] = field(default_factory=Counter)
    maps: int | None = None
    """Mapped files of all groups together; None: as many as each may have at the start."""

    @classmethod
    def of(cls, groups: Iterable[GroupConfig]) -> Self:
        """Return the demand of groups that are opened together."""
        demand = cls()
        for group in groups:
            demand.add(group)
        return demand

    def add(self, group: GroupConfig, sign: int = 1) -> None:
        """One group more, or with `sign` -1 one less."""
        is_stored = group.store_type == "FILE"
        self.groups += sign
        self.stored += sign * is_stored
        self.directories += sign * is_stored * len(group.data_directories)
        self.machines += sign * bool(is_stored and group.state_machine)
        self.brokers += sign * (group.kind == "cluster")
        for member in group.members:
            self.members[member] += sign
            if not self.members[member]:
                del self.members[member]


def plan_descriptors(config: NodeConfig, limit: int) -> DescriptorPlan:
    """Divide `limit` descriptors. Raises `ConfigError` when that is too few for the groups."""
    return plan_for(Demand.of(config.groups), config.limits, limit)


def plan_for(demand: Demand, limits: Limits, limit: int) -> DescriptorPlan:
    """Divide `limit` descriptors. Raises `ConfigError` when that is too few for the demand."""
    plan = _divided(demand, limit)
    least = CONNECTIONS_MIN * (1 + bool(demand.brokers))
    if plan.connections < least:
        enough = limit
        while (missing := least - _divided(demand, enough).connections) > 0:
            enough += missing  # with more of them, some shares are larger, too
        raise ConfigError(
            f"{limit} file descriptors are too few: the groups of this node ({demand.groups}) "
            f"and their members need {enough}; raise the limit (ulimit -n, or LimitNOFILE of "
            "systemd)"
        )
    if not demand.brokers:
        return replace(plan, connections=min(limits.connections_max, plan.connections))
    # of what is left, half for each kind of client, and what one does not want for the other
    half, left = plan.connections // 2, plan.connections
    kafka = min(limits.kafka_connections_max, max(half, left - limits.connections_max))
    connections = min(limits.connections_max, left - kafka)
    return replace(plan, connections=connections, kafka_connections=kafka)


def maps_share(limit: int, groups: int) -> int:
    """Return how many of its files each of a number of groups may have mapped."""
    return max(2, min(MAPS_MAX, limit // 8 // (SEQUENCES * max(1, groups))))


def _divided(demand: Demand, limit: int) -> DescriptorPlan:
    """Return a plan that leaves the remainder to `connections`: below 0 if `limit` is too low."""
    maps_max = maps_share(limit, demand.stored)
    maps = demand.stored * maps_max if demand.maps is None else demand.maps
    own = (
        BASE
        + JOURNAL
        + AT_WORK
        + 2 * (len(demand.members) + UNKNOWN_PEERS_MAX)
        + demand.stored * PER_GROUP
    )
    own += SEQUENCES * maps + demand.directories + PER_MACHINE * demand.machines
    own += KAFKA * demand.brokers
    peers = min(PEERS_RESERVE, max(4 * len(demand.members), limit // 8))
    return DescriptorPlan(limit, own, peers, limit - own - RESERVE - peers, 0, maps_max)


def present_limit() -> int:
    """Return how many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def raise_limit(config: NodeConfig) -> tuple[int, int]:
    """Raise the limit of this process as far as it may be, and is of use; return before, after."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = present_limit()
    generous = plan_descriptors(config, 1 << 30)
    needed = generous.own + generous.peers + generous.connections + RESERVE
    needed += generous.kafka_connections
    wanted = max(LIMIT_MAX, needed)
    target = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and target > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError):  # some systems have a lower limit that they do not report
            return before, before
    return before, present_limit()
