"""How a simulation ended, and what it found: which invariant does not hold, what led to it."""

from collections.abc import Callable
from dataclasses import dataclass

from quorumlog.model.errors import QuorumlogError


class Finding(QuorumlogError):  # noqa: N818  (it is what was found, not an error of the program)
    """`invariant` names the file that states it; the text says what was seen."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.text = text

    def __reduce__(self) -> tuple[type["Finding"], tuple[str, str]]:
        return Finding, (self.invariant, self.text)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `finding` is None if nothing was found; `histories` say what happened."""

    seed: int
    simulated_ms: int
    events: int
    appended: int
    reads: int
    digest: str
    faults: list[str]
    histories: dict[str, list[str]]
    finding: Finding | None = None


def found_by(run: Callable[[], None]) -> Finding | None:
    """Return what a run finds, or None."""
    try:
        run()
    except Finding as found:
        return found
    except Exception as error:
        # an unforeseen error is a finding, too: a failed check, or a bug that shows only so
        finding = Finding("no_error", repr(error))
        finding.__cause__ = error
        return finding
    return None
