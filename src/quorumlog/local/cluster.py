"""`LocalCluster`: create, open, start, stop, kill and pause the nodes of a cluster."""

import signal
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import msgspec

from quorumlog.client.contexts import Context
from quorumlog.local.errors import LocalClusterError
from quorumlog.local.health import NodeHealth, ask_health
from quorumlog.local.layout import POLL_SECONDS, Layout, node_configs, plan_cluster
from quorumlog.local.ports import unusable, unusable_text
from quorumlog.local.process import NodeProcess
from quorumlog.local.tls import AdminPortTls, client_files
from quorumlog.model.codes import FAILED, Role
from quorumlog.model.config import parse_address
from quorumlog.model.limits import DEFAULT_LIMITS, MIB, Limits

START_SECONDS = 60.0
"""A cluster answers and has elected its leaders within this, or `up` fails."""
POLL_PAUSE_FACTOR = 10
"""The pause between two polls is this many times what one takes: with a thousand groups a poll
costs the nodes time that they need to start."""
STOP_SECONDS = 10.0
"""A node that ignores SIGTERM for this long is killed."""


class LocalCluster:
    """Node processes on the loopback address, everything in one directory.

    The processes outlive this object. Any number of programs may open the same directory; one at a
    time may change it. All methods raise `LocalClusterError` when the directory or a node is
    not as they need it.
    """

    def __init__(self, directory: str | Path) -> None:
        self._layout = Layout(directory)
        self._content = self._layout.read()
        self._places = {place.id: place for place in self._content.nodes}
        self._processes = {node_id: NodeProcess(self._layout, node_id) for node_id in self._places}
        self._admin_tls: AdminPortTls | None = None

    @classmethod
    def create(  # noqa: PLR0913  (named options of a public entry point)
        cls,
        directory: str | Path,
        *,
        nodes: int = 3,
        groups: Sequence[str] = ("default",),
        data_file_bytes: int = 64 * MIB,
        index_file_bytes: int = 4 * MIB,
        first_port: int | None = None,
        topics: bool = False,
        kafka_port: int | None = None,
        state_machine: str = "",
        retention_bytes: int = 0,
        limits: Limits = DEFAULT_LIMITS,
        secure: bool = False,
    ) -> Self:
        """Lay out a new cluster in a directory that is new or empty; nothing is started.

        `state_machine` of all groups: `kv`, or `module:Class` that the node processes can import
        (they have the environment of whoever starts them); empty: plain logs. Above
        `retention_bytes` (0: never) a group's oldest files are removed. `limits` are those of all
        nodes.

        Node n0 listens on first_port, n1 on the next and so on, and their admin ports are 100
        higher; None: any free ports. With `topics` the nodes are brokers, which Kafka's clients
        reach from `kafka_port` on in the same way (0: any free ports; None: from 9092 on, if those
        are free).
        `secure`: all ports speak TLS. Whoever creates the cluster puts the certificates into
        `tls_directory` before it is started: `ca.pem`, and of each node, and of the user `admin`,
        `n0.pem` and `n0.key`.
        Raises `ConfigError` when a name or size cannot be used.
        """
        layout = Layout(directory)
        content = plan_cluster(nodes, groups, first_port, topics=topics, kafka_port=kafka_port)
        configs = node_configs(
            layout,
            content,
            data_file_bytes=data_file_bytes,
            index_file_bytes=index_file_bytes,
            state_machine=state_machine,
            retention_bytes=retention_bytes,
            limits=limits,
            secure=secure,
        )
        layout.make_directory()
        layout.check_unused()
        with layout.locked():
            layout.check_unused()
            layout.write(content, configs)
        return cls(directory)

    @classmethod
    def open(cls, directory: str | Path) -> Self:
        """Return the cluster that a directory holds, whether it runs or not."""
        return cls(directory)

    @staticmethod
    def exists(directory: str | Path) -> bool:
        """Whether a directory holds a cluster."""
        return Layout(directory).cluster_file.exists()

    # -- what it is -------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """Where everything is."""
        return self._layout.directory

    @property
    def node_ids(self) -> list[str]:
        """All nodes, running or not."""
        return list(self._places)

    @property
    def groups(self) -> list[str]:
        """The groups that the cluster was made with."""
        return list(self._content.groups)

    def hosted_groups(self) -> list[str]:
        """Return the groups that the running nodes have: also those made since, not deleted ones.

        Without those that brokers keep topics in. If no node answers, those that the cluster was
        made with.
        """
        answers = [health for health in self.health().values() if health is not None]
        if not answers:
            return self.groups
        return groups_in(answers)

    def group_settings(self) -> dict[str, str]:
        """Return what the groups were made with that suits this machine, for groups made later.

        Keys of the configuration: sizes of files, and how much room on the disk is enough.

        Raises `ConfigError`.
        """
        first = self._layout.first_group(self.node_ids[0])
        if first is None:
            return {}
        return {
            "mappedFileSizeForEntryData": str(first.mapped_file_size_for_entry_data),
            "mappedFileSizeForEntryIndex": str(first.mapped_file_size_for_entry_index),
            "diskAmpleBytes": str(first.disk_ample_bytes),
        }

    @property
    def machines(self) -> dict[str, str]:
        """Group → its state machine, as the first node's configuration says; empty: a plain log."""
        return self.machines_of(self.node_ids[0])

    def machines_of(self, node_id: str) -> dict[str, str]:
        """Return group → its state machine, as a node's configuration says; empty: a plain log.

        Raises `ConfigError`.
        """
        self._process(node_id)
        return self._layout.machines(node_id)

    @property
    def servers(self) -> str:
        """Addresses of all nodes as a client takes them: `host:port,host:port`."""
        return ",".join(place.address for place in self._content.nodes)

    def address(self, node_id: str) -> str:
        """Return where a node listens, `host:port`."""
        self._process(node_id)
        return self._places[node_id].address

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all brokers as Kafka's clients take them; empty: there are no topics."""
        return ",".join(place.kafka for place in self._content.nodes if place.kafka)

    @property
    def tls_directory(self) -> Path | None:
        """Where the certificates are; None: the cluster does not speak TLS."""
        return self._layout.tls if self._layout.tls.is_dir() else None

    @property
    def context(self) -> Context:
        """How clients reach it, with the certificate of admin if it speaks TLS."""
        found = Context(servers=self.servers, kafka=self.bootstrap_servers)
        if self.tls_directory is None:
            return found
        files = client_files(self.tls_directory)
        return msgspec.structs.replace(
            found, ca=str(files.ca), certificate=str(files.certificate), key=str(files.key)
        )

    def _tls(self) -> ssl.SSLContext | None:
        """Return what connects to admin ports; None: nothing is encrypted."""
        if self._admin_tls is None and self.tls_directory is not None:
            self._admin_tls = AdminPortTls(self.tls_directory)
        return None if self._admin_tls is None else self._admin_tls.newest()

    def admin_address(self, node_id: str) -> str:
        """Return where a node serves /metrics and /health, `host:port`."""
        self._process(node_id)
        return self._places[node_id].admin

    def kafka_address(self, node_id: str) -> str:
        """Return where a node serves Kafka's clients, `host:port`; empty: it is no broker."""
        self._process(node_id)
        return self._places[node_id].kafka

    def group_directory(self, node_id: str, group: str) -> Path:
        """Return where a node keeps a group's data."""
        self._process(node_id)
        return self._layout.store(node_id) / group

    def log_file(self, node_id: str) -> Path:
        """Return the file that receives a node's output."""
        self._process(node_id)
        return self._layout.log(node_id)

    # -- how it is --------------------------------------------------------------------------

    def running(self) -> dict[str, int]:
        """Return node id → pid of the nodes that run."""
        pids = {node_id: process.pid for node_id, process in self._processes.items()}
        return {node_id: pid for node_id, pid in pids.items() if pid is not None}

    def health(self) -> dict[str, NodeHealth | None]:
        """Return what each node says of itself; None for one that does not answer."""
        running, tls = self.running(), self._tls()
        with ThreadPoolExecutor(len(self._places)) as threads:
            answers = {
                node_id: threads.submit(ask_health, self._places[node_id].admin, tls)
                for node_id in running
            }
            return {
                node_id: answers[node_id].result() if node_id in answers else None
                for node_id in self._places
            }

    def leader(self, group: str, timeout_s: float = 10.0) -> str:
        """Return the node that leads a group, waiting for an election if need be."""
        if group not in self._content.groups and group not in self.hosted_groups():
            known = ", ".join(self.hosted_groups())
            raise LocalClusterError(f"{self.directory} has no group {group!r}, only {known}")
        deadline = time.monotonic() + timeout_s
        while True:
            leader = leader_of(group, self.health())
            if leader is not None:
                return leader
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"group {group!r} had no leader for {timeout_s:g} s; running: "
                    f"{', '.join(self.running()) or 'no node'} of {', '.join(self._places)}"
                )
            time.sleep(POLL_SECONDS)

    # -- changing it ------------------------------------------------------------------------

    def up(
        self,
        timeout_s: float = START_SECONDS,
        *,
        starting: Callable[[list[str]], None] | None = None,
    ) -> list[str]:
        """Start all nodes that do not run and wait until every group has a leader.

        Returns the nodes that were started; `starting` is called with them before, once their ports
        have been found free. If a port is in use, it raises and starts nothing. It also raises if a
        node ends again, with the node's last words, and if a group has no leader after `timeout_s`;
        at once, if every node that is not ready says that it needs help, as in a copied cluster.
        """
        with self._layout.locked():
            running = self.running()
            started = [node_id for node_id in self._places if node_id not in running]
            for node_id in started:
                self._layout.check_config(node_id)
            self._check_ports(started)
            if starting is not None:
                starting(started)
            for node_id in started:
                self._processes[node_id].start()
            self._wait_healthy(self.node_ids, timeout_s)
        return started

    def down(self) -> list[str]:
        """Stop all nodes cleanly; kill one that does not stop. Returns the nodes that ran."""
        with self._layout.locked():
            return self._stop(list(self.running()))

    def start(self, node_id: str) -> None:
        """Start one node and wait until it answers; it may not know a leader yet."""
        process = self._process(node_id)
        with self._layout.locked():
            if process.pid is None:
                self._start(node_id)
            self._wait_answers(node_id)

    def stop(self, node_id: str) -> None:
        """Stop one node cleanly; kill it if it does not stop."""
        self._running_process(node_id)
        with self._layout.locked():
            self._stop([node_id])

    def restart(self, node_id: str) -> None:
        """Stop one node cleanly if it runs, and start it again.

        If all nodes run, this waits until the node knows the leaders, so that the next one may be
        restarted. Raises `ConfigError`, and changes nothing, if its configuration is wrong.
        """
        process = self._process(node_id)
        with self._layout.locked():
            self._layout.check_config(node_id)
            if process.pid is not None:
                self._stop([node_id])
            self._start(node_id)
            if len(self.running()) == len(self._places):
                self._wait_healthy([node_id])
            else:
                self._wait_answers(node_id)

    def kill(self, node_id: str) -> None:
        """End one node with SIGKILL, as a power cut would, and wait until it is gone."""
        process = self._running_process(node_id)
        with self._layout.locked():
            process.kill()

    def pause(self, node_id: str) -> None:
        """Freeze one node (SIGSTOP); its connections stay open and silent."""
        self._running_process(node_id).signal(signal.SIGSTOP)

    def resume(self, node_id: str) -> None:
        """Resume a frozen node (SIGCONT)."""
        self._running_process(node_id).signal(signal.SIGCONT)

    # -- steps ------------------------------------------------------------------------------

    def _process(self, node_id: str) -> NodeProcess:
        if node_id not in self._processes:
            raise LocalClusterError(
                f"{self.directory} has no node {node_id!r}, only {', '.join(self._places)}"
            )
        return self._processes[node_id]

    def _running_process(self, node_id: str) -> NodeProcess:
        process = self._process(node_id)
        if process.pid is None:
            raise LocalClusterError(f"node {node_id} does not run")
        return process

    def _start(self, node_id: str) -> None:
        self._layout.check_config(node_id)
        self._check_ports([node_id])
        self._processes[node_id].start()

    def _check_ports(self, node_ids: Sequence[str]) -> None:
        """Raise `LocalClusterError` if somebody else listens where these nodes have to."""
        places = [self._places[node_id] for node_id in node_ids]
        addresses = [one for place in places for one in (place.address, place.admin, place.kafka)]
        refused = unusable([parse_address(address)[1] for address in addresses if address])
        if refused:
            raise LocalClusterError(
                f"{unusable_text(refused)}, which the cluster in {self.directory} needs: its "
                "addresses were chosen when it was made. End what listens there ('ss -ltnp' names "
                "it), or make a cluster in another directory with other ports ('cluster up --port "
                "--kafka-port')"
            )

    def _stop(self, node_ids: Sequence[str]) -> list[str]:
        for node_id in node_ids:
            self._processes[node_id].signal(signal.SIGTERM)
            self._processes[node_id].signal(signal.SIGCONT)  # a frozen one must wake to stop
        deadline = time.monotonic() + STOP_SECONDS
        for node_id in node_ids:
            process = self._processes[node_id]
            if process.wait_gone(max(0.0, deadline - time.monotonic())):
                process.forget()
            else:
                process.kill()
        return list(node_ids)

    def _wait_answers(self, node_id: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while ask_health(self._places[node_id].admin, self._tls()) is None:
            self._check_alive(node_id)
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    f"node {node_id} did not answer for {START_SECONDS:.0f} s; see "
                    f"{self._layout.log(node_id)}"
                )
            time.sleep(POLL_SECONDS)

    def _wait_healthy(self, node_ids: Sequence[str], timeout_s: float = START_SECONDS) -> None:
        deadline = time.monotonic() + timeout_s
        waiting = list(node_ids)
        while waiting:
            for node_id in waiting:
                self._check_alive(node_id)
            started = time.monotonic()
            health = self.health()
            pause = max(POLL_SECONDS, POLL_PAUSE_FACTOR * (time.monotonic() - started))
            waiting = [node_id for node_id in waiting if not _is_healthy(health[node_id])]
            is_in_vain = all(_needs_help(health[node_id], health) for node_id in waiting)
            if waiting and (is_in_vain or time.monotonic() > deadline):
                how_long = "" if is_in_vain else f"after {timeout_s:.0f} s "
                raise LocalClusterError(
                    f"{how_long}not ready: {_complaints(waiting, health)}; "
                    f"see the .log files in {self.directory}"
                )
            time.sleep(pause)

    def _check_alive(self, node_id: str) -> None:
        process = self._processes[node_id]
        if process.pid is None:
            process.forget()
            raise LocalClusterError(process.last_words())


