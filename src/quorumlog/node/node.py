"""One node process: owns the directory, the disk thread, the links and a replica per group."""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType

from msgspec.structs import replace as replace_struct

from quorumlog.log_events import describe_error, log_event
from quorumlog.model.audit_events import NO_AUDIT, NodeAudit
from quorumlog.model.config import NodeConfig, parse_address
from quorumlog.model.errors import ConfigError, StorageError
from quorumlog.model.messages.base import Hello
from quorumlog.model.messages.peer import INTRODUCED_MAX, Introduction
from quorumlog.node.attachments import Attachments
from quorumlog.node.clock_watch import ClockWatch
from quorumlog.node.descriptors import DescriptorPlan, plan_descriptors, present_limit
from quorumlog.node.disk import DiskWorker, SettlerThread
from quorumlog.node.election_throttle import ElectionThrottle
from quorumlog.node.environment import Environment
from quorumlog.node.executor import ThreadExecutor
from quorumlog.node.group_catalog import GroupCatalog
from quorumlog.node.hosting import Hosting, sync_interval_ms
from quorumlog.node.instruments import NodeInstruments
from quorumlog.node.liveness import NodeLiveness
from quorumlog.node.loop_lag import LoopLag
from quorumlog.node.peer_handler import ConnectionEvents, PeerHandler, PeerHandlerCounters
from quorumlog.node.peer_turns import PeerTurns
from quorumlog.node.places import Places, is_here
from quorumlog.node.replica.replica import Replica
from quorumlog.node.request_bounds import RequestBounds
from quorumlog.node.timers import Timer, TimerQueue
from quorumlog.node.turn import Turn
from quorumlog.node.watermark_lines import WatermarkLines
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.journal.writer import NodeJournal
from quorumlog.storage.log.group_store import GroupStore
from quorumlog.transport.connection import Connection, ConnectionHandler
from quorumlog.transport.listener import Listener
from quorumlog.transport.node_tls import RELOAD_MS, NodeTls
from quorumlog.transport.peers import PeerLinks

logger = logging.getLogger(__name__)

PREPARE_STOP_MS = 2_500
"""How long a node that stops lets its replicas transfer leadership and answer requests."""
PREPARE_STOP_STEP_MS = 2
CLIENTS_DISCONNECT_MS = 250
"""How long it then waits for clients to disconnect, once it has told them to."""
FLUSH_MS = 1_000
"""How long it waits for its disk to report what was written."""
FLUSH_STEP_MS = 10
NONCE_BITS = 62
MACHINE_THREADS = 4
"""State machines of one node that may run at a time."""


def monotonic_us() -> int:
    """Microseconds of a clock that never goes back."""
    return time.monotonic_ns() // 1_000


def monotonic_ms() -> int:
    """Milliseconds of the same clock."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Milliseconds of the wall clock."""
    return time.time_ns() // 1_000_000


def hour_of_day() -> int:
    """Hour of the day in this node's time zone."""
    return time.localtime().tm_hour


