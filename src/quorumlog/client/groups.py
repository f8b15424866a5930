"""Groups of a cluster: make, list, describe, alter and delete them while nodes run.

The client asks every member by itself. If it dies half-way, the members finish or undo what it
began (decision 0040): a group exists at all its members in the end, or at none.
"""

import asyncio
import os
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from quorumlog.client.group_alteration import Alteration
from quorumlog.client.group_answers import (
    GroupChange,
    GroupSummary,
    KnownNodes,
    NodeGroups,
    best_known,
    changed,
    hosting,
    members_of,
    next_page,
    require_majority,
    said,
    silent_nodes,
    summaries,
    summary_of,
)
from quorumlog.client.requester import Requester
from quorumlog.client.retry import Backoff
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import (
    PARTITION_GROUP,
    check_made_by_clients,
    check_name,
    parse_address,
)
from quorumlog.model.errors import (
    ConfigError,
    DeadlineExceededError,
    LeaderNotReadyError,
    NetworkError,
    Outcome,
    RemoteProtocolError,
    RequestError,
    UnexpectedArgumentError,
    UnknownGroupError,
    error_for,
)
from quorumlog.model.group_records import IDENTITY_BYTES, Settings, text_of
from quorumlog.model.messages.base import Request, Response
from quorumlog.model.messages.groups import (
    AlterGroupResponse,
    CreateGroupRequest,
    DeleteGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    Setting,
)
from quorumlog.model.wording import counted

R = TypeVar("R", bound=Response)
REPLICAS = 3
"""Members of a new group, if there are so many nodes."""
NODES_MAX = 1_024
"""Nodes that are asked."""
POLL_S = 0.02
"""Pause before members are asked again whether a new group has a leader; it doubles."""
POLL_MAX_S = 0.5
IDENTITY = re.compile(rf"[0-9a-f]{{{2 * IDENTITY_BYTES}}}")
FRESH_S = 5.0
"""How long the number of groups on each node is believed when several groups are made."""


