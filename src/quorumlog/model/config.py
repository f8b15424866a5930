"""Typed configuration of a node, read once from TOML.

Keys that mean what one of DLedger's means carry DLedger's name (spec 70); the rest follow its
style. `dledger_keys` lists the keys of DLedger's that are refused.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from quorumlog.model.audit_events import DataPatterns
from quorumlog.model.block import INDEX_RECORD_SIZE
from quorumlog.model.bounds import NAME_LENGTH_MAX
from quorumlog.model.config_keys import (
    GROUPS,
    LIMITS,
    SECURITY,
    TLS,
    TOP,
    quotes_advice,
    unknown_keys,
    wrong_value_in,
)
from quorumlog.model.config_ranges import check_numbers
from quorumlog.model.errors import ConfigError, UnexpectedArgumentError
from quorumlog.model.limits import DEFAULT_LIMITS, Limits
from quorumlog.model.security_config import (
    PASSWORD_MECHANISMS,
    SECRET_MECHANISMS,
    SecurityConfig,
)
from quorumlog.model.tls_config import TlsConfig

NAME_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9._])?")
HEADER_PATTERN = re.compile(r"\s*[a-z0-9_.-]+\s*:[ -~]*")
PARTITION_FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of a data file of a group that holds partitions, unless the configuration says less."""
HOUR_MS = 3_600_000
CLUSTER_GROUP = "__cluster"
"""The group that holds what brokers share: topics, where their partitions are, and configs."""
PARTITION_GROUP: Final = re.compile(r"pg-([0-9]{1,9})")
"""The groups that brokers make for the partitions of topics, and the number of each."""
CLUSTER_MACHINE = "cluster"
"""Its state machine, which no other group has."""
OWN_PREFIX = "quorumlog."
"""How the names begin of what a node keeps in its own directory, beside those of its groups."""
JOURNAL_NAME = f"{OWN_PREFIX}journal"
"""Directory of a node's journal, in its own directory."""
AUDIT_LOG_NAME = f"{OWN_PREFIX}audit.log"
"""The newest file of a node's audit log, in its own directory."""
CLUSTER_ID_NAME = f"{OWN_PREFIX}cluster"
"""The file that says of which cluster the data in a node's directory are."""


def check_name(kind: str, name: str, *, dash: bool = True) -> None:
    """Raise `ConfigError` unless `name` may name a group, node or cluster.

    Names become directory names, so only letters, digits, `.`, `_` and inner `-` are allowed, and
    no group has one that a node gives to files of its own.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{kind} is a str, not {name!r}")
    if kind == "group" and name == CLUSTER_GROUP:
        return
    fits = NAME_PATTERN.fullmatch(name) and len(name) <= NAME_LENGTH_MAX
    if not fits or (not dash and "-" in name):
        raise ConfigError(
            f"{kind} {name!r} is not usable: letters, digits, '.', '_'"
            f"{' and inner -' if dash else ''}, at most {NAME_LENGTH_MAX}, starting with a "
            "letter or digit"
        )
    if kind == "group" and name.startswith(OWN_PREFIX):
        raise ConfigError(
            f"group {name!r} is not usable: names that begin with {OWN_PREFIX!r} are those of a "
            "node's own files"
        )


def open_to_clients(group: str) -> str:
    """Return the name of a group that clients append to, and whose machine they ask.

    Raises `UnexpectedArgumentError` if it is the one that only brokers use.
    """
    if group == CLUSTER_GROUP:
        raise UnexpectedArgumentError(
            f"group {group} belongs to the brokers: make and alter topics by the Kafka protocol"
        )
    return group


def check_made_by_clients(group: str, kind: object = "log") -> None:
    """Raise `UnexpectedArgumentError` unless clients may make and delete a group of a kind."""
    if group == CLUSTER_GROUP or kind != "log":
        raise UnexpectedArgumentError(
            f"group {group} belongs to the brokers, with the topics in it: make and delete topics "
            "instead (`quorumlog topic`)"
        )


def parse_address(text: str) -> tuple[str, int]:
    """Split `host:port` (IPv6 hosts in brackets). Raises `ConfigError` when it is not one."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{text!r} is not host:port, such as 127.0.0.1:7101")
    return host.removeprefix("[").removesuffix("]"), int(port)


