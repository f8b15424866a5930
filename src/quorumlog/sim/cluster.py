"""A whole group in one thread: real cores, replicas and logs; network, disks and time from a seed.

After every event all invariants check the node it happened to.
"""

import zlib
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from random import Random

from quorumlog.machine.base import StateMachine
from quorumlog.model.codes import Role
from quorumlog.model.config import HOUR_MS, GroupConfig, NodeConfig
from quorumlog.model.errors import CorruptionError
from quorumlog.model.hooks import AppendHook
from quorumlog.model.limits import KIB, Limits
from quorumlog.model.membership import Membership
from quorumlog.model.messages.peer import NodeMessage, PeerMessage
from quorumlog.node.environment import Environment
from quorumlog.node.replica.replica import Replica
from quorumlog.raft.config import BootState, RaftConfig
from quorumlog.raft.core import RaftCore
from quorumlog.sim.client_connections import ClientConnections
from quorumlog.sim.clients import Clients
from quorumlog.sim.finding import Finding
from quorumlog.sim.invariants import all_invariants
from quorumlog.sim.links import Link
from quorumlog.sim.network import SimulatedNetwork
from quorumlog.sim.node import SimulatedNode
from quorumlog.sim.partition_clients import PartitionClients
from quorumlog.sim.simulation_clock import SimulationClock
from quorumlog.storage.log.store import OpenedGroup
from quorumlog.topics.batch_index import SealLimits
from quorumlog.topics.retention import RetentionRule

LIMITS = Limits(
    entry_bytes_max=4_096,
    block_bytes_max=8_192,
    push_bytes_max=4_096,
    push_window_bytes=16_384,
    push_window_requests=8,
    tail_cache_bytes=6_000,
    frame_bytes_max=512 * KIB,
    outbox_bytes_max=512 * KIB,
    pending_requests_max=64,
)
DATA_FILE_BYTES = 16_384
INDEX_FILE_BYTES = 32 * 64
FILE_SIZES: dict[str, object] = {
    "mapped_file_size_for_entry_data": DATA_FILE_BYTES,
    "mapped_file_size_for_entry_index": INDEX_FILE_BYTES,
}
SEAL_LIMITS = SealLimits(batches=12, size_bytes=2_500)
"""So small that batches of partitions are often sealed, and sealed again together."""
EARLIER = 0.3
"""Share of the lives of processes in which they are of a version without joined frames."""
STEP_MS = 100
READ_BYTES = 1 << 20
UNCHANGED_CHECKED = 16
"""A replica of which nothing has changed is checked after every 16th event of a run."""
NOTICED_US = (100, 30_000)
"""A node sees after this time that another process has ended."""


