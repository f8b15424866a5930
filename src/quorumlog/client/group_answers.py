"""What nodes answer about groups, and what follows from it; nothing in here asks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from quorumlog.model.codes import FAILED, ResponseCode
from quorumlog.model.errors import (
    NetworkError,
    Outcome,
    RequestError,
    UnexpectedArgumentError,
    UnknownGroupError,
    error_for,
)
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.groups import (
    GroupInfo,
    ListGroupsRequest,
    ListGroupsResponse,
    Setting,
)

FORGET_S: Final = 600.0
"""A node that is silent for so long is asked again only if a group or the servers name it."""


@dataclass(slots=True)
class NodeGroups:
    """One node and its groups. `error`: why it did not say which; "": it did."""

    node_id: str
    address: str
    group_count: int
    groups_max: int
    groups: list[GroupInfo] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    error: str = ""

    def find(self, name: str, state: str = "") -> GroupInfo | None:
        """Return a group that is here (or, with `state` DELETED, was), or None."""
        for info in self.groups:
            if info.group == name and (info.state == "DELETED") == (state == "DELETED"):
                return info
        return None


class KnownNodes:
    """The nodes that have answered; `addresses` maps their ids to where they did."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self._silent_since: dict[str, float] = {}

    def forget_silent(self, silent: set[str], now_s: float) -> None:
        """Forget who has not answered for long; `silent` are the addresses that do not now."""
        ids = [node_id for node_id, address in self.addresses.items() if address in silent]
        self._silent_since = {one: self._silent_since.get(one, now_s) for one in ids}
        for node_id in ids:
            if now_s - self._silent_since[node_id] >= FORGET_S:
                del self.addresses[node_id], self._silent_since[node_id]


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One group as its members see it.

    Attributes:
        group: its name.
        identity: tells it apart from others of this name, as hexadecimal digits; empty: it has
            not started, and none was given to it.
        members: node id → address.
        leader_id: who leads; None: nobody, or it is not known.
        term: the newest term that a member knows; -1: none.
        states: node id → HOSTED, FAILED or DELETED, for each node that was asked and knows it.
        settings: what was set while nodes ran.
        is_from_file: whether configuration files name it.
        end_index: the end of the longest log.
        silent: node id → why it did not answer, of its members.
        problems: node id → what is wrong with the group there, as far as the node knows.
        deleted_ms: when it was deleted, in Unix milliseconds; 0: it was not.
        purged: whether all nodes that remember it as deleted have removed its files.
    """

    group: str
    identity: str
    members: dict[str, str]
    leader_id: str | None
    term: int
    states: dict[str, str]
    settings: dict[str, str]
    is_from_file: bool
    end_index: int
    silent: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    deleted_ms: int = 0
    purged: bool = False


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What a change did.

    Attributes:
        nodes: the nodes that have carried it out.
        pending: node id → why it has not yet; it learns of the change from the others.
        after_restart: keys whose new values count once a node is restarted.
        notes: node id → what is left for somebody to do there.
    """

    nodes: list[str]
    pending: dict[str, str]
    after_restart: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)


def silent_nodes(
    errors: Mapping[str, RequestError], found: Mapping[str, NodeGroups], known: Mapping[str, str]
) -> list[NodeGroups]:
    """Return the nodes that did not answer; `known` maps node ids to addresses.

    `errors` are by address, and what was found by node id.
    """
    ids = {address: node_id for node_id, address in known.items()}
    for node in found.values():
        for info in node.groups:
            ids.update((address, node_id) for node_id, address in info.peers.items())
    return [
        NodeGroups(ids.get(address, ""), address, 0, 0, error=str(error))
        for address, error in errors.items()
        if not isinstance(error, UnknownGroupError) and ids.get(address) not in found
    ]


def said(refusals: Mapping[str, RequestError]) -> str:
    """Return what each node answered; what several of them did, once."""
    nodes: dict[str, list[str]] = {}
    for node, error in refusals.items():
        nodes.setdefault(str(error), []).append(node)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in nodes.items())


def next_page(
    address: str, request: ListGroupsRequest, answer: ListGroupsResponse
) -> ListGroupsRequest:
    """Return the request for what follows an answer. Raises `RequestError` if nothing can."""
    deleted = [(info.group, info.identity) for info in answer.groups if info.state == "DELETED"]
    hosted = [info.group for info in answer.groups if info.state != "DELETED"]
    if deleted and deleted[-1] > request.after_deleted:
        return msgspec.structs.replace(request, after_deleted=deleted[-1])
    if hosted and not deleted and hosted[-1] > request.after:
        return msgspec.structs.replace(request, after=hosted[-1])
    raise error_for(
        ResponseCode.INTERNAL_ERROR, f"{address} says that it has more groups, but not which"
    )


def best_known(found: Mapping[str, GroupInfo]) -> GroupInfo:
    """Return what the node says that knows the members of a group best, of what each node says.

    That is the leader of the newest term; without it, who has most of the log in that term.
    """
    node_id = max(
        found,
        key=lambda node: (
            found[node].term,
            found[node].leader_id == node,
            found[node].end_index,
        ),
    )
    return found[node_id]


