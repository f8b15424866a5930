"""Requests about groups as a whole: make, alter, delete and list those of this node."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from quorumlog.model.codes import FAILED, ResponseCode
from quorumlog.model.config import (
    PARTITION_GROUP,
    GroupConfig,
    check_made_by_clients,
    check_name,
    parse_peers,
)
from quorumlog.model.config_keys import key_of
from quorumlog.model.errors import ConfigError, UnexpectedArgumentError, error_for
from quorumlog.model.group_records import (
    FIXED,
    IDENTITY_BYTES,
    GroupRecord,
    applies,
    text_of,
    waiting_for_restart,
)
from quorumlog.model.membership import Membership, addresses_of
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.groups import (
    LISTED_BYTES_MAX,
    LISTED_MAX,
    AlterGroupRequest,
    AlterGroupResponse,
    CreateGroupRequest,
    DeleteGroupRequest,
    GroupInfo,
    ListGroupsRequest,
    ListGroupsResponse,
    Setting,
)
from quorumlog.model.wording import shortened
from quorumlog.node.node import Node

Answer: TypeAlias = Callable[[Response], None]
Sees: TypeAlias = Callable[[str], bool]
"""Whether the client may know of a group."""
GroupsRequest: TypeAlias = (
    CreateGroupRequest | DeleteGroupRequest | AlterGroupRequest | ListGroupsRequest
)
NOT_CREATED = GroupConfig(group="g", peers="n-h:1")
"""Where the defaults of all keys are read."""


def create_group(node: Node, request: CreateGroupRequest, answer: Answer, sees: Sees) -> None:
    """Make this node's replica. Raises `UnexpectedArgumentError`."""
    _check(request.group, request.identity)
    is_of_brokers = PARTITION_GROUP.fullmatch(request.group) is not None
    kind = "partitions" if is_of_brokers else request.settings.get("kind", "log")
    check_made_by_clients(request.group, kind)
    record = GroupRecord(
        group=request.group,
        identity=request.identity,
        peers=request.peers,
        settings=request.settings,
    )

    def done(code: ResponseCode, text: str) -> None:
        if code is ResponseCode.GROUP_EXISTS and not sees(request.group):
            text = f"group {request.group!r} exists already"  # and not which one
        answer(Response(code=code, text=text))

    node.hosting.lifecycle.create(record, done)


def unknown_to(node: Node, request: CreateGroupRequest) -> str:
    """Return what a group would have that this node does not know, for people; empty: nothing.

    That is a member, by its name or its address, which the node would dial, or a state machine of
    somebody else's, whose module it would import.
    """
    with suppress(ConfigError):  # what is malformed is refused by whoever makes the group
        known = {(node.config.self_id, node.own_address), *node.catalog.known_addresses().items()}
        for replica in node.replicas.values():
            known.update(addresses_of(replica.core.membership).items())
        for member in parse_peers(request.peers).items():
            if member not in known:
                return f"member {member[0]} at {member[1]}"
    machine = request.settings.get("stateMachine", "")
    used = {config.state_machine for config in node.catalog.configs.values()}
    is_new = ":" in machine and machine not in used
    return f"state machine {shortened(machine)}" if is_new else ""


def delete_group(node: Node, request: DeleteGroupRequest, answer: Answer, sees: Sees) -> None:
    """Delete this node's replica. Raises `UnexpectedArgumentError`.

    What brokers own is not deleted so; the files of what they deleted may be removed.
    """
    _check(request.group, request.identity, may_be_any=True)
    if node.catalog.tombstone(request.group, request.identity) is None:
        check_made_by_clients(request.group, _kind(node, request.group))
    node.hosting.lifecycle.delete(
        request.group, request.identity, _plain(answer), purge=request.purge
    )


def alter_group(node: Node, request: AlterGroupRequest, answer: Answer, sees: Sees) -> None:
    """Replace the settings of a group on this node, or promise to."""
    _check(request.group, request.identity, may_be_any=True)

    def done(code: ResponseCode, text: str) -> None:
        keys: list[str] = []
        replica = node.replicas.get(request.group)
        configured = node.catalog.configs.get(request.group)
        if replica is not None and configured is not None:
            keys = waiting_for_restart(replica.config, configured)
        answer(AlterGroupResponse(code=code, text=text, after_restart=keys))

    node.hosting.lifecycle.alter(request, done)


def _check(name: str, identity: bytes, *, may_be_any: bool = False) -> None:
    try:
        check_name("group", name)
    except ConfigError as error:
        raise UnexpectedArgumentError(str(error)) from error
    if len(identity) != IDENTITY_BYTES and not (may_be_any and not identity):
        raise UnexpectedArgumentError(f"an identity has {IDENTITY_BYTES} bytes")


def _kind(node: Node, name: str) -> str:
    """Return what the entries of a group are; of one that is not here, as its name says."""
    config = node.catalog.configs.get(name)
    if config is not None:
        return config.kind
    return "partitions" if PARTITION_GROUP.fullmatch(name) else "log"


def _plain(answer: Answer) -> Callable[[ResponseCode, str], None]:
    return lambda code, text: answer(Response(code=code, text=text))


