"""Refusals of appends that wait for a moment, until the new leader is known.

During a leadership transfer, which takes some milliseconds, nothing is appended. A client that is
refused at once could only ask other servers and try again; one that is refused afterwards learns
the new leader from the refusal.
"""

from dataclasses import dataclass

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode
from quorumlog.node.replica.proposals import Answer

DELAY_MS = 300
"""A refusal is delayed by this much at most: some clients wait for nothing else."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    answer: Answer
    size_bytes: int
    deadline_ms: int
    code: ResponseCode
    text: str


class DeferredRefusals:
    """Refusals that one replica has yet to send, in the order in which the appends came.

    The caller of `add` bounds their number; `size_bytes` is the memory that they hold.
    """

    def __init__(self) -> None:
        self.waiting: list[_Refusal] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def add(
        self, answer: Answer, size_bytes: int, code: ResponseCode, text: str, now_ms: int
    ) -> int:
        """Refuse an append later; return when."""
        deadline_ms = now_ms + DELAY_MS
        self.waiting.append(_Refusal(answer, size_bytes, deadline_ms, code, text))
        self.size_bytes += size_bytes
        return deadline_ms

    def take(self) -> list[tuple[Answer, ResponseCode, str]]:
        """Return all, to be refused now."""
        return self._take(len(self.waiting))

    def take_due(self, now_ms: int) -> list[tuple[Answer, ResponseCode, str]]:
        """Return those that have waited long enough."""
        waiting = self.waiting
        due = next((at for at, refusal in enumerate(waiting) if refusal.deadline_ms > now_ms), None)
        return self._take(len(waiting) if due is None else due)

    def _take(self, count: int) -> list[tuple[Answer, ResponseCode, str]]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self.size_bytes -= sum(refusal.size_bytes for refusal in taken)
        return [(refusal.answer, refusal.code, refusal.text) for refusal in taken]

    def next_deadline_ms(self) -> int:
        """When `take_due` returns something."""
        return self.waiting[0].deadline_ms if self.waiting else NEVER_MS
