"""Connections of simulated clients: requests to nodes, their answers, and what was acknowledged."""

from collections.abc import Callable, Mapping, Sequence

from quorumlog.model.block import Buffer, parse_block
from quorumlog.model.messages.client import (
    AppendRequest,
    AppendResponse,
    FetchRequest,
    FetchResponse,
)
from quorumlog.model.messages.machine import QueryRequest, QueryResponse
from quorumlog.model.messages.transactions import TransactionalRequest
from quorumlog.sessions.entries import system_entry_of
from quorumlog.sim.client_requests import Append, Read
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.network import SimulatedNetwork
from quorumlog.sim.node import SimulatedNode
from quorumlog.sim.partition_answers import BatchAcknowledged, PartitionServed
from quorumlog.sim.simulation_clock import SimulationClock


class ClientConnections:
    """What all clients of a cluster share.

    `asked` are all values ever sent, `refused` those whose appends were answered as not stored,
    `floor` is the highest index acknowledged yet, `appended` counts acknowledged values.
    """

    def __init__(
        self,
        clock: SimulationClock,
        network: SimulatedNetwork,
        nodes: Mapping[str, SimulatedNode],
        invariants: Sequence[Invariant],
    ) -> None:
        self.clock = clock
        self.network = network
        self._nodes = nodes
        self._invariants = invariants
        self.asked: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.floor = -1
        self.appended = 0

    def target(self, *, leader: bool) -> SimulatedNode | None:
        """Return whom a client asks: mostly who leads, sometimes anybody."""
        random, nodes = self.clock.random, list(self._nodes.values())
        up = [node for node in nodes if node.is_up]
        leaders = [node for node in up if node.core.leader_id == node.node_id]
        if leader and leaders and random.random() < 0.95:
            return random.choice(leaders)
        return random.choice(up) if up else None

    def propose(
        self,
        name: str,
        node: SimulatedNode,
        request: AppendRequest,
        data: bytes,
        answered: Callable[..., None],
    ) -> None:
        """Carry a client's block to a node."""

        def arrive() -> None:
            block = parse_block(
                memoryview(bytearray(data)),
                count=request.count,
                entry_bytes_max=node.config.limits.entry_bytes_max,
            )
            node.enter(lambda: node.propose(block, answered, system_entry_of(block)))

        self.carry(name, node, request, data, arrive)

    def carry(
        self,
        name: str,
        node: SimulatedNode,
        request: AppendRequest | FetchRequest | QueryRequest | TransactionalRequest,
        data: bytes,
        arrive: Callable[[], None],
    ) -> None:
        """Carry a client's request to a node; `arrive` is called there at most once."""
        self.network.carry(name, node.node_id, request, data, self._once(node, arrive))

    def _once(self, node: SimulatedNode, arrive: Callable[[], None]) -> Callable[[], None]:
        """Clients talk over connections: nothing arrives twice, nor in another process's life."""
        life, seen = node.life, [False]

        def deliver() -> None:
            if not seen[0] and node.is_up and node.life == life:
                seen[0] = True
                arrive()

        return deliver

    def answering(
        self, node: SimulatedNode, name: str, take: Callable[..., None]
    ) -> Callable[..., None]:
        """Return what carries an answer back to a client, once."""

        def answered(
            response: AppendResponse | FetchResponse | QueryResponse, parts: Sequence[Buffer] = ()
        ) -> None:
            data = b"".join(bytes(part) for part in parts)
            taken = [False]

            def arrive() -> None:
                if not taken[0]:
                    taken[0] = True
                    take(response, data)

            self.network.carry(node.node_id, name, response, data, arrive)

        return answered

    def acknowledged(self, append: Append, first_index: int, last_index: int) -> None:
        """A client's append was acknowledged, with its index."""
        append.first_index = first_index
        for invariant in self._invariants:
            invariant.acknowledged(append)
        self.floor = max(self.floor, last_index)
        self.appended += len(append.bodies)

    def acknowledged_records(self, floor: int, index: int, count: int) -> None:
        """A client's record batch was acknowledged, with the index of its entry."""
        self.acknowledged(Append([], floor), index, index)
        self.appended += count

    def partitions_answered(self, answer: BatchAcknowledged | PartitionServed) -> None:
        """A node has just answered a client of partitions."""
        for invariant in self._invariants:
            if isinstance(answer, BatchAcknowledged):
                invariant.acknowledged_batch(answer)
            else:
                invariant.served(answer)

    def read(self, read: Read) -> None:
        """A client's read was answered."""
        for invariant in self._invariants:
            invariant.read(read)
