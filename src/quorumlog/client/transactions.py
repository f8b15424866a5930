"""Writers of transactions: several producers' entries count together, once, or not at all."""

import hashlib
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from quorumlog.client.arguments import as_bytes, whole_number
from quorumlog.client.checked import instance, several, takes
from quorumlog.client.client import Client
from quorumlog.client.connection import ServerConnection
from quorumlog.client.producer import Producer, ProducerOptions, checked_part
from quorumlog.model.block import Buffer
from quorumlog.model.errors import ConfigError, ProducerFencedError, UnexpectedArgumentError
from quorumlog.model.messages.client import AppendRequest, AppendResponse
from quorumlog.model.messages.transactions import TransactionalRequest, TransactionalResponse
from quorumlog.sessions.entries import (
    ID_SIZE,
    AcceptedAttempt,
    EndTransaction,
    InitTransactions,
    TransactionPart,
)

TIMEOUT_MS = 5 * 60 * 1_000
"""A transaction to which nothing is added for so long is given up."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a transactional id: its epoch, and the last batch that ended (-1: none)."""

    epoch: int
    last_batch: int


def id_bytes(text: Buffer | str) -> bytes:
    """Return the 16 bytes that stand for an id: those of a UUID, else of its SHA-256."""
    if not isinstance(text, str):
        raw = as_bytes("transactional id or run id", text, also=" or str")
        if len(raw) != ID_SIZE:
            raise UnexpectedArgumentError(f"an id has {ID_SIZE} bytes, not {len(raw)}")
        return raw
    try:
        return uuid.UUID(text).bytes
    except ValueError:
        return hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:ID_SIZE]


def _accepted(name: str, value: Any) -> None:
    """A list of what `Producer.attempt` returned, without None."""
    several(name, value)
    if isinstance(value, Sequence):  # what is read once is judged when it is encoded
        for attempt in value:
            instance(AcceptedAttempt)(name, attempt)


class Transactions:
    """Of one transactional id in one group: one writer that lives through restarts.

    A batch is written by producers, one for each part of it, wherever they run; a part may be
    written several times. `commit` names what counts. The same `batch_id` ends once: when it is
    written again after a failure, `begin` tells that it has ended. `run_id` is the same for all who
    write in one life of the writer (default: a new one); `begin` of another fences it.
    """

    def __init__(
        self,
        client: Client,
        transactional_id: Buffer | str,
        *,
        run_id: Buffer | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        if not isinstance(client, Client):
            raise ConfigError(f"client is a Client, not {client!r}")
        self._client = client
        self._id = id_bytes(transactional_id)
        self._run_id = secrets.token_bytes(ID_SIZE) if run_id is None else id_bytes(run_id)
        self._timeout_ms = whole_number("timeout_ms", timeout_ms, 1, (1 << 32) - 1)

    async def begin(self) -> Run:
        """Begin this run, or learn how it stands if it has begun.

        Raises `ProducerFencedError` if another run began after it, or another `RequestError`.
        """
        found = await self._ask()
        if not found.is_current and not found.is_fenced:
            await self._append(InitTransactions(self._id, self._run_id, self._timeout_ms))
            found = await self._ask()
        if not found.is_current:
            raise ProducerFencedError(
                f"another run of {self._id.hex()} (run {found.epoch}) began after this one"
            )
        return Run(found.epoch, found.last_batch)

    @takes(run=instance(Run))
    def producer(
        self, run: Run, batch_id: int, partition: int, **options: Unpack[ProducerOptions]
    ) -> Producer:
        """Return a producer of one part of a batch; options are those of `Producer`.

        Its `attempt()` is what `commit` wants to know.
        """
        options["part"] = self.part(run, batch_id, partition)
        return Producer(self._client, **options)

    @takes(run=instance(Run))
    def part(self, run: Run, batch_id: int, partition: int) -> TransactionPart:
        """Return what a producer elsewhere has to know to write one part of a batch.

        Raises `ConfigError` for numbers that cannot be.
        """
        return checked_part(TransactionPart(self._id, run.epoch, batch_id, partition))

    @takes(accepted=_accepted)
    async def commit(self, epoch: int, batch_id: int, accepted: Sequence[AcceptedAttempt]) -> None:
        """End a batch: what is accepted counts, in the moment this is stored, and nothing else.

        Does nothing if the batch has ended before. Raises `TransactionAbortedError` if some of it
        was given up meanwhile (write it again), `ProducerFencedError`, or another `RequestError`.
        """
        self.part(Run(epoch, batch_id), batch_id, 0)
        await self._append(EndTransaction(self._id, epoch, batch_id, tuple(accepted)))

    async def abort(self, epoch: int, batch_id: int) -> None:
        """Give a batch up, so that readers need not wait for its time-out. Raises as `commit`."""
        self.part(Run(epoch, batch_id), batch_id, 0)
        await self._append(EndTransaction(self._id, epoch, batch_id, None))

    async def _ask(self) -> TransactionalResponse:
        client = self._client
        request = TransactionalRequest(
            group=client.group, transactional_id=self._id, run_id=self._run_id
        )

        async def ask(connection: ServerConnection) -> TransactionalResponse:
            answer = await connection.request(request)
            return client.expect(connection, answer, TransactionalResponse)

        return await client.retrying(client.view.leader, ask, None, repeat_unknown=True)

    async def _append(self, entry: InitTransactions | EndTransaction) -> None:
        """Append an entry; it may be sent again after an unknown fate: once is enough."""
        client, block = self._client, entry.encode()
        request = AppendRequest(group=client.group, count=1)

        async def ask(connection: ServerConnection) -> AppendResponse:
            answer = await connection.request(request, [block])
            return client.expect(connection, answer, AppendResponse)

        await client.retrying(client.view.leader, ask, None, repeat_unknown=True)
