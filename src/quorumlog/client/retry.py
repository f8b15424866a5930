"""How long to wait before trying again, inside one deadline."""

import random
from dataclasses import dataclass

PAUSE_MIN_S = 0.01
PAUSE_MAX_S = 0.1


@dataclass(slots=True)
class Backoff:
    """Pauses that double up to a bound, with jitter, and start over after a success."""

    generator: random.Random
    _pause_s: float = PAUSE_MIN_S

    def next_pause_s(self) -> float:
        """Return how long to wait now."""
        pause, self._pause_s = self._pause_s, min(PAUSE_MAX_S, self._pause_s * 2)
        return pause * self.generator.uniform(0.5, 1.0)
