"""A node with all that it serves, from start to stop, whatever happens meanwhile."""

import asyncio
import time
from collections.abc import Callable

from quorumlog.model.config import NodeConfig
from quorumlog.model.errors import QuorumlogError
from quorumlog.node.attachments import Attachments
from quorumlog.node.node import Node, wall_ms
from quorumlog.service.admin_access import AdminMembers
from quorumlog.service.audit import audit_of
from quorumlog.service.authorization import RefusalLines
from quorumlog.service.file_rights import warn_of_open_files
from quorumlog.service.kafka_clients import KafkaService
from quorumlog.service.login_gate import LoginGate
from quorumlog.service.logins import make_logins, password_threads, token_rules
from quorumlog.service.outlets import MetricOutlets
from quorumlog.service.quota_gate import QuotaGate
from quorumlog.service.traced_requests import requests_of
from quorumlog.transport.connection import ConnectionHandler


class ServedNode:
    """A node, its port for Kafka clients, and its outlets for metrics; started and stopped once.

    `attachments` gets what the broker has for groups. `ended` is called when nothing may be asked
    of replicas any more: their files are about to be closed.
    Raises `ConfigError` if a package is missing, a broker could not do with its configuration, or
    the keys of those who issue tokens cannot be used.
    """

    def __init__(
        self,
        config: NodeConfig,
        attachments: dict[str, Attachments],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._outlets = MetricOutlets(config)
        audit = audit_of(config, now=time.monotonic, wall_ms=wall_ms)
        self._kafka = KafkaService(config, RefusalLines(time.monotonic, audit))
        attachments.update(self._kafka.attachments)
        tokens = token_rules(config)
        self.node = Node(config, self._handler_of, attachments, audit)
        self.node.listener.shared.audit = audit
        kafka = self._kafka
        self.node.listener.shared.admissions = kafka.admissions
        self._passwords = password_threads()
        self._logins = make_logins(self.node, self._passwords, kafka.view, kafka.is_ready, tokens)
        self._ended = ended
        self._starting: asyncio.Task[None] | None = None
        self._showing: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._is_running = False

    def _handler_of(self, node: Node) -> ConnectionHandler:
        """Return the handler of a client's connection."""
        kafka = self._kafka
        requests = requests_of(node, kafka.consumers, kafka.security, kafka.authorizer)
        handler: ConnectionHandler = requests
        if kafka.has_quotas:
            handler = QuotaGate(kafka.throttles, kafka.admissions, requests, time.monotonic)
        return handler if self._logins is None else LoginGate(self._logins, handler)

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
        await asyncio.to_thread(warn_of_open_files, self.node.config)
        await self._kafka.start(self.node, self._logins)
        # in a thread: the name of a host may have to be looked up
        kafka, loop = self._kafka, asyncio.get_running_loop()
        members = AdminMembers(loop, self._logins, kafka.authorizer)
        show = asyncio.to_thread(
            self._outlets.start, self.node, kafka.counters, kafka.view, members
        )
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
        self._passwords.stop()
        await asyncio.to_thread(self._passwords.join)
        self._ended()
