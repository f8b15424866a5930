"""The groups of one node: opening their data, making a replica of each, and closing them."""

import asyncio
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from quorumlog.log_events import describe_error, log_event
from quorumlog.machine.base import StateMachine
from quorumlog.model.codes import Role
from quorumlog.model.config import AUDIT_LOG_NAME, CLUSTER_ID_NAME, JOURNAL_NAME, GroupConfig
from quorumlog.model.errors import ConfigError, NoSpaceError, StorageError, StoreLockedError
from quorumlog.model.hooks import RoleChange, RoleListener
from quorumlog.model.membership import addresses_of, peers_text
from quorumlog.node.attachments import NO_ATTACHMENTS, Attachments
from quorumlog.node.bootstrap import boot_state, founds_compatible, is_adopted, raft_config
from quorumlog.node.descriptors import Demand, maps_share, plan_for, present_limit
from quorumlog.node.environment import Environment
from quorumlog.node.group_catalog import GroupCatalog
from quorumlog.node.group_executor import GroupExecutor
from quorumlog.node.group_sync import GroupView
from quorumlog.node.machines import machine_class, open_machine, rebuild_machine
from quorumlog.node.replica.group_changes import close_replica, reconfigure
from quorumlog.node.replica.replica import Replica
from quorumlog.node.replica.traced_replica import TracedReplica
from quorumlog.node.timers import Timer
from quorumlog.raft.core import RaftCore
from quorumlog.storage.files.location import location_of
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.log.layout import DATA, INDEX, LOCK_NAME, NodeDirectory
from quorumlog.storage.log.settle import settle_node
from quorumlog.storage.log.store import OpenedGroup, open_group, open_memory_group
from quorumlog.storage.metadata.group_files import DELETED_NAME

logger = logging.getLogger(__name__)

_OWN_FILES: Final = (LOCK_NAME, DELETED_NAME, JOURNAL_NAME, CLUSTER_ID_NAME)
_AUDIT_LOG: Final = re.compile(rf"{re.escape(AUDIT_LOG_NAME)}(\.[0-9]+)?")

__all__ = ["Groups", "HostedReplicas", "close_replica", "reconfigure"]

OPENED_AT_A_TIME = 8
"""Groups that are opened or made at the same time: their fsyncs share what the disk does."""
PLANNED = 256
"""Groups made while a node runs share its descriptors as if there were at least this many."""


@dataclass(frozen=True, slots=True)
class _OpenGroup:
    """A group that is open, and what must end before its files are closed."""

    opened: OpenedGroup
    replica: Replica
    timer: Timer
    executors: tuple[GroupExecutor, GroupExecutor]
    maps_max: int

    def close(self) -> None:
        """Close its files, once nothing runs for it any more."""
        try:
            self.replica.applier.close()
        finally:  # a machine of the program may raise
            self.opened.close()


class HostedReplicas:
    """What replicas know of their groups, as `ReplicaHost` and `GroupViews` ask for it."""

    def __init__(self, replicas: dict[str, Replica]) -> None:
        self.replicas = replicas

    def identity_of(self, name: str) -> bytes:
        """See `ReplicaHost`."""
        replica = self.replicas.get(name)
        return b"" if replica is None else replica.core.identity

    def peers_of(self, name: str) -> str:
        """See `ReplicaHost`."""
        replica = self.replicas.get(name)
        return "" if replica is None else peers_text(addresses_of(replica.core.membership))

    def member_ids(self, name: str) -> Collection[str]:
        """See `ReplicaHost`."""
        replica = self.replicas.get(name)
        return () if replica is None else replica.core.membership.ids

    def view(self, name: str) -> GroupView | None:
        """See `GroupViews`."""
        replica = self.replicas.get(name)
        if replica is None:
            return None
        core = replica.core
        return GroupView(
            core.membership.ids,
            core.committed_membership_index >= 0,
            core.role is Role.LEADER and core.is_ready,
            lambda: addresses_of(core.membership),
        )


