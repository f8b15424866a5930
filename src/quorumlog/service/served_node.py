"""A node with all that it serves, from start to stop, whatever happens meanwhile."""

import asyncio
from collections.abc import Callable
from functools import partial

from quorumlog.model.config import NodeConfig
from quorumlog.model.errors import QuorumlogError
from quorumlog.node.attachments import Attachments
from quorumlog.node.node import Node
from quorumlog.service.kafka_clients import KafkaService
from quorumlog.service.outlets import MetricOutlets
from quorumlog.service.traced_requests import requests_of


class ServedNode:
    """A node, its port for Kafka clients, and its outlets for metrics; started and stopped once.

    `attachments` gets what the broker has for groups. `ended` is called when nothing may be asked
    of replicas any more: their files are about to be closed.
    Raises `ConfigError` if a package is missing, or a broker could not do with its configuration.
    """

    def __init__(
        self,
        config: NodeConfig,
        attachments: dict[str, Attachments],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._outlets = MetricOutlets(config)
        self._kafka = KafkaService(config)
        attachments.update(self._kafka.attachments)
        requests = partial(requests_of, consumers=self._kafka.consumers)
        self.node = Node(config, requests, attachments)
        self._ended = ended
        self._starting: asyncio.Task[None] | None = None
        self._showing: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._is_running = False

    async def start(self) -> None:
        """Open the data, listen, take part, serve Kafka clients, show metrics.

        If anything raises, or the caller is cancelled, all is stopped again when this returns; a
        caller that is cancelled twice does not wait for that. Raises `StorageError` when the data
        of no group can be opened, `ConfigError` when a port is taken, and `QuorumlogError` when
        `stop` was called.
        """
        self._starting = asyncio.ensure_future(self._start())
        try:
            await asyncio.shield(self._starting)
        except BaseException as error:
            await self.stop()
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and not (task and task.cancelling()):
                text = f"node {self.node.config.self_id} was stopped during its start"
                raise QuorumlogError(text) from None
            raise

    async def _start(self) -> None:
        await self.node.start()
        self._is_running = True
        await self._kafka.start(self.node)
        # in a thread: the name of a host may have to be looked up
        kafka = self._kafka
        show = asyncio.to_thread(self._outlets.start, self.node, kafka.counters, kafka.view)
        self._showing = asyncio.ensure_future(show)
        await asyncio.shield(self._showing)

    async def stop(self) -> None:
        """Hand over leadership, answer what is under way, and close everything; end a start.

        It goes on if the caller is cancelled. It waits for threads, but never blocks the loop.
        """
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        for begun in (self._starting, self._showing):  # a thread that has begun goes on
            if begun is not None:
                await asyncio.wait([begun])
        if self._is_running:
            if not self.node.failure.done():
                await self.node.prepare_stop()
            await self._kafka.stop()
            await asyncio.to_thread(self._outlets.stop)
            await self.node.stop(clean=not self.node.failure.done(), ended=self._ended)
        self._ended()
