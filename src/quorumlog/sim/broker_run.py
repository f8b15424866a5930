"""One run from one seed of brokers: consumer groups and transactions, amid faults.

Once the faults are over, all is to come to rest: transactions end, members have all partitions, and
readers of committed records see what was committed, and nothing else.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from quorumlog.model.codes import Role
from quorumlog.sim.broker_cluster import BrokerCluster
from quorumlog.sim.broker_faults import BrokerFaults
from quorumlog.sim.broker_requests import BrokerRequests
from quorumlog.sim.environment_faults import EnvironmentFaults
from quorumlog.sim.finding import Finding, Outcome, found_by
from quorumlog.sim.group_members import INPUT, INPUT_PARTITIONS, GroupHistory, GroupMember
from quorumlog.sim.protocol_members import ProtocolMember
from quorumlog.sim.sent_transactions import SentTransactions
from quorumlog.sim.slow_links import SlowLinks
from quorumlog.sim.topic_changes import TopicChanges
from quorumlog.sim.transactional_clients import CommittedReader, TransactionalProducer

CHECK_MS: Final = 20
FOUNDING_MS: Final = 20_000
"""Within this time the first topics are there, as nothing goes wrong yet."""
SETTLE_MS: Final = 90_000
STEP_MS: Final = 250
COMMITS, TRANSACTIONS, CONSUMERS = "commits", "transactions", "consumers"
"""Groups by the classic protocol, whose members commit themselves, or with transactions; and one by
the consumer protocol."""
MEMBERS: Final = (2, 3)
"""How many members a group has."""
STATIC: Final = 0.3
"""Share of members that are static."""
TWINS: Final = 0.6
"""Share of runs in which two producers have the same transactional id."""


class BrokerRun:
    """Brokers that fail, and their clients."""

    def __init__(self, seed: int, nodes: int = 3) -> None:
        self.cluster = BrokerCluster(seed, nodes)
        self.happened: list[str] = []
        self.faults = BrokerFaults(self.cluster, self._say)
        chance = Random(f"clocks, disks and links {seed}")  # noqa: S311  (nothing secret)
        self.environment_faults = EnvironmentFaults(self.cluster, chance, self._say)
        chance = Random(f"slow links {seed}")  # noqa: S311  (nothing secret)
        self.slow_links = SlowLinks(self.cluster, chance)
        self.requests = BrokerRequests(self.cluster)
        self.sent = SentTransactions()
        self.topics = TopicChanges(self.requests, "administrator")
        self.groups = [GroupHistory(name) for name in (COMMITS, TRANSACTIONS, CONSUMERS)]
        self.members = [member for group in self.groups for member in self._members(group, chance)]
        ids = ["a", "a" if chance.random() < TWINS else "b"]
        self.producers = [
            TransactionalProducer(self.requests, f"producer {at}", one, self.sent)
            for at, one in enumerate(ids)
        ]
        self.reader = CommittedReader(self.requests, "reader", self.sent)
        self._working: list[asyncio.Task[None]] = []
        self._reading: asyncio.Task[None] | None = None
        self._visible: Counter[int] | None = None

    def _members(
        self, group: GroupHistory, chance: Random
    ) -> Iterator[GroupMember | ProtocolMember]:
        requests = self.requests
        for at in range(chance.choice(MEMBERS)):
            name = f"{group.name}-{at}"
            if group.name == CONSUMERS:
                yield ProtocolMember(requests, name, group)
                continue
            producer = None
            if group.name == TRANSACTIONS:
                producer = TransactionalProducer(requests, name, name, self.sent)
            instance_id = f"static-{at}" if chance.random() < STATIC else None
            yield GroupMember(requests, name, group, producer, instance_id)

    def _say(self, text: str) -> None:
        self.happened.append(f"{self.cluster.clock.now_ms:>8} ms  {text}")

    def _look(self) -> None:
        """Notice who reaches whom, and start what is down."""
        self.cluster.update_connections()  # those of a process that has ended break at once
        self.faults.start_nodes()
        self.cluster.update_connections()
        self.cluster.clock.after_ms(CHECK_MS, self._look)

    # -- the run ----------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let clients work amid faults for a while, then until all is settled. Raises `Finding`."""
        self.begin()
        self.faults.start()
        self.slow_links.start()
        self.environment_faults.start()
        self.wait_ms(int(seconds * 1_000))
        self.end()

    def wait_ms(self, duration_ms: int) -> None:
        """Let time pass. Raises `Finding`."""
        self.cluster.run_until(self.cluster.clock.now_ms + duration_ms)

    def begin(self) -> None:
        """Let clients begin to work, while nothing goes wrong. Raises `Finding`."""
        cluster = self.cluster
        for node in cluster.nodes.values():
            node.start()
        self._look()
        self.requests.begin(self.topics.run())
        self._until(FOUNDING_MS, lambda: "" if self.topics.is_ready else "topics are not there")
        clients = (*self.members, *self.producers, self.reader)
        self._working = [self.requests.begin(client.run()) for client in clients]

    def end(self) -> None:
        """End all faults and let everything settle; then check what is left. Raises `Finding`."""
        self.faults.end()
        self.slow_links.end()
        self.environment_faults.end()
        self.requests.is_calm = True
        self._until(SETTLE_MS, self._unsettled)
        for member in self.members:
            member.has_ended = True
        self._until(SETTLE_MS, self._unread)
        self._check_end()

    def _until(self, most_ms: int, lacks: Callable[[], str]) -> None:
        end_ms = self.cluster.clock.now_ms + most_ms
        while text := lacks():
            if self.cluster.clock.now_ms >= end_ms:
                raise Finding("liveness", text)
            self.wait_ms(STEP_MS)

    def _unsettled(self) -> str:
        """Return what is not yet as it must be in the end; "" if all is."""
        nodes = self.cluster.brokers.values()
        if not all(node.is_up for node in nodes):
            return "a node is down: " + "; ".join(node.why_stopped for node in nodes)
        for node in nodes:
            if not node.broker.is_complete:
                return f"{node.node_id} does not know all topics"
            for name in self.topics.made:
                if name not in node.broker.topics:
                    return f"{node.node_id} lacks the topic {name}"
                if not node.broker.is_open(node.broker.topics[name].topic_id):
                    return f"{node.node_id} says that {name} is not open"
            left = self.topics.gone & node.broker.topics.keys()
            if left:
                return f"{node.node_id} has {left}, which were deleted"
        for group in self.groups:
            owned = sorted(
                number for one in self.members if one.history is group for number in one.owned
            )
            generations = {one.generation for one in self.members if one.history is group}
            if owned != list(range(INPUT_PARTITIONS)) or len(generations) > 1:
                return f"{group.name}: {owned} are owned, in the generations {generations}"
        return ""

    def _unread(self) -> str:
        """Return what is under way, or cannot be read yet; "" if all is at rest."""
        nodes = self.cluster.brokers.values()
        if not all(one.done() for one in self._working):
            return "clients do not end"
        records = self.cluster.coordination.state.transactions.records
        names = [name for name, record in records.items() if record.is_open]
        if names:
            return f"transactions of {names} go on"
        for name in {name for node in nodes for name in node.replicas}:
            found = [node.replicas[name] for node in nodes if name in node.replicas]
            ends = {(one.core.committed_index, one.log.end_index) for one in found}
            leaders = sum(one.core.role is Role.LEADER for one in found)
            if len(ends) > 1 or leaders != 1 or len(found) < len(nodes):
                return f"{name}: {leaders} leaders, committed and ends are {sorted(ends)}"
        if damaged := self.cluster.find_damage():
            return damaged
        if self._visible is None and (self._reading is None or self._reading.done()):
            self._reading = self.requests.begin(self._read_all())
        return "" if self._visible is not None else "readers of committed records do not get all"

    async def _read_all(self) -> None:
        self._visible = await self.reader.read_all()

    def _check_end(self) -> None:
        cluster = self.cluster
        cluster.checks.ended({replica.core.given_identity for _, replica in cluster.replicas()})
        self.sent.check_end(self._visible or {})
        state = cluster.coordination.state
        topic_id = state.topics[INPUT].topic_id
        for group in self.groups:
            record = state.consumer_groups.records.get(group.name)
            for number, floor in group.acknowledged.items():
                known = None if record is None else record.offsets.get((topic_id, number))
                group.fetched(number, floor, -1 if known is None else known.offset)
            for commit in group.told:
                if (group.name, *commit) not in cluster.coordination.progress:
                    text = f"{group.name}: the commit {commit} was acknowledged, and never counted"
                    raise Finding("acknowledged", text)
        for sent in self.sent.all.values():
            for number, offset in sent.acknowledged.items():
                self._check_batch(number, offset)

    def _check_batch(self, number: int, offset: int) -> None:
        """A batch that was acknowledged is where its producer was told."""
        for partitions in self.cluster.partitions.values():
            found = partitions.history.stored.get(number)
            if found is not None:
                if found[1].base_offset != offset:
                    text = f"batch {number}, acknowledged at {offset}, is at {found[1].base_offset}"
                    raise Finding("acknowledged", text)
                return
        raise Finding("acknowledged", f"batch {number}, acknowledged at {offset}, is not there")


def run_brokers_seed(seed: int, *, seconds: float = 30.0, nodes: int = 3) -> Outcome:
    """Simulate brokers and their clients: `seconds` of faults, then until all is settled."""
    run = BrokerRun(seed, nodes)
    finding = found_by(lambda: run.run(seconds))
    clock = run.cluster.clock
    return Outcome(
        seed,
        clock.now_ms,
        clock.events,
        sum(len(one.acknowledged) for one in run.sent.all.values()),
        run.reader.reads,
        run.cluster.trace.text,
        [
            *("brokers", *run.faults.names[1:], *run.environment_faults.names),
            *["slow_links"] * run.slow_links.are_chosen,
        ],
        {
            "faults": run.happened,
            "slow links": run.slow_links.happened,
            "state": run.cluster.describe(),
        },
        finding,
    )
