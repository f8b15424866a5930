"""What a replica counts, for metrics."""

from dataclasses import dataclass, field

from quorumlog.model.codes import ResponseCode


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
    pushes_received: int = 0
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
