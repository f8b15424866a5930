"""`Groups` for code without an event loop."""

from collections.abc import Iterable, Mapping, Sequence

from quorumlog.client.group_answers import GroupChange, GroupSummary, NodeGroups
from quorumlog.client.groups import Groups
from quorumlog.client.loop_thread import LoopThread
from quorumlog.model.messages.groups import Setting


class SyncGroups:
    """The groups of a `SyncClient`'s cluster; get it as `client.admin.groups`.

    See `Groups` for arguments, results and errors.
    """

    def __init__(self, groups: Groups, thread: LoopThread) -> None:
        self._groups = groups
        self._thread = thread

    def nodes(self, *, deleted: bool = False) -> list[NodeGroups]:
        """See `Groups.nodes`."""
        return self._thread.wait(self._groups.nodes(deleted=deleted))

    def describe(self, name: str) -> tuple[GroupSummary, dict[str, list[Setting]]]:
        """See `Groups.describe`."""
        return self._thread.wait(self._groups.describe(name))

    def create(
        self,
        name: str,
        *,
        members: Sequence[str] | Mapping[str, str] | None = None,
        replicas: int | None = None,
        settings: Mapping[str, object] | None = None,
        timeout_s: float = 30.0,
    ) -> GroupSummary:
        """See `Groups.create`."""
        return self._thread.wait(
            self._groups.create(
                name, members=members, replicas=replicas, settings=settings, timeout_s=timeout_s
            )
        )

    def alter(
        self,
        name: str,
        settings: Mapping[str, object] | None = None,
        *,
        unset: Iterable[str] = (),
        identity: str = "",
    ) -> GroupChange:
        """See `Groups.alter`."""
        return self._thread.wait(self._groups.alter(name, settings, unset=unset, identity=identity))

    def delete(
        self, name: str, *, purge: bool = False, identity: str = "", force: bool = False
    ) -> GroupChange:
        """See `Groups.delete`."""
        return self._thread.wait(
            self._groups.delete(name, purge=purge, identity=identity, force=force)
        )

    def list(self, *, deleted: bool = False) -> list[GroupSummary]:
        """See `Groups.list`."""
        return self._thread.wait(self._groups.list(deleted=deleted))
