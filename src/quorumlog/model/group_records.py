"""What a node keeps of a group beside its configuration file: groups made while nodes run, what was
changed of a group's configuration, and which groups were deleted (decision 0040).
"""

import zlib
from collections.abc import Mapping
from enum import IntEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from quorumlog.model.bounds import IdentityBytes, Name, Number
from quorumlog.model.config import GroupConfig, known_keys, parse_peers
from quorumlog.model.config_keys import key_of, unknown_keys, wrong_value
from quorumlog.model.errors import ConfigError

IDENTITY_BYTES: Final = 16
RECORD_BYTES_MAX: Final = 16_000
"""Of a group's record, as it is kept and sent: peers and settings together."""
SETTINGS_MAX: Final = 128
"""Keys that may be set for one group."""
PEERS_LENGTH_MAX: Final = 4_096
VALUE_LENGTH_MAX: Final = 1_024
FIXED: Final = frozenset({"group", "peers"})
"""Keys that are no settings: they are what the group is."""
OF_ONE_NODE: Final = frozenset({"dataStorePath", "readOnlyDataStoreDirs"})
"""Keys that name directories of one machine: only its own configuration file has them."""
FOUNDING: Final = frozenset({"kind", "storeType", "stateMachine", "originalCompatible"})
"""Keys that a group keeps from its creation on."""
OF_NEW_REPLICAS: Final = frozenset({"mappedFileSizeForEntryData", "mappedFileSizeForEntryIndex"})
"""Keys that a replica takes when its files are made; those that exist keep their sizes."""
LIVE: Final = frozenset(
    {
        "check_point_interval",
        "clean_interval",
        "delete_when",
        "disk_ample_bytes",
        "disk_reserve_bytes",
        "disk_space_ratio_to_check_expired",
        "disk_space_ratio_to_force_clean",
        "election_timeout_max_ms",
        "election_timeout_min_ms",
        "enable_disk_force_clean",
        "file_reserved_hours",
        "follower_retention_bytes",
        "heart_beat_time_interval_ms",
        "leadership_transfer_wait_timeout",
        "log_level",
        "max_leadership_transfer_wait_index",
        "max_leadership_transfer_wait_bytes",
        "max_push_time_out_ms",
        "max_snapshot_reserved_num",
        "max_wait_ack_time_ms",
        "peer_push_quota",
        "preferred_leader_ids",
        "reset_snapshot_entries_but_keep_last_entries_num",
        "retention_bytes",
        "scrub_interval_hours",
        "snapshot_bytes",
        "snapshot_threshold",
    }
)
"""Fields of `GroupConfig` that count as soon as they are changed; others with the next start."""

ValueText: TypeAlias = Annotated[str, Meta(max_length=VALUE_LENGTH_MAX)]
"""A value of any type, as a configuration file has it but for quotes."""
Settings: TypeAlias = Annotated[dict[Name, ValueText], Meta(max_length=SETTINGS_MAX)]
PeersText: TypeAlias = Annotated[str, Meta(max_length=PEERS_LENGTH_MAX)]


