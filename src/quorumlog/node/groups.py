"""The groups of one node: opening their data, and making a replica of each."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

from quorumlog.log_events import log_event
from quorumlog.machine.base import StateMachine
from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.errors import StorageError, StoreLockedError
from quorumlog.node.attachments import NO_ATTACHMENTS, Attachments
from quorumlog.node.bootstrap import boot_state, founds_compatible, is_adopted, raft_config
from quorumlog.node.environment import Environment
from quorumlog.node.machines import open_machine, rebuild_machine
from quorumlog.node.replica.replica import Replica
from quorumlog.node.replica.traced_replica import TracedReplica
from quorumlog.node.timers import Timer
from quorumlog.raft.core import RaftCore
from quorumlog.storage.files.location import location_of
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.log.layout import DATA, INDEX, LOCK_NAME, NodeDirectory
from quorumlog.storage.log.store import OpenedGroup, open_group, open_memory_group

logger = logging.getLogger(__name__)


class Groups:
    """The groups of a node. `failed` maps each group whose data cannot be opened to the reason.

    All replicas share `environment`, but each gets a timer of its own from `new_timer`.
    `replicas` is filled while groups are opened. At most `maps_max` data files are mapped.
    `attachments` are those of the program around the node, by group.
    """

    def __init__(
        self,
        config: NodeConfig,
        replicas: dict[str, Replica],
        environment: Environment,
        new_timer: Callable[[], Timer],
        maps_max: int,
        attachments: Mapping[str, Attachments] = MappingProxyType({}),
    ) -> None:
        self._config = config
        self._attachments = attachments
        self._environment = environment
        self._new_timer = new_timer
        self._maps_max = maps_max
        self._directory: NodeDirectory | None = None
        self._opened: list[OpenedGroup] = []
        self.replicas = replicas
        self.failed: dict[str, str] = {}

    async def open(self) -> None:
        """Open all groups. Raises `StorageError` when none can be opened."""
        files = OsFileSystem()
        self._directory = NodeDirectory(files, self._config.store_base_dir)
        self._log_unknown_directories(files)
        for group in self._config.groups:
            try:
                await self._add_group(files, group)
            except StoreLockedError:
                raise  # the configuration names another group's directory
            except StorageError as error:
                if len(self.failed) + 1 == len(self._config.groups):
                    raise  # there is nothing to serve
                self.failed[group.group] = str(error)
                text = str(error)
                log_event(
                    logger, logging.ERROR, "group cannot be opened", group=group.group, text=text
                )

    def _log_unknown_directories(self, files: OsFileSystem) -> None:
        base = self._config.store_base_dir
        known = {LOCK_NAME, *(group.group for group in self._config.groups)}
        data = [path for group in self._config.groups for path in group.data_directories]
        for name in files.names(base):
            path = f"{base}/{name}"
            if name not in known and not any(one.startswith(path) for one in data):
                text = "it is the directory of no group in the configuration; it is ignored"
                log_event(logger, logging.WARNING, "strange file", path=path, text=text)

    async def _add_group(self, files: OsFileSystem, group: GroupConfig) -> None:
        # opening may take long or wait for a disk: on a thread it does not delay signals
        opened = await asyncio.to_thread(self._open_group, files, group)
        try:
            given = self._attachments.get(group.group, NO_ATTACHMENTS).machine
            directory = self._directory_of(group)
            machine = await asyncio.to_thread(open_machine, group, directory, given)
            self.replicas[group.group] = self._make_replica(group, opened, machine)
        except BaseException:
            opened.close()
            raise
        self._opened.append(opened)

    def _directory_of(self, group: GroupConfig) -> str:
        return str(Path(self._config.store_base_dir) / group.group)

    def _open_group(self, files: OsFileSystem, group: GroupConfig) -> OpenedGroup:
        limits, self_id = self._config.limits, self._config.self_id
        if group.store_type == "MEMORY":
            return open_memory_group(files)
        directory = self._directory_of(group)
        opened = open_group(
            files,
            directory,
            group,
            limits,
            self_id=self_id,
            maps_max=self._maps_max,
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

    def _make_replica(
        self, group: GroupConfig, opened: OpenedGroup, machine: StateMachine | None
    ) -> Replica:
        jitter = random.Random()  # noqa: S311  (spreads elections; nothing secret)
        config = raft_config(group, self._config, opened)
        _log_compatibility(group, opened)
        core = RaftCore(config, boot_state(opened), jitter, self._environment.now_ms())
        timer, directory = self._new_timer(), self._directory_of(group)
        attached = self._attachments.get(group.group, NO_ATTACHMENTS)
        given = attached.machine

        def rebuild(machine: StateMachine) -> StateMachine:
            kind = given if isinstance(given, type) else None
            return rebuild_machine(machine, group, directory, kind)

        environment = replace(
            self._environment,
            wake_at=timer.wake_at,
            rebuild_machine=None if isinstance(given, StateMachine) else rebuild,
            append_hook=attached.append_hook,
            role_changed=attached.role_changed,
        )
        kind = Replica if environment.tracer is None else TracedReplica
        replica = kind(group, core, opened, environment, self._config.limits, machine)
        timer.tick = replica.tick
        return replica

    def close(self) -> None:
        """Close all groups, once nothing runs for them any more."""
        for replica in self.replicas.values():
            replica.applier.close()
        for opened in self._opened:
            opened.close()
        if self._directory is not None:
            self._directory.close()


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