class Groups(HostedReplicas):
    """The groups of a node. `failed` maps each group whose data cannot be opened to the reason.

    All replicas share `environment`, but each gets a timer of its own from `new_timer`.
    `replicas` is filled while groups are opened. `changed` is called when a group has come or gone,
    or its configuration has changed. `attachments` are those of the program around the node, by
    group.
    """

    def __init__(
        self,
        catalog: GroupCatalog,
        replicas: dict[str, Replica],
        environment: Environment,
        new_timer: Callable[[], Timer],
        changed: Callable[[], None],
        attachments: Mapping[str, Attachments],
    ) -> None:
        super().__init__(replicas)
        self._catalog = catalog
        self._config = catalog.node
        self._attachments = attachments
        self._environment = environment
        self._new_timer = new_timer
        self._changed = changed
        self._files = OsFileSystem()
        self._directory: NodeDirectory | None = None
        self._open: dict[str, _OpenGroup] = {}
        self._closing: dict[str, _OpenGroup] = {}
        self._unsettled: dict[str, StorageError] = {}
        self._slots = asyncio.Semaphore(OPENED_AT_A_TIME)
        self._used: dict[str, Attachments] = {}
        """What the program has for groups, and a group of that name has had."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ending = False
        self.takes_part = False
        self.demand = Demand(maps=0)
        self.failed: dict[str, str] = {}
        self.being_opened: set[str] = set()

    def lock(self, cluster_id: str) -> None:
        """Lock the node's directory. Raises `StoreLockedError` when another process has it.

        `cluster_id`: what the node's certificate says; empty: nothing. Raises `StorageError` if
        what is there is another cluster's, or the journal is to be where no directory can be.
        """
        self._directory = NodeDirectory(self._files, self._config.store_base_dir)
        if cluster_id:
            with suppress(NoSpaceError):  # it is noted at the next start
                self._directory.claim_for(cluster_id)
        if self._config.journal_directory:
            try:
                self._files.make_directory(self._config.journal_directory)
            except NoSpaceError:
                pass  # groups write to their own files until there is room for it
            except StorageError as error:
                raise StorageError(f"journalDirectory: {error}") from error

    async def open_all(self, maps_max: int) -> None:
        """Open all groups. Raises `StorageError` when none of the file's can be, and no other is.

        `maps_max`: how many of its data files, and of its index files, each may have mapped.
        """
        if self._is_ending:
            return
        self._log_unknown_directories()
        self.failed.update(self._catalog.unusable)
        configs = list(self._catalog.configs.values())
        # all of them end before one that must end the node does, so that all can be closed
        opening = [self._open_first(config, maps_max) for config in configs]
        for error in await asyncio.gather(*opening, return_exceptions=True):
            if error is not None:
                raise error
        made = any(record.peers for record in self._catalog.records.values())
        if self._config.groups and self.failed and not self.replicas and not made:
            # there is nothing to serve; groups that were made while nodes ran can be deleted
            raise StorageError(next(iter(self.failed.values())))

    def settle(self) -> None:
        """Bring what only the journal holds into the files of groups that are opened or moved.

        It may wait for the disk. Raises `StorageError` if the journal is in use.
        """
        base = str(Path(self._config.store_base_dir))
        settled = settle_node(self._files, base, self._config.journal_path)
        self._unsettled = settled.failed
        known = {self._directory_of(group) for group in self._catalog.configs.values()}
        for directory in settled.failed.keys() - known:  # opening says it of those that are known
            text = str(settled.failed[directory])
            log_event(logger, logging.ERROR, "group not settled", directory=directory, text=text)
        for directory, written in settled.groups.items():
            log_event(logger, logging.INFO, "journal settled", directory=directory, bytes=written)

    async def _open_first(self, config: GroupConfig, maps_max: int) -> None:
        try:
            await self._add_group(config, self._given_identity(config.group), maps_max)
        except StoreLockedError:
            raise  # the configuration names another group's directory
        except StorageError as error:
            self._has_failed(config.group, error)

    def _given_identity(self, name: str) -> bytes:
        record = self._catalog.records.get(name)
        return record.identity if record is not None and record.peers else b""

    def _has_failed(self, name: str, error: StorageError) -> None:
        self.failed[name] = str(error)
        log_event(logger, logging.ERROR, "group cannot be opened", group=name, text=str(error))

    def _log_unknown_directories(self) -> None:
        base, configs = self._config.store_base_dir, self._catalog.configs
        known = {*_OWN_FILES, *configs, *self._catalog.unusable}
        data = [path for group in configs.values() for path in group.data_directories]
        for name in self._files.names(base):
            path = f"{base}/{name}"
            is_known = name in known or _AUDIT_LOG.fullmatch(name) is not None
            if not is_known and not any(one.startswith(path) for one in data):
                text = "it belongs to no group of this node; it is ignored"
                log_event(logger, logging.WARNING, "strange file", path=path, text=text)

    async def _add_group(self, group: GroupConfig, identity: bytes, maps_max: int) -> bool:
        """Open a group and make its replica; False: the node stops, so it was not begun."""
        attached = self._attachments.get(group.group, NO_ATTACHMENTS)
        self.being_opened.add(group.group)
        try:
            return await self._open_with(attached, group, identity, maps_max)
        finally:
            self.being_opened.discard(group.group)

    async def _open_with(
        self, attached: Attachments, group: GroupConfig, identity: bytes, maps_max: int
    ) -> bool:
        given = attached.machine
        if isinstance(given, StateMachine) and self._used.get(group.group) is attached:
            raise StorageError(
                f"the machine object of group {group.group} was used by an earlier group of this "
                "name: it is not empty; expect_group with another one"
            )
        group = _with_machine(group, attached)
        async with self._slots:
            if self._is_ending:
                return False
            # opening may take long or wait for a disk: on a thread it does not delay signals
            opened = await asyncio.to_thread(self._open_group, group, maps_max)
            try:
                await asyncio.to_thread(_make_first_files, opened)
                directory = self._directory_of(group)
                machine = await asyncio.to_thread(open_machine, group, directory, given)
                self._add_replica(group, identity, opened, machine, attached, maps_max)
            except BaseException:
                opened.close()
                raise
            self._used = {
                name: used
                for name, used in {**self._used, group.group: attached}.items()
                if self._attachments.get(name) is used
            }
            return True

    def _directory_of(self, group: GroupConfig) -> str:
        return str(Path(self._config.store_base_dir) / group.group)

    def _open_group(self, group: GroupConfig, maps_max: int) -> OpenedGroup:
        limits, self_id = self._config.limits, self._config.self_id
        if group.store_type == "MEMORY":
            return open_memory_group(self._files)
        directory = self._directory_of(group)
        if directory in self._unsettled:
            raise self._unsettled[directory]
        opened = open_group(
            self._files,
            directory,
            group,
            limits,
            self_id=self_id,
            maps_max=maps_max,
        )
        data = group.data_directories or [f"{directory}/{DATA}"]
        paths = [directory, f"{directory}/{INDEX}", *data, *group.read_only_directories]
        absolute = dict.fromkeys(str(Path(path).absolute()) for path in paths)
        opened = replace(opened, location=location_of(list(absolute)))
        log_event(
            logger,
            logging.INFO,
            "group opened",
            group=group.group,
            directory=directory,
            end_index=opened.log.end_index,
            term=opened.hard_state.term,
            report=asdict(opened.report),
        )
        return opened

    def _add_replica(
        self,
        group: GroupConfig,
        identity: bytes,
        opened: OpenedGroup,
        machine: StateMachine | None,
        attached: Attachments,
        maps_max: int,
    ) -> None:
        jitter = random.Random()  # noqa: S311  (spreads elections; nothing secret)
        config = raft_config(group, self._config, opened, identity)
        _log_compatibility(group, opened)
        core = RaftCore(config, boot_state(opened), jitter, self._environment.now_ms())
        timer, directory = self._new_timer(), self._directory_of(group)
        given = attached.machine

        def rebuild(machine: StateMachine) -> StateMachine:
            kind = given if isinstance(given, type) else None
            return rebuild_machine(machine, group, directory, kind)

        executors = (
            GroupExecutor(self._environment.executor),
            GroupExecutor(self._environment.machines),
        )
        environment = replace(
            self._environment,
            executor=executors[0],
            machines=executors[1],
            wake_at=timer.wake_at,
            rebuild_machine=None if isinstance(given, StateMachine) else rebuild,
            append_hook=attached.append_hook,
            role_changed=_both(attached.role_changed, self._environment.role_changed),
            applied=attached.applied,
        )
        kind = Replica if environment.tracer is None else TracedReplica
        replica = kind(group, core, opened, environment, self._config.limits, machine)
        timer.tick = replica.tick
        self._open[group.group] = _OpenGroup(opened, replica, timer, executors, maps_max)
        self.demand.add(group)
        self.demand.maps = (self.demand.maps or 0) + maps_max
        self.failed.pop(group.group, None)
        self.replicas[group.group] = replica

    # -- while the node runs ------------------------------------------------------------------

    def room_for(self, config: GroupConfig, being_made: int) -> str:
        """See `ReplicaHost`."""
        limit, demand, count = present_limit(), self.demand, being_made + 1
        maps_max = maps_share(limit, max(PLANNED, demand.stored + count))
        try:
            more = copy(demand)
            more.members = demand.members | Counter(config.members.keys())
            more.groups, more.stored = demand.groups + count, demand.stored + count
            more.maps = (demand.maps or 0) + count * maps_max
            more.machines += count * bool(config.state_machine)
            plan_for(more, self._config.limits, limit)
            if config.state_machine:
                machine_class(config.state_machine)
        except ConfigError as error:
            return f"{self._config.self_id}: {error}"
        first_files = 0
        if config.store_type != "MEMORY":
            first_files = (
                config.mapped_file_size_for_entry_data + config.mapped_file_size_for_entry_index
            )
        free = self._files.space(self._config.store_base_dir).free_bytes
        needed = config.disk_reserve_bytes + count * first_files
        if free < needed:
            return (
                f"the disk of {self._config.self_id} has {free} bytes left, and {needed} are "
                f"needed: {first_files} for the first files of each group that is being made "
                f"({count}; mappedFileSizeForEntryData, mappedFileSizeForEntryIndex), and "
                f"{config.disk_reserve_bytes} that stay free (diskReserveBytes)"
            )
        return ""

    def open(
        self, config: GroupConfig, identity: bytes, done: Callable[[StorageError | None], None]
    ) -> None:
        """See `ReplicaHost`."""
        maps_max = maps_share(present_limit(), max(PLANNED, self.demand.stored + 1))

        async def open_it() -> None:
            try:
                if not await self._add_group(config, identity, maps_max):
                    return
            except StorageError as error:
                self._has_failed(config.group, error)
                done(error)
                return
            self._changed()
            if self.takes_part:
                self.replicas[config.group].start()
            done(None)

        self._keep(open_it())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._environment.broken(f"a group: {describe_error(error)}")

    def close(self, name: str, done: Callable[[], None]) -> None:
        """See `ReplicaHost`."""
        self.failed.pop(name, None)
        found = self._open.pop(name, None)
        if found is None:
            done()
            return
        self._closing[name] = found
        replica = found.replica
        del self.replicas[name]
        self._environment.network.update_members(name, {})

        def closed() -> None:
            found.timer.end()
            if not self._is_ending:
                self._keep(close_files())

        async def close_files() -> None:
            del self._closing[name]
            try:
                await asyncio.to_thread(found.close)
            except Exception as error:  # of a machine: its files are closed all the same
                log_event(logger, logging.ERROR, "group not closed", group=name, exc_info=error)
            self.demand.add(replica.config, -1)  # its descriptors were in use until now
            self.demand.maps = (self.demand.maps or 0) - found.maps_max
            self._changed()
            done()

        close_replica(replica, found.executors, f"group {name!r} was deleted", closed)

    def over(self) -> list[str]:
        """Return groups that were here with what the program has for them, and are gone."""
        present = {*self._open, *self._closing, *self.being_opened}
        return [
            name
            for name, used in self._used.items()
            if name not in present and self._attachments.get(name) is used
        ]

    def change(self, config: GroupConfig) -> None:
        """See `ReplicaHost`."""
        replica = self.replicas.get(config.group)
        if replica is not None:
            attached = self._attachments.get(config.group, NO_ATTACHMENTS)
            reconfigure(replica, _with_machine(config, attached))
        self._changed()

    def why_not_open(self, name: str) -> str:
        """See `ReplicaHost`."""
        return self.failed.get(name, "")

    def keeps_failed(self, name: str, reason: str) -> None:
        """See `ReplicaHost`."""
        self.failed[name] = reason

    # -- the end ------------------------------------------------------------------------------

    def end(self) -> list[asyncio.Task[None]]:
        """Begin to open or close no group any more; return what was begun and is not over."""
        self.takes_part, self._is_ending = False, True
        return list(self._tasks)

    def close_all(self) -> None:
        """Close all groups, once nothing runs for them any more, whatever one of them raises."""
        for name, found in (*self._open.items(), *self._closing.items()):
            try:
                found.close()
            except Exception as error:  # of a machine, too: the others have to be closed
                log_event(logger, logging.ERROR, "group not closed", group=name, exc_info=error)
        if self._directory is not None:
            self._directory.close()


def _both(first: RoleListener, second: RoleListener) -> RoleListener:
    """Return a listener that passes on what it hears to two others."""

    def hear(change: RoleChange) -> None:
        first(change)
        second(change)

    return hear


def _with_machine(config: GroupConfig, attached: Attachments) -> GroupConfig:
    """Return a configuration with the machine that the program around the node has."""
    try:
        return attached.applied_to(config)
    except ConfigError as error:
        raise StorageError(str(error)) from error


def _make_first_files(opened: OpenedGroup) -> None:
    """Make the first files of a log without entries: later, no write may find no room for them.

    Raises `NoSpaceError`; then only this group fails, before it has promised anything.
    """
    log = opened.log
    if log.end_index == log.before_begin_index:
        for file in log.upcoming():
            file.prepare()


def _log_compatibility(group: GroupConfig, opened: OpenedGroup) -> None:
    """Say what becomes of DLedger's log, or that the configuration comes too late."""
    if is_adopted(opened):
        how = "stays readable" if founds_compatible(group, opened) else "is not readable any more"
        text = f"with what this group appends it {how} by DLedger 0.2.7 to 0.4.0"
        log_event(
            logger,
            logging.WARNING,
            "log of DLedger taken over",
            group=group.group,
            end_index=opened.log.end_index,
            text=f"{text} (originalCompatible)",
        )
        return
    memberships = boot_state(opened).memberships
    is_compatible = bool(memberships) and memberships[-1][1].original_compatible
    wanted = group.original_compatible
    if memberships and wanted and (wanted != "no") != is_compatible:
        log_event(
            logger,
            logging.WARNING,
            "originalCompatible has no effect",
            group=group.group,
            wanted=wanted,
            text="the group was founded compatible" if is_compatible else "it was founded without",
        )