class GroupState(IntEnum):
    """What became of a group on one node."""

    HOSTED = 1
    DELETED = 2


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One group on one node.

    `identity` tells groups of one name apart. A group that was made while nodes run has it from the
    beginning; that of a group of the configuration file is made when it is founded, and empty
    before. `peers` are the founders, as `id-host:port` joined by `;`, or what were the members when
    this node was invited; empty: those of the configuration file count. `settings` override the
    file, or `base`: what the file of the node says that invited this one. `revision` rises with
    each change of them. A DELETED one is kept as a tombstone for members that were away; with
    `purge` its files are removed at once, and `purged` says that they are. Times: Unix
    milliseconds.
    """

    group: Name
    identity: IdentityBytes = b""
    peers: PeersText = ""
    base: Settings = {}
    settings: Settings = {}
    revision: Number = 0
    state: GroupState = GroupState.HOSTED
    made_ms: Number = 0
    deleted_ms: Number = 0
    purge: bool = False
    purged: bool = False
    was_refused: bool = False
    """It was never here: this node only remembers that it must not be made."""
    promised: Number = 0
    """Clients can set nothing of a lower revision any more."""
    former: PeersText = ""
    """Of a deleted group: its members, as `peers` has them, so that all of them are found."""

    @property
    def key(self) -> tuple[str, bytes]:
        """What no other group has."""
        return self.group, self.identity

    def encode(self) -> bytes:
        """Return the record as it is kept. Raises `ConfigError` when it is too long."""
        raw = msgspec.msgpack.encode(self)
        if len(raw) > RECORD_BYTES_MAX:
            raise ConfigError(
                f"group {self.group}: its peers and settings take {len(raw)} bytes, more than "
                f"{RECORD_BYTES_MAX}"
            )
        return raw

    def with_former(self, members: str) -> "GroupRecord":
        """Return this record with the members that a deleted group had, if they have room."""
        found = msgspec.structs.replace(self, former=members)
        is_short = len(members) <= PEERS_LENGTH_MAX
        fits = is_short and len(msgspec.msgpack.encode(found)) <= RECORD_BYTES_MAX
        return found if fits else self

    def former_members(self) -> dict[str, str]:
        """Return node id → address of the members of a deleted group, as far as they are known."""
        peers = self.former or self.peers
        try:
            return parse_peers(peers) if peers else {}
        except ConfigError:
            return {}

    def changed(self, settings: Settings, revision: int) -> "GroupRecord":
        """Return this record with other settings."""
        return msgspec.structs.replace(self, settings=settings, revision=revision)


def next_revision(revision: int, settings: Settings) -> int:
    """Return the revision of settings that replace those of a revision.

    Its low 32 bits are a checksum, so that different settings have different revisions.
    """
    raw = msgspec.msgpack.encode(sorted(settings.items()))
    return ((revision >> 32) + 1 << 32) | zlib.crc32(raw)


def config_of(record: GroupRecord, base: GroupConfig | None = None) -> GroupConfig:
    """Return the configuration of a group: defaults, then the file's (`base`), then the record's.

    Raises `ConfigError` naming the key and what is wrong, as a configuration file does.
    """
    check_settings(record.group, {**record.base, **record.settings})
    if base is not None:
        known = {key_of(name): getattr(base, name) for name in base.__struct_fields__}
        kind = type(base)
    else:
        known, kind = {}, GroupConfig
    fields = {**known, **record.base, **record.settings, "group": record.group}
    if record.peers:
        fields["peers"] = record.peers
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"group {record.group}: {_said(error, fields, kind)}") from error


def _said(error: msgspec.ValidationError, fields: Mapping[str, object], kind: type) -> str:
    """Return what is wrong with a value, in words for those who gave it as text."""
    key = str(error).rpartition("$.")[2].rstrip("`")
    wanted = next((f.type for f in msgspec.structs.fields(kind) if f.encode_name == key), None)
    return wrong_value(key, wanted, fields.get(key)) or str(error)


def check_settings(group: str, settings: Settings) -> None:
    """Raise `ConfigError` for keys that are unknown, or cannot be set for a group at run time."""
    found = unknown_keys({"groups": [{**settings, "group": group}]}, known_keys())
    if found:
        raise ConfigError(found)
    fixed, local = FIXED & settings.keys(), OF_ONE_NODE & settings.keys()
    if fixed:
        raise ConfigError(f"group {group}: {sorted(fixed)[0]} is no setting; it cannot be changed")
    if local:
        raise ConfigError(
            f"group {group}: {sorted(local)[0]} names directories of one machine; only the "
            "configuration file of its node can say so"
        )
    for key, value in settings.items():
        if len(value) > VALUE_LENGTH_MAX:
            raise ConfigError(f"group {group}: {key} has more than {VALUE_LENGTH_MAX} characters")


def typed(config: GroupConfig, settings: Settings) -> Settings:
    """Return settings with their values as a configuration understood them."""
    by_key = {key_of(name): getattr(config, name) for name in config.__struct_fields__}
    return {key: text_of(by_key[key]) for key in sorted(settings)}


def text_of(value: object) -> str:
    """Return the value of a key as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def beyond_defaults(config: GroupConfig) -> Settings:
    """Return what a configuration sets to other values than the defaults, on any node."""
    default = GroupConfig(group=config.group, peers=config.peers)
    return {
        key_of(name): text_of(getattr(config, name))
        for name in default.__struct_fields__
        if getattr(config, name) != getattr(default, name) and key_of(name) not in OF_ONE_NODE
    }


def running(before: GroupConfig, after: GroupConfig) -> GroupConfig:
    """Return what a replica that was opened with `before` uses once `after` is configured."""
    return msgspec.structs.replace(before, **{name: getattr(after, name) for name in LIVE})


def waiting_for_restart(now: GroupConfig, configured: GroupConfig) -> list[str]:
    """Return the keys whose configured values a replica does not use before its next start."""
    return [
        key_of(name)
        for name in now.__struct_fields__
        if getattr(now, name) != getattr(configured, name) and applies(name) == "restart"
    ]


def applies(name: str) -> str:
    """Return when a change of a field of `GroupConfig` counts: now, restart, new or never."""
    if key_of(name) in FOUNDING | FIXED:
        return "never"
    if key_of(name) in OF_NEW_REPLICAS:
        return "new"
    return "now" if name in LIVE else "restart"


def check_kept(before: GroupConfig, after: GroupConfig) -> None:
    """Raise `ConfigError` if a change is about what a group keeps from its creation on."""
    for name in before.__struct_fields__:
        if key_of(name) in FOUNDING and getattr(before, name) != getattr(after, name):
            raise ConfigError(
                f"group {before.group}: {key_of(name)} is chosen when a group is made, and cannot "
                "be changed"
            )
