"""`KV` for code without an event loop."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Unpack

from msgspec import UNSET, UnsetType

from quorumlog.client.client import ClientOptions
from quorumlog.client.contexts import Servers
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
from quorumlog.model.errors import ConfigError


class SyncKV:
    """Keys and values of a group; see `KV` for arguments, results and errors.

    It is given a `SyncClient`, which the caller closes, or servers, group and options as a
    `SyncClient` is; then `close`, or the end of the `with` block, closes the client made of them.
    """

    def __init__(
        self,
        client: SyncClient | Servers,
        group: str | UnsetType = UNSET,
        **options: Unpack[ClientOptions],
    ) -> None:
        self._owns_client = not isinstance(client, SyncClient)
        if not isinstance(client, SyncClient):
            client = SyncClient(client, "default" if group is UNSET else group, **options)
        elif options or group not in (UNSET, client.group):
            raise ConfigError(
                f"the client given is of group {client.group!r} and has its own options; give "
                "servers to choose others"
            )
        self._client = client
        self._kv = KV(client.asynchronous)

    def __enter__(self) -> "SyncKV":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client, unless the caller gave it."""
        if self._owns_client:
            self._client.close()

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