def host_port(host: str, port: int) -> str:
    """Return `host:port`, as `parse_address` takes it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_written_alike(one: str, other: str) -> bool:
    """Whether two addresses are written alike, except for case and leading zeros."""
    if one == other:
        return True
    try:
        (host, port), (other_host, other_port) = parse_address(one), parse_address(other)
    except ConfigError:
        return False
    return (host.lower(), port) == (other_host.lower(), other_port)


def parse_peers(text: str) -> dict[str, str]:
    """Return id → `host:port` from a peers string, as spec 00 section 5 has it.

    Raises `ConfigError` naming the item that is wrong.
    """
    peers: dict[str, str] = {}
    for item in text.split(";"):
        peer_id, separator, address = item.strip().partition("-")
        if not separator:
            raise ConfigError(f"peers: {item!r} is not id-host:port")
        check_name("member id", peer_id, dash=False)
        parse_address(address)
        if peer_id in peers:
            raise ConfigError(f"peers: {peer_id!r} appears twice")
        peers[peer_id] = address
    return peers


def _split_paths(text: str) -> list[str]:
    return [path.strip().rstrip("/") or "/" for path in text.split(",") if path.strip()]


class GroupConfig(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """One group that a node hosts. Times in milliseconds, sizes in bytes."""

    group: str
    peers: str
    """`id-host:port` joined by `;`, the node's own id among them."""
    kind: Literal["log", "partitions", "cluster"] = "log"
    """What its entries are: those of any client, or record batches of partitions of topics, which
    come by the Kafka protocol, or commands of brokers (`CLUSTER_GROUP` alone). What the group was
    founded with counts."""
    store_type: Literal["FILE", "MEMORY"] = "FILE"
    mapped_file_size_for_entry_data: int = 1024 * 1024 * 1024
    """Bytes of a data file; a group of kind partitions has files of at most 256 MiB."""
    mapped_file_size_for_entry_index: int = 32 * 5 * 1024 * 1024
    flush: Literal["sync", "async"] = "sync"
    """sync: acknowledged means fsynced on a majority. async: written only (unsafe)."""
    flush_file_interval: int = 10
    """With flush=async: pause between fsyncs."""
    check_point_interval: int = 1_000
    data_store_path: str = ""
    """Directories for data files, joined by `,`; empty: `data` in the group's directory."""
    read_only_data_store_dirs: str = ""
    """Directories, joined by `,`, whose data files are used but in which none is made."""
    file_reserved_hours: int = 72
    """Data files whose entries are all older may be deleted (at least 1)."""
    delete_when: str = "04"
    """Hours of the day (local time), joined by `;`, in which old data files are deleted."""
    disk_space_ratio_to_check_expired: float = 0.70
    """Above it, old data files are deleted at any hour."""
    disk_space_ratio_to_force_clean: float = 0.85
    """Above it, with enableDiskForceClean, the oldest data files are deleted whatever their age;
    0.05 higher, appends are answered DISK_FULL."""
    enable_disk_force_clean: bool = False
    disk_ample_bytes: int = 20 * 1024 * 1024 * 1024
    """With so much free, a disk is not short of room whatever the three ratios say."""
    disk_reserve_bytes: int = 32 * 1024 * 1024
    """With less free, appends are answered DISK_FULL whatever the ratios say."""
    retention_bytes: int = 0
    """The oldest data files are deleted while the log has more bytes than this; 0: no bound."""
    follower_retention_bytes: int = 4 * 1024 * 1024 * 1024
    """A live follower may lag this far before entries that it still needs are deleted."""
    clean_interval: int = 1_000
    """Pause between checks of disk space and old files."""
    scrub_bytes_per_second: int = 8 * 1024 * 1024
    """Rate at which what is on disk is checked in the background; 0: never."""
    scrub_interval_hours: float = 24
    """Time from the start of one pass over the log to the start of the next."""
    heart_beat_time_interval_ms: int = 100
    election_timeout_min_ms: int = 500
    election_timeout_max_ms: int = 900
    preferred_leader_ids: str = ""
    """Ids joined by `;`: leadership is transferred to one of these that is live and lags little."""
    max_leadership_transfer_wait_index: int = 1_000
    """Leadership is not transferred to a member that lags by this many entries or more."""
    max_leadership_transfer_wait_bytes: int = 10 * 1024 * 1024
    """Nor to a preferred leader whose missing entries take more bytes."""
    leadership_transfer_wait_timeout: int = 1_000
    """A leadership transfer that takes longer is cancelled; appends are refused meanwhile."""
    peer_push_quota: int = 200 * 1024 * 1024
    """Bytes a second sent to a member that is caught up from disk; live traffic is not limited."""
    max_push_time_out_ms: int = 1_000
    """A push that is not answered for this long is sent again."""
    max_wait_ack_time_ms: int = 2_500
    """An append not committed after this long is answered WAIT_QUORUM_ACK_TIMEOUT, a command not
    executed TIMEOUT."""
    state_machine: str = ""
    """`kv`, or `module:Class` of a subclass of `StateMachine`; empty: a plain log."""
    snapshot_threshold: int = 100_000
    """A snapshot of the machine is saved after this many entries."""
    snapshot_bytes: int = 256 * 1024 * 1024
    """A snapshot is also saved after this many bytes of entries."""
    max_snapshot_reserved_num: int = 3
    """Snapshots kept."""
    reset_snapshot_entries_but_keep_last_entries_num: int = 10
    """Entries kept before the oldest snapshot, for members that lag only a little."""
    digest_entries: int = 4_096
    """Replicas compare the states of their machines after this many entries; 0: never."""
    min_write_level: Literal["one_way", "receive", "persistence", "replication", "all"] = "one_way"
    """Appends that ask for less are answered at this level; see `WriteLevel`."""
    log_level: Literal["", "DEBUG", "INFO", "WARNING", "ERROR"] = ""
    """Of the log lines about this group; empty: that of the node."""
    original_compatible: Literal["", "0.2.7", "no"] = ""
    """With "0.2.7" the group's own entries are written so that DLedger 0.2.7 to 0.4.0 can read the
    log and go on with it; with "no" they are not; empty: only if the log is one of DLedger's. What
    the group was founded with counts."""

    def __post_init__(self) -> None:
        """Check values and their relations."""
        self._check_kind()
        parse_peers(self.peers)
        where = f"group {self.group}:"
        self._check_disk(where)
        check_numbers(self, f"{where} ")
        if self.election_timeout_min_ms < 2 * self.heart_beat_time_interval_ms:
            raise ConfigError(
                f"{where} electionTimeoutMinMs must be at least twice heartBeatTimeIntervalMs"
            )
        if self.election_timeout_max_ms <= self.election_timeout_min_ms:
            raise ConfigError(f"{where} electionTimeoutMaxMs must exceed electionTimeoutMinMs")
        if self.mapped_file_size_for_entry_index % INDEX_RECORD_SIZE:
            raise ConfigError(f"{where} mappedFileSizeForEntryIndex must be a multiple of 32")
        self._check_machine(where)

    def _check_kind(self) -> None:
        if (self.group == CLUSTER_GROUP) != (self.kind == "cluster"):
            raise ConfigError(
                f'group {self.group}: the group {CLUSTER_GROUP}, and no other, has kind = "cluster"'
            )
        check_name("group", self.group)
        if self.kind != "cluster" and self.state_machine == CLUSTER_MACHINE:
            raise ConfigError(
                f"group {self.group}: only {CLUSTER_GROUP} has the stateMachine {CLUSTER_MACHINE!r}"
            )
        if self.kind == "cluster" and not self.state_machine:
            msgspec.structs.force_setattr(self, "state_machine", CLUSTER_MACHINE)

    def _check_disk(self, where: str) -> None:
        expired, forced = (
            self.disk_space_ratio_to_check_expired,
            self.disk_space_ratio_to_force_clean,
        )
        if not 0 < expired <= 1 or not 0.5 <= forced <= 1:
            raise ConfigError(
                f"{where} diskSpaceRatioToCheckExpired must be above 0 and at most 1, "
                "diskSpaceRatioToForceClean between 0.5 and 1"
            )
        if not self.delete_hours:
            raise ConfigError(
                f"{where} deleteWhen {self.delete_when!r}: hours 00 to 23, joined by ;"
            )
        writable = set(self.data_directories) - set(self.read_only_directories)
        if len(set(self.data_directories)) != len(self.data_directories):
            raise ConfigError(f"{where} dataStorePath names a directory twice")
        if self.data_directories and not writable:
            raise ConfigError(f"{where} all of dataStorePath is in readOnlyDataStoreDirs")

    def _check_machine(self, where: str) -> None:
        if self.state_machine and self.store_type == "MEMORY":
            raise ConfigError(f"{where} a stateMachine needs storeType FILE, for its snapshots")
        machines = {"log": self.state_machine, "cluster": CLUSTER_MACHINE}
        if self.state_machine != machines.get(self.kind, ""):
            raise ConfigError(f"{where} a group of kind {self.kind} has no stateMachine of yours")

    def check_preferred(self, members: Collection[str]) -> None:
        """Raise `ConfigError` if a preferred leader is none of the members of the group."""
        unknown = [one for one in self.preferred_leaders if one not in members]
        if unknown:
            raise ConfigError(
                f"group {self.group}: preferredLeaderIds names {', '.join(unknown)}; the group has "
                f"the members {', '.join(sorted(members))}"
            )

    @property
    def data_file_bytes(self) -> int:
        """Bytes of a data file. What no partition offers is given back by whole files."""
        size = self.mapped_file_size_for_entry_data
        return min(size, PARTITION_FILE_BYTES_MAX) if self.kind == "partitions" else size

    @property
    def reserved_ms(self) -> int:
        """`file_reserved_hours` in milliseconds."""
        return self.file_reserved_hours * HOUR_MS

    @property
    def preferred_leaders(self) -> tuple[str, ...]:
        """The ids of `preferred_leader_ids`, in order."""
        ids = [part.strip() for part in self.preferred_leader_ids.split(";")]
        return tuple(part for part in ids if part)

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of `delete_when`; empty if one of them is not an hour."""
        hours = [hour.strip() for hour in self.delete_when.split(";") if hour.strip()]
        fit = all(hour.isdecimal() and int(hour) <= 23 for hour in hours)
        return frozenset(int(hour) for hour in hours) if fit else frozenset()

    @property
    def data_directories(self) -> list[str]:
        """The directories of `data_store_path`; empty: the default."""
        return _split_paths(self.data_store_path)

    @property
    def read_only_directories(self) -> list[str]:
        """The directories of `read_only_data_store_dirs`."""
        return _split_paths(self.read_only_data_store_dirs)

    @property
    def members(self) -> dict[str, str]:
        """Member id → address."""
        return parse_peers(self.peers)


class NodeConfig(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """One node process: who it is, where it listens, where its data is, which groups it hosts."""

    self_id: str
    store_base_dir: str
    groups: list[GroupConfig] = []
    """Those that the file names; `GroupCatalog` knows those made while nodes run."""
    cluster: str = "quorumlog"
    """Nodes of different clusters refuse each other."""
    listen: str = ""
    """`host:port`; empty: the node's own address in the peers of its groups."""
    deleted_group_reserved_hours: float = 72
    """The files of a deleted group are kept for this long; 0: they are removed at once."""
    admin_listen: str = ""
    """`host:port` of /metrics and /health; empty: none."""
    admin_anonymous: Literal["none", "health", "all"] = "health"
    """With TLS, what those see at an `admin_listen` beyond loopback who do not say who they are:
    nothing, whether the node is healthy, or all."""
    metrics_grpc_exporter_target: str = ""
    """`host:port`, or an http or https address, that metrics are sent to by OTLP over gRPC; empty:
    nowhere."""
    metrics_grpc_exporter_header: str = ""
    """`key:value` joined by `,`: what is sent with them, such as a token."""
    metric_grpc_exporter_time_out_in_mills: int = 3_000
    metric_grpc_exporter_interval_in_mills: int = 60_000
    trace_every: int = 0
    """One of this number of appends is traced, and sent to the same receiver; 0: none."""
    journal_directory: str = ""
    """Where the journal of all groups is; empty: `quorumlog.journal` in `store_base_dir`."""
    kafka_listen: str = ""
    """`host:port` for clients that speak the Kafka protocol; empty: none. The node is a broker
    then, and its groups include `CLUSTER_GROUP`."""
    kafka_advertised: str = ""
    """`host:port` that these clients are told to connect to; empty: `kafka_listen`."""
    kafka_rack: str = ""
    """Where the broker is, as clients are told: a rack, a zone."""
    auto_create_topics: bool = True
    """Whether this node creates a topic that a client asks for and that does not exist."""
    partition_groups: dict[str, str | int | float | bool] = {}
    """Keys of a group's configuration, and their values, for the partition groups that this node
    has made while it leads `CLUSTER_GROUP`."""
    audit_data: list[str] = []
    """Whose reads and writes the audit log has: `group:NAME`, `topic:NAME`, or either with `*` at
    its end for all names that begin so."""
    audit_file_bytes: int = 64 * 1024 * 1024
    """Bytes of a file of the audit log."""
    audit_files: int = 10
    """Files of the audit log that are kept; 0: there is no audit log."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    insecure: bool = False
    """Allow listening beyond the loopback addresses although there is no TLS, or though plain
    connections are served as well, or nobody has to say who they are."""
    tls: TlsConfig | None = None
    """Certificates and what else TLS needs; none: nothing is encrypted."""
    security: SecurityConfig | None = None
    """Who has to log in, and how; none: nobody has to, and nobody can."""
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        """Check values and their relations."""
        check_name("selfId", self.self_id, dash=False)
        check_name("cluster", self.cluster)
        self._check_exporter()
        check_numbers(self)
        DataPatterns(self.audit_data)
        if not self.groups and not self.listen:
            raise ConfigError('groups: at least one group is needed, or listen = "host:port"')
        names = [group.group for group in self.groups]
        if len(set(names)) != len(names):
            raise ConfigError(f"groups: a group appears twice in {', '.join(names)}")
        known: dict[str, str] = {}
        for group in self.groups:
            self.check_group(group, known)
            group.check_preferred(group.members)
            known.update(group.members)
        self._check_paths()
        self._check_journal()
        self._check_broker()
        self._check_logins()
        self._check_exposed("listen", self.listen_address)

    def _check_exposed(self, key: str, address: str) -> None:
        """Raise `ConfigError` if others than this machine could connect, or read what is sent."""
        host, _ = parse_address(address)
        if self.insecure or is_loopback(host):
            return
        if self.tls is None:
            raise ConfigError(
                f"{key} {address}: without TLS only loopback addresses are allowed; give the node "
                "certificates ([tls]), or set insecure = true to listen there all the same"
            )
        if self.tls.mode == "optional":
            raise ConfigError(
                f'{key} {address}: with [tls] mode = "optional" plain connections are served, too; '
                "set insecure = true if that is meant to be so beyond loopback addresses for now"
            )
        if self.security is None:
            raise ConfigError(
                f"{key} {address}: without [security] everybody who can connect may do everything; "
                'add it (superUsers = ["User:admin"]), or set insecure = true to listen there all '
                "the same"
            )

    def _check_broker(self) -> None:
        if not self.kafka_listen:
            if self.kafka_advertised:
                raise ConfigError("kafkaAdvertised has no meaning without kafkaListen")
            return
        if self.cluster_group is None:
            raise ConfigError(
                f"kafkaListen: brokers share topics in the group {CLUSTER_GROUP}: add [[groups]] "
                f'with group = "{CLUSTER_GROUP}", kind = "cluster" and peers = all brokers'
            )
        self._check_exposed("kafkaListen", self.kafka_listen)
        advertised, port = parse_address(self.kafka_address)
        if advertised in ("0.0.0.0", "::"):  # noqa: S104  (it is refused)
            raise ConfigError(
                f"kafkaListen {self.kafka_listen}: no client can connect to {advertised}; set "
                "kafkaAdvertised to the address that clients shall use"
            )
        if self.kafka_advertised and not port:
            raise ConfigError("kafkaAdvertised must have a port")

    def _check_logins(self) -> None:
        """Raise `ConfigError` if nobody could log in as `security` says."""
        security = self.security
        if security is None or security.login == "none":
            return
        secret = [name for name in security.mechanisms if name in SECRET_MECHANISMS]
        if secret and self.tls is None:
            raise ConfigError(
                f"[security]: {' and '.join(secret)} in mechanisms would send secrets that anybody "
                "could read; add [tls]"
            )
        if set(security.mechanisms) & set(PASSWORD_MECHANISMS) and self.cluster_group is None:
            raise ConfigError(
                f"[security]: users and what is known of their passwords are in {CLUSTER_GROUP}: "
                f'add [[groups]] with group = "{CLUSTER_GROUP}", kind = "cluster" and peers = all '
                "nodes"
            )

    @property
    def cluster_group(self) -> GroupConfig | None:
        """The configuration of `CLUSTER_GROUP`, if this node has it."""
        return next((group for group in self.groups if group.kind == "cluster"), None)

    @property
    def kafka_address(self) -> str:
        """`host:port` that Kafka's clients are told to connect to."""
        return self.kafka_advertised or self.kafka_listen

    def _check_exporter(self) -> None:
        target = self.metrics_grpc_exporter_target
        if self.trace_every < 0 or (self.trace_every and not target):
            raise ConfigError(
                "traceEvery must be 0 (nothing is traced) or a number above, and needs "
                "metricsGrpcExporterTarget, where traces are sent"
            )
        if target:
            address = re.sub("^https?://", "", target).rstrip("/")
            try:
                parse_address("" if "/" in address else address)
            except ConfigError as error:
                raise ConfigError(
                    f"metricsGrpcExporterTarget {target!r} is not host:port, http://host:port or "
                    "https://host:port"
                ) from error
        items = self.metrics_grpc_exporter_header.split(",")
        if self.metrics_grpc_exporter_header and not all(
            HEADER_PATTERN.fullmatch(item) for item in items
        ):
            raise ConfigError(
                "metricsGrpcExporterHeader must be key:value pairs joined by commas; keys have "
                "lower-case letters, digits, -, _ and ."
            )

    @property
    def exporter_headers(self) -> dict[str, str]:
        """The pairs of `metrics_grpc_exporter_header`."""
        pairs = [item.partition(":") for item in self.metrics_grpc_exporter_header.split(",")]
        return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}

    def check_group(self, group: GroupConfig, known: Mapping[str, str]) -> None:
        """Raise `ConfigError` unless this node can host a group.

        `known`: node id → address, as its other groups have it.
        """
        members = group.members
        if self.self_id not in members:
            raise ConfigError(
                f"group {group.group}: selfId {self.self_id!r} is not in peers {group.peers!r}"
            )
        if group.mapped_file_size_for_entry_data < self.limits.entry_bytes_max + 8:
            raise ConfigError(
                f"group {group.group}: mappedFileSizeForEntryData must exceed "
                "limits.entryBytesMax by 8"
            )
        for member, address in members.items():
            if known.get(member, address) != address:
                raise ConfigError(
                    f"groups: {member!r} has two addresses, {known[member]} and {address}; "
                    "a node has one port for all its groups"
                )
        self._check_directory(group.group)

    def _check_directory(self, name: str) -> None:
        """Raise `ConfigError` if the directory of a group would be that of something else."""
        directory = Path(self.store_base_dir).absolute() / name
        used = {self.journal_path: "the journal (journalDirectory)"}
        for group in self.groups:
            what = f"data files of group {group.group} (dataStorePath)"
            for path in (*group.data_directories, *group.read_only_directories):
                if group.group != name:
                    used[path] = what
        for path, what in used.items():
            if Path(path).absolute().is_relative_to(directory):
                raise ConfigError(
                    f"group {name}: its directory {directory} would hold {what}; name the group "
                    "otherwise"
                )

    def _check_paths(self) -> None:
        owners: dict[str, str] = {}
        for group in self.groups:
            for path in {*group.data_directories, *group.read_only_directories}:
                owner = owners.setdefault(path, group.group)
                if owner != group.group:
                    raise ConfigError(
                        f"groups {owner} and {group.group} both keep data files in {path}; "
                        "give each group directories of its own"
                    )

    def _check_journal(self) -> None:
        """Raise `ConfigError` if the journal would have the directory of something else."""
        path = Path(self.journal_path).absolute()
        used = {self.store_base_dir: "the node's own directory (storeBaseDir)"}
        for group in self.groups:
            for directory in (*group.data_directories, *group.read_only_directories):
                used[directory] = f"a directory of group {group.group} (dataStorePath)"
        for directory, what in used.items():
            if Path(directory).absolute() == path:
                raise ConfigError(
                    f"journalDirectory: {path} is {what}; give the journal a directory of its own"
                )

    @property
    def journal_path(self) -> str:
        """The directory of the journal."""
        return self.journal_directory or str(Path(self.store_base_dir) / JOURNAL_NAME)

    @property
    def listen_address(self) -> str:
        """Where the node listens, as `host:port`."""
        return self.listen or self.groups[0].members[self.self_id]


