"""Messages about groups as a whole: making, changing, deleting and listing them on one node, and
what nodes tell each other about them (decision 0040).
"""

from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from quorumlog.model.bounds import (
    NUMBER_MAX,
    Count,
    IdentityBytes,
    Index,
    Milliseconds,
    Name,
    Number,
    Term,
)
from quorumlog.model.group_records import GroupRecord, PeersText, Settings
from quorumlog.model.messages.base import Request, Response
from quorumlog.model.messages.peer import NodeMessage

ASKED_MAX = 512
"""Groups in one query between nodes; more of them go into several."""
LISTED_MAX = 256
"""Groups in one answer to a client; it asks again for those after the last one."""
LISTED_BYTES_MAX = 64 * 1024
"""Of the groups in one answer, beyond its first one and the settings that were asked for."""


class CreateGroupRequest(Request, frozen=True, kw_only=True):
    """Make this node's replica of a group; nothing happens if it has this very one.

    The group begins once all its `peers` have made theirs (decision 0011).
    """

    identity: IdentityBytes
    peers: PeersText
    settings: Settings = {}


class DeleteGroupRequest(Request, frozen=True, kw_only=True):
    """Delete this node's replica of the group of this identity (empty: of any) permanently.

    `purge`: remove its files now. A group that is not here is never made here later.
    """

    identity: IdentityBytes = b""
    purge: bool = False


class AlterGroupRequest(Request, frozen=True, kw_only=True):
    """Replace all settings of a group on this node (decision 0040).

    With `prepares` nothing is replaced yet: the node checks the settings, and promises to take none
    of a lower `revision` from a client any more. It refuses if its own are newer than those of the
    revision `replaces`, from which these were made.
    """

    identity: IdentityBytes
    settings: Settings
    revision: Number
    prepares: bool = False
    replaces: Number = NUMBER_MAX


class AlterGroupResponse(Response, frozen=True, kw_only=True):
    """Changed; `after_restart` are the keys whose new values count once the node is restarted."""

    after_restart: list[str] = []


class ListGroupsRequest(Request, frozen=True, kw_only=True):
    """Which groups does this node host? With a `group` only that one, with all its settings."""

    after: Name = ""
    """Names after this one, in order; empty: from the first on."""
    wants_deleted: bool = False
    after_deleted: tuple[Name, IdentityBytes] = ("", b"")
    """Only deleted ones, after this name and identity; an empty name: hosted ones first."""


class Setting(msgspec.Struct, frozen=True, array_like=True):
    """The effective value of one key: where it is from, and when a change of it counts."""

    key: str
    value: str
    source: str
    """`default`, `file` (the configuration file of the node), or `runtime`."""
    default: str
    applies: str
    """`now`, `restart`, `new` (replicas whose files are made from then on), or `never`: it can only
    be chosen when the group is made."""
    running: str
    """The value that counts at present; another one than `value` waits for a restart, or is that
    of files that were made earlier."""


class GroupInfo(msgspec.Struct, frozen=True, array_like=True):
    """One group on one node. `peers`: members as its log has them, id → address; "": not known.

    `voters`: those that make a majority, and while they change those before the change, too.
    """

    group: str
    identity: bytes
    state: str
    """HOSTED, FAILED (its data cannot be opened) or DELETED."""
    peers: dict[str, str]
    founders: dict[str, str]
    leader_id: str | None
    term: Term
    end_index: Index
    is_from_file: bool
    settings: Settings
    """Those set while nodes run; the configuration file's come below them."""
    revision: Number
    made_ms: Milliseconds
    deleted_ms: Milliseconds
    purged: bool
    text: str
    voters: list[list[str]] = []


class ListGroupsResponse(Response, frozen=True, kw_only=True):
    """The node and its groups, in order of their names; deleted ones follow in the same way.

    `more`: ask again after the last one that is hosted; `more_deleted`: for deleted ones after the
    last one. Clients of earlier versions do not know that field, and get as many as have room.
    """

    cluster: str = ""
    node_id: str = ""
    address: str = ""
    group_count: Count = 0
    """Groups of the node that the client may know of."""
    groups_max: Count = 0
    groups: list[GroupInfo] = []
    settings: list[Setting] = []
    more: bool = False
    more_deleted: bool = False


# -- between nodes ------------------------------------------------------------------------------


class AskedGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group as the asking node has it. `gives_up`: it was not founded in time.

    A node that does not have it then promises never to make it.
    """

    group: Name
    identity: IdentityBytes
    revision: Number
    gives_up: bool = False


class GroupsQuery(NodeMessage, frozen=True, kw_only=True):
    """What do you know of these groups, which you are a member of, that I do not?"""

    nonce: Number
    groups: Annotated[list[AskedGroup], Meta(max_length=ASKED_MAX)]


class Knowledge(IntEnum):
    """What a node knows of a group that another one asked for."""

    ABSENT = 0
    """It has no such group, and has not deleted it either."""
    DELETED = 1
    CHANGED = 2
    """Its settings are newer."""


class GroupNews(msgspec.Struct, frozen=True, array_like=True):
    """One group that differs. Of one that is ABSENT the record has nothing but names."""

    knowledge: Knowledge
    record: GroupRecord


class GroupsAnswer(NodeMessage, frozen=True, kw_only=True):
    """Answer to a query: `nonce` is the query's; groups without news are left out."""

    nonce: Number
    news: Annotated[list[GroupNews], Meta(max_length=ASKED_MAX)]


class GroupInvitation(NodeMessage, frozen=True, kw_only=True):
    """A leader tells a member that has no replica of its group (its disk was emptied) to make one.

    `record` is that of the leader's node, with the present members as its peers.
    """

    record: GroupRecord
