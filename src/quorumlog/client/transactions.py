"""Transactions: the entries of several producers are read together, once, or not at all."""

import hashlib
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from quorumlog.client.arguments import instance, several, takes
from quorumlog.client.buffers import as_bytes
from quorumlog.client.client import Client
from quorumlog.client.deprecation import warn_renamed
from quorumlog.client.options import whole_number
from quorumlog.client.producer import Producer
from quorumlog.client.producer_options import ProducerOptions, checked_part
from quorumlog.client.session_blocks import append_session_block
from quorumlog.model.block import Buffer
from quorumlog.model.errors import ConfigError, ProducerFencedError, UnexpectedArgumentError
from quorumlog.model.messages.transactions import TransactionalRequest, TransactionalResponse
from quorumlog.sessions.entries import (
    ID_SIZE,
    AcceptedAttempt,
    EndTransaction,
    InitTransactions,
    TransactionPart,
)

TIMEOUT_MS = 5 * 60 * 1_000
"""A transaction to which nothing is added for this long is aborted by the leader."""


@dataclass(frozen=True, slots=True)
class ProducerEpoch:
    """The epoch of a transactional id that its present writer got from the group.

    Attributes:
        epoch: counted from 0; an epoch fences all lower ones.
        last_batch: the `batch_id` of the last batch that was committed, or -1.
        end_index: index of the entry that committed it, which names the attempts that count; -1 if
            there is none, or the server is of a version that does not say it.
    """

    epoch: int
    last_batch: int
    end_index: int = -1


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
    """A list of values that `Producer.attempt` returned, without None."""
    several(name, value)
    if isinstance(value, Sequence):  # an iterator, which is read once, is checked when encoded
        for attempt in value:
            instance(AcceptedAttempt)(name, attempt)


class Transactions:
    """The transactions of one transactional id: one writer at a time, which survives restarts.

    A batch is written by producers, one for each of its partitions, wherever they run; a partition
    may be written by several attempts. `commit` names the attempts that count. A `batch_id` ends
    once: `init` returns which one ended last, so that a restarted writer does not write it again.

    Args:
        client: the client of the group; it stays open.
        transactional_id: 16 bytes, the text of a UUID, or any other text.
        run_id: the same for all processes of one run of the writer (default: a new one). An `init`
            with another `run_id` starts a new epoch, which fences this one.
        timeout_ms: a transaction to which nothing is added for this long is aborted.

    Raises:
        ConfigError: an option has a wrong type or value.
        UnexpectedArgumentError: an id of bytes does not have 16 of them.
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

    async def init(self) -> ProducerEpoch:
        """Start the epoch of this `run_id`, or learn which one it is if it has been started.

        Raises:
            ProducerFencedError: another `run_id` started an epoch after this one.
            RequestError: the group could not be asked.
        """
        found = await self._ask()
        if not found.is_current and not found.is_fenced:
            await self._append(InitTransactions(self._id, self._run_id, self._timeout_ms))
            found = await self._ask()
        if not found.is_current:
            raise ProducerFencedError(
                f"another run of the transactional id {self._id.hex()} started epoch "
                f"{found.epoch}, which replaces this one"
            )
        return ProducerEpoch(found.epoch, found.last_batch, found.end_index)

    async def begin(self) -> ProducerEpoch:
        """Deprecated: use `init`, which is the same."""
        warn_renamed("Transactions.begin", "Transactions.init")
        return await self.init()

    @takes(producer_epoch=instance(ProducerEpoch))
    def producer(
        self,
        producer_epoch: ProducerEpoch,
        batch_id: int,
        partition: int,
        **options: Unpack[ProducerOptions],
    ) -> Producer:
        """Return a producer of one partition of a batch; options are those of `Producer`.

        Once it is flushed, its `attempt()` is what `commit` has to be given.
        """
        options["part"] = self.part(producer_epoch, batch_id, partition)
        return Producer(self._client, **options)

    @takes(producer_epoch=instance(ProducerEpoch))
    def part(self, producer_epoch: ProducerEpoch, batch_id: int, partition: int) -> TransactionPart:
        """Return what a producer in another process needs to write one partition of a batch.

        It is the option `part` of `Producer` and `SyncProducer`. Raises `ConfigError` for numbers
        out of range.
        """
        return checked_part(TransactionPart(self._id, producer_epoch.epoch, batch_id, partition))

    @takes(accepted=_accepted)
    async def commit(self, epoch: int, batch_id: int, accepted: Sequence[AcceptedAttempt]) -> None:
        """Commit a batch: from now on readers see the attempts that are accepted, and no others.

        Does nothing if the batch has ended before.

        Raises:
            TransactionAbortedError: the batch was aborted meanwhile; write it again.
            ProducerFencedError: another run of the writer took over.
            RequestError: it was refused, or its outcome is unknown; commit it again.
        """
        self.part(ProducerEpoch(epoch, batch_id), batch_id, 0)
        await self._append(EndTransaction(self._id, epoch, batch_id, tuple(accepted)))

    async def abort(self, epoch: int, batch_id: int) -> None:
        """Abort a batch, so that readers need not wait for its timeout. Raises as `commit`."""
        self.part(ProducerEpoch(epoch, batch_id), batch_id, 0)
        await self._append(EndTransaction(self._id, epoch, batch_id, None))

    async def _ask(self) -> TransactionalResponse:
        request = TransactionalRequest(
            group=self._client.group, transactional_id=self._id, run_id=self._run_id
        )
        requester = self._client._requester
        return await requester.ask_leader(request, TransactionalResponse, repeat_unknown=True)

    async def _append(self, entry: InitTransactions | EndTransaction) -> None:
        """Append an entry; it may be sent again after an unknown outcome, as it counts once."""
        await append_session_block(self._client, [entry.encode()], 1)
