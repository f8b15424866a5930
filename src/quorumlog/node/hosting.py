"""The groups of a running node: which there are, their replicas, and what peers say of them."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.hooks import RoleChange, RoleListener
from quorumlog.model.messages.cluster import ClusterMessage
from quorumlog.node.attachments import Attachments
from quorumlog.node.deleted_groups import LifecycleEnvironment
from quorumlog.node.descriptors import Demand, DescriptorPlan, plan_for, present_limit
from quorumlog.node.environment import Environment
from quorumlog.node.executor import ThreadExecutor
from quorumlog.node.group_catalog import GroupCatalog
from quorumlog.node.group_lifecycle import GroupLifecycle
from quorumlog.node.group_sync import GroupSync, GroupView, SyncEnvironment
from quorumlog.node.groups import Groups
from quorumlog.node.replica.replica import Replica
from quorumlog.node.timers import Timer
from quorumlog.storage.files.os_files import OsFileSystem, remove_tree
from quorumlog.storage.metadata.group_files import GroupFiles
from quorumlog.transport.peers import PeerLinks

THREADS = 4
"""Threads that write and remove what belongs to a group as a whole."""
NONCE_BITS = 62
CHECK_MS = 3_600_000
"""Deleted groups are looked at so often at least, as the wall clock may be set."""


def sync_interval_ms(groups: Iterable[GroupConfig]) -> int:
    """Return the pause between fsyncs if all groups do without waiting for them, else 0."""
    intervals = [group.flush_file_interval if group.flush == "async" else 0 for group in groups]
    return min(intervals, default=0)


class Hosting:
    """Puts together what a node needs in order to make, change and delete groups.

    All replicas share `environment`. `changed` is called when a group has come, gone, or has
    another configuration; then the node calls `configured` with the configurations of all.
    """

    def __init__(
        self,
        config: NodeConfig,
        replicas: dict[str, Replica],
        environment: Environment,
        new_timer: Callable[[], Timer],
        changed: Callable[[], None],
        links: PeerLinks,
        attachments: Mapping[str, Attachments],
    ) -> None:
        self.configured: Callable[[Iterable[GroupConfig]], None] = lambda configs: None
        self.cluster_received: Callable[[ClusterMessage, memoryview], None] = lambda *_: None
        """Takes what brokers send to this one."""
        self.role_changed: RoleListener = lambda change: None
        """Hears of each role that a replica of this node takes."""
        self.peer_reached: Callable[[str], None] = lambda peer_id: None
        """Hears of each node that can be sent to (again)."""
        self.peer_silent: Callable[[str], None] = lambda peer_id: None
        """Hears of each node whose connection to this one has ended."""
        environment = replace(environment, role_changed=self.tell_role)
        self.catalog = GroupCatalog(config)
        self.groups = Groups(self.catalog, replicas, environment, new_timer, changed, attachments)
        self._environment = environment
        self._links = links
        self._executor = ThreadExecutor(
            asyncio.get_running_loop(), threads=THREADS, name="quorumlog-groups"
        )
        self._opening: list[asyncio.Task[None]] = []
        self._due_timer, self._query_timer = new_timer(), new_timer()
        self._files = GroupFiles(OsFileSystem(), config.store_base_dir, remove_tree)
        self.lifecycle = GroupLifecycle(
            self.catalog,
            self._files,
            self.groups,
            LifecycleEnvironment(self._executor, environment.wall_ms, self._wake_at_wall),
        )
        self.sync = GroupSync(
            self.lifecycle,
            SyncEnvironment(
                links,
                self,
                environment.now_ms,
                self._query_timer.wake_at,
                lambda: secrets.randbits(NONCE_BITS),
            ),
        )
        self._due_timer.tick = self.lifecycle.tick
        self._query_timer.tick = self.sync.tick

    async def open(self, planned: Callable[[DescriptorPlan], None]) -> None:
        """Open all groups; `planned` is given the descriptors' plan once it is known which.

        It is not interrupted if the caller is cancelled: `end` waits for it. Raises `StorageError`
        when no group can be opened, or it cannot be known which there are.
        """
        self._opening.append(asyncio.ensure_future(self._open(planned)))
        await asyncio.shield(self._opening[0])

    async def _open(self, planned: Callable[[DescriptorPlan], None]) -> None:
        tls = self._links.tls
        # directories are synced, which a slow disk takes its time for
        await asyncio.to_thread(self.groups.lock, "" if tls is None else tls.current.own.cluster_id)
        found = await asyncio.to_thread(self._files.load, self._environment.wall_ms())
        await asyncio.to_thread(self.groups.settle)
        self.lifecycle.loaded(await asyncio.to_thread(self._files.finish, found))
        plan = plan_for(
            Demand.of(self.catalog.configs.values()), self.catalog.node.limits, present_limit()
        )
        planned(plan)
        await self.groups.open_all(plan.maps_max)

    def start(self) -> None:
        """Start to ask peers, and to remove what is due."""
        self.groups.takes_part = True
        self.sync.start()
        self.lifecycle.tick()

    async def end(self) -> None:
        """Wait for what is being opened, closed or written, and begin nothing more.

        What was to follow from it follows at the next start, from the records on disk.
        """
        self._executor.stop()
        begun = [*self._opening, *self.groups.end()]
        await asyncio.to_thread(self._executor.join)
        await asyncio.gather(*begun, return_exceptions=True)

    def close(self) -> None:
        """Close all groups, once nothing runs for them any more; on any thread."""
        self.groups.close_all()

    def plan(self) -> DescriptorPlan:
        """Return how descriptors are divided among the groups that are open now."""
        return plan_for(self.groups.demand, self.catalog.node.limits, present_limit())

    def _wake_at_wall(self, due_ms: int) -> None:
        environment = self._environment
        pause_ms = max(0, min(due_ms - environment.wall_ms(), CHECK_MS))
        self._due_timer.wake_at(environment.now_ms() + pause_ms)

    def may_invite(self, peer_id: str) -> bool:
        """Whether a node may have this one make a replica: one that is known, or the first one."""
        return self._links.knows(peer_id) or self.catalog.is_empty

    def take_cluster_message(self, message: ClusterMessage, attachment: memoryview) -> None:
        """Pass a message of another broker to whoever takes it at present."""
        self.cluster_received(message, attachment)

    def tell_role(self, change: RoleChange) -> None:
        """Pass the new role of a replica to whoever hears of it at present."""
        self.role_changed(change)

    # -- what peers are asked and told ----------------------------------------------------------

    def view(self, name: str) -> GroupView | None:
        """See `GroupViews`."""
        return self.groups.view(name)

    def peers(self) -> list[str]:
        """See `GroupViews`."""
        return list(self._links.addresses)
