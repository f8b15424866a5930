"""What transactions of simulated producers have sent, and what became of them for all they know."""

from dataclasses import dataclass, field
from typing import TypeAlias

from quorumlog.sim.finding import Finding

Who: TypeAlias = tuple[int, int]
"""Producer id and epoch."""


@dataclass(slots=True)
class SentTransaction:
    """One transaction; `batches` are the numbers of its record batches.

    `may_commit`: its producer has asked for that. `told`: how it has ended, as its producer was
    told; None: it was not.
    """

    number: int
    name: str
    batches: list[int] = field(default_factory=list)
    acknowledged: dict[int, int] = field(default_factory=dict)
    """By number of a batch: the offset that was answered."""
    may_commit: bool = False
    told: bool | None = None


class SentTransactions:
    """All transactions of a run, and who was given which transactional id."""

    def __init__(self) -> None:
        self.all: dict[int, SentTransaction] = {}
        self.of_batch: dict[int, SentTransaction] = {}
        self._given: dict[str, list[tuple[int, Who]]] = {}

    def begin(self, name: str) -> SentTransaction:
        """A producer begins a transaction."""
        sent = SentTransaction(len(self.all) + 1, name)
        self.all[sent.number] = sent
        return sent

    def add_batch(self, sent: SentTransaction, number: int) -> None:
        """A batch belongs to a transaction."""
        sent.batches.append(number)
        self.of_batch[number] = sent

    def given(self, name: str, who: Who, at_us: int) -> None:
        """A producer has got a transactional id: those that had it before are fenced."""
        self._given.setdefault(name, []).append((at_us, who))

    def worked(self, name: str, who: Who, asked_us: int, what: str) -> None:
        """What a producer asked for was done. Raises `Finding` if it had been fenced before."""
        for at_us, other in self._given.get(name, ()):
            if at_us < asked_us and other > who:
                text = f"{what} of {who} worked at {asked_us} µs; {name} was {other}'s at {at_us}"
                raise Finding("fencing", text)

    def seen(self, number: int, where: str) -> None:
        """Someone who reads committed records has got a batch. Raises `Finding`."""
        sent = self.of_batch[number]
        if not sent.may_commit or sent.told is False:
            state = "aborted" if sent.told is False else "undecided"
            raise Finding("read_committed", f"{where} shows batch {number}, which is {state}")

    def check_end(self, visible: dict[int, int]) -> None:
        """All is over: compare what is visible (batch → times). Raises `Finding`."""
        for number, times in visible.items():
            self.seen(number, "the end")
            if times > 1:
                raise Finding("atomicity", f"batch {number} is there {times} times")
        for sent in self.all.values():
            there = [one for one in sent.batches if one in visible]
            if there and len(there) < len(sent.batches):
                text = f"of transaction {sent.number} {there} of {sent.batches} are visible"
                raise Finding("atomicity", text)
            if sent.told and len(there) < len(sent.batches):
                raise Finding("atomicity", f"transaction {sent.number}, committed, is not there")
