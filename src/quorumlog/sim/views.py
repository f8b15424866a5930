"""What invariants may see of a simulated cluster: protocols, which the simulation implements."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from random import Random
from typing import NamedTuple, Protocol

from quorumlog.model.config import NodeConfig
from quorumlog.node.replica.replica import Replica
from quorumlog.raft.core import RaftCore
from quorumlog.sim.client_requests import Attempt
from quorumlog.sim.clock import Clock
from quorumlog.sim.disk import SimulatedFileSystem
from quorumlog.sim.operations import Operation
from quorumlog.sim.partition_batches import SentBatch
from quorumlog.sim.simulation_clock import SimulationClock
from quorumlog.storage.log.interface import Log
from quorumlog.topics.retention import RetentionRule


class Remains(NamedTuple):
    """What is left of a replica after a loss of power; `chain_crc` None: not known there."""

    term: int
    vote: str | None
    end_index: int
    chain_crc: int | None


class ClientsView(Protocol):
    """What all clients of a cluster asked for, and what became of it."""

    @property
    def asked(self) -> set[bytes]:
        """All values ever sent."""
        ...

    @property
    def refused(self) -> set[bytes]:
        """Values whose appends were answered as not stored."""
        ...

    @property
    def operations(self) -> list[Operation]:
        """Commands and queries to the state machine, those of unknown outcome included."""
        ...

    @property
    def batches(self) -> Mapping[int, SentBatch] | None:
        """All record batches ever made, by number; None: the group holds no partitions."""
        ...

    @property
    def starts_asked(self) -> AbstractSet[tuple[int, int]]:
        """The log starts of partitions that were asked for, as (channel, offset)."""
        ...

    @property
    def attempts(self) -> list[Attempt] | None:
        """All attempts to write a batch in a transaction; None: no client writes transactions."""
        ...


class ClusterView(Protocol):
    """The whole cluster."""

    @property
    def clock(self) -> SimulationClock:
        """The time of the simulation."""
        ...

    @property
    def nodes(self) -> "Mapping[str, NodeView]":
        """All nodes by id, whether they run or not."""
        ...

    @property
    def clients(self) -> ClientsView:
        """The clients."""
        ...

    @property
    def rules(self) -> Mapping[int, RetentionRule]:
        """What partitions keep, by channel."""
        ...

    @property
    def has_hook(self) -> bool:
        """Whether leaders have an append hook."""
        ...

    @property
    def damaged_machines(self) -> set[str]:
        """Ids of nodes whose state machine is damaged on purpose."""
        ...

    def members(self) -> "Sequence[NodeView]":
        """Return the nodes that belong to the group."""
        ...


class NodeView(Protocol):
    """One node. `running`, `core` and `log` exist only while its process runs (`is_up`)."""

    @property
    def cluster(self) -> ClusterView:
        """The cluster it belongs to."""
        ...

    @property
    def node_id(self) -> str:
        """Its id."""
        ...

    @property
    def config(self) -> NodeConfig:
        """Its configuration."""
        ...

    @property
    def life(self) -> int:
        """How many times its process has ended."""
        ...

    @property
    def incarnation(self) -> int:
        """The number of its data directory; -1: not known, the disk is empty."""
        ...

    @property
    def clock(self) -> Clock:
        """Its own clock."""
        ...

    @property
    def files(self) -> SimulatedFileSystem:
        """Its disk."""
        ...

    @property
    def alarms(self) -> list[str]:
        """The newest alarms that this life of the process raised."""
        ...

    @property
    def is_up(self) -> bool:
        """Whether the process runs."""
        ...

    @property
    def running(self) -> Replica:
        """Its replica."""
        ...

    @property
    def core(self) -> RaftCore:
        """Its core."""
        ...

    @property
    def log(self) -> Log:
        """Its log."""
        ...

    @property
    def disk_waits_ms(self) -> int:
        """How long a write has been waiting, by the machine's own clock."""
        ...

    def after_power_loss(self, random: Random, index: int = -1) -> Remains | None:
        """Return what a loss of power now would leave, with the chain CRC at an index.

        Returns None if the data could not be opened: bits may have flipped.
        """
        ...
