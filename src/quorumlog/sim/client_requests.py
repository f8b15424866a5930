"""The requests of simulated clients and their answers: values that invariants check."""

from dataclasses import dataclass, field

from quorumlog.sessions.entries import AcceptedAttempt


@dataclass(slots=True)
class Append:
    """One append; `floor`: the highest index acknowledged to any client before it was sent."""

    bodies: list[bytes]
    floor: int
    first_index: int = -1


@dataclass(slots=True)
class Read:
    """The answer to one read."""

    node_id: str
    floor: int
    linearizable: bool
    committed_index: int
    entries: list[tuple[int, tuple[int, int]]] = field(default_factory=list)


@dataclass(slots=True)
class Attempt:
    """What one task appended: `rows` are (row of the batch, body), `indexes` where they are.

    `named`: an end of the batch that accepts the attempt was sent; `has_ended`: that end was
    acknowledged.
    """

    producer_id: int
    batch_id: int
    partition: int
    rows: list[tuple[int, bytes]]
    indexes: list[int] = field(default_factory=list)
    first_index: int = -1
    last_index: int = -1
    crc: int = 0
    named: bool = False
    has_ended: bool = False

    def accepted(self) -> AcceptedAttempt:
        """Return what the end of the batch has to say of this attempt."""
        return AcceptedAttempt(
            self.partition,
            self.producer_id,
            self.first_index,
            self.last_index,
            len(self.indexes),
            self.crc,
        )