class HastyGroupConfig(
    GroupConfig, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """A group whose hours of retention last `hour_ms`, as a run is over within a minute."""

    hour_ms: int = HOUR_MS

    @property
    def reserved_ms(self) -> int:
        """See `GroupConfig`."""
        return self.file_reserved_hours * self.hour_ms


class SimulatedCluster:
    """Founders n0, n1 … and as many spare nodes, which run only once they are to be members.

    `settings` are keys of `HastyGroupConfig`; with `has_sessions` clients are idempotent producers,
    with `has_transactions` one writes transactions. Clients of a group of kind "partitions" produce
    and consume record batches. All nodes have the same `append_hook`, and retain partitions by the
    same `rules`, by channel, which are to be set before they start. Subclasses may put other cores
    or replicas in their place.
    """

    def __init__(
        self,
        seed: int,
        count: int = 3,
        *,
        spares: int = 0,
        has_sessions: bool = False,
        has_transactions: bool = False,
        append_hook: AppendHook | None = None,
        seal_limits: SealLimits = SEAL_LIMITS,
        **settings: object,
    ) -> None:
        self._seed = seed
        self.rules: Mapping[int, RetentionRule] = {}
        self.clock = SimulationClock(seed)
        self.network = SimulatedNetwork(self.clock)
        self.paces: dict[Link, int] = {}
        self.touched: SimulatedNode | None = None
        self.append_hook = append_hook
        self.seal_limits = seal_limits
        self.founders = [f"n{number}" for number in range(count)]
        self.spares = [f"n{number}" for number in range(count, count + spares)]
        self.nodes = {
            node_id: SimulatedNode(self, self._config(node_id, settings))
            for node_id in [*self.founders, *self.spares]
        }
        self.damaged_machines: set[str] = set()
        self.state_machine = str(settings.get("state_machine", ""))
        # a random source of its own: what is checked must not change what happens
        self.invariants = all_invariants(Random(seed))  # noqa: S311  (nothing secret)
        self._watching = [one for one in self.invariants if one.watches_time]
        connections = ClientConnections(self.clock, self.network, self.nodes, self.invariants)
        self.clients: Clients | PartitionClients = (
            PartitionClients(connections, seed)
            if settings.get("kind") == "partitions"
            else Clients(
                connections,
                self.state_machine,
                has_sessions=has_sessions,
                has_transactions=has_transactions,
            )
        )

    @property
    def has_hook(self) -> bool:
        """Whether leaders have an append hook."""
        return self.append_hook is not None

    def _config(self, node_id: str, settings: dict[str, object]) -> NodeConfig:
        ids = list(dict.fromkeys([*self.founders, node_id]))
        group = HastyGroupConfig(
            group="g",
            peers=";".join(f"{name}-sim:{int(name[1:]) + 1}" for name in ids),
            **(FILE_SIZES | settings),  # type: ignore[arg-type]
        )
        return NodeConfig(
            self_id=node_id, store_base_dir="/node", groups=[group], limits=LIMITS, insecure=True
        )

    def make_core(
        self, config: RaftConfig, boot: BootState, random: Random, now_ms: int
    ) -> RaftCore:
        """Return a node's core."""
        return RaftCore(config, boot, random, now_ms)

    def make_replica(
        self,
        group: GroupConfig,
        core: RaftCore,
        opened: OpenedGroup,
        environment: Environment,
        limits: Limits,
        machine: StateMachine | None,
    ) -> Replica:
        """Return a node's replica."""
        return Replica(group, core, opened, environment, limits, machine)

    # -- messages ---------------------------------------------------------------------------

    def connection(self, sender: str, receiver: str) -> Hashable:
        """See `Wires`: connections end with the receiver's process, or are broken."""
        target = self.nodes.get(receiver)
        return None if target is None else (target.life, self.network.breaks(sender, receiver))

    def sent(self, sender: str, parts: Sequence[PeerMessage]) -> None:
        """See `Wires`: the sender says this at present. Raises `Finding`."""
        node = self.nodes[sender]
        for part in parts:
            for invariant in self.invariants:
                invariant.sent(node, part)

    def carry(
        self, sender: str, receiver: str, message: PeerMessage | NodeMessage, data: bytes
    ) -> None:
        """See `Wires`; it may be lost."""
        target = self.nodes[receiver]

        def deliver() -> None:
            if target.is_up:
                target.enter(lambda: target.receive(message, memoryview(bytearray(data))))

        self.network.carry(sender, receiver, message, data, deliver)

    def takes_joined(self, receiver: str) -> bool:
        """See `Wires`: whether a node is in this life of a version that understands them."""
        node = self.nodes.get(receiver)
        if node is None:
            return False
        drawn = zlib.crc32(f"{self._seed}/{receiver}/{node.life}".encode())
        return drawn >= EARLIER * (1 << 32)

    def reconnect(self, one: str, two: str) -> None:
        """Break the connections between two nodes; they are made again at once."""
        self.network.reset(one, two)
        for node_id, peer_id in ((one, two), (two, one)):
            node = self.nodes[node_id]
            if node.is_up and (node_id, peer_id) not in self.network.cut:
                node.enter(partial(node.running.peer_connected, peer_id))

    def ended(self, gone: SimulatedNode) -> None:
        """Let others see that a process has ended: connections are closed, then refused."""
        for node_id in self.nodes:
            if node_id != gone.node_id:
                delay_us = self.clock.random.randint(*NOTICED_US)
                self.clock.after_us(delay_us, partial(self.lose, node_id, gone.node_id))

    def lose(self, node_id: str, peer_id: str, *, is_there: bool = False) -> None:
        """Let a node see that nobody listens at a peer; with `is_there` even if the peer runs."""
        node, peer, cut = self.nodes[node_id], self.nodes[peer_id], self.network.cut
        reached = not {(node_id, peer_id), (peer_id, node_id)} & cut
        if node.is_up and reached and (is_there or not peer.is_up):
            node.enter(partial(node.running.peer_lost, peer_id))

    # -- time -------------------------------------------------------------------------------

    def run_until(self, end_ms: int) -> None:
        """Let everything happen up to a time; check the invariants after each event."""
        self.clock.run_until(end_ms, self._check_invariants)

    def _check_invariants(self) -> None:
        node, self.touched = self.touched, None
        if node is None or not node.is_up or node.running.is_broken:
            return
        node.record_alarms()
        state = node.checked_state()
        if state != node.checked or not self.clock.events % UNCHANGED_CHECKED:
            node.checked = state
            for invariant in self.invariants:
                invariant.after_event(node)
        else:
            for invariant in self._watching:
                invariant.after_event(node)

    # -- views ------------------------------------------------------------------------------

    def leader(self) -> SimulatedNode | None:
        """Return the node that leads the newest term."""
        leaders = [n for n in self.nodes.values() if n.is_up and n.core.role is Role.LEADER]
        return max(leaders, key=lambda node: node.core.term, default=None)

    def membership(self) -> Membership:
        """Return the newest membership that a running node knows to be committed."""
        known = [
            (node.core.membership_index, node.core.membership)
            for node in self.nodes.values()
            if node.is_up and node.core.membership_index <= node.core.committed_index
        ]
        fallback = self.nodes[self.founders[0]]
        if not known:
            return fallback.core.membership
        return max(known, key=lambda pair: pair[0])[1]

    def members(self) -> list[SimulatedNode]:
        """Return the nodes that belong to the group."""
        return [self.nodes[node_id] for node_id in self.membership().ids]

    # -- the end ----------------------------------------------------------------------------

    def read_everything(self) -> None:
        """Have every replica read its whole log, as a scrub would, so that it finds its damage."""
        for node in self.nodes.values():
            if node.is_up and not node.running.is_broken:
                node.enter(partial(read_all, node.running))

    def run_until_equal(self, limit_ms: int) -> None:
        """Let things happen until one leads, all members are equal, and an append was served.

        Raises `Finding` when that takes longer.
        """
        end_ms = self.clock.now_ms + limit_ms
        probe = -1
        while self.clock.now_ms < end_ms:
            self.run_until(self.clock.now_ms + STEP_MS)
            if not self._is_at_rest():
                continue
            if probe >= 0 and self.clients.floor >= probe:
                return
            if probe < 0:
                probe = self.clients.floor + 1
            self.clients.append(1, 20)
        raise Finding("liveness", f"not at rest {limit_ms} ms after the faults; {self.describe()}")

    def run_until_served(self, limit_ms: int) -> None:
        """Let things happen until somebody leads and an append was served: a majority is there.

        Raises `Finding` when that takes longer.
        """
        end_ms, before = self.clock.now_ms + limit_ms, self.clients.floor
        while self.clients.floor <= before:
            self.run_until(self.clock.now_ms + STEP_MS)
            leader = self.leader()
            if leader is not None and leader.core.is_ready:
                self.clients.append(1, 20)
            if self.clock.now_ms >= end_ms:
                text = f"no append was served within {limit_ms} ms by a majority"
                raise Finding("liveness", f"{text}; {self.describe()}")

    def require_stable(self, duration_ms: int) -> None:
        """Let time pass: while nothing is wrong the leader must stay, and no term may rise.

        Raises `Finding` otherwise: a node that cannot win disturbs the group (R9).
        """
        before = {node.node_id: node.core.term for node in self.members()}
        self.run_until(self.clock.now_ms + duration_ms)
        after = {node.node_id: node.core.term for node in self.members() if node.is_up}
        if before != after:
            text = f"terms rose from {before} to {after} although nothing was wrong"
            raise Finding("liveness", f"{text}; {self.describe()}")

    def run_until_idle(self, limit_ms: int) -> None:
        """Let time pass until the group is quiescent: node heartbeats stand for its own.

        Raises `Finding` when it does not quiesce: an idle group would cost as much as a busy one.
        """
        end_ms = self.clock.now_ms + limit_ms
        while awake := [node.node_id for node in self.members() if not node.core.is_quiescent]:
            if self.clock.now_ms >= end_ms:
                text = f"nothing happens, and {awake} beat or wait for heartbeats of their own"
                raise Finding("liveness", f"{text}; {self.describe()}")
            self.run_until(self.clock.now_ms + STEP_MS)

    def _is_at_rest(self) -> bool:
        leader = self.leader()
        if leader is None or leader.core.membership.is_joint:
            return False
        members = [self.nodes[node_id] for node_id in leader.core.membership.ids]
        if not all(node.is_up for node in members):
            return False
        states = {
            (
                n.log.end_index,
                n.core.committed_index,
                n.running.applied_index,
                n.log.end_chain_crc,
                n.core.leader_id,
            )
            for n in members
        }
        whole = not any(node.log.damaged for node in members)
        joining = any(member.joining for member in leader.core.membership.members)
        return len(states) == 1 and whole and not joining

    def check_end(self) -> None:
        """Check what must hold at the end, when nothing happens any more."""
        for invariant in self.invariants:
            invariant.ended(self)

    def describe(self) -> str:
        """Return the state of every node in one line."""
        parts = []
        for node_id, node in self.nodes.items():
            if not node.is_up:
                parts.append(f"{node_id} down ({node.why_stopped or 'not started'})")
                continue
            core, log = node.core, node.log
            parts.append(
                f"{node_id} {core.role.value} term {core.term}, log {log.before_begin_index + 1} "
                f"to {log.end_index}, committed {core.committed_index}, "
                f"applied {node.running.applied_index}, "
                f"damaged {list(log.damaged.ranges)}, voters {'/'.join(core.membership.voters)}"
            )
        return "; ".join(parts)


def read_all(replica: Replica) -> None:
    """Read the whole log of a replica, as a scrub would, so that it finds its damage."""
    index = replica.log.before_begin_index + 1
    while index <= replica.log.end_index:
        try:
            index = replica.log.read(index, replica.log.end_index, READ_BYTES).last_index + 1
        except CorruptionError as error:
            replica.repairer.found(error)
            index = (index if error.index is None else error.index) + 1