class Groups:
    """The groups of a client's cluster; get it as `client.admin.groups`.

    Every method raises `RequestError` (see `quorumlog.errors`), and `UnexpectedArgumentError` for
    an argument of a wrong type or value.
    """

    def __init__(self, requester: Requester) -> None:
        self._requester = requester
        self._counts: Counter[str] = Counter()
        self._known = KnownNodes()
        self._silent: dict[str, str] = {}
        self._counted_at = -FRESH_S
        self._counting = asyncio.Lock()

    # -- what there is ------------------------------------------------------------------------

    async def nodes(self, *, deleted: bool = False) -> list[NodeGroups]:
        """Return every node that can be found, with its groups; with `deleted` also former ones.

        Nodes are found from the servers of the client on, by the members of their groups. One that
        does not answer has an `error`. Raises the error of a server if none answers.
        """
        return await self._find(ListGroupsRequest(group="", wants_deleted=deleted))

    async def describe(self, name: str) -> tuple[GroupSummary, dict[str, list[Setting]]]:
        """Return a group, and for each of its nodes the effective value of every key.

        Raises:
            UnknownGroupError: no node that answered has it.
        """
        nodes = await self._find(ListGroupsRequest(group=usable_name(name)))
        here = [node for node in nodes if node.find(name) is not None]
        if not here:
            raise UnknownGroupError(f"no node that answered has a group {name!r}")
        found = [*here, *(node for node in nodes if node.error)]
        summary = max(summaries(found), key=lambda one: (one.leader_id is not None, one.term))
        return summary, {node.node_id: node.settings for node in here}

    async def _find(self, request: ListGroupsRequest) -> list[NodeGroups]:
        """Ask all servers, and all members of what they answer; those that fail come last.

        Raises the error of one if none answers, and that there is no such group if some say so.
        """
        found: dict[str, NodeGroups] = {}
        errors: dict[str, RequestError] = {}
        asked: set[str] = set()
        waiting = {*self._requester.metadata.addresses(), *self._known.addresses.values()}
        while waiting and len(asked) < NODES_MAX:
            now, waiting = sorted(waiting), set()
            asked.update(now)
            answers = await asyncio.gather(
                *(self._node_at(address, request) for address in now), return_exceptions=True
            )
            for address, answer in zip(now, answers, strict=True):
                if isinstance(answer, RequestError):
                    errors[address] = answer
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    found[answer.node_id] = answer
                    self._known.addresses[answer.node_id] = answer.address
                    addresses = {a for info in answer.groups for a in info.peers.values()}
                    waiting |= addresses - asked
        if not found:
            if any(isinstance(error, UnknownGroupError) for error in errors.values()):
                raise UnknownGroupError(f"no node that answered has a group {request.group!r}")
            raise next(iter(errors.values()), ConfigError("no servers"))
        silent = silent_nodes(errors, found, self._known.addresses)
        now_s = asyncio.get_running_loop().time()
        self._known.forget_silent({node.address for node in silent}, now_s)
        return [*sorted(found.values(), key=lambda node: node.node_id), *silent]

    async def _node_at(self, address: str, request: ListGroupsRequest) -> NodeGroups:
        """Return a node with all the groups that are asked for, page by page."""
        made: NodeGroups | None = None
        while True:
            answer = await self._ask(address, request, ListGroupsResponse)
            if made is None:
                made = NodeGroups(
                    answer.node_id, answer.address, answer.group_count, answer.groups_max
                )
            made.groups += answer.groups
            made.settings += answer.settings
            if not answer.more and not answer.more_deleted:
                return made
            request = next_page(address, request, answer)

    async def _ask(self, address: str, request: Request, kind: type[R]) -> R:
        """Ask one node; see `_answer_of`."""
        return await _answer_of(self._requester, address, request, kind)

    # -- making -------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        *,
        members: Sequence[str] | Mapping[str, str] | None = None,
        replicas: int | None = None,
        settings: Mapping[str, object] | None = None,
        timeout_s: float = 30.0,
    ) -> GroupSummary:
        """Make a group; return once it has a leader.

        Args:
            name: of the new group: letters, digits, `.`, `_` and inner `-`.
            members: ids of the nodes that shall have it, or node id → address; None: the nodes
                with the fewest groups.
            replicas: how many nodes that is; None: 3. Not beside `members`.
            settings: keys of a group's configuration (see the page on configuration) and values.
            timeout_s: how long to wait for a leader, in seconds.

        Raises:
            RequestError: with code GROUP_EXISTS, GROUP_REFUSED (a node has no room for it),
                UNEXPECTED_ARGUMENT, DISK_FULL, NETWORK_ERROR (a member does not answer: a new group
                needs all of them); then it was not made, or `outcome` is UNKNOWN and it is undone
                later. TIMEOUT: it is made, and has no leader yet.
        """
        is_of_brokers = PARTITION_GROUP.fullmatch(usable_name(name)) is not None
        texts = _texts(settings)
        kind = "partitions" if is_of_brokers else texts.get("kind", "log")
        check_made_by_clients(name, kind)
        _check_choice(members, replicas)
        try:
            nodes = await self._find(ListGroupsRequest(group=name))
        except (RequestError, ConfigError):
            nodes = []  # the chosen ones say what is wrong
        chosen = await self._choose(members, replicas)
        _check_is_new(nodes, name, chosen)
        counted = [node_id for node_id in chosen if node_id in self._counts]
        self._counts.update(counted)  # at once: others are being chosen for meanwhile
        peers = ";".join(f"{node_id}-{address}" for node_id, address in chosen.items())
        identity = os.urandom(IDENTITY_BYTES)
        request = CreateGroupRequest(group=name, identity=identity, peers=peers, settings=texts)
        outcomes = await self._ask_each(chosen, request, Response)
        refusals = {node: one for node, one in outcomes.items() if isinstance(one, RequestError)}
        if refusals:
            self._counts.subtract(counted)
            raise await self._undone(name, identity, chosen, refusals)
        return await self._wait_for_leader(name, identity, chosen, timeout_s)

    async def _choose(
        self, members: Sequence[str] | Mapping[str, str] | None, replicas: int | None
    ) -> dict[str, str]:
        """Return node id → address of the members of a new group."""
        if isinstance(members, Mapping):
            for node_id, address in members.items():
                usable_name(node_id, "member id")
                _address(address)
            return dict(members)
        if isinstance(members, str):
            raise UnexpectedArgumentError("members is a sequence of node ids, not a str")
        await self._count()
        if members is not None:
            unknown = [node_id for node_id in members if node_id not in self._known.addresses]
            if unknown:
                known = ", ".join(sorted(self._known.addresses))
                raise UnexpectedArgumentError(
                    f"no node {', '.join(map(repr, unknown))} was found; there are {known}. "
                    "Give other nodes with their addresses, or name them as servers"
                )
            if len(set(members)) < len(members):
                raise UnexpectedArgumentError(f"members names a node twice: {', '.join(members)}")
            return {node_id: self._known.addresses[node_id] for node_id in members}
        wanted = REPLICAS if replicas is None else replicas
        if not 0 < wanted <= len(self._counts):
            raise _too_few(wanted, len(self._counts), self._silent, is_default=replicas is None)
        emptiest = sorted(self._counts, key=lambda node_id: (self._counts[node_id], node_id))
        return {node_id: self._known.addresses[node_id] for node_id in sorted(emptiest[:wanted])}

    async def _count(self) -> None:
        """Find out how many groups each node has, unless that was done just now."""
        loop = asyncio.get_running_loop()
        async with self._counting:
            if loop.time() - self._counted_at < FRESH_S:
                return
            nodes = await self.nodes()
            self._counts = Counter(
                {node.node_id: node.group_count for node in nodes if not node.error}
            )
            self._silent = {one.node_id or one.address: one.error for one in nodes if one.error}
            self._counted_at = loop.time()

    async def _ask_each(
        self, nodes: Mapping[str, str], request: Request, kind: type[R]
    ) -> dict[str, R | RequestError]:
        """Ask several nodes at the same time; return what each answered, or why it did not."""

        async def ask(address: str) -> R | RequestError:
            try:
                return await self._ask(address, request, kind)
            except RequestError as error:
                return error

        answers = await asyncio.gather(*map(ask, nodes.values()))
        return dict(zip(nodes, answers, strict=True))

    async def _undone(
        self,
        name: str,
        identity: bytes,
        chosen: Mapping[str, str],
        refusals: Mapping[str, RequestError],
    ) -> RequestError:
        """Undo what a creation did that some refused; return the error that says so."""
        certain = {
            node for node, error in refusals.items() if error.outcome is Outcome.DID_NOT_HAPPEN
        }
        doubtful = {node: where for node, where in chosen.items() if node not in certain}
        request = DeleteGroupRequest(group=name, identity=identity, purge=True)
        undone = await self._ask_each(doubtful, request, Response)
        left = [node for node, one in undone.items() if isinstance(one, RequestError)]
        first = next(
            (error for error in refusals.values() if error.outcome is Outcome.DID_NOT_HAPPEN),
            next(iter(refusals.values())),
        )
        text = f"group {name!r} is not made: {said(refusals)}"
        if left:
            text += (
                f". {', '.join(left)} did not say that nothing is left; it is undone there later"
            )
        error = error_for(first.code, text)
        error.outcome = Outcome.UNKNOWN if left else Outcome.DID_NOT_HAPPEN
        return error

    async def _wait_for_leader(
        self, name: str, identity: bytes, chosen: Mapping[str, str], timeout_s: float
    ) -> GroupSummary:
        pause_s = POLL_S
        deadline = asyncio.get_running_loop().time() + timeout_s
        addresses = list(chosen.values())
        number = 0
        while True:
            address = addresses[number % len(addresses)]
            number += 1
            try:
                node = await self._node_at(address, ListGroupsRequest(group=name))
                info = node.find(name)
                if info is not None and info.identity == identity and info.leader_id is not None:
                    return summary_of(name, [(node.node_id, info)], {})
            except RequestError as error:
                if error.code is ResponseCode.UNKNOWN_GROUP:
                    raise
            if asyncio.get_running_loop().time() + pause_s > deadline:
                raise DeadlineExceededError(
                    f"group {name!r} is made, but has no leader after {timeout_s:g} s: it begins "
                    f"once all of {', '.join(chosen)} have been up together"
                )
            await asyncio.sleep(pause_s)
            pause_s = min(POLL_MAX_S, pause_s * 2)

    # -- changing -----------------------------------------------------------------------------

    async def alter(
        self,
        name: str,
        settings: Mapping[str, object] | None = None,
        *,
        unset: Iterable[str] = (),
        identity: str = "",
    ) -> GroupChange:
        """Change settings of a group on all its members.

        Changes that are made at the same time are made one after the other, so that all of them
        hold; of the same key, the last one. A member that cannot take them now, such as one whose
        disk is full, does not keep the others from it: `pending` names it.

        Args:
            name: of the group.
            settings: keys of a group's configuration and their new values.
            unset: keys that get back the value of the configuration file, or the default.
            identity: which of several groups of that name, as hexadecimal digits.

        Raises:
            RequestError: UNEXPECTED_ARGUMENT names the key, and the member that finds it wrong; no
                majority of the voters answered (NETWORK_ERROR) or could do it (what they say); or
                others went on changing the group until the client's time was
                over (CHANGE_IN_PROGRESS). Its `outcome` says whether nothing is changed.
        """
        keys, texts = _keys(unset), _texts(settings)
        if not keys and not texts:
            raise UnexpectedArgumentError("neither settings nor unset names a key to change")
        _check_identity(identity)
        ask = partial(self._ask_each, kind=AlterGroupResponse)
        alteration = Alteration(usable_name(name), texts, keys, ask, identity)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._requester.limit_ms(None) / 1_000
        backoff = Backoff(random.Random())  # noqa: S311  (spreads attempts; nothing secret)
        while True:
            try:
                change = await alteration.attempt(await self._find(ListGroupsRequest(group=name)))
            except RequestError as error:
                if alteration.is_in_doubt:
                    error.outcome = Outcome.UNKNOWN
                raise
            if change is not None:
                return change
            pause_s = backoff.next_pause_s()
            if loop.time() + pause_s > deadline:
                raise alteration.given_up()
            await asyncio.sleep(pause_s)

    # -- deleting -----------------------------------------------------------------------------

    async def delete(
        self, name: str, *, purge: bool = False, identity: str = "", force: bool = False
    ) -> GroupChange:
        """Delete a group on all its members, permanently.

        A member that does not answer deletes it when it hears of it from another. The files are
        kept for `deletedGroupReservedHours`.

        Args:
            name: of the group; of a deleted one with `purge`.
            purge: True to remove its files now.
            identity: which of several groups of that name, as hexadecimal digits.
            force: True to delete it although no majority of its members answers.

        Raises:
            UnknownGroupError: no node that answered has it.
            UnexpectedArgumentError: it belongs to the brokers of the cluster.
            RequestError: NETWORK_ERROR: no majority of its members answered; nothing is deleted.
        """
        _check_identity(identity)
        nodes = await self._find(ListGroupsRequest(group=usable_name(name), wants_deleted=True))
        live = {info.identity.hex() for node in nodes if (info := node.find(name)) is not None}
        former = [one for one in _unpurged(nodes, name) if one not in live]
        if not live or (purge and identity and identity not in live):
            return await self._purge_deleted(name, nodes, identity, purge=purge)
        if purge and former and not identity:
            raise UnexpectedArgumentError(
                f"there is a group {name!r} (identity {', '.join(sorted(live))}), and the files of "
                f"a deleted one of that name (identity {', '.join(former)}); say which by its "
                "identity (--identity of `quorumlog group delete`)"
            )
        found = hosting(nodes, name, identity)
        for info in found.values():
            check_made_by_clients(name, info.settings.get("kind", "log"))
        known = best_known(found)
        members = members_of(known, nodes)
        members |= {node.node_id: node.address for node in nodes if node.node_id in found}
        answered = {node.node_id: Response() for node in nodes if not node.error}
        silent: dict[str, Response | RequestError] = {
            node_id: answered.get(node_id, NetworkError(f"{at} does not answer"))
            for node_id, at in members.items()
        }
        if not force:
            require_majority(known, silent)
        request = DeleteGroupRequest(group=name, identity=known.identity, purge=purge)
        return changed(await self._ask_each(members, request, Response), [])

    async def _purge_deleted(
        self, name: str, nodes: Sequence[NodeGroups], identity: str, *, purge: bool
    ) -> GroupChange:
        """Remove the files of the groups of a name that were deleted already, or of one of them."""
        former = [
            (node, info)
            for node in nodes
            for info in node.groups
            if info.group == name and info.state == "DELETED"
        ]
        if former and purge and identity:
            former = [one for one in former if one[1].identity.hex() == identity]
            if not former:
                text = f"no node that answered knows a group {name!r} of identity {identity}"
                raise UnknownGroupError(text)
        if not former or not purge:
            was = " any more: it was deleted" if former else ""
            text = f"no node that answered has a group {name!r}{was}{_may_have_one(nodes)}"
            raise UnknownGroupError(text)
        done: dict[str, Response | RequestError] = {}
        for node, info in former:
            request = DeleteGroupRequest(group=name, identity=info.identity, purge=True)
            done |= await self._ask_each({node.node_id: node.address}, request, Response)
        members = {node_id: at for _, info in former for node_id, at in info.peers.items()}
        for node in nodes:
            if node.error and (node.node_id in members or node.address in members.values()):
                done[node.node_id or node.address] = NetworkError(node.error)
        return changed(done, [])

    async def list(self, *, deleted: bool = False) -> list[GroupSummary]:
        """Return all groups of the cluster; with `deleted` also those that are remembered."""
        return summaries(await self.nodes(deleted=deleted))


