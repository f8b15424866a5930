"""A simulated driver and its tasks: batches written in transactions, again and again after deaths.

Rows of a batch are numbered; what is appended for a row is unique for every attempt. A driver that
dies is followed by another run, which does not know what became of the batch, and divides it again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from isal.isal_zlib import crc32

from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.client import AppendRequest, AppendResponse
from quorumlog.model.messages.transactions import TransactionalRequest, TransactionalResponse
from quorumlog.sessions.entries import (
    EndTransaction,
    InitTransactions,
    TransactionPart,
    continued_crc,
    crc_of,
    encode_session_block,
)
from quorumlog.sim.client_connections import ClientConnections
from quorumlog.sim.client_requests import Attempt
from quorumlog.sim.finding import Finding

PRODUCERS_FROM = 1 << 40
"""Producer ids of attempts start here; lower ones belong to other clients."""
DEATHS, TWINS, GIVEN_UP = 0.04, 0.3, 0.1
TIMEOUTS_MS = (300, 2_000, 60_000)
NEVER = (
    ResponseCode.SEQUENCE_GAP,
    ResponseCode.SEQUENCE_MISMATCH,
    ResponseCode.PRODUCER_FENCED,
    ResponseCode.UNKNOWN_PRODUCER,
    ResponseCode.UNEXPECTED_ARGUMENT,
)
"""What the present run, which sends one block at a time, must not be told."""


@dataclass(frozen=True, slots=True)
class Step:
    """A block of `count` entries to append; without one, ask for the state of the transactional id.

    `take` is called with a good answer.
    """

    take: Callable[[Any], None]
    block: bytes = b""
    count: int = 0


class TransactionalWriter:
    """One transactional id. `attempts` are all there ever were."""

    def __init__(self, connections: ClientConnections) -> None:
        self._connections = connections
        self._random = connections.clock.random
        self._id = b"simulated query "
        self._run = 0
        self._epoch = 0
        self._batch_id = 0
        self._rows = 0
        self._steps = self._new_run()
        self._step: Step | None = None
        self._accepted: list[Attempt] = []
        self.attempts: list[Attempt] = []

    def go_on(self, name: str, done: Callable[[], None]) -> None:
        """Send the block that is due, again and again until it is acknowledged."""
        if self._random.random() < DEATHS:
            self._steps, self._step = self._new_run(), None
        if self._step is None:
            self._step = next(self._steps)
        step = self._step
        node = self._connections.target(leader=True)
        if node is None:
            done()
            return

        def take(response: AppendResponse, _: bytes) -> None:
            if self._step is step:
                self._answered(step, response)
            done()

        answered = self._connections.answering(node, name, take)
        if step.block:
            request = AppendRequest(group="g", count=step.count)
            self._connections.propose(name, node, request, step.block, answered)
            return
        ask = TransactionalRequest(group="g", transactional_id=self._id, run_id=self._run_id)

        def arrive() -> None:
            node.enter(lambda: node.running.transactions.answer_state(ask, answered))

        self._connections.carry(name, node, ask, b"", arrive)

    def _answered(self, step: Step, response: Response) -> None:
        code = response.code
        if code in NEVER:
            raise Finding("transactions", f"the present run is told: {response.text}")
        if code == ResponseCode.SUCCESS:
            self._step = None
            step.take(response)
        elif code == ResponseCode.TRANSACTION_ABORTED:
            self._steps, self._step = self._write_batches(), None

    # -- what is sent, in order -----------------------------------------------------------------

    @property
    def _run_id(self) -> bytes:
        return self._run.to_bytes(16)

    def _new_run(self) -> Iterator[Step]:
        self._run += 1
        entry = InitTransactions(self._id, self._run_id, self._random.choice(TIMEOUTS_MS))
        yield Step(_nothing, entry.encode(), 1)
        yield Step(self._run_started)
        yield from self._write_batches()

    def _run_started(self, response: TransactionalResponse) -> None:
        """Learn the epoch of this run, and whether the one before has ended the batch."""
        self._require(response.is_current, f"another run than {self._run} began: {response}")
        self._epoch = response.epoch
        last = response.last_batch
        self._require(last in (self._batch_id - 1, self._batch_id), f"batch {last} has ended")
        if last == self._batch_id:
            named = [one for one in self.attempts if one.batch_id == last and one.named]
            self._require(named, f"nobody has ended batch {last}")
            self._next_batch()

    def _require(self, condition: object, text: str) -> None:
        if not condition:
            raise Finding("transactions", text)

    def _write_batches(self) -> Iterator[Step]:
        """Write this batch and all that follow."""
        random = self._random
        while True:
            if not self._rows:
                self._rows = random.randint(1, 12)
            parts = random.randint(1, 3)
            self._accepted = []
            for partition in range(parts):
                rows = list(range(partition, self._rows, parts))
                if rows and random.random() < TWINS:
                    some = rows[: random.randint(1, len(rows))]
                    yield from self._send(self._attempt(partition, some))
                if rows:
                    self._accepted.append(attempt := self._attempt(partition, rows))
                    yield from self._send(attempt)
            yield self._end()

    def _attempt(self, partition: int, rows: list[int]) -> Attempt:
        number = len(self.attempts)
        bodies = [f"transaction {self._batch_id} {row} {number}".encode() for row in rows]
        self._connections.asked.update(bodies)
        numbered = list(zip(rows, bodies, strict=True))
        attempt = Attempt(PRODUCERS_FROM + number, self._batch_id, partition, numbered)
        self.attempts.append(attempt)
        return attempt

    def _send(self, attempt: Attempt) -> Iterator[Step]:
        part = TransactionPart(self._id, self._epoch, attempt.batch_id, attempt.partition)
        bodies = [body for _, body in attempt.rows]
        while (sent := len(attempt.indexes)) < len(bodies):
            some = bodies[sent : sent + self._random.randint(1, 5)]
            block = encode_session_block(attempt.producer_id, sent, some, part=part)
            crc = continued_crc(attempt.crc, crc_of(map(crc32, some)))

            def stored(response: AppendResponse, crc: int = crc) -> None:
                attempt.indexes += range(response.first_index + 1, response.last_index + 1)
                attempt.crc = crc
                attempt.last_index = response.last_index
                if attempt.first_index < 0:
                    attempt.first_index = response.first_index

            yield Step(stored, block, len(some) + 1)

    def _end(self) -> Step:
        accepted, batch_id = self._accepted, self._batch_id
        if self._random.random() < GIVEN_UP:
            given_up = EndTransaction(self._id, self._epoch, batch_id, None)
            return Step(_nothing, given_up.encode(), 1)
        for attempt in accepted:
            attempt.named = True
        named = tuple(attempt.accepted() for attempt in accepted)
        end = EndTransaction(self._id, self._epoch, batch_id, named)
        return Step(self._ended, end.encode(), 1)

    def _ended(self, response: AppendResponse) -> None:
        for attempt in self._accepted:
            attempt.has_ended = True
        self._next_batch()

    def _next_batch(self) -> None:
        self._batch_id += 1
        self._rows = 0


def _nothing(response: Response) -> None:
    """It is stored; nothing follows from where."""
