"""Makes this node's replicas of partition groups as `__cluster` wants them, and deletes those that
were given up.
"""

import logging
from collections.abc import Callable, Collection
from typing import Final, Protocol

from quorumlog.log_events import log_event
from quorumlog.machine.cluster.state import ClusterView, PartitionGroup, group_identity
from quorumlog.model.codes import ResponseCode
from quorumlog.model.group_records import GroupRecord

logger = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
"""Pause before a group that could not be made or deleted is tried again."""
REASON_MAX: Final = 400
"""Characters of why it could not, as others are told."""


class GroupHost(Protocol):
    """Makes and deletes replicas of groups on one node (`node.group_lifecycle`)."""

    def create(self, record: GroupRecord, done: Callable[[ResponseCode, str], None]) -> None:
        """Make a replica."""
        ...

    def delete(
        self,
        name: str,
        identity: bytes,
        done: Callable[[ResponseCode, str], None],
        *,
        purge: bool = False,
    ) -> None:
        """Delete one."""
        ...

    def identity_of(self, name: str) -> bytes:
        """Return the identity of a group that is here; empty: it is not, or has none yet."""
        ...


class GroupKeeper:
    """The partition groups of one node. All methods run on the event loop's thread.

    `hosted`: the names of those that are here, open or not.
    """

    def __init__(self, host: GroupHost, hosted: Collection[str], now_ms: Callable[[], int]) -> None:
        self._host = host
        self._hosted = hosted
        self._now_ms = now_ms
        self._changing: set[str] = set()
        self._retry_ms: dict[str, int] = {}
        self._said: dict[str, str] = {}

    def not_made(self, view: ClusterView) -> dict[str, str]:
        """Return the groups that this node could not make so far, and why."""
        found = {name: text[:REASON_MAX] for name, text in self._said.items()}
        return {name: text for name, text in found.items() if _is_making(view.groups.get(name))}

    def reconcile(self, view: ClusterView, broker_id: int) -> None:
        """Begin to make what is missing here, and to delete what was given up."""
        now_ms = self._now_ms()
        self._retry_ms = {name: due for name, due in self._retry_ms.items() if due > now_ms}
        self._said = {
            name: text
            for name, text in self._said.items()
            if name in view.groups or name in self._hosted
        }
        for group in view.groups.values():
            if _is_making(group) and broker_id in group.members:
                self._make(view.cluster_id, group)
        for name in list(self._hosted):
            if view.has_given_up(name):
                self._delete(view.cluster_id, name)

    def _make(self, cluster_id: str, group: PartitionGroup) -> None:
        identity = group_identity(cluster_id, group.name)
        if not self._may_change(group.name):
            return
        if self._host.identity_of(group.name) == identity:
            self._said.pop(group.name, None)
            return
        record = GroupRecord(
            group=group.name, identity=identity, peers=group.peers, settings=group.settings
        )
        self._changing.add(group.name)
        self._host.create(record, lambda code, text: self._done(group.name, code, text))

    def _delete(self, cluster_id: str, name: str) -> None:
        identity = group_identity(cluster_id, name)
        if not self._may_change(name) or self._host.identity_of(name) != identity:
            return  # it is one of another cluster, or somebody made it by hand
        self._changing.add(name)
        self._host.delete(
            name, identity, lambda code, text: self._done(name, code, text), purge=True
        )

    def _may_change(self, name: str) -> bool:
        return name not in self._changing and name not in self._retry_ms

    def _done(self, name: str, code: ResponseCode, text: str) -> None:
        self._changing.discard(name)
        if code is ResponseCode.SUCCESS:
            self._said.pop(name, None)
            return
        self._retry_ms[name] = self._now_ms() + RETRY_MS
        if self._said.get(name) != text:
            self._said[name] = text
            log_event(
                logger,
                logging.WARNING,
                "partition group not made or deleted",
                group=name,
                code=code.name,
                text=text,
            )


def _is_making(group: PartitionGroup | None) -> bool:
    return group is not None and group.phase == "making"
