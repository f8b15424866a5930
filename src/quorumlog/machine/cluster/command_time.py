"""When commands of coordinators are given, by clocks of several nodes of which some may be wrong.

A coordinator stamps with its own clock, and the next one judges by these stamps what has not been
used for long. The time of commands therefore does not go back when a coordinator with a slow clock
takes over. One whose clock is years ahead does not move it by years, or nothing would expire then.
"""

from dataclasses import dataclass
from typing import Final

STEP_MAX_MS: Final = 30 * 86_400_000
"""How far the time goes forward at once."""
EARLIEST_MS: Final = 1_735_689_600_000
"""The beginning of 2025, in Unix time: a clock that is before it was never set."""


@dataclass(slots=True)
class CommandTime:
    """The latest time that a coordinator has given a command at, as far as it is believed.

    `latest_ms`: in Unix time. `term`: of `__cluster`, of the last command.
    """

    latest_ms: int = 0
    term: int = 0

    def stamp(self, at_ms: int, term: int) -> int:
        """Return the time to note for a command that a coordinator gave at `at_ms` in a term.

        It is not before the latest time. That one follows a step of up to 30 days; of a longer one
        it follows 30 days, at the first command of a term only: the clock may be wrong, or nothing
        was used meanwhile.
        """
        is_first, self.term = term > self.term, max(term, self.term)
        step_ms = at_ms - self.latest_ms
        if self.latest_ms < EARLIEST_MS or step_ms <= STEP_MAX_MS:
            self.latest_ms = max(self.latest_ms, at_ms)
        elif is_first:
            self.latest_ms += STEP_MAX_MS
        return max(at_ms, self.latest_ms)
