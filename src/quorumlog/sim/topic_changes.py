"""A simulated administrator: makes the topics of a run, and others, and deletes these again."""

from collections.abc import Sequence
from typing import Any, Final

from quorumlog.machine.cluster.commands import (
    AlterConfigs,
    AlterResource,
    AnyCommand,
    ConfigChange,
    ConfigsAltered,
    CreateTopics,
    DeleteTopics,
    NewTopic,
    TopicsChanged,
    TopicToDelete,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.topic_configs import (
    CONSUMER_INTERVAL,
    CONSUMER_INTERVAL_MIN,
    CONSUMER_SESSION,
    CONSUMER_SESSION_MIN,
    GROUP_INITIAL_DELAY,
    GROUP_SESSION_MIN,
)
from quorumlog.sim.broker_node import Answer, BrokerNode
from quorumlog.sim.broker_requests import BrokerClient, BrokerRequests
from quorumlog.sim.group_members import INPUT, INPUT_PARTITIONS
from quorumlog.sim.protocol_members import INTERVAL_MS, SESSION_MS
from quorumlog.sim.transactional_clients import OUTPUT, OUTPUT_PARTITIONS

CONFIGS: Final = {
    GROUP_INITIAL_DELAY: "100",
    GROUP_SESSION_MIN: "500",
    CONSUMER_SESSION_MIN: "1000",
    CONSUMER_SESSION: str(SESSION_MS),
    CONSUMER_INTERVAL_MIN: "100",
    CONSUMER_INTERVAL: str(INTERVAL_MS),
}
"""So that what members wait for comes soon, and they are missed soon."""
ORDER_MS: Final = 3_000
TOPICS_MAX: Final = 5
"""Topics that come and go."""
ID_BYTES: Final = 16


class TopicChanges(BrokerClient):
    """Makes and deletes topics. `made` are there for sure, and `gone` are not."""

    def __init__(self, requests: BrokerRequests, name: str) -> None:
        super().__init__(requests, name)
        self.made: set[str] = set()
        self.gone: set[str] = set()
        self.is_ready = False
        self._count = 0

    async def run(self) -> None:
        """Make what clients need, then change other topics until the network is calm."""
        while not await self._configure():
            await self.requests.wait_ms(50, 200)
        for topic, count in ((INPUT, INPUT_PARTITIONS), (OUTPUT, OUTPUT_PARTITIONS)):
            while topic not in self.made:
                await self._create(topic, count)
                await self.requests.wait_ms(50, 200)
        self.is_ready = True
        while not self.requests.is_calm:
            await self.requests.wait_ms(200, 3_000)
            others = sorted(self.made - {INPUT, OUTPUT})
            if others and (len(others) >= TOPICS_MAX or self.random.random() < 0.4):
                await self._delete(self.random.choice(others))
            else:
                self._count += 1
                await self._create(f"x{self._count}", self.random.randint(1, 3))

    async def _order(self, command: AnyCommand) -> Any:
        """Have any broker order a command; return its result, None: it is not known."""

        def deliver(node: BrokerNode, answer: Answer) -> None:
            if node.broker.is_complete:
                node.broker.order(command, ORDER_MS, lambda code, text, result: answer(result))

        return await self.requests.ask(self._any_node(), deliver, 2 * ORDER_MS)

    async def _configure(self) -> bool:
        changes = [ConfigChange("set", name, value) for name, value in CONFIGS.items()]
        found = await self._order(AlterConfigs([AlterResource(None, changes)]))
        return isinstance(found, ConfigsAltered)

    async def _create(self, name: str, partitions: int) -> None:
        topic = NewTopic(name, self.random.randbytes(ID_BYTES), partitions)
        found = await self._order(CreateTopics([topic]))
        codes = (ResponseCode.SUCCESS, ResponseCode.TOPIC_EXISTS)
        if isinstance(found, TopicsChanged) and found.topics[0].code in codes:
            self.made.add(name)

    async def _delete(self, name: str) -> None:
        self.made.discard(name)
        found = await self._order(DeleteTopics([TopicToDelete(name)]))
        codes: Sequence[ResponseCode] = (ResponseCode.SUCCESS, ResponseCode.UNKNOWN_TOPIC)
        if isinstance(found, TopicsChanged) and found.topics[0].code in codes:
            self.gone.add(name)
