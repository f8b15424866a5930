"""What a replica must remember across restarts before it may promise anything."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HardState:
    """Term and vote. `vote` is the candidate voted for in `term`, or None."""

    term: int = 0
    vote: str | None = None
