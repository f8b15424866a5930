"""What a replica needs from outside: everything that varies between a real and a simulated run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol, TypeVar

from quorumlog.machine.base import StateMachine
from quorumlog.model.block import Buffer
from quorumlog.model.config import GroupConfig, is_written_alike
from quorumlog.model.errors import StorageError
from quorumlog.model.hooks import AppendHook, RoleListener
from quorumlog.model.messages.peer import NodeMessage, PeerMessage
from quorumlog.node.checkpoint_pace import CheckpointPace, CleaningPace
from quorumlog.node.clock_watch import ClockWatch
from quorumlog.node.election_throttle import ElectionThrottle
from quorumlog.node.instruments import Tracer
from quorumlog.raft.core import RaftCore
from quorumlog.raft.events import Event
from quorumlog.storage.files.write_plans import WritePlan
from quorumlog.topics.batch_index import DEFAULT_SEAL_LIMITS, SealLimits

T = TypeVar("T")


class WriteOwner(Protocol):
    """The owner of submitted writes, to which their results are reported."""

    def written(self, token: int | None, plan: WritePlan) -> None:
        """The plan is durable (or, with flush=async, written); called in order of submission."""
        ...

    def writes_completed(self) -> None:
        """All `written` calls of one group commit have been made."""
        ...

    def write_failed(self, error: StorageError) -> None:
        """A write of this data directory failed; none after it will be tried."""
        ...


class Disk(Protocol):
    """Carries out writes in order, many with one fsync."""

    @property
    def queued_bytes(self) -> int:
        """Bytes submitted and not yet reported back."""
        ...

    def submit(self, owner: WriteOwner, token: int | None, plan: WritePlan) -> None:
        """Queue a write."""
        ...

    def end(self, owners: Sequence[WriteOwner], last: WritePlan, done: Callable[[], None]) -> None:
        """Carry out the `last` write, and call `done` once it and all before are reported.

        Then these owners have no more.
        """
        ...


class Network(Protocol):
    """Carries messages to peers; may lose them."""

    def send(
        self,
        peer_id: str,
        message: PeerMessage | NodeMessage,
        attachments: Sequence[Buffer] = (),
        *,
        bulk: bool = False,
    ) -> bool:
        """Send, or return False when that is impossible now."""
        ...

    def update_members(self, group: str, addresses: Mapping[str, str]) -> None:
        """Set the group's members and their addresses."""
        ...


class Executor(Protocol):
    """Runs what may block (reads of cold files) on a thread of its own."""

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        client: object = None,
        dropped: Callable[[], None] | None = None,
    ) -> None:
        """Run `work`; call `done` or `failed` on the owner's thread.

        Jobs of clients take turns, and all of them with jobs of the node itself (None). Of a client
        that has left, jobs that have not begun are forgotten, and `dropped` is called instead of
        `done` for those that have.
        """
        ...


class QuiescibleReplica(Protocol):
    """A replica as the heartbeats between nodes see it."""

    @property
    def config(self) -> GroupConfig:
        """The configuration of its group."""
        ...

    @property
    def core(self) -> RaftCore:
        """Its core."""
        ...

    def step(self, event: Event) -> None:
        """Pass an event to the core, and carry out the effects."""
        ...


class Liveness(Protocol):
    """Stands for the heartbeats of quiescent groups."""

    def quiesce(self, replica: QuiescibleReplica) -> None:
        """A leader may quiesce, if all its live peers confirm that they follow it."""
        ...

    def state_changed(self, replica: QuiescibleReplica) -> None:
        """A replica's state may have changed."""
        ...

    def forget(self, group: str) -> None:
        """A replica is gone."""
        ...


class _NoLiveness:
    """Every group sends its own heartbeats."""

    def quiesce(self, replica: QuiescibleReplica) -> None:
        """See `Liveness`."""

    def state_changed(self, replica: QuiescibleReplica) -> None:
        """See `Liveness`."""

    def forget(self, group: str) -> None:
        """See `Liveness`."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything that one replica needs from outside.

    `now_ms` and `now_us` read one monotonic clock. `wall_ms` and `hour_of_day` read the wall clock,
    which may jump (`clocks` notices that): it decides at which hour old files are removed and is
    shown to people, but never decides how old something is. `defer` calls a function soon, after
    what is being handled now.
    `wake_at` asks for a call of `Replica.tick` at a time in milliseconds (an earlier one replaces a
    later). `nonce` returns a number, of 62 bits, that others cannot guess: an answer that repeats
    it comes from where the query went. `machines` runs state machines; `rebuild_machine` closes
    a damaged one and opens an empty one instead (None: not available here). `broken` is called with
    the reason when the replica has stopped permanently. `is_same_place` says whether two
    addresses lead to the same place (None: the names are not resolved yet); `is_here` says, without
    a lookup, whether this node is at an address. `append_hook` changes bodies before they are
    appended (None: there is none); `role_changed` hears of each role that the replica takes, and
    `applied` of the machine when it has applied entries or loaded a snapshot.
    `tracer` says which appends are traced (None: none is). `seal_limits` say when batches of
    partitions are sealed.
    """

    disk: Disk
    network: Network
    executor: Executor
    machines: Executor
    now_ms: Callable[[], int]
    now_us: Callable[[], int]
    wall_ms: Callable[[], int]
    hour_of_day: Callable[[], int]
    defer: Callable[[Callable[[], None]], object]
    wake_at: Callable[[int], None]
    broken: Callable[[str], None]
    nonce: Callable[[], int] = field(default_factory=lambda: count(1).__next__)
    liveness: Liveness = field(default_factory=_NoLiveness)
    election_throttle: ElectionThrottle = field(default_factory=ElectionThrottle)
    clocks: ClockWatch = field(default_factory=ClockWatch)
    checkpoints: CheckpointPace = field(default_factory=CheckpointPace)
    cleanings: CleaningPace = field(default_factory=CleaningPace)
    rebuild_machine: Callable[[StateMachine], StateMachine] | None = None
    is_same_place: Callable[[str, str], bool | None] = is_written_alike
    is_here: Callable[[str], bool] = lambda address: False
    append_hook: AppendHook | None = None
    role_changed: RoleListener = lambda change: None
    applied: Callable[[StateMachine], None] = lambda machine: None
    tracer: Tracer | None = None
    seal_limits: SealLimits = DEFAULT_SEAL_LIMITS
