"""Removing earlier states of a machine from disk, when they must not be kept, such as verifiers."""

from quorumlog.model.errors import CorruptionError
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.served_snapshots import ServedSnapshots
from quorumlog.node.replica.snapshotter import Snapshotter
from quorumlog.storage.log.snapshots import Snapshots


class FormerState:
    """The part of a replica that removes former states of its machine from its files.

    Its method runs on the event loop's thread.
    """

    def __init__(
        self,
        context: ReplicaContext,
        snapshots: Snapshots | None,
        machine: MachineState,
        snapshotter: Snapshotter,
        served: ServedSnapshots,
    ) -> None:
        self._context = context
        self._snapshots = snapshots
        self._machine = machine
        self._snapshotter = snapshotter
        self._served = served

    def forget(self, index: int) -> bool:
        """Keep nothing that was there before an index: no snapshot, and no entries up to it.

        Return whether nothing is; else that is begun, and is to be asked for again.
        Entries that a live member still needs stay, and so do snapshots that are being fetched.
        """
        context, snapshots, newest = self._context, self._snapshots, self._machine.newest
        if snapshots is None:
            return True
        oldest = min(snapshots.indexes(), default=index)  # earlier ones outlive one that is fetched
        if context.log.before_begin_index >= index and oldest >= index:
            return True
        if newest is None or newest.last_included_index < index:
            self._snapshotter.ask(lambda code, text, saved_index: None)
            return False
        fetched = self._served.indexes()

        def run() -> int:
            snapshots.check(newest)  # it is the only one then that is known to be good
            # a later one may lie there already whose state is not trusted when it is told of
            snapshots.keep_newest(1, [*fetched, newest.last_included_index])
            return newest.last_included_index

        def failed(error: Exception) -> None:
            if isinstance(error, CorruptionError):
                self._snapshotter.lost(newest.last_included_index, error)

        # without a gap: the log goes on in a new file, if nothing came after the snapshot
        remove = self._snapshotter.remove_covered
        context.environment.executor.run(run, remove, failed)
        return False
