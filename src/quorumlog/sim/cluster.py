"""A whole group in one thread: real cores, replicas and logs; network, disks and time from a seed.

What clients were promised and what replicas called committed is kept, and compared after every
event with what every replica says.
"""

import hashlib

from quorumlog.model.block import (
    Block,
    block_from_index_records,
    encode_block,
    headers,
    parse_block,
)
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.errors import CorruptionError, InvariantViolation, check
from quorumlog.model.limits import Limits
from quorumlog.model.message import AppendResponse, NodeMessage, PeerMessage
from quorumlog.sim.node import SimulatedNode
from quorumlog.sim.world import World

LIMITS = Limits(
    entry_bytes_max=4_096,
    block_bytes_max=8_192,
    push_bytes_max=4_096,
    push_window_bytes=16_384,
    push_window_requests=8,
    tail_cache_bytes=6_000,
)
DATA_FILE_BYTES = 16_384
INDEX_FILE_BYTES = 32 * 64


class SimulatedCluster:
    """Nodes n0, n1 … of one group, and the network between them.

    `loss` and `repeat` are shares of messages, `delay_us` the range of their travel, `cut` pairs
    (from, to) between which nothing gets through, `slow_disk` multiplies the time of writes.
    """

    def __init__(self, seed: int, count: int = 3, **settings: object) -> None:
        self.world = World(seed)
        self.ids = [f"n{number}" for number in range(count)]
        peers = ";".join(f"{node_id}-sim:{port}" for port, node_id in enumerate(self.ids, 1))
        group = GroupConfig(
            group="g",
            peers=peers,
            mapped_file_size_for_entry_data=DATA_FILE_BYTES,
            mapped_file_size_for_entry_index=INDEX_FILE_BYTES,
            **settings,  # type: ignore[arg-type]
        )
        self.nodes = {
            node_id: SimulatedNode(
                self,
                node_id,
                NodeConfig(
                    self_id=node_id,
                    store_base_dir="/node",
                    groups=[group],
                    limits=LIMITS,
                    insecure=True,
                ),
            )
            for node_id in self.ids
        }
        self.loss = self.repeat = 0.0
        self.delay_us = (100, 2_000)
        self.cut: set[tuple[str, str]] = set()
        self.slow_disk = 1
        self.appended = 0
        self.acknowledged: dict[int, bytes] = {}
        self.committed: dict[int, tuple[int, bytes]] = {}
        self._judged = dict.fromkeys(self.ids, (0, -1))

    # -- network and disks ------------------------------------------------------------------

    def carry(
        self, sender: str, receiver: str, message: PeerMessage | NodeMessage, data: bytes
    ) -> None:
        """Take a message along, unless it is lost."""
        random = self.world.random
        copies = 1 + (random.random() < self.repeat)
        for _ in range(copies):
            if (sender, receiver) not in self.cut and random.random() >= self.loss:
                delay = random.randint(*self.delay_us)
                self.world.after_us(delay, lambda: self._deliver(receiver, message, data))

    def _deliver(self, receiver: str, message: PeerMessage | NodeMessage, data: bytes) -> None:
        self.nodes[receiver].receive(message, memoryview(bytearray(data)))

    def disk_us(self) -> int:
        """Return how long the next group commit, or read, takes."""
        return self.world.random.randint(100, 1_500) * self.slow_disk

    # -- clients ----------------------------------------------------------------------------

    def append(self, count: int, size: int) -> bool:
        """Propose entries to whoever says that it leads; False if nobody does."""
        leaders = [node for node in self.nodes.values() if leads(node)]
        if not leaders:
            return False
        node = self.world.random.choice(leaders)
        bodies = [f"{self.appended + n} ".encode().ljust(size, b".") for n in range(count)]
        self.appended += count
        data = memoryview(bytearray(encode_block(bodies)))
        block = parse_block(data, count=count, entry_bytes_max=LIMITS.entry_bytes_max)

        def answered(response: AppendResponse) -> None:
            if response.code == ResponseCode.SUCCESS:
                for ordinal, body in enumerate(bodies):
                    index = response.first_index + ordinal
                    check(index not in self.acknowledged, "one append an index", index)
                    self.acknowledged[index] = body

        if node.replica is not None:
            node.replica.propose(block, answered)
        return True

    # -- what must always hold ----------------------------------------------------------------

    def judge(self) -> None:
        """Compare what has become committed with what was committed before."""
        leaders: dict[int, str] = {}
        for node_id, node in self.nodes.items():
            replica = node.replica
            if replica is None:
                continue
            if leads(node):
                other = leaders.setdefault(replica.core.term, node_id)
                check(other == node_id, "one leader a term", replica.core.term, other, node_id)
            life, judged = self._judged[node_id]
            judged = judged if life == node.life else replica.log.before_begin_index
            committed = replica.core.committed_index
            if committed > judged:
                self._compare(node_id, node, max(judged, replica.log.before_begin_index) + 1)
            self._judged[node_id] = (node.life, max(committed, judged))

    def _compare(self, node_id: str, node: SimulatedNode, first: int) -> None:
        replica = node.replica
        last = replica.core.committed_index if replica is not None else -1
        while replica is not None and first <= last:
            try:
                span = replica.log.read(first, last, 1 << 20)
            except CorruptionError as error:
                first = (first if error.index is None else error.index) + 1
                continue
            block = block_from_index_records(span.data, span.records)
            for index, entry in zip(
                range(first, first + span.count), _identities(block), strict=True
            ):
                known = self.committed.setdefault(index, entry)
                check(known == entry, "what is committed never changes", node_id, index)
            first = span.last_index + 1

    def read_everything(self) -> None:
        """Have every replica read its whole log, as a scrub would, so that it finds its damage."""
        for node in self.nodes.values():
            replica = node.replica
            if replica is None:
                continue
            index = replica.log.before_begin_index + 1
            while index <= replica.log.end_index:
                try:
                    index = replica.log.read(index, replica.log.end_index, 1 << 20).last_index + 1
                except CorruptionError as error:
                    replica.healing.found(error)
                    index = (index if error.index is None else error.index) + 1
            replica.wake()

    def judge_end(self) -> None:
        """All have come to rest: are they equal, and do they hold all that was promised?"""
        replicas = [node.replica for node in self.nodes.values() if node.replica is not None]
        check(len(replicas) == len(self.nodes), "every node runs", self._reasons())
        ends = {(r.log.end_index, r.core.committed_index, r.log.end_chain_crc) for r in replicas}
        check(len(ends) == 1, "all replicas are equal", ends)
        check(not any(r.log.damaged for r in replicas), "nothing is damaged any more")
        for replica in replicas:
            held: dict[int, bytes] = {}
            first = replica.log.before_begin_index + 1
            while first <= replica.log.end_index:
                span = replica.log.read(first, replica.log.end_index, 1 << 20)
                block = block_from_index_records(span.data, span.records)
                for ordinal, (start, size) in enumerate(
                    zip(block.offsets.tolist(), block.sizes.tolist(), strict=True)
                ):
                    held[first + ordinal] = bytes(block.data[start + 48 : start + size])
                first = span.last_index + 1
            for index, body in self.acknowledged.items():
                if index > replica.log.before_begin_index:
                    check(held.get(index) == body, "every acknowledged append is kept", index)

    def _reasons(self) -> dict[str, str]:
        return {node_id: node.why_stopped for node_id, node in self.nodes.items() if not node.is_up}

    def run_until(self, end_ms: int) -> None:
        """Let everything happen up to a time, judged after each event."""
        self.world.run_until(end_ms, self.judge)

    def run_until_equal(self, limit_ms: int, *, step_ms: int = 500) -> None:
        """Let things happen until all replicas are equal and served an append; bounded."""
        end = self.world.now_ms + limit_ms
        probe = -1
        while self.world.now_ms < end:
            self.run_until(self.world.now_ms + step_ms)
            if self._is_at_rest():
                if probe >= 0 and any(index >= probe for index in self.acknowledged):
                    return
                probe = max(self.committed, default=-1) + 1
                self.append(1, 20)
        raise InvariantViolation(f"not at rest {limit_ms} ms after the faults: {self.describe()}")

    def _is_at_rest(self) -> bool:
        replicas = [node.replica for node in self.nodes.values() if node.replica is not None]
        states = {(r.log.end_index, r.core.committed_index) for r in replicas}
        whole = not any(r.log.damaged for r in replicas)
        return len(replicas) == len(self.nodes) and len(states) == 1 and whole

    def describe(self) -> str:
        """Return the state of every node in one line."""
        parts = []
        for node_id, node in self.nodes.items():
            replica = node.replica
            if replica is None:
                parts.append(f"{node_id} down ({node.why_stopped})")
                continue
            core, log = replica.core, replica.log
            parts.append(
                f"{node_id} {core.role.value} term {core.term}, log {log.before_begin_index + 1} "
                f"to {log.end_index}, committed {core.committed_index}, "
                f"damaged {log.damaged.ranges}"
            )
        return "; ".join(parts)

    def digest(self) -> str:
        """Return a fingerprint of all that was committed, to compare two runs of one seed."""
        told = repr((self.world.events, self.world.now_us, sorted(self.committed.items())))
        return hashlib.sha256(told.encode()).hexdigest()


def leads(node: SimulatedNode) -> bool:
    """Whether a node says that it leads."""
    return node.replica is not None and node.replica.core.role is Role.LEADER


def _identities(block: Block) -> list[tuple[int, bytes]]:
    """Return term and chain CRC of each entry: equal ones are equal entries."""
    table = headers(block)
    chains = table["chain_crc"].astype(">u4")
    return [
        (term, chain.tobytes()) for term, chain in zip(table["term"].tolist(), chains, strict=True)
    ]