def _may_have_one(nodes: Sequence[NodeGroups]) -> str:
    """Say which nodes did not answer; empty if all did."""
    silent = ", ".join(node.node_id or node.address for node in nodes if node.error)
    return f"; {silent} did not answer, and may have one" if silent else ""


def _check_is_new(nodes: Sequence[NodeGroups], name: str, chosen: Collection[str]) -> None:
    """Raise with code GROUP_EXISTS if a node that is not chosen has a group of this name.

    The chosen ones refuse by themselves. A node that does not answer may have one all the same.
    """
    for node in nodes:
        if node.node_id not in chosen and node.find(name) is not None:
            text = f"group {name!r} is not made: it exists already, on {node.node_id}"
            raise error_for(ResponseCode.GROUP_EXISTS, text)


def _unpurged(nodes: Sequence[NodeGroups], name: str) -> list[str]:
    """Return the identities of deleted groups of a name whose files are still there."""
    return sorted(
        {
            info.identity.hex()
            for node in nodes
            for info in node.groups
            if info.group == name and info.state == "DELETED" and not info.purged
        }
    )


def _too_few(
    wanted: int, found: int, silent: Mapping[str, str], *, is_default: bool
) -> RequestError:
    """Return the error that says why a group of that many replicas cannot be made."""
    text = f"replicas is {wanted}, and {counted(found, 'node was', 'nodes were')} found"
    if silent:
        text += f"; {'; '.join(f'{at}: {why}' for at, why in silent.items())}"
    if is_default:
        text += (
            f". Start more nodes, or ask for fewer replicas: replicas={found}, or on the command"
        )
        text += f" line --replicas {found}"
    elif wanted > found:
        text += ". Ask for no more, or name nodes that have no group yet among the servers"
    if found < wanted <= found + len(silent):  # it may be possible once they answer
        failed = NetworkError(text)
        failed.outcome = Outcome.DID_NOT_HAPPEN
        return failed
    return UnexpectedArgumentError(text)