def _types() -> dict[str, dict[str, object]]:
    """Return the keys of each table of a configuration file, and the types of their values."""
    tables: dict[str, type[msgspec.Struct]] = {
        TOP: NodeConfig,
        GROUPS: GroupConfig,
        LIMITS: Limits,
        TLS: TlsConfig,
        SECURITY: SecurityConfig,
    }
    return {
        table: {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        for table, kind in tables.items()
    }


def known_keys() -> dict[str, set[str]]:
    """Return the keys of each table of a configuration file."""
    return {table: set(keys) for table, keys in _types().items()}


msgspec.json.Decoder(NodeConfig)
"""msgspec learns all these types now, while one thread runs, and not in the first `convert`: if two
threads made that at once, the interpreter could crash."""


def load_config(path: str | Path) -> NodeConfig:
    """Read a node's TOML file; paths in its table [tls] are relative to the file's directory.

    Raises `ConfigError` with the file, the key and what is wrong.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}") from error
    try:
        document = msgspec.toml.decode(raw)
        unknown = unknown_keys(document, known_keys())
        if unknown:
            raise ConfigError(unknown)
        config = _converted(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}{quotes_advice(str(error))}") from error
    directory, tls, security = Path(path).absolute().parent, config.tls, config.security
    return msgspec.structs.replace(
        config,
        tls=None if tls is None else tls.relative_to(directory),
        security=None if security is None else security.relative_to(directory),
    )


def _converted(document: Mapping[str, object]) -> NodeConfig:
    try:
        return msgspec.convert(document, NodeConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(wrong_value_in(str(error), document, _types())) from error


def dump_config(config: NodeConfig) -> bytes:
    """Return the configuration as TOML that `load_config` reads back to an equal value."""
    document: dict[str, object] = msgspec.to_builtins(config)
    for name in ("tls", "security"):
        if document[name] is None:  # TOML has no word for it
            del document[name]
    return msgspec.toml.encode(document)
