"""How nodes learn what others decided about the groups that they share (decision 0040).

A node asks each peer now and then, and whenever it connects: what do you know of these groups that
I do not? So a member that was away learns of a deletion or of changed settings, and a creation that
was interrupted is undone. The answer counts only with the random number of the query, which went
over this node's own connection: nobody else can delete a group by a message.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec.structs import replace

from quorumlog.log_events import log_event
from quorumlog.model.codes import ResponseCode
from quorumlog.model.group_records import IDENTITY_BYTES, GroupRecord, beyond_defaults
from quorumlog.model.membership import peers_text
from quorumlog.model.messages.groups import (
    ASKED_MAX,
    AskedGroup,
    GroupInvitation,
    GroupNews,
    GroupsAnswer,
    GroupsQuery,
    Knowledge,
)
from quorumlog.model.messages.peer import NodeMessage
from quorumlog.node.deleted_groups import ignored
from quorumlog.node.group_lifecycle import GroupLifecycle

logger = logging.getLogger(__name__)

QUERY_MS: Final = 10_000
"""Pause between two queries to one peer. Each names all groups that both have."""
CONNECTED_MS: Final = 500
"""Pause between a connection and the query that follows from it."""
FOUNDING_MS: Final = 20_000
"""A group that was not founded for this long, and which a member does not have, is given up."""
ROUNDS_MAX: Final = 1_024
"""Queries whose answers are awaited; one that is never answered makes room for another."""
SAID_MAX: Final = 1_024
"""Things that could not be learned from peers, each of which is logged once."""
NEWS_BYTES_MAX: Final = 128 * 1024
"""Of the news in one answer; more follow in the next one."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """What the sync must know of a group that is hosted: its members, and how far it has come.

    `addresses` returns node id → address of its members.
    """

    member_ids: tuple[str, ...]
    is_founded: bool
    leads: bool
    addresses: Callable[[], dict[str, str]]


class GroupViews(Protocol):
    """Reads the replicas of a node."""

    def view(self, name: str) -> GroupView | None:
        """Return what is known of a hosted group; None: it is not open."""
        ...

    def peers(self) -> Iterable[str]:
        """Return the nodes to which there are links."""
        ...


class SyncNetwork(Protocol):
    """Carries messages to other nodes; may lose them."""

    def send(self, peer_id: str, message: NodeMessage) -> bool:
        """Send, or return False when that is impossible now."""
        ...


@dataclass(frozen=True, slots=True)
class SyncEnvironment:
    """What varies between a real and a simulated node; `now_ms` reads a monotonic clock."""

    network: SyncNetwork
    views: GroupViews
    now_ms: Callable[[], int]
    wake_at: Callable[[int], None]
    nonce: Callable[[], int]


class GroupSync:
    """The queries and answers of one node. All methods run on the event loop's thread."""

    def __init__(self, lifecycle: GroupLifecycle, environment: SyncEnvironment) -> None:
        self._lifecycle = lifecycle
        self._catalog = lifecycle.catalog
        self._environment = environment
        self._self_id = lifecycle.catalog.node.self_id
        self._asked: dict[int, tuple[str, frozenset[tuple[str, bytes]]]] = {}
        self._unfounded_ms: dict[tuple[str, bytes], int] = {}
        self._absent: dict[tuple[str, bytes], None] = {}
        self._said: dict[tuple[str, str], str] = {}

    def start(self) -> None:
        """Start to ask."""
        self._environment.wake_at(self._environment.now_ms() + QUERY_MS)

    def tick(self) -> None:
        """Ask all peers again."""
        self._note_unfounded()
        shared = self._shared()
        for peer in list(self._environment.views.peers()):
            self._ask(peer, shared)
        self._environment.wake_at(self._environment.now_ms() + QUERY_MS)

    def _note_unfounded(self) -> None:
        """Note since when groups are here and not founded: only then may they be given up."""
        views, now_ms, found = self._environment.views, self._environment.now_ms(), {}
        for name, record in self._catalog.records.items():
            view = views.view(name)
            if record.peers and view is not None and not view.is_founded:
                found[record.key] = self._unfounded_ms.get(record.key, now_ms)
        self._unfounded_ms = found
        self._absent = {key: None for key in self._absent if key in found}

    # -- asking -------------------------------------------------------------------------------

    def peer_connected(self) -> None:
        """A peer is there again: ask soon, once it can answer over its own connection."""
        self._environment.wake_at(self._environment.now_ms() + CONNECTED_MS)

    def _shared(self) -> list[tuple[AskedGroup, Collection[str]]]:
        return [asked for asked in map(self._asked_of, self._catalog.configs) if asked]

    def _ask(self, peer: str, shared: list[tuple[AskedGroup, Collection[str]]]) -> None:
        groups = [asked for asked, members in shared if peer in members]
        for begin in range(0, len(groups), ASKED_MAX):
            part = groups[begin : begin + ASKED_MAX]
            nonce = self._environment.nonce()
            query = GroupsQuery(local_id=self._self_id, remote_id=peer, nonce=nonce, groups=part)
            if not self._environment.network.send(peer, query):
                return
            while len(self._asked) >= ROUNDS_MAX:
                del self._asked[next(iter(self._asked))]
            keys = frozenset((asked.group, asked.identity) for asked in part)
            self._asked[nonce] = peer, keys

    def _asked_of(self, name: str) -> tuple[AskedGroup, Collection[str]] | None:
        view, record = self._environment.views.view(name), self._catalog.record_of(name)
        identity = self._lifecycle.identity_of(name)
        if record is None or self._lifecycle.is_changing(name):
            return None
        if not identity and (view is None or view.is_founded):
            return None  # one of an earlier version has none; else it is not founded here
        if view is None:  # its data cannot be opened
            members: Collection[str] = self._catalog.configs[name].members
        else:
            members = view.member_ids
        key = name, identity
        since_ms = self._unfounded_ms.get(key, self._environment.now_ms())
        waited_ms = self._environment.now_ms() - since_ms
        gives_up = key in self._absent and waited_ms >= FOUNDING_MS
        return AskedGroup(name, identity, record.revision, gives_up), members

    # -- answering ----------------------------------------------------------------------------

    def received(self, message: NodeMessage) -> None:
        """Handle a message of another node, whose identity was checked."""
        if isinstance(message, GroupsQuery):
            self._answer(message)
        elif isinstance(message, GroupsAnswer):
            self._answered(message)
        elif isinstance(message, GroupInvitation):
            self._invited(message)

    def _answer(self, query: GroupsQuery) -> None:
        news, size = [], 0
        for asked in query.groups:
            found = self._news_of(asked)
            if found is not None and size < NEWS_BYTES_MAX:
                news.append(found)
                size += len(found.record.encode())
        answer = GroupsAnswer(
            local_id=self._self_id, remote_id=query.local_id, nonce=query.nonce, news=news
        )
        self._environment.network.send(query.local_id, answer)

    def _news_of(self, asked: AskedGroup) -> GroupNews | None:
        name, lifecycle = asked.group, self._lifecycle
        if not asked.identity:  # it is not founded where it is asked for
            former = self._catalog.deleted_of_file(name)
            return None if former is None else GroupNews(Knowledge.DELETED, former)
        if len(asked.identity) != IDENTITY_BYTES:
            return None
        tombstone = self._catalog.tombstone(name, asked.identity)
        if tombstone is not None:
            return GroupNews(Knowledge.DELETED, tombstone)
        record = self._catalog.record_of(name)
        own = lifecycle.identity_of(name) if record is not None else b""
        if record is not None and own == asked.identity:
            is_newer = record.revision > asked.revision
            known = replace(record, identity=own)
            return GroupNews(Knowledge.CHANGED, known) if is_newer else None
        if lifecycle.is_changing(name) or (record is not None and not own):
            return None  # which group it is, is not known yet
        absent = GroupRecord(group=name, identity=asked.identity)
        if asked.gives_up:  # from now on it is never made here, so it can never be founded
            lifecycle.delete(name, asked.identity, ignored)
            return None
        return GroupNews(Knowledge.ABSENT, absent)

    # -- learning -----------------------------------------------------------------------------

    def _answered(self, answer: GroupsAnswer) -> None:
        peer, keys = self._asked.pop(answer.nonce, ("", frozenset()))
        if peer != answer.local_id:
            return
        for news in answer.news:
            record = news.record
            if record.key not in keys:
                if news.knowledge is Knowledge.DELETED and (record.group, b"") in keys:
                    self._learn_deletion(peer, record, is_unfounded=True)
                continue
            if news.knowledge is Knowledge.DELETED:
                self._learn_deletion(peer, record)
            elif news.knowledge is Knowledge.CHANGED:
                self._learn_settings(peer, record)
            elif news.knowledge is Knowledge.ABSENT:
                self._absent_at(peer, record)

    def _learn_deletion(
        self, peer: str, record: GroupRecord, *, is_unfounded: bool = False
    ) -> None:
        log_event(
            logger,
            logging.INFO,
            "group was deleted while this node was away, or its creation was given up",
            group=record.group,
            identity=record.identity.hex(),
            peer=peer,
        )
        self._lifecycle.delete(
            record.group, record.identity, ignored, purge=record.purge, is_unfounded=is_unfounded
        )

    def _learn_settings(self, peer: str, record: GroupRecord) -> None:
        def done(code: ResponseCode, text: str) -> None:
            if code not in (ResponseCode.SUCCESS, ResponseCode.CHANGE_IN_PROGRESS):
                self._say("settings that members have are not taken over", record.group, peer, text)

        self._lifecycle.learn(record, done)

    def _say(self, event: str, group: str, peer: str, text: str) -> None:
        """Log once what comes again and again, as peers are asked again and again."""
        if self._said.get((event, group)) == text:
            return
        if len(self._said) >= SAID_MAX:
            self._said.clear()
        self._said[event, group] = text
        log_event(logger, logging.WARNING, event, group=group, peer=peer, text=text)

    def _absent_at(self, peer: str, record: GroupRecord) -> None:
        """A member has no replica: invite it if its group goes on, else give the group up."""
        view = self._environment.views.view(record.group)
        own = self._catalog.record_of(record.group)
        if view is None or own is None:
            return
        if record.key in self._unfounded_ms:
            self._absent[record.key] = None
        elif view.leads and peer in view.member_ids:
            at = view.addresses()
            peers = peers_text(at)
            by_file = self._catalog.file_config(record.group)
            invitation = GroupRecord(
                group=record.group,
                identity=record.identity,
                peers=peers,
                base=own.base if by_file is None else beyond_defaults(by_file),
                settings=own.settings,
                revision=own.revision,
            )
            message = GroupInvitation(local_id=self._self_id, remote_id=peer, record=invitation)
            self._environment.network.send(peer, message)

    def _invited(self, message: GroupInvitation) -> None:
        """Make a replica of a group of which a peer says that this node is a member."""
        record = message.record
        if len(record.identity) != IDENTITY_BYTES:
            return

        def done(code: ResponseCode, text: str) -> None:
            if code is not ResponseCode.SUCCESS:
                self._say("cannot take part in a group", record.group, message.local_id, text)

        self._lifecycle.create(record, done)
