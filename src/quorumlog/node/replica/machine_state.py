"""What the parts of a replica know of its state machine."""

import logging
from dataclasses import dataclass, field

from quorumlog.log_events import log_event
from quorumlog.machine.base import StateMachine
from quorumlog.model.codes import Role
from quorumlog.node.replica.command_results import CommandResults
from quorumlog.raft.core import RaftCore
from quorumlog.storage.log.snapshots import SnapshotMeta

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class MachineState:
    """A replica's machine and how far it has come; without one (`machine` None) it is a plain log.

    The parts around the applier change it, the others read it.

    - `newest`: the newest snapshot that is known to be whole.
    - `applied`: the last entry that the machine has applied; `results`: what commands resulted in.
    - `least_applied`: the last entry that it had applied before it was rebuilt, while it has
      applied less; else -1.
    - `unreported_role`: term and role that it does not know yet.
    - `failed_text`: why it gets nothing any more.
    - `is_installing`: a snapshot is fetched from a peer; meanwhile the replica does not campaign.
    """

    core: RaftCore
    machine: StateMachine | None
    newest: SnapshotMeta | None = None
    results: CommandResults = field(default_factory=CommandResults)
    applied: int = -1
    least_applied: int = -1
    unreported_role: tuple[int, Role] | None = None
    failed_text: str = ""
    is_installing: bool = False

    @property
    def applied_index(self) -> int:
        """Index of the last entry that is applied, or of a plain log committed."""
        return self.core.committed_index if self.machine is None else self.applied

    @property
    def is_behind(self) -> bool:
        """Whether the machine was rebuilt and has not yet applied what it once had."""
        return self.applied < self.least_applied

    def has_caught_up(self) -> bool:
        """Return True once, when a machine that was rebuilt has applied what it once had."""
        if self.least_applied < 0 or self.is_behind:
            return False
        self.least_applied = -1
        return True

    def releases(self, body: memoryview) -> bool:
        """See `StateMachine.releases`; a plain log holds no commands, and a machine may err."""
        if self.machine is None:
            return False
        try:
            return self.machine.releases(body)
        except Exception as error:  # whatever a user's machine raises
            text = "the state machine cannot tell whether a command makes room"
            log_event(logger, logging.ERROR, text, exc_info=error)
            return False

    @property
    def failure_text(self) -> str:
        """The answer to queries of a machine that failed."""
        return f"the state machine of this replica failed: {self.failed_text.splitlines()[0]}"

    @property
    def newest_index(self) -> int:
        """Last included index of the newest snapshot; -1: there is none."""
        return self.newest.last_included_index if self.newest is not None else -1
