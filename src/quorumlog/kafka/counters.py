"""What is counted of Kafka clients' requests."""

from dataclasses import dataclass, field

from quorumlog.model.histogram import LATENCY_SECONDS, Histogram


@dataclass(slots=True)
class KafkaCounters:
    """Totals since the start; `requests` by the names of request and error.

    `connections`, `request_bytes` and `compacted_topics` are what there is now. `produce_seconds`
    and `fetch_seconds`: from the arrival of a request to its answer, with what a fetch waits for.
    """

    requests: dict[tuple[str, str], int] = field(default_factory=dict)
    produce_seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_SECONDS))
    fetch_seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_SECONDS))
    connections: int = 0
    request_bytes: int = 0
    compacted_topics: int = 0
    malformed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    waited_for_room: int = 0
    paused: int = 0
    rebalances: int = 0
    transactions_committed: int = 0
    transactions_aborted: int = 0
    transactions_timed_out: int = 0

    def count_request(self, name: str, error: str) -> None:
        """Count an answered request."""
        key = (name, error)
        self.requests[key] = self.requests.get(key, 0) + 1
