"""The files in the directory of a local cluster.

cluster.json   nodes with their addresses, and the groups
cluster.lock   held while a command changes the cluster
n0.toml        configuration of node n0; may be edited between stop and start
n0.log         what the process wrote
n0.pid         its process id, while it is thought to run
n0/GROUP/      its data
tls/           if the cluster speaks TLS: its authority, and certificates of nodes and of admin
"""

import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec

from quorumlog.local.errors import LocalClusterError
from quorumlog.local.ports import LOOPBACK, free_ports, kafka_ports, ports_from
from quorumlog.local.tls import TLS_NAME, node_security, node_tls
from quorumlog.model.config import (
    CLUSTER_GROUP,
    GroupConfig,
    NodeConfig,
    check_name,
    dump_config,
    load_config,
)
from quorumlog.model.limits import Limits

CLUSTER_NAME = "cluster.json"
LOCK_NAME = "cluster.lock"
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
NODES_MAX = 9
"""More voters only make a group slower."""
DISK_AMPLE_BYTES = 1 << 30
"""With so much free, a disk is not short of room. A local cluster shares it with all else on the
machine, so that the share that is used says little."""
LOCK_SECONDS = 60.0
POLL_SECONDS = 0.02


class NodePlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One node: its id and its addresses, each `host:port`; no `kafka`: it is no broker."""

    id: str
    address: str
    admin: str
    kafka: str = ""


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of cluster.json."""

    format: Literal["quorumlog-local-cluster"] = "quorumlog-local-cluster"
    version: Literal[1] = 1
    cluster: str
    groups: list[str]
    nodes: list[NodePlace]


