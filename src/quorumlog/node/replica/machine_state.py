"""What the parts of a replica know of its state machine."""

from dataclasses import dataclass, field

from quorumlog.machine.base import StateMachine
from quorumlog.node.replica.command_results import CommandResults
from quorumlog.raft.core import RaftCore
from quorumlog.storage.log.snapshots import SnapshotMeta


@dataclass(slots=True)
class MachineState:
    """A replica's machine and how far it is; `machine` None: a plain log.

    The applier changes it. `applied` is the last entry that the machine has applied, `newest` the
    newest snapshot that is known to be whole, `failed_text` says why the machine is given nothing
    more. `is_installing`: a snapshot is being fetched from a peer; meanwhile the replica does not
    campaign.
    """

    core: RaftCore
    machine: StateMachine | None
    newest: SnapshotMeta | None = None
    results: CommandResults = field(default_factory=CommandResults)
    applied: int = -1
    failed_text: str = ""
    is_installing: bool = False

    @property
    def applied_index(self) -> int:
        """Index of the last entry that is applied; of a plain log: committed."""
        return self.core.committed_index if self.machine is None else self.applied

    @property
    def failure_text(self) -> str:
        """What whoever asks a machine that failed is told."""
        return f"the state machine of this replica failed: {self.failed_text.splitlines()[0]}"

    @property
    def newest_index(self) -> int:
        """Last included index of the newest snapshot; -1: there is none."""
        return self.newest.last_included_index if self.newest is not None else -1
