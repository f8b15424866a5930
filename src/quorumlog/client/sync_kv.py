"""`KV` for code without an event loop."""

from collections.abc import Iterator, Sequence

from quorumlog.client.kv import (
    KV,
    Compare,
    Data,
    Delete,
    KeyEvent,
    KeyItem,
    Put,
    TransactionOutcome,
)
from quorumlog.client.sync import SyncClient


class SyncKV:
    """Keys and values of a `SyncClient`'s group; see `KV` for arguments, results and errors."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client
        self._kv = KV(client.asynchronous)

    def put(self, key: Data, value: Data) -> bytes | None:
        """See `KV.put`."""
        return self._client.wait(self._kv.put(key, value))

    def delete(self, key: Data) -> bytes | None:
        """See `KV.delete`."""
        return self._client.wait(self._kv.delete(key))

    def compare_and_set(self, key: Data, expected: Data | None, value: Data | None) -> bool:
        """See `KV.compare_and_set`."""
        return self._client.wait(self._kv.compare_and_set(key, expected, value))

    def compare_index_and_set(self, key: Data, index: int, value: Data | None) -> bool:
        """See `KV.compare_index_and_set`."""
        return self._client.wait(self._kv.compare_index_and_set(key, index, value))

    def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Put | Delete] = (),
        otherwise: Sequence[Put | Delete] = (),
    ) -> TransactionOutcome:
        """See `KV.transaction`."""
        return self._client.wait(self._kv.transaction(compares, then, otherwise))

    def get(self, key: Data, *, linearizable: bool = True) -> bytes | None:
        """See `KV.get`."""
        return self._client.wait(self._kv.get(key, linearizable=linearizable))

    def get_with_index(self, key: Data, *, linearizable: bool = True) -> tuple[bytes | None, int]:
        """See `KV.get_with_index`."""
        return self._client.wait(self._kv.get_with_index(key, linearizable=linearizable))

    def applied_index(self) -> int:
        """See `KV.applied_index`."""
        return self._client.wait(self._kv.applied_index())

    def scan(
        self,
        begin: Data = b"",
        end: Data | None = None,
        *,
        prefix: Data | None = None,
        limit: int | None = None,
        reverse: bool = False,
        linearizable: bool = True,
    ) -> Iterator[KeyItem]:
        """See `KV.scan`."""
        return self._client.each(
            self._kv.scan(
                begin,
                end,
                prefix=prefix,
                limit=limit,
                reverse=reverse,
                linearizable=linearizable,
            )
        )

    def watch(self, prefix: Data = b"", first_index: int | None = None) -> Iterator[KeyEvent]:
        """See `KV.watch`; the iterator waits for the next change."""
        return self._client.each(self._kv.watch(prefix, first_index))
