"""What a replica must have on disk before it gives an answer that relies on it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HardState:
    """Term and vote. `vote` is the candidate voted for in `term`, or None."""

    term: int = 0
    vote: str | None = None