def groups_in(answers: Iterable[NodeHealth]) -> list[str]:
    """Return the groups that nodes name, without those that brokers keep topics in."""
    return sorted({name for one in answers for name, group in one.groups.items() if group.is_own})


def leader_of(group: str, health: dict[str, NodeHealth | None]) -> str | None:
    """Return the leader of a group: of those that say they lead, the one of the highest term."""
    leading = [
        (answer.groups[group].term, node_id)
        for node_id, answer in health.items()
        if answer is not None
        and group in answer.groups
        and answer.groups[group].role == Role.LEADER.value
    ]
    return max(leading)[1] if leading else None


def _is_healthy(health: NodeHealth | None) -> bool:
    return health is not None and health.healthy


def _needs_help(own: NodeHealth | None, health: dict[str, NodeHealth | None]) -> bool:
    """Whether a node cannot get ready by itself: a group failed, or is a copy without a leader.

    A replica that was removed, then added at another address, learns that from the leader.
    """
    return own is not None and any(
        group.role == FAILED or (group.misplaced and leader_of(name, health) is None)
        for name, group in own.groups.items()
    )


def _complaints(waiting: Iterable[str], health: Mapping[str, NodeHealth | None]) -> str:
    """Return what ails nodes; what ails several of them is said once."""
    nodes: dict[str, list[str]] = {}
    for node_id in waiting:
        nodes.setdefault(_complaint(health[node_id]), []).append(node_id)
    return "; ".join(f"{', '.join(ids)} ({text})" for text, ids in nodes.items())


def _complaint(health: NodeHealth | None) -> str:
    if health is None:
        return "no answer"
    troubles = [
        f"{name}: {group.first_line}" for name, group in health.groups.items() if not group.healthy
    ]
    return ", ".join(troubles)
