"""`GroupAdmin` for code without an event loop."""

from quorumlog.client.admin import GroupAdmin, ReplicaHistory
from quorumlog.client.loop_thread import LoopThread
from quorumlog.client.sync_groups import SyncGroups
from quorumlog.model.messages.client import StatusResponse


class SyncGroupAdmin:
    """Administration of the group of a `SyncClient`; get it as `client.admin`.

    `groups` makes, changes and deletes groups of the cluster (`SyncGroups`).

    See `GroupAdmin` for arguments, results and errors.
    """

    def __init__(self, admin: GroupAdmin, thread: LoopThread) -> None:
        self._admin = admin
        self._thread = thread
        self.groups = SyncGroups(admin.groups, thread)

    def transfer(self, node_id: str | None = None, *, term: int = -1) -> str:
        """See `GroupAdmin.transfer`."""
        return self._thread.wait(self._admin.transfer(node_id, term=term))

    def add_member(self, node_id: str, address: str, *, learner: bool = False) -> None:
        """See `GroupAdmin.add_member`."""
        self._thread.wait(self._admin.add_member(node_id, address, learner=learner))

    def promote_member(self, node_id: str) -> None:
        """See `GroupAdmin.promote_member`."""
        self._thread.wait(self._admin.promote_member(node_id))

    def remove_member(self, node_id: str) -> None:
        """See `GroupAdmin.remove_member`."""
        self._thread.wait(self._admin.remove_member(node_id))

    def save_snapshot(self) -> int:
        """See `GroupAdmin.save_snapshot`."""
        return self._thread.wait(self._admin.save_snapshot())

    def wait_until_voter(self, node_id: str, *, timeout_s: float) -> None:
        """See `GroupAdmin.wait_until_voter`."""
        self._thread.wait(self._admin.wait_until_voter(node_id, timeout_s=timeout_s))

    def status(self) -> list[StatusResponse]:
        """See `GroupAdmin.status`."""
        return self._thread.wait(self._admin.status())

    def history(self) -> list[ReplicaHistory]:
        """See `GroupAdmin.history`."""
        return self._thread.wait(self._admin.history())
