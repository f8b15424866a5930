"""A node inside a program: its start, its stop, its groups, and how it says that it has failed."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from quorumlog.client.arguments import flag, seconds, takes
from quorumlog.client.group_answers import GroupChange, GroupSummary
from quorumlog.client.groups import Groups, usable_name
from quorumlog.client.requester import Requester
from quorumlog.client.security import Security
from quorumlog.embedded.calls import Calls
from quorumlog.embedded.group import EmbeddedGroup
from quorumlog.embedded.role_changes import RoleChangeHandler, RoleChanges
from quorumlog.machine.base import StateMachine
from quorumlog.model.config import (
    CLUSTER_GROUP,
    PARTITION_GROUP,
    GroupConfig,
    NodeConfig,
    check_name,
    load_config,
)
from quorumlog.model.errors import (
    ConfigError,
    QuorumlogError,
    StorageError,
    UnexpectedArgumentError,
    UnknownGroupError,
    WrongClusterError,
)
from quorumlog.model.hooks import AppendHook
from quorumlog.node import node as inside
from quorumlog.node.attachments import Attachments
from quorumlog.node.replica.replica import Replica
from quorumlog.service.kafka_clients import load_kafka
from quorumlog.service.logins import load_logins
from quorumlog.service.served_node import ServedNode

EXPECTED_MAX: Final = 4_096
"""Groups that a program has something for; those that were deleted make room for others."""


class Node:
    """A node of a cluster that runs inside this program, in the event loop that starts it.

    It is the node of `quorumlog serve`: it listens for other nodes and for clients, and its files
    are the same, and it serves Kafka clients if the configuration says so. Nodes of both kinds may
    belong to one cluster. Use it as `async with Node(config) as node`, or call `start` and `stop`.
    A node is started once.

    Args:
        config: the configuration, or the path of a TOML file with it. `logLevel` has no effect:
            the program decides what becomes of the records of the logger `quorumlog`.
        security: who the program is to the nodes that `create_group` and `delete_group` ask, also
            to this one, where they speak TLS. A node's own certificate is refused from clients.

    Raises:
        ConfigError: the configuration cannot be read, or is impossible.
    """

    def __init__(
        self, config: NodeConfig | str | Path, *, security: Security | None = None
    ) -> None:
        self._security = security
        self._config = config if isinstance(config, NodeConfig) else load_config(config)
        load_kafka(self._config)
        load_logins(self._config)
        self._attachments: dict[str, Attachments] = {}
        self._role_changes: dict[str, RoleChanges] = {}
        self._former: list[RoleChanges] = []
        """Those of deleted groups whose handler has not returned yet."""
        self._calls: Calls | None = None
        self._inside: inside.Node | None = None
        self._served: ServedNode | None = None
        self._has_started = False
        self._stopping: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()

    @property
    def config(self) -> NodeConfig:
        """The configuration, with the groups that were added."""
        return self._config

    # -- groups -----------------------------------------------------------------------------

    def add_group(
        self,
        group: GroupConfig | str,
        *,
        machine: StateMachine | type[StateMachine] | None = None,
        append_hook: AppendHook | None = None,
        on_role_change: RoleChangeHandler | None = None,
    ) -> None:
        """Host a group, with what the program has for it; before the node is started.

        Args:
            group: its configuration, or the name of a group that the node's configuration has.
            machine: its state machine: a class, or an object. An object must be empty and used for
                nothing else. A class is opened again if its state turns out to be damaged; an
                object cannot be, and its replica then does not lead.
            append_hook: called once with each entry that a user appends while this replica leads
                (see `AppendHook`).
            on_role_change: called with each role change of this replica (see `RoleChangeHandler`).

        Raises:
            ConfigError: the group is impossible, or has been added; or the node was started.
        """
        if self._calls is not None:
            raise ConfigError("groups are added before the node is started")
        config = self._with_group(group)
        name = group if isinstance(group, str) else group.group
        if name == CLUSTER_GROUP:
            raise ConfigError(f"group {name} is the brokers' own: a program has nothing for it")
        attached = self._attached(name, machine, append_hook, on_role_change)
        groups = [attached.applied_to(one) if one.group == name else one for one in config.groups]
        self._config = msgspec.structs.replace(config, groups=groups)
        self._attachments[name] = attached

    def _with_group(self, group: GroupConfig | str) -> NodeConfig:
        config = self._config
        names = [one.group for one in config.groups]
        if isinstance(group, str):
            if group not in names:
                raise ConfigError(f"the configuration has the groups {names}, not {group!r}")
            return config
        if not isinstance(group, GroupConfig):
            raise ConfigError(f"a group is a name or a GroupConfig, not {group!r}")
        if group.group in names:
            raise ConfigError(f"the configuration has a group {group.group} already: add its name")
        return msgspec.structs.replace(config, groups=[*config.groups, group])

    def expect_group(
        self,
        name: str,
        *,
        machine: StateMachine | type[StateMachine] | None = None,
        append_hook: AppendHook | None = None,
        on_role_change: RoleChangeHandler | None = None,
    ) -> None:
        """Say what the program has for a group that is made while nodes run; at any time.

        The group gets it when this node opens it: when it is made (`create_group`, `quorumlog group
        create`), and at each later start. A group that nobody expects is hosted without.

        Args:
            name: name of the group.
            machine: see `add_group`.
            append_hook: see `add_group`.
            on_role_change: see `add_group`.

        Raises:
            ConfigError: the node hosts the group already, or it has been added; no group that is
                made while nodes run has that name; or too many are expected (`EXPECTED_MAX`).
        """
        check_name("group", name)
        if name == CLUSTER_GROUP:
            raise ConfigError(f"group {name} is that of brokers; it is made in configuration files")
        if name in {one.group for one in self._config.groups}:
            raise ConfigError(f"group {name} is in the node's configuration: add it")
        if PARTITION_GROUP.fullmatch(name):
            raise ConfigError(
                f"group {name} is the brokers' own, which make it for partitions of topics: a "
                "program has nothing for it; expect a group of another name"
            )
        if self._inside is not None and name in self._inside.replicas:
            raise ConfigError(f"the node hosts group {name} already")
        if self._inside is not None and name in self._inside.hosting.groups.being_opened:
            raise ConfigError(
                f"the node is opening group {name}, with what was expected of it before: expect "
                "it before it is made, or before the node is started"
            )
        if name not in self._attachments:
            self._make_room()
        # once the node has started: of a group of this name that was deleted
        before = None if self._inside is None else self._attachments.pop(name, None)
        try:
            attached = self._attached(name, machine, append_hook, on_role_change)
        except ConfigError:
            if before is not None:
                self._attachments[name] = before
            raise
        self._attachments[name] = attached

    def _make_room(self) -> None:
        """Forget what was for deleted groups once there is much. Raises `ConfigError`."""
        if len(self._attachments) < EXPECTED_MAX:
            return
        for name in [] if self._inside is None else self._inside.hosting.groups.over():
            self._forget_role_changes(name)
            del self._attachments[name]
        if len(self._attachments) >= EXPECTED_MAX:
            raise ConfigError(
                f"{EXPECTED_MAX} groups are added or expected already; a program has something for "
                "no more"
            )

    def _forget_role_changes(self, name: str) -> None:
        found = self._role_changes.pop(name, None)
        self._former = [one for one in (*self._former, found) if one and not one.is_idle]

    @takes(timeout_s=seconds)
    async def create_group(
        self,
        name: str,
        *,
        members: Sequence[str] | Mapping[str, str] | None = None,
        replicas: int | None = None,
        settings: Mapping[str, object] | None = None,
        timeout_s: float = 30.0,
    ) -> GroupSummary:
        """Make a group of the cluster while its nodes run; return once it has a leader.

        What this program has for it, `expect_group` says before, and so it is in the programs of
        its other members. `group` returns it, if this node is a member.

        Args:
            name: of the new group: letters, digits, `.`, `_` and inner `-`.
            members: ids of the nodes that shall have it, or node id → address, for nodes that share
                no group with this one yet; None: the nodes with the fewest groups.
            replicas: how many nodes that is; None: 3. Not beside `members`.
            settings: keys of a group's configuration (see the page on configuration) and values.
            timeout_s: how long to wait for a leader, in seconds.

        Raises:
            RequestError: it is not made, or has no leader yet; see `Groups.create`.
            QuorumlogError: the node was not started; nodes speak TLS, and it has no `security`.
        """
        usable_name(name)
        if members is None and replicas is None and not self._running.peer_addresses:
            raise UnexpectedArgumentError(
                f"node {self._config.self_id} knows no other node: give members={{id: address}}, "
                "with all nodes that shall have the group, or replicas=1"
            )
        async with self._cluster_groups(timeout_s) as groups:
            return await groups.create(
                name, members=members, replicas=replicas, settings=settings, timeout_s=timeout_s
            )

    @takes(purge=flag, timeout_s=seconds)
    async def delete_group(
        self, name: str, *, purge: bool = False, timeout_s: float = 10.0
    ) -> GroupChange:
        """Delete a group on all its members permanently, with everything in it.

        A member that does not answer deletes it later. To make another group of that name, expect
        it with another machine object.

        Args:
            name: of the group; of a deleted one with `purge`.
            purge: True to remove its files now, not after `deletedGroupReservedHours`.
            timeout_s: how long to wait for the answer of a node, in seconds.

        Raises:
            UnknownGroupError: no node that answered has it.
            RequestError: no majority of its members answered; nothing is deleted.
            QuorumlogError: the node was not started; nodes speak TLS, and it has no `security`.
        """
        async with self._cluster_groups(timeout_s) as groups:
            return await groups.delete(name, purge=purge)

    @asynccontextmanager
    async def _cluster_groups(self, timeout_s: float) -> AsyncIterator[Groups]:
        """Yield the groups of the cluster, as a client of this node sees them."""
        if self._calls is None:
            raise QuorumlogError("the node was not started")
        self._calls.check()
        config = self._config
        _check_speaks_tls(config, self._security)
        requester = Requester(
            [config.listen_address, *self._running.peer_addresses.values()],
            "",
            timeout_ms=timeout_s * 1000,
            cluster=config.cluster,
            limits=config.limits,
            security=self._security,
        )
        try:
            yield Groups(requester)
        finally:
            await requester.metadata.close()

    def _attached(
        self,
        name: str,
        machine: StateMachine | type[StateMachine] | None,
        append_hook: AppendHook | None,
        on_role_change: RoleChangeHandler | None,
    ) -> Attachments:
        if name in self._attachments:
            raise ConfigError(f"group {name} has been added")
        if append_hook is not None:
            _check_function("append_hook", append_hook)
            if inspect.iscoroutinefunction(append_hook):
                raise ConfigError("append_hook is no coroutine function: nothing waits for it")
        kind = machine if isinstance(machine, type) else type(machine)
        if machine is not None and not issubclass(kind, StateMachine):
            raise ConfigError(f"machine is a StateMachine or a class of them, not {machine!r}")
        if isinstance(machine, StateMachine) and any(
            machine is one.machine for one in self._attachments.values()
        ):
            raise ConfigError("the machine object belongs to another group")
        if on_role_change is None:
            return Attachments(machine, append_hook)
        _check_function("on_role_change", on_role_change)
        changes = RoleChanges(name, on_role_change)
        self._forget_role_changes(name)
        self._role_changes[name] = changes
        return Attachments(machine, append_hook, changes.changed)

    def group(self, name: str) -> EmbeddedGroup:
        """Return a group of the node, which must have been started.

        Raises:
            UnknownGroupError: the node has no such group.
            StorageError: its data cannot be opened; the message says why.
            QuorumlogError: the node was not started.
        """
        if self._calls is None:
            raise QuorumlogError("the node was not started")
        found = self._replica(name)
        return EmbeddedGroup(
            name, lambda: self._same(name, found), self._calls, self._config.limits
        )

    def _same(self, name: str, before: Replica) -> Replica:
        """Return the replica that a program was given; not that of a successor of its name."""
        if self._replica(name) is not before:
            raise WrongClusterError(
                f"group {name} was deleted, and another one of that name made: ask the node for it"
            )
        return before

    def _replica(self, name: str) -> Replica:
        node = self._running
        if name in node.failed_groups:
            raise StorageError(f"group {name} cannot be opened: {node.failed_groups[name]}")
        if name not in node.replicas:
            raise UnknownGroupError(f"node {self._config.self_id} does not host group {name!r}")
        return node.replicas[name]

    @property
    def failed_groups(self) -> Mapping[str, str]:
        """Groups whose data cannot be opened, with the reason; the others are served."""
        return dict(self._running.failed_groups)

    @property
    def _running(self) -> inside.Node:
        if self._inside is None:
            raise QuorumlogError("the node was not started")
        return self._inside

    # -- start and stop ---------------------------------------------------------------------

    async def start(self) -> None:
        """Open the data, listen, and take part.

        Metrics are served and sent where the configuration says, as by `quorumlog serve`.

        Raises:
            StorageError: the data of no group can be opened.
            ConfigError: a port is taken, a package is missing, or the node was started before.
            QuorumlogError: `stop` was called meanwhile.

        Whatever it raises, also if it is cancelled, nothing of the node is left open.
        """
        if self._calls is not None:
            raise ConfigError("a node is started once; make another one")
        served = ServedNode(self._config, self._attachments, self._ended)
        self._calls = Calls(asyncio.get_running_loop())
        self._served, self._inside = served, served.node
        served.node.failure.add_done_callback(self._failed)
        try:
            await served.start()
            self._has_started = True
        except BaseException:
            await self.stop()
            raise

    def _failed(self, failure: "asyncio.Future[str]") -> None:
        if self._calls is not None and not failure.cancelled():
            self._calls.end(f"node {self._config.self_id} has failed: {failure.result()}")

    def _ended(self) -> None:
        if self._calls is not None:
            how = "was stopped" if self._has_started else "could not start"
            self._calls.end(f"node {self._config.self_id} {how}")

    async def wait_failed(self) -> str:
        """Wait until the node can be trusted no longer; return the reason.

        A disk has failed, or a check has found a bug. The node answers nothing any more, and the
        others elect a leader. The program should stop it and, unless it knows better, end: what was
        in memory is in doubt, and what is on disk is verified when a node is started again.

        Once a node that had not failed is stopped, it returns an empty text.
        """
        if self._calls is not None:
            self._calls.check_loop()
        failure = self._running.failure
        stopped = asyncio.ensure_future(self._stopped.wait())
        either: list[asyncio.Future[Any]] = [failure, stopped]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        return failure.result() if failure.done() else ""

    async def stop(self) -> None:
        """Hand over leadership, answer what is under way, and close everything.

        It ends a `start` that is under way, which then raises, and does nothing if the node was
        stopped before. Calls that still wait fail. It waits for threads without blocking the event
        loop: a disk or a state machine that does not return keeps it from returning, too. A caller
        that waits no longer does not keep the node from stopping. A handler of role changes may
        call it: it is not waited for then.

        Raises:
            RequestError: it is called in another event loop than the node's.
        """
        if self._served is None or self._calls is None:
            return
        self._calls.check_loop()
        for changes in (*self._role_changes.values(), *self._former):
            changes.caller_waits()
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop(self._served))
        await asyncio.shield(self._stopping)

    async def _stop(self, served: ServedNode) -> None:
        try:
            await served.stop()
        finally:
            handlers = (*self._role_changes.values(), *self._former)
            await asyncio.gather(*(changes.end() for changes in handlers))
            self._stopped.set()

    async def __aenter__(self) -> "Node":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _check_function(name: str, function: object) -> None:
    if not callable(function):
        raise ConfigError(f"{name} is a function, not {function!r}")


def _check_speaks_tls(config: NodeConfig, security: Security | None) -> None:
    if security is None and config.tls is not None and config.tls.mode == "required":
        raise ConfigError(
            "the nodes speak TLS: give Node(…, security=Security(…)), which says who the program "
            "is where it creates and deletes groups"
        )