def usable_name(name: str, kind: str = "group") -> str:
    """Return a name as it is. Raises `UnexpectedArgumentError` if nothing can have it."""
    if not isinstance(name, str):
        raise UnexpectedArgumentError(f"{kind} is a str, not {name!r}")
    try:
        check_name(kind, name, dash=kind == "group")
    except ConfigError as error:
        raise UnexpectedArgumentError(str(error)) from error
    return name


def _check_choice(members: object, replicas: object) -> None:
    """Raise `UnexpectedArgumentError` for what does not choose the members of a group."""
    if members is not None and (
        not isinstance(members, Sequence | Mapping)
        or isinstance(members, str | bytes)
        or not all(isinstance(node_id, str) for node_id in members)
    ):
        raise UnexpectedArgumentError(
            f"members are node ids, as a sequence of str or as a mapping to addresses, not "
            f"{members!r}"
        )
    if members is not None and not members:
        raise UnexpectedArgumentError("members names no node; None stands for those that have room")
    if members is not None and replicas is not None:
        raise UnexpectedArgumentError("give either members or replicas, not both")
    if replicas is not None and (not isinstance(replicas, int) or isinstance(replicas, bool)):
        raise UnexpectedArgumentError(f"replicas is a number of nodes, not {replicas!r}")


def _keys(unset: Iterable[str]) -> tuple[str, ...]:
    keys = () if isinstance(unset, str) or not isinstance(unset, Iterable) else tuple(unset)
    if (unset and not keys) or not all(isinstance(key, str) for key in keys):
        raise UnexpectedArgumentError(f"unset is a sequence of keys, not {unset!r}")
    for key in keys:
        _check_text(key, key)
    return keys


