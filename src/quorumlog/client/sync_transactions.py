"""`Transactions` for code without an event loop."""

from collections.abc import Sequence

from quorumlog.client.sync import SyncClient
from quorumlog.client.transactions import TIMEOUT_MS, ProducerEpoch, Transactions
from quorumlog.model.block import Buffer
from quorumlog.model.errors import ConfigError
from quorumlog.sessions.entries import AcceptedAttempt, TransactionPart


class SyncTransactions:
    """The transactions of one transactional id in the group of a `SyncClient`.

    See `Transactions` for arguments, results and errors. There is no `producer` here: give what
    `part` returns to a `SyncProducer`, as its option `part`.
    """

    def __init__(
        self,
        client: SyncClient,
        transactional_id: Buffer | str,
        *,
        run_id: Buffer | str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        if not isinstance(client, SyncClient):
            raise ConfigError(f"client is a SyncClient, not {client!r}")
        self._client = client
        self._transactions = Transactions(
            client.asynchronous, transactional_id, run_id=run_id, timeout_ms=timeout_ms
        )

    def init(self) -> ProducerEpoch:
        """See `Transactions.init`."""
        return self._client.wait(self._transactions.init())

    def part(self, producer_epoch: ProducerEpoch, batch_id: int, partition: int) -> TransactionPart:
        """See `Transactions.part`."""
        return self._transactions.part(producer_epoch, batch_id, partition)

    def commit(self, epoch: int, batch_id: int, accepted: Sequence[AcceptedAttempt]) -> None:
        """See `Transactions.commit`."""
        self._client.wait(self._transactions.commit(epoch, batch_id, accepted))

    def abort(self, epoch: int, batch_id: int) -> None:
        """See `Transactions.abort`."""
        self._client.wait(self._transactions.abort(epoch, batch_id))
