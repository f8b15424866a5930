"""What a simulation found: which invariant does not hold, and what led to it."""

from quorumlog.model.errors import QuorumlogError


class Finding(QuorumlogError):  # noqa: N818  (it is what was found, not an error of the program)
    """`invariant` names the file that states it; the text says what was seen."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        self.text = text

    def __reduce__(self) -> tuple[type["Finding"], tuple[str, str]]:
        return Finding, (self.invariant, self.text)