def list_groups(node: Node, request: ListGroupsRequest, answer: Answer, sees: Sees) -> None:
    """List this node's groups, or describe one. Raises `RequestError` if that is not here.

    `sees`: whether the client may know of a group.
    """
    catalog = node.catalog
    names: list[str] = []
    settings: list[Setting] = []
    room = _Room(min(LISTED_BYTES_MAX, node.config.limits.message_bytes_max // 2))
    if request.after_deleted[0]:
        pass  # those that are hosted were listed before
    elif not request.group:
        names = sorted(name for name in _known(node) if name > request.after and sees(name))
    elif request.group not in _known(node):
        if not request.wants_deleted:
            text = f"node {node.config.self_id} has no group {request.group!r}"
            raise error_for(ResponseCode.UNKNOWN_GROUP, text)
    elif request.group > request.after:
        names, settings = [request.group], _settings(node, request.group)
    found, more = room.fill(_info(node, name) for name in names)
    deleted, more_deleted = list[GroupInfo](), False
    if request.wants_deleted and not more:
        known = _deleted(node, request.group, request.after_deleted)
        former = [one for one in known if sees(one.group)]
        deleted, more_deleted = room.fill(map(_deleted_info, former))
    answer(
        ListGroupsResponse(
            cluster=node.config.cluster,
            node_id=node.config.self_id,
            address=node.own_address,
            group_count=sum(map(sees, catalog.configs)),
            groups_max=node.config.limits.groups_max,
            groups=found + deleted,
            settings=settings,
            more=more or (more_deleted and not deleted),
            more_deleted=more_deleted,
        )
    )


class _Room:
    """What one answer may still list. Its first group always has room."""

    def __init__(self, size: int) -> None:
        self._bytes = size
        self._count = LISTED_MAX

    def fill(self, groups: Iterable[GroupInfo]) -> tuple[list[GroupInfo], bool]:
        """Return the groups that have room, and whether there are more."""
        taken: list[GroupInfo] = []
        for info in groups:
            size = len(msgspec.msgpack.encode(info))
            if self._count < LISTED_MAX and (size > self._bytes or not self._count):
                return taken, True
            self._bytes -= size
            self._count -= 1
            taken.append(info)
        return taken, False


def _deleted(node: Node, name: str, after: tuple[str, bytes]) -> list[GroupRecord]:
    """Return the deleted groups of a name (empty: of any) after a name and identity, in order."""
    found = [
        record
        for record in node.catalog.tombstones()
        if name in ("", record.group) and not record.was_refused
    ]
    return sorted((one for one in found if one.key > after), key=lambda record: record.key)


def _known(node: Node) -> set[str]:
    return {*node.catalog.configs, *node.catalog.unusable}


def _info(node: Node, name: str) -> GroupInfo:
    catalog, replica = node.catalog, node.replicas.get(name)
    record = catalog.record_of(name) or GroupRecord(group=name)
    config = catalog.configs.get(name)
    founders = config.members if config is not None else {}
    text = node.failed_groups.get(name, catalog.unusable.get(name, ""))
    if replica is None:
        core, members = None, founders
    else:
        core, members = replica.core, addresses_of(replica.core.membership)
        text = replica.health_text or replica.placement.text
    outdated = catalog.outdated.get(name)
    if outdated:
        text = "; ".join(filter(None, [text, f"its newest settings are not used: {outdated}"]))
    return GroupInfo(
        group=name,
        identity=node.hosting.lifecycle.identity_of(name),
        state="HOSTED" if replica is not None else FAILED,
        peers=members,
        founders=founders,
        leader_id=None if core is None else core.leader_id,
        term=-1 if core is None else core.term,
        end_index=-1 if replica is None else replica.log.end_index,
        is_from_file=not record.peers,
        settings=record.settings,
        revision=record.revision,
        made_ms=record.made_ms,
        deleted_ms=0,
        purged=False,
        text=text,
        voters=[] if core is None else _voters(core.membership),
    )


def _voters(membership: Membership) -> list[list[str]]:
    return [list(voters) for voters in (membership.voters, membership.outgoing) if voters]


def _deleted_info(record: GroupRecord) -> GroupInfo:
    return GroupInfo(
        group=record.group,
        identity=record.identity,
        state="DELETED",
        peers=record.former_members(),
        founders={},
        leader_id=None,
        term=-1,
        end_index=-1,
        is_from_file=not record.peers,
        settings=record.settings,
        revision=record.revision,
        made_ms=record.made_ms,
        deleted_ms=record.deleted_ms,
        purged=record.purged,
        text="",
    )


def _settings(node: Node, name: str) -> list[Setting]:
    """Return the effective value of every key, and where it is from."""
    catalog, replica = node.catalog, node.replicas.get(name)
    config, record = catalog.configs.get(name), catalog.record_of(name)
    if config is None or record is None:
        return []
    by_file = catalog.file_config(name)
    used = replica.config if replica is not None else config
    if replica is not None and all(replica.log.file_sizes):
        data_bytes, index_bytes = replica.log.file_sizes
        used = msgspec.structs.replace(
            used,
            mapped_file_size_for_entry_data=data_bytes,
            mapped_file_size_for_entry_index=index_bytes,
        )
    found = []
    for field in GroupConfig.__struct_fields__:
        key, value, default = key_of(field), getattr(config, field), getattr(NOT_CREATED, field)
        if key in FIXED:
            continue
        source = "default"
        if key in record.settings or key in record.base:
            source = "runtime"
        elif by_file is not None and value != default:
            source = "file"
        found.append(
            Setting(
                key,
                text_of(value),
                source,
                text_of(default),
                applies(field),
                text_of(getattr(used, field)),
            )
        )
    return found


_HANDLERS: dict[type[Any], Callable[[Node, Any, Answer, Sees], None]] = {
    CreateGroupRequest: create_group,
    DeleteGroupRequest: delete_group,
    AlterGroupRequest: alter_group,
    ListGroupsRequest: list_groups,
}
GROUPS_REQUESTS = tuple(_HANDLERS)


def answer_groups_request(
    node: Node, request: GroupsRequest, answer: Answer, sees: Sees = lambda group: True
) -> None:
    """Answer one of `GROUPS_REQUESTS`, now or later. Raises `RequestError` if it is refused."""
    _HANDLERS[type(request)](node, request, answer, sees)
