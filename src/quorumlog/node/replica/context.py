"""What the parts of a replica share: what they may read of it, and what they may ask it to do.

No part knows the whole replica. A part gets this context and the few siblings that it works with.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypedDict

from quorumlog.log_events import log_event
from quorumlog.model.block import Block
from quorumlog.model.config import GroupConfig
from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.model.limits import Limits
from quorumlog.node.environment import Environment, WriteOwner
from quorumlog.node.replica.counters import ReplicaCounters, ReplicaHistograms
from quorumlog.node.replica.part_timers import PartTimers
from quorumlog.raft.core import RaftCore
from quorumlog.raft.events import Event
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.files.write_plans import WritePlan
from quorumlog.storage.log.interface import Log

logger = logging.getLogger(__name__)


class ReplicaShell(WriteOwner, Protocol):
    """What a part may ask the replica around it to do."""

    def step(
        self,
        event: Event | None,
        *,
        table: bytes = b"",
        block: Block | None = None,
        runs: list[EntryRun] | None = None,
        prepare: Callable[[], Event | None] | None = None,
    ) -> None:
        """Pass an event to the core, with the bytes that belong to it, and carry out the effects.

        `table` are the derived tables that came with an offer, `block` the entries that came
        with a push, `runs` the entries that were read for one. `prepare` makes an event (or none)
        when its turn comes, so that nothing happens between that and the core's step.
        """
        ...

    def update_eligibility(self) -> None:
        """Tell the core whether this replica may lead, if that has changed."""
        ...

    def damage_found(self, error: CorruptionError) -> None:
        """Quarantine an entry that cannot be read, if it is still damaged."""
        ...

    def check_entry(self, index: int) -> None:
        """Read an entry that is under suspicion; quarantine it if it is damaged."""
        ...

    def check_damage_later(self) -> None:
        """Check again soon: something cannot be read that may be readable in a moment."""
        ...


class Envelope(TypedDict):
    """The first fields of a message to another replica of the group."""

    group: str
    local_id: str
    remote_id: str
    term: int


@dataclass(slots=True)
class ReplicaContext:
    """What every part of one replica may use. The parts read `core`; only `step` changes it.

    `health_text` says why the replica cannot write any more, `is_broken` that it has stopped after
    a bug: both are set by the replica alone.
    """

    config: GroupConfig
    limits: Limits
    core: RaftCore
    log: Log
    environment: Environment
    shell: ReplicaShell
    counters: ReplicaCounters = field(default_factory=ReplicaCounters)
    histograms: ReplicaHistograms = field(default_factory=ReplicaHistograms)
    health_text: str = ""
    is_broken: bool = False
    timers: PartTimers = field(init=False)

    def __post_init__(self) -> None:
        """Make the parts' timers."""
        self.timers = PartTimers(self.environment.now_ms, self.environment.wake_at)

    def step(
        self,
        event: Event,
        *,
        table: bytes = b"",
        block: Block | None = None,
        runs: list[EntryRun] | None = None,
    ) -> None:
        """See `ReplicaShell.step`."""
        self.shell.step(event, table=table, block=block, runs=runs)

    def update_eligibility(self) -> None:
        """See `ReplicaShell.update_eligibility`."""
        self.shell.update_eligibility()

    def damage_found(self, error: CorruptionError) -> None:
        """See `ReplicaShell.damage_found`."""
        self.shell.damage_found(error)

    def check_entry(self, index: int) -> None:
        """See `ReplicaShell.check_entry`."""
        self.shell.check_entry(index)

    def check_damage_later(self) -> None:
        """See `ReplicaShell.check_damage_later`."""
        self.shell.check_damage_later()

    def envelope_to(self, peer_id: str) -> Envelope:
        """Return the first fields of a message to a peer."""
        core = self.core
        return {
            "group": self.config.group,
            "local_id": core.self_id,
            "remote_id": peer_id,
            "term": core.term,
        }

    def submit(self, token: int | None, plan: WritePlan) -> None:
        """Queue a write whose completion is reported to the replica itself."""
        self.environment.disk.submit(self.shell, token, plan)

    def fail(self, error: StorageError) -> None:
        """Stop the replica: something that is not queued for the disk thread could not be written.

        A write that the disk thread fails to do needs no call: it is reported to all replicas.
        """
        self.shell.write_failed(error)
        self.environment.broken(str(error))

    def record(self, text: str) -> None:
        """Add a line to the replica's event history."""
        self.core.history.record(self.environment.now_ms(), text)

    def raise_alarm(self, text: str) -> None:
        """Tell operators of something that must never happen."""
        self.counters.alarms += 1
        log_event(logger, logging.ERROR, "alarm", group=self.config.group, text=text)

    def log_history(self, text: str) -> None:
        """Log an event of the history; off unless somebody looks into a group (`logLevel`)."""
        group, term = self.config.group, self.core.term
        log_event(logger, logging.DEBUG, "history", group=group, term=term, text=text)
