"""What a replica counts and how long things take it, for metrics."""

from collections import deque
from dataclasses import dataclass, field
from functools import partial

from quorumlog.model.codes import ResponseCode
from quorumlog.model.histogram import (
    ENTRY_COUNTS,
    LATENCY_SECONDS,
    SIZE_BYTES,
    SNAPSHOT_SECONDS,
    Histogram,
    observe_each,
)

PEERS_MAX = 64
"""Peers of one replica with histograms; that of the peer that came first is forgotten."""
READ_INDEX, STALE = "READ_INDEX_READ", "UNSAFE_READ"
"""How a state machine is read (spec 40): after a round of heartbeats, or as it is."""


@dataclass(slots=True)
class PushesReceived:
    """Pushes of all types, and what those with entries brought; repeated ones count again."""

    pushes: int = 0
    entries: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class ReplicaCounters:
    """Totals since the start, for metrics."""

    append_requests: int = 0
    append_entries: int = 0
    append_bytes: int = 0
    blocks_repeated: int = 0
    appends_refused: dict[str, int] = field(default_factory=dict)
    pushes_sent: int = 0
    push_bytes_sent: int = 0
    received: PushesReceived = field(default_factory=PushesReceived)
    role_changes: int = 0
    alarms: int = 0
    malformed_pushes: int = 0
    entries_damaged: int = 0
    entries_repaired: int = 0
    segments_removed: int = 0
    bytes_removed: int = 0
    log_resets: int = 0
    machine_rebuilds: int = 0
    tables_rebuilt: int = 0
    snapshots_damaged: int = 0

    def count_refusal(self, code: ResponseCode) -> None:
        """Count an append that was refused, or whose outcome is unknown."""
        self.appends_refused[code.name] = self.appends_refused.get(code.name, 0) + 1


class PushHistograms:
    """Of the pushes with entries to one peer; at most `pushes_max` are awaited at a time.

    `sent` has (number, microseconds, entries, bytes) of those that have left; numbers rise. A push
    is counted when it is acknowledged.
    """

    def __init__(self, pushes_max: int) -> None:
        self.seconds = Histogram(LATENCY_SECONDS)
        self.entries = Histogram(ENTRY_COUNTS)
        self.size_bytes = Histogram(SIZE_BYTES)
        self.sent: deque[tuple[int, int, int, int]] = deque(maxlen=pushes_max)
        self._all = (self.seconds, self.entries, self.size_bytes)

    def acknowledged(self, request_id: int, now_us: int) -> None:
        """The peer has the entries of a push on disk; those sent before it are not awaited."""
        sent = self.sent
        while sent and sent[0][0] <= request_id:
            number, sent_us, entries, size_bytes = sent.popleft()
            if number == request_id:
                observe_each(self._all, (now_us - sent_us) / 1_000_000, entries, size_bytes)


class ReplicaHistograms:
    """How long things take one replica, and how large they are.

    By peer: `pushes` those that it sends as leader, `installs` the snapshots that it fetched.
    `observe_block(entries, size_bytes)` counts a block that it appended as leader.
    """

    def __init__(self) -> None:
        self.append_seconds = Histogram(LATENCY_SECONDS)
        self.block_entries = Histogram(ENTRY_COUNTS)
        self.block_bytes = Histogram(SIZE_BYTES)
        self.observe_block = partial(observe_each, (self.block_entries, self.block_bytes))
        self.fetch_seconds = Histogram(LATENCY_SECONDS)
        self.read_seconds = {mode: Histogram(LATENCY_SECONDS) for mode in (READ_INDEX, STALE)}
        self.apply_seconds = Histogram(LATENCY_SECONDS)
        self.apply_entries = Histogram(ENTRY_COUNTS)
        self.snapshot_save_seconds = Histogram(SNAPSHOT_SECONDS)
        self.snapshot_load_seconds = Histogram(SNAPSHOT_SECONDS)
        self.installs: dict[str, Histogram] = {}
        self.pushes: dict[str, PushHistograms] = {}

    def new_peer(self, peer_id: str, pushes_max: int) -> PushHistograms:
        """Return, and keep, what is observed of the pushes to another peer."""
        _make_room(self.pushes)
        found = self.pushes[peer_id] = PushHistograms(pushes_max)
        return found

    def snapshot_installed(self, peer_id: str, seconds: float) -> None:
        """A snapshot was fetched from a peer, checked, and is durable."""
        if peer_id not in self.installs:
            _make_room(self.installs)
            self.installs[peer_id] = Histogram(SNAPSHOT_SECONDS)
        self.installs[peer_id].observe(seconds)


def _make_room(by_peer: dict[str, Histogram] | dict[str, PushHistograms]) -> None:
    if len(by_peer) >= PEERS_MAX:
        del by_peer[next(iter(by_peer))]
