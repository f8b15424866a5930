"""How simulated Kafka clients reach brokers: over a network that loses requests, and answers.

Clients are coroutines on one event loop of simulated time. A broker that is down or cut off answers
nothing, and clients give up waiting after a while.
"""

import asyncio
import struct
from collections.abc import Callable, Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any, Final

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.requests import ApiKey
from quorumlog.sim.broker_cluster import BrokerCluster
from quorumlog.sim.broker_node import Answer, BrokerNode, PlaceOfPartition
from quorumlog.sim.event_loop import SimulatedLoop
from quorumlog.sim.group_cluster import DELAY_US

PATIENCE_MS: Final = 3_000
"""How long a client waits for most answers."""
LOST: Final = 0.01
"""Share of requests, and of answers, that are lost while there are faults."""
LATE: Final = 0.03
"""Share of record batches that arrive late, as their producer has given up waiting."""
LATE_US: Final = (50_000, 4_000_000)
GIVEN_UP_MS: Final = 40
PRODUCE_VERSION: Final = 7
AGAIN: Final = frozenset(
    {
        None,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which clients send a request again; None: no answer came."""
ELSEWHERE: Final = frozenset(
    {
        None,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""Errors after which clients look for the coordinator again."""
_OF_GROUPS: Final = 0
_PRODUCED: Final = struct.Struct(">ihqqq")


class BrokerRequests:
    """The network between clients and brokers.

    `lost`: the share of requests, and of answers, that it loses. `is_calm`: it loses nothing more.
    """

    def __init__(self, cluster: BrokerCluster) -> None:
        self.cluster = cluster
        self.random: Random = cluster.random
        self.lost = LOST
        self.is_calm = False
        self.loop = SimulatedLoop(self._later, lambda: cluster.clock.now_us)

    def _later(self, delay_us: int, call: Callable[[], None]) -> None:
        self.cluster.clock.after_us(delay_us, lambda: self._enter(call))

    def _enter(self, call: Callable[[], object]) -> None:
        self.loop.run(call)

    def begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Let a client go on by itself. What it raises ends the run."""
        task = self.loop.run(lambda: self.loop.create_task(work))
        task.add_done_callback(lambda ended: ended.result())
        return task

    async def wait_ms(self, low_ms: int, high_ms: int) -> None:
        """Wait for a while."""
        await asyncio.sleep(self.random.randint(low_ms, high_ms) / 1e3)

    async def ask(
        self,
        node_id: str,
        deliver: Callable[[BrokerNode, Answer], None],
        patience_ms: int = PATIENCE_MS,
        delay_us: tuple[int, int] = DELAY_US,
    ) -> Any:
        """Send a request to a node and return the answer; None: none came."""
        answered, clock = self.loop.create_future(), self.cluster.clock
        node = self.cluster.brokers[node_id]

        def give(found: Any) -> None:
            if not answered.done():
                answered.set_result(found)

        def answer(found: Any) -> None:
            if not self._is_lost(node_id):
                clock.after_us(self.random.randint(*DELAY_US), lambda: self._enter(arrive_back))

            def arrive_back() -> None:
                if node_id not in self.cluster.cut:
                    give(found)

        def arrive() -> None:
            if node.is_up and not self._is_lost(node_id):
                node.enter(lambda: deliver(node, answer))

        clock.after_us(self.random.randint(*delay_us), arrive)
        given_up = self.loop.call_later(patience_ms / 1e3, give, None)
        try:
            return await answered
        finally:
            given_up.cancel()

    def _is_lost(self, node_id: str) -> bool:
        if node_id in self.cluster.cut:
            return True
        return not self.is_calm and self.random.random() < self.lost


class BrokerClient:
    """A client, and the coordinator that it knows of."""

    def __init__(self, requests: BrokerRequests, name: str) -> None:
        self.name = name
        self.requests = requests
        self.random = requests.random
        self._coordinator: str | None = None

    def _any_node(self) -> str:
        return self.random.choice(self.requests.cluster.ids)

    async def coordinate(
        self, key: ApiKey, version: int, *, patience_ms: int = PATIENCE_MS, **fields: Any
    ) -> Any:
        """Ask the coordinator, which is looked for first if it is not known; None: no answer."""
        if self._coordinator is None:
            await self._find()
        if self._coordinator is None:
            await self.requests.wait_ms(20, 100)
            return None
        request, node_id = SimpleNamespace(**fields), self._coordinator
        found = await self.requests.ask(
            node_id, lambda node, answer: node.handle(key, version, request, answer), patience_ms
        )
        if found is None:
            self.look_elsewhere(None)
        return found

    def look_elsewhere(self, error: int | None) -> None:
        """Look for the coordinator again before the next request, if an error says so."""
        if error in ELSEWHERE:
            self._coordinator = None

    async def _find(self) -> None:
        asked = SimpleNamespace(key="", key_type=_OF_GROUPS)
        found = await self.requests.ask(
            self._any_node(),
            lambda node, answer: node.handle(ApiKey.FIND_COORDINATOR, 2, asked, answer),
        )
        if found is not None and found["port"] >= 0:
            self._coordinator = self.requests.cluster.node_at(found["port"])

    async def place_of(self, topic: str, number: int) -> PlaceOfPartition | None:
        """Ask any node where a partition is; None: it does not know, or does not answer."""
        found: PlaceOfPartition | None = await self.requests.ask(
            self._any_node(), lambda node, answer: answer(node.place_of(topic, number))
        )
        return found

    async def produce(
        self,
        place: PlaceOfPartition,
        where: tuple[str, int],
        batch: bytes,
        transactional_id: str,
        *,
        is_late: bool = False,
    ) -> tuple[int | None, int]:
        """Send a batch to the leader of a partition; return the error code and the offset.

        `is_late`: it arrives only after this has given up.
        """
        data = _produce_bytes(*where, batch, transactional_id)
        patience_ms, delay_us = PATIENCE_MS, DELAY_US
        if is_late or (not self.requests.is_calm and self.random.random() < LATE):
            patience_ms, delay_us = GIVEN_UP_MS, LATE_US
        found = await self.requests.ask(
            place.leader, lambda node, answer: node.produce(data, answer), patience_ms, delay_us
        )
        if not found:
            return None, -1
        # the frame's length, the correlation id, the count of topics, a name, and of partitions
        _, code, offset, _, _ = _PRODUCED.unpack_from(found, 18 + len(where[0]))
        return ErrorCode(code), offset


def _produce_bytes(topic: str, number: int, batch: bytes, transactional_id: str) -> bytes:
    """Return a Produce for one partition, with acks=all, as `kafka.produce` reads it."""
    name, known = topic.encode(), transactional_id.encode()
    header = struct.pack(">hhih", ApiKey.PRODUCE, PRODUCE_VERSION, 0, -1)
    head = struct.pack(f">h{len(known)}shii", len(known), known, -1, PATIENCE_MS, 1)
    return (
        header
        + head
        + struct.pack(f">h{len(name)}siii", len(name), name, 1, number, len(batch))
        + batch
    )
