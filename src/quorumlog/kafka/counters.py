"""What is counted of Kafka clients' requests."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class KafkaCounters:
    """Totals since the start; `requests` by the names of request and error."""

    requests: dict[tuple[str, str], int] = field(default_factory=dict)
    malformed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    waited_for_room: int = 0
    paused: int = 0

    def count_request(self, name: str, error: str) -> None:
        """Count an answered request."""
        key = (name, error)
        self.requests[key] = self.requests.get(key, 0) + 1

    def count_pause(self) -> None:
        """Count a connection that is not read, as memory is short."""
        self.paused += 1