def _check_text(key: str, text: str) -> None:
    """Raise `UnexpectedArgumentError` unless a key, or its value, is valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnexpectedArgumentError(
            f"settings have keys and values of valid Unicode, and of key {key!r} {text!r} is not"
        ) from error


def _check_identity(identity: object) -> None:
    digits = 2 * IDENTITY_BYTES
    if identity and not (isinstance(identity, str) and IDENTITY.fullmatch(identity)):
        raise UnexpectedArgumentError(
            f"an identity is {digits} hexadecimal digits, as `quorumlog group describe` and "
            f"`group list --deleted` show it, not {identity!r}"
        )


def _texts(settings: Mapping[str, object] | None) -> Settings:
    """Return the settings of a call as they are sent."""
    if settings is not None and not isinstance(settings, Mapping):
        raise UnexpectedArgumentError(f"settings are a mapping of keys to values, not {settings!r}")
    for key, value in (settings or {}).items():
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise UnexpectedArgumentError(
                f"settings are keys and values (text, number or truth), not {key!r}: {value!r}"
            )
        _check_text(key, key)
        _check_text(key, text_of(value))
    return {key: text_of(value) for key, value in (settings or {}).items()}


def _address(address: str) -> None:
    if not isinstance(address, str):
        raise UnexpectedArgumentError(
            f"an address is a str such as 127.0.0.1:7101, not {address!r}"
        )
    try:
        parse_address(address)
    except ConfigError as error:
        raise UnexpectedArgumentError(str(error)) from error


async def _answer_of(requester: Requester, address: str, request: Request, kind: type[R]) -> R:
    """Ask one node within the client's time, also one that has just started: again and again.

    Raises `RequestError`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + requester.limit_ms(None) / 1_000
    backoff = Backoff(random.Random())  # noqa: S311  (spreads attempts; nothing secret)
    while True:
        try:
            left_ms = max(1.0, (deadline - loop.time()) * 1_000)
            return await _ask_once(requester, address, request, kind, left_ms)
        except LeaderNotReadyError:  # it does not know yet who may do what
            pause_s = backoff.next_pause_s()
            if loop.time() + pause_s > deadline:
                raise
        await asyncio.sleep(pause_s)


async def _ask_once(
    requester: Requester, address: str, request: Request, kind: type[R], limit_ms: float
) -> R:
    requester.metadata.check_open()
    try:
        connection = await requester.metadata.connection(address)
    except (ConfigError, RemoteProtocolError, OSError) as error:
        failed = NetworkError(f"{address or 'a node without an address'}: {error}")
        failed.outcome = Outcome.DID_NOT_HAPPEN
        raise failed from error
    answer = await requester.answer_within(connection, request, (), limit_ms)
    response = answer.response
    if response.code != ResponseCode.SUCCESS:
        raise error_for(response.code, response.text, response.leader_id)
    if not isinstance(response, kind):
        text = f"{address} answers a {type(request).__name__} with {type(response).__name__}"
        raise error_for(ResponseCode.INTERNAL_ERROR, text)
    return response