def members_of(info: GroupInfo, nodes: Sequence[NodeGroups]) -> dict[str, str]:
    """Return node id → address of all members: where they answered, if they did; "": not known."""
    here = {node.node_id: node.address for node in nodes if not node.error}
    return {node_id: here.get(node_id, at) for node_id, at in sorted(info.peers.items())}


def hosting(nodes: Sequence[NodeGroups], name: str, identity: str) -> dict[str, GroupInfo]:
    """Return node id → the group as that node has it. Raises `RequestError` unless it is one."""
    found = {node.node_id: info for node in nodes if (info := node.find(name)) is not None}
    if identity:
        here = sorted({info.identity.hex() for info in found.values()})
        found = {node: info for node, info in found.items() if info.identity.hex() == identity}
        if here and not found:
            raise UnknownGroupError(
                f"group {name!r} has the identity {' or '.join(here)}, not {identity}"
            )
    if not found:
        raise UnknownGroupError(f"no node that answered has a group {name!r}")
    known = {info.identity for info in found.values()} - {b""}
    if len(known) > 1:
        listed = "; ".join(f"{node}: {info.identity.hex()}" for node, info in found.items())
        raise UnexpectedArgumentError(
            f"there are several groups {name!r}, with different identities ({listed}); say "
            "which one"
        )
    return found


def has_majority(info: GroupInfo, answers: Mapping[str, Response | RequestError]) -> bool:
    """Return whether a majority of the voters has done what it was asked for.

    While the voters change it is one of each set. A node of an earlier version does not say who
    votes; then all members count.
    """
    done = {node for node, answer in answers.items() if not isinstance(answer, RequestError)}
    return all(
        2 * len(done.intersection(voters)) > len(voters)
        for voters in info.voters or [list(info.peers)]
    )


NOTHING_IS_CHANGED: Final = "nothing is changed"


def require_majority(
    info: GroupInfo,
    answers: Mapping[str, Response | RequestError],
    so_far: str = NOTHING_IS_CHANGED,
) -> None:
    """Raise `RequestError` unless a majority of the voters has done what it was asked for.

    `so_far` says what is changed then.
    """
    if has_majority(info, answers):
        return
    failed = {node: one for node, one in answers.items() if isinstance(one, RequestError)}
    refused = [error for error in failed.values() if not isinstance(error, NetworkError)]
    code = refused[0].code if refused else ResponseCode.NETWORK_ERROR
    what = "can do it" if refused else "answers"
    text = f"no majority of group {info.group!r} {what}, {so_far}: {said(failed)}"
    error = error_for(code, text)
    error.outcome = Outcome.DID_NOT_HAPPEN
    raise error


def changed(answers: Mapping[str, Response | RequestError], keys: list[str]) -> GroupChange:
    """Return what was done where. Raises the error of a node if it was done nowhere."""
    errors = {node: str(one) for node, one in answers.items() if isinstance(one, RequestError)}
    done = [node for node in answers if node not in errors]
    if not done:
        raise next(one for one in answers.values() if isinstance(one, RequestError))
    notes = {
        node: one.text for node, one in answers.items() if isinstance(one, Response) and one.text
    }
    return GroupChange(done, errors, keys, notes)


def summaries(nodes: Sequence[NodeGroups]) -> list[GroupSummary]:
    """Return one value for each group, from what all nodes say."""
    silent = {node.node_id: node.error for node in nodes if node.error}
    by_key: dict[tuple[str, bytes], list[tuple[str, GroupInfo]]] = {}
    live: dict[str, set[bytes]] = {}
    for node in nodes:
        for info in node.groups:
            if info.identity and info.state != "DELETED":
                live.setdefault(info.group, set()).add(info.identity)
    for node in nodes:
        for info in node.groups:
            identity = info.identity
            if not identity and info.state == FAILED and len(live.get(info.group, ())) == 1:
                (identity,) = live[info.group]  # the node could not read its own
            by_key.setdefault((info.group, identity), []).append((node.node_id, info))
    return [summary_of(name, found, silent) for (name, _), found in sorted(by_key.items())]


def summary_of(
    name: str, found: Sequence[tuple[str, GroupInfo]], silent: Mapping[str, str]
) -> GroupSummary:
    """Return one value for a group, from what some nodes say; `silent` are those that do not."""
    live = {node: info for node, info in found if info.state != "DELETED"}
    newest = best_known(live or dict(found))
    settings = max((info for _, info in found), key=lambda info: info.revision).settings
    leaders = [info.leader_id for _, info in found if info.term == newest.term and info.leader_id]
    return GroupSummary(
        group=name,
        identity=newest.identity.hex(),
        members=dict(newest.peers),
        leader_id=leaders[0] if leaders else None,
        term=newest.term,
        states={node: info.state for node, info in found},
        settings=dict(settings),
        is_from_file=newest.is_from_file,
        end_index=max(info.end_index for _, info in found),
        silent={node: silent[node] for node in newest.peers if node in silent},
        problems={node: info.text for node, info in found if info.text},
        deleted_ms=newest.deleted_ms,
        purged=bool(newest.deleted_ms)
        and all(info.purged for _, info in found if info.state == "DELETED"),
    )