class Node:
    """Starts and stops everything that a node consists of, in the right order.

    `client_handler` makes the handler for a client's connection. `attachments` are what the program
    around the node gives to groups, by their names. `audit` takes what is recorded. `failure`
    resolves with the reason when the node can no longer be trusted and must exit. Groups whose data
    cannot be opened do not keep the others from being served.
    """

    def __init__(
        self,
        config: NodeConfig,
        client_handler: Callable[["Node"], ConnectionHandler],
        attachments: Mapping[str, Attachments] = MappingProxyType({}),
        audit: NodeAudit = NO_AUDIT,
    ) -> None:
        tls = None
        if config.tls is not None:  # before anything is made that would have to be stopped
            tls = NodeTls(config.tls, config.self_id, time.time)
        self.config = config
        self.instruments = NodeInstruments(config.trace_every, audit)
        self.inbox_counters = PeerHandlerCounters()
        self.request_bounds = RequestBounds(config.limits, time.monotonic)
        self.failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._client_handler = client_handler
        loop = asyncio.get_running_loop()
        self._takes_part = False
        self.turn = Turn(loop.call_soon)
        self._timers = TimerQueue(
            loop,
            monotonic_ms,
            lambda error: self._broken(f"a timer failed: {describe_error(error)}"),
        )
        self.executor = ThreadExecutor(loop)
        self._machines = ThreadExecutor(loop, threads=MACHINE_THREADS, name="quorumlog-machine")
        self._disk = self._make_disk()
        self.links = self._make_links(tls)
        self._places = Places(self.links.resolver, self._places_known)
        replicas: dict[str, Replica] = {}
        timer = self._timers.new()
        timer.tick = WatermarkLines(replicas, monotonic_ms, timer.wake_at).tick
        self.liveness = self._make_liveness(replicas)
        self.clocks = ClockWatch()
        self.lag = LoopLag(loop)
        self.descriptors = plan_descriptors(config, present_limit())
        self.hosting = Hosting(
            config,
            replicas,
            self._make_environment(),
            self._timers.new,
            self._groups_changed,
            self.links,
            attachments,
        )
        self.listener = self._make_listener()

    @property
    def replicas(self) -> dict[str, Replica]:
        """The replica of each group that is served, by name."""
        return self.hosting.groups.replicas

    @property
    def failed_groups(self) -> dict[str, str]:
        """Groups whose data cannot be opened, with the reason."""
        return self.hosting.groups.failed

    # -- parts ------------------------------------------------------------------------------

    @property
    def peer_addresses(self) -> dict[str, str]:
        """Member id → address over all groups, without this node."""
        known = dict(self.hosting.catalog.known_addresses())
        known.pop(self.config.self_id, None)
        return known

    @property
    def catalog(self) -> GroupCatalog:
        """The groups of this node, and those that were deleted."""
        return self.hosting.catalog

    @property
    def own_address(self) -> str:
        """Where members reach this node, as far as it knows."""
        known = self.catalog.known_addresses()
        return known.get(self.config.self_id, self.config.listen_address)

    @property
    def tls(self) -> NodeTls | None:
        """How connections of this node are encrypted; None: not at all."""
        return self.links.tls

    def check_tls(self) -> None:
        """Look whether the files of TLS have changed; newer ones are read on a thread."""
        if self.tls is not None:
            self.tls.check(self.executor.run)

    def new_timer(self) -> Timer:
        """Return another timer; what it raises ends the node."""
        return self._timers.new()

    def _groups_changed(self) -> None:
        """A group has come or gone: what depends on all of them is set anew."""
        configs = self.catalog.configs.values()
        self.liveness.set_timing(configs)
        self._disk.set_sync_interval(sync_interval_ms(configs))
        with suppress(ConfigError):  # too few are left for clients: no group is made any more
            self.descriptors = self.hosting.plan()
        self.listener.limit_connections(self.descriptors.connections)
        self.hosting.configured(configs)

    def _planned(self, plan: DescriptorPlan) -> None:
        """It is known now which groups there are, and how many descriptors they need."""
        self.descriptors = plan
        self.listener.limit_connections(plan.connections)
        _tell_few_places(plan, self.config)

    def _make_disk(self) -> DiskWorker:
        journal = NodeJournal(
            OsFileSystem(),
            self.config.journal_path,
            SettlerThread(self._settler_failed),
            free_bytes_min=self._free_bytes_min,
        )
        return DiskWorker(
            GroupStore(journal, monotonic_ms),
            partial(asyncio.get_running_loop().call_soon_threadsafe, self.turn.run),
            self.instruments.commits.observe,
            self._storage_failed,
            sync_interval_ms=sync_interval_ms(self.config.groups),
            at_end=self.turn.at_end,
        )

    def _free_bytes_min(self) -> int:
        """Return what the journal leaves free, as groups are configured now; on any thread."""
        configs = list(self.catalog.configs.values())
        return max((config.disk_reserve_bytes for config in configs), default=0)

    def _configured_addresses(self) -> dict[str, str]:
        known: dict[str, str] = {}
        for group in self.config.groups:
            known.update(group.members)
        known.pop(self.config.self_id, None)
        return known

    def _make_links(self, tls: NodeTls | None) -> PeerLinks:
        return PeerLinks(
            self.config.self_id,
            self.config.cluster,
            self.config.listen_address,
            self._configured_addresses(),
            self.config.limits,
            watcher=self,
            generator=random.Random(),  # noqa: S311  (spreads reconnects; nothing secret)
            tls=tls,
        )

    def _make_environment(self) -> Environment:
        """Return what all replicas share; each gets a timer of its own."""
        config = self.config
        return Environment(
            disk=self._disk,
            network=PeerTurns(config.self_id, self.links, self.turn.at_end, self.config.limits),
            executor=self.executor,
            machines=self._machines,
            now_ms=monotonic_ms,
            now_us=monotonic_us,
            wall_ms=wall_ms,
            hour_of_day=hour_of_day,
            defer=self.turn.defer,
            wake_at=lambda deadline_ms: None,
            broken=self._broken,
            nonce=lambda: secrets.randbits(NONCE_BITS),
            liveness=self.liveness,
            election_throttle=ElectionThrottle(),
            clocks=self.clocks,
            is_same_place=self._places.is_same,
            is_here=lambda address: is_here(address, config.listen_address),
            tracer=self.instruments.tracer,
        )

    def _make_liveness(self, replicas: dict[str, Replica]) -> NodeLiveness:
        timer = self._timers.new()
        liveness = NodeLiveness(
            self.config.self_id,
            replicas,
            self.links,
            monotonic_ms,
            timer.wake_at,
            run=secrets.randbelow(1 << 62) + 1,
            groups=self.config.groups,
        )
        timer.tick = liveness.tick
        return liveness

    def _make_listener(self) -> Listener:
        host, port = parse_address(self.config.listen_address)
        return Listener(
            host,
            port,
            self._handler_for,
            cluster=self.config.cluster,
            node_id=self.config.self_id,
            accepts=self.links.accepts,
            limits=replace_struct(self.config.limits, connections_max=self.descriptors.connections),
            is_member=lambda hello: self._is_member(hello.node_id),
            is_crowded=self.request_bounds.shares.is_crowded,
            appends=self.request_bounds.appends,
            peers_reserve=self.descriptors.peers,
            tls=self.tls,
        )

    def _is_member(self, node_id: str) -> bool:
        """Whether a node is a member of a group here, as far as this node knows."""
        return node_id in self.peer_addresses or any(
            replica.core.membership.member(node_id) is not None
            for replica in self.replicas.values()
        )

    def _handler_for(self, hello: Hello) -> ConnectionHandler:
        if hello.role == "client":
            return self._client_handler(self)
        events = ConnectionEvents(
            self.links.incoming_opened,
            self._incoming_closed,
            self.links.knows,
            self.hosting.may_invite,
            self.hosting.sync.received,
            self.hosting.take_cluster_message,
        )
        return self._peer_inbox(hello, events)

    def _peer_inbox(self, hello: Hello, events: ConnectionEvents | None = None) -> PeerHandler:
        return PeerHandler(
            self.config.self_id,
            self.replicas,
            self.liveness,
            hello,
            self.inbox_counters,
            events,
        )

    # -- start and stop ---------------------------------------------------------------------

    async def start(self) -> None:
        """Open the data, then listen, then take part.

        Raises `StorageError` when no group's data can be opened, `ConfigError` when the port is
        taken; what was started is stopped again, also if the caller is cancelled.
        """
        try:
            await self.hosting.open(self._planned)
            self._groups_changed()
            self.lag.start()
            self._disk.start()
            await self._places.resolved()  # a copied directory must not misdirect clients meanwhile
            await self.listener.start()
            if self.tls is not None:
                _watch_files(self.check_tls, self._timers.new())
            for replica in self.replicas.values():
                replica.start()
            self._takes_part = True
            self.links.start()
            self.liveness.start()
            self.hosting.start()
            self.instruments.begin_audit(self.config.self_id)
        except BaseException:
            stopping = asyncio.ensure_future(self.stop(clean=False))
            while not stopping.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([stopping])
            raise

    async def stop(self, *, clean: bool = True, ended: Callable[[], None] = lambda: None) -> None:
        """Prepare to stop (with `clean`), then close everything in reverse order.

        It waits for threads, but does not block the loop. `ended` is called before anything is
        closed that replicas read: nothing may be asked of them any more.
        """
        if clean:
            await self.prepare_stop()
            await self.listener.dismiss_clients(CLIENTS_DISCONNECT_MS / 1000)
        self._takes_part = self.hosting.groups.takes_part = False
        self.lag.stop()
        await self._places.stop()
        await self.listener.stop()
        await self.links.stop()
        await self.hosting.end()
        self._timers.stop()
        if clean:
            await self._flush_writes()
            for replica in self.replicas.values():
                replica.maintenance.checkpoint()
        ended()
        self._disk.stop()
        await asyncio.to_thread(self._disk.join)
        for threads in (self._machines, self.executor):
            threads.stop()
            await asyncio.to_thread(threads.join)
        reason = self.failure.result() if self.failure.done() else ""
        await asyncio.to_thread(self.instruments.end_audit, self.config.self_id, reason)
        await asyncio.to_thread(self.hosting.close)

    async def prepare_stop(self) -> None:
        """Transfer leadership of all groups at the same time, and answer what was appended.

        The node goes on following, and directs clients to the new leaders, until it is stopped. It
        does not wait for groups in which no other member could lead.
        """
        pending = list(self.replicas.values())
        for replica in pending:
            replica.prepare_stop()
        deadline = monotonic_ms() + PREPARE_STOP_MS
        while pending and monotonic_ms() < deadline:
            pending = [replica for replica in pending if not replica.may_stop]
            if pending:
                await asyncio.sleep(PREPARE_STOP_STEP_MS / 1000)
        for replica in pending:
            log_event(
                logger, logging.WARNING, "leadership not transferred", group=replica.config.group
            )

    async def _flush_writes(self) -> None:
        """Let the disk finish the writes under way, so that the last checkpoint covers them."""
        deadline = monotonic_ms() + FLUSH_MS
        while monotonic_ms() < deadline and any(  # noqa: ASYNC110  (bounded, once per process)
            replica.core.durable_index < replica.log.end_index or replica.maintenance.is_busy
            for replica in self.replicas.values()
            if not replica.health_text
        ):
            await asyncio.sleep(FLUSH_STEP_MS / 1000)

    # -- news -------------------------------------------------------------------------------

    def peer_connected(self, peer_id: str) -> None:
        """See `LinkWatcher`."""
        for replica in self.replicas.values():
            replica.peer_connected(peer_id)
        self.hosting.sync.peer_connected()

    def peer_reached(self, peer_id: str) -> None:
        """See `LinkWatcher`."""
        self.hosting.peer_reached(peer_id)

    def _incoming_closed(self, peer_id: str, connection: Connection) -> None:
        if self.links.incoming_closed(peer_id, connection):
            self.hosting.peer_silent(peer_id)

    def peer_lost(self, peer_id: str) -> None:
        """See `LinkWatcher`."""
        for replica in self.replicas.values():
            replica.peer_lost(peer_id)

    def inbox_of(self, hello: Hello) -> ConnectionHandler:
        """See `LinkWatcher`.

        A node that shares no group with this one yet has no link to it, and answers on this one.
        """
        sync = self.hosting.sync.received
        known = ConnectionEvents(
            is_known=self.links.knows, may_invite=self.hosting.may_invite, groups_received=sync
        )
        return self._peer_inbox(hello, known)

    def introductions(self, peer_id: str, group: str | None = None) -> list[Introduction]:
        """See `LinkWatcher`."""
        names = list(self.replicas) if group is None else [group]
        at: dict[str, list[tuple[str, bytes, int]]] = {}
        for name in names:
            # only members hear of a group's identity, by which a node that was away knows them
            if name in self.replicas and self.replicas[name].core.membership.member(peer_id):
                core, address = self.replicas[name].core, self.replicas[name].placement.own_address
                known = (name, core.membership.identity, core.membership_index)
                at.setdefault(address, []).append(known)
        return [
            Introduction(
                local_id=self.config.self_id,
                remote_id=peer_id,
                address=address,
                groups=known_there[begin : begin + INTRODUCED_MAX],
            )
            for address, known_there in at.items()
            for begin in range(0, len(known_there), INTRODUCED_MAX)
        ]

    def _places_known(self) -> None:
        """Host names were resolved: check the addresses of all replicas again."""
        for replica in self.replicas.values() if self._takes_part else ():
            replica.check_addresses()

    def _settler_failed(self, error: StorageError) -> None:
        """On the settler's thread."""
        self._disk.fail(error)

    def _storage_failed(self, error: StorageError) -> None:
        self._broken(str(error))

    def _broken(self, reason: str) -> None:
        if not self.failure.done():
            log_event(logger, logging.CRITICAL, "node must stop", reason=reason)
            self.failure.set_result(reason)


def _tell_few_places(plan: DescriptorPlan, config: NodeConfig) -> None:
    """Say that there are fewer connections than configured, as there are too few descriptors."""
    limits = config.limits
    if plan.connections < limits.connections_max:
        log_event(
            logger,
            logging.WARNING,
            "fewer connections than connectionsMax",
            connections=plan.connections,
            connections_max=limits.connections_max,
            descriptors=plan.limit,
            text="raise the limit of file descriptors (ulimit -n), or lower connectionsMax",
        )
    if config.kafka_listen and plan.kafka_connections < limits.kafka_connections_max:
        log_event(
            logger,
            logging.WARNING,
            "fewer connections of Kafka clients than kafkaConnectionsMax",
            connections=plan.kafka_connections,
            connections_max=limits.kafka_connections_max,
            descriptors=plan.limit,
            text="raise the limit of file descriptors (ulimit -n), or lower it",
        )


def _watch_files(check: Callable[[], None], timer: Timer) -> None:
    """Look now and then whether the files of TLS have changed."""

    def look() -> None:
        check()
        timer.wake_at(monotonic_ms() + RELOAD_MS)

    timer.tick = look
    timer.wake_at(monotonic_ms() + RELOAD_MS)