_CLUSTERS: Final = msgspec.json.Decoder(ClusterFile)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that nobody but its owner may use, whatever the umask is. Raises `OSError`."""
    with open(path, "wb", opener=partial(os.open, mode=FILE_MODE)) as file:
        file.write(content)


class Layout:
    """The paths in one directory; reads and writes what is kept there."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()

    @property
    def cluster_file(self) -> Path:
        """Nodes and groups."""
        return self.directory / CLUSTER_NAME

    def store(self, node_id: str) -> Path:
        """Return the base directory of a node's data."""
        return self.directory / node_id

    def config(self, node_id: str) -> Path:
        """Return a node's configuration file."""
        return self.directory / f"{node_id}.toml"

    @property
    def tls(self) -> Path:
        """Certificates; only a cluster that speaks TLS has this directory."""
        return self.directory / TLS_NAME

    def log(self, node_id: str) -> Path:
        """Return the file that receives a node's output."""
        return self.directory / f"{node_id}.log"

    def pid(self, node_id: str) -> Path:
        """Return the file that names a node's process."""
        return self.directory / f"{node_id}.pid"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from changing the cluster meanwhile.

        Raises `LocalClusterError` when another one keeps it too long.
        """
        deadline = time.monotonic() + LOCK_SECONDS
        opener = partial(os.open, mode=FILE_MODE)
        with open(self.directory / LOCK_NAME, "a", opener=opener) as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise LocalClusterError(
                            f"{self.directory}: another command is working on this cluster for "
                            f"more than {LOCK_SECONDS:.0f} s; try again when it has ended"
                        ) from None
                    time.sleep(POLL_SECONDS)
            yield

    def read(self) -> ClusterFile:
        """Return nodes and groups.

        Raises `LocalClusterError` when the directory holds no cluster.
        """
        try:
            raw = self.cluster_file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise LocalClusterError(
                f"{self.directory} holds no cluster (no {CLUSTER_NAME}); "
                f"'quorumlog cluster up --dir {self.directory}' makes one"
            ) from None
        except OSError as error:
            raise LocalClusterError(f"cannot read {self.cluster_file}: {error.strerror}") from error
        try:
            return _CLUSTERS.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LocalClusterError(
                f"{self.cluster_file} is not the file of a local cluster, or is damaged: {error}. "
                "It names the groups, and each node with its address and admin port; write it "
                f"again from the {self.directory}/*.toml files, beside which the data is untouched"
            ) from error

    def make_directory(self) -> None:
        """Make the directory, or take one that is empty.

        Raises `LocalClusterError` when something else is in it.
        """
        try:
            self.directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        except FileExistsError:
            raise LocalClusterError(f"{self.directory} is a file, not a directory") from None

    def check_unused(self) -> None:
        """Raise `LocalClusterError` when the directory holds a cluster or anything else."""
        names = sorted(set(os.listdir(self.directory)) - {LOCK_NAME})
        if CLUSTER_NAME in names:
            raise LocalClusterError(f"{self.directory} already holds a cluster; open it instead")
        if names:
            raise LocalClusterError(
                f"{self.directory} is not empty and holds no cluster (there is {names[0]!r}); "
                "choose an empty or new directory"
            )

    def write(self, content: ClusterFile, configs: Sequence[NodeConfig]) -> None:
        """Write all configurations, and cluster.json as the last, whole or not at all."""
        if any(config.tls for config in configs):
            self.tls.mkdir(mode=DIRECTORY_MODE)
        for config in configs:
            write_private(self.config(config.self_id), dump_config(config))
        beside = self.directory / f"{CLUSTER_NAME}.new"
        write_private(beside, msgspec.json.format(msgspec.json.encode(content)) + b"\n")
        beside.replace(self.cluster_file)

    def machines(self, node_id: str) -> dict[str, str]:
        """Return group → state machine as a node's configuration has it; empty: a plain log.

        Without `__cluster`, which is the brokers' own. Raises `ConfigError`.
        """
        groups = load_config(self.config(node_id)).groups
        return {one.group: one.state_machine for one in groups if one.group != CLUSTER_GROUP}

    def first_group(self, node_id: str) -> GroupConfig | None:
        """Return the first group of a node's configuration, if there is one.

        Raises `ConfigError`.
        """
        return next(iter(load_config(self.config(node_id)).groups), None)

    def check_config(self, node_id: str) -> None:
        """Raise `ConfigError` or `LocalClusterError` unless a node's configuration fits the place.

        A cluster whose directory was moved or copied must not write to the old one.
        """
        path = self.config(node_id)
        stated = load_config(path).store_base_dir
        if Path(stated).resolve() != self.store(node_id).resolve():
            raise LocalClusterError(
                f"{path}: storeBaseDir is {stated}, but this cluster is in {self.directory}; "
                "if it was moved here, correct storeBaseDir in every .toml file. If it is a copy, "
                "do not, unless the original is gone permanently: never run both"
            )


def plan_cluster(
    nodes: int,
    groups: Sequence[str],
    first_port: int | None,
    *,
    topics: bool = False,
    kafka_port: int | None = None,
) -> ClusterFile:
    """Return a cluster of `nodes` nodes n0, n1 … on ports from first_port on (None: free ones).

    With `topics` they are brokers as well, on ports from kafka_port on (see `kafka_ports`).
    Raises `ConfigError` or `LocalClusterError` when that cannot be.
    """
    if not 1 <= nodes <= NODES_MAX:
        raise LocalClusterError(f"a local cluster has 1 to {NODES_MAX} nodes, not {nodes}")
    if not groups:
        raise LocalClusterError("a cluster needs at least one group")
    for group in groups:
        check_name("group", group)
    ports = free_ports(2 * nodes) if first_port is None else ports_from(first_port, nodes)
    kafka = kafka_ports(kafka_port, nodes, ports) if topics else []
    return ClusterFile(
        # A name of its own: a node of another cluster that got an old port is refused.
        cluster=f"local-{secrets.token_hex(4)}",
        groups=list(groups),
        nodes=[
            NodePlace(
                f"n{number}",
                f"{LOOPBACK}:{ports[2 * number]}",
                f"{LOOPBACK}:{ports[2 * number + 1]}",
                f"{LOOPBACK}:{kafka[number]}" if topics else "",
            )
            for number in range(nodes)
        ],
    )


def node_configs(  # noqa: PLR0913  (named options)
    layout: Layout,
    content: ClusterFile,
    *,
    data_file_bytes: int,
    index_file_bytes: int,
    state_machine: str,
    retention_bytes: int,
    limits: Limits,
    secure: bool = False,
) -> list[NodeConfig]:
    """Return the configuration of every node; `secure`: they speak TLS.

    Raises `ConfigError` when a size is impossible or a group appears twice.
    """
    peers = ";".join(f"{place.id}-{place.address}" for place in content.nodes)
    groups = [
        GroupConfig(
            group=group,
            peers=peers,
            mapped_file_size_for_entry_data=data_file_bytes,
            mapped_file_size_for_entry_index=index_file_bytes,
            state_machine=state_machine,
            retention_bytes=retention_bytes,
            disk_ample_bytes=DISK_AMPLE_BYTES,
        )
        for group in content.groups
    ]
    partition_groups: dict[str, str | int | float | bool] = {}
    if secure or any(place.kafka for place in content.nodes):  # users are in it, too
        shared = GroupConfig(
            group=CLUSTER_GROUP,
            peers=peers,
            kind="cluster",
            mapped_file_size_for_entry_data=data_file_bytes,
            mapped_file_size_for_entry_index=index_file_bytes,
            disk_ample_bytes=DISK_AMPLE_BYTES,
        )
        groups.append(shared)
        partition_groups = {
            "mappedFileSizeForEntryData": data_file_bytes,
            "mappedFileSizeForEntryIndex": index_file_bytes,
            "diskAmpleBytes": DISK_AMPLE_BYTES,
        }
    return [
        NodeConfig(
            self_id=place.id,
            store_base_dir=str(layout.store(place.id)),
            cluster=content.cluster,
            admin_listen=place.admin,
            kafka_listen=place.kafka,
            partition_groups=partition_groups,
            groups=groups,
            tls=node_tls(place.id) if secure else None,
            security=node_security() if secure else None,
            limits=limits,
        )
        for place in content.nodes
    ]
