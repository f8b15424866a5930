"""The key-value machine (`stateMachine = "kv"`) as a Python object.

Everything that changes a key is one transaction, executed once a majority has it; everything else
is a question. Keys and values are given as bytes or as text, which is encoded as UTF-8, and come
back as bytes. Keys have 1 to 511 bytes, values up to a mebibyte.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from msgspec import UNSET, UnsetType

from quorumlog.client.arguments import COUNT, INDEX, flag, optional, several, takes
from quorumlog.client.buffers import as_bytes
from quorumlog.client.client import Client
from quorumlog.client.options import whole_number
from quorumlog.client.results import Queried
from quorumlog.machine import kv_commands
from quorumlog.model.block import Buffer
from quorumlog.model.errors import (
    EventsForgottenError,
    InternalError,
    Outcome,
    RemoteProtocolError,
    RequestError,
    UnexpectedArgumentError,
)

Data: TypeAlias = Buffer | str
"""A key or value as callers may give it."""
_Answer = TypeVar("_Answer", kv_commands.Value, kv_commands.Page, kv_commands.Happened)

WATCH_WAIT_MS = 5_000
"""How long a replica is let wait for the next change before another one may be asked."""
PAUSE_S = 0.1
"""Before another replica is asked in place of one that cannot answer."""
INDEX_MAX = (1 << 63) - 1
PROBED_KEY = b"\x00"
"""Asked for when only the manner of the answer matters."""


@dataclass(frozen=True, slots=True)
class KeyItem:
    """A key with its value and the index of the entry that last changed it."""

    key: bytes
    value: bytes
    index: int


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """A change of a key by the entry of an index; `value` None: it was deleted."""

    index: int
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Put:
    """Part of a transaction: give a key a value."""

    key: Data
    value: Data

    def __post_init__(self) -> None:
        """Copy what the caller may change; raise `UnexpectedArgumentError` for a wrong type."""
        object.__setattr__(self, "key", _bytes("key", self.key))
        object.__setattr__(self, "value", _bytes("value", self.value))


@dataclass(frozen=True, slots=True)
class Delete:
    """Part of a transaction: remove a key; nothing happens if there is none."""

    key: Data

    def __post_init__(self) -> None:
        """Copy what the caller may change; raise `UnexpectedArgumentError` for a wrong type."""
        object.__setattr__(self, "key", _bytes("key", self.key))


@dataclass(frozen=True, slots=True)
class Compare:
    """Condition of a transaction: a key's value, the index that last changed it, or both.

    `value` None or `index` -1: there is no such key.
    """

    key: Data
    value: Data | UnsetType | None = UNSET
    index: int | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Copy what the caller may change; raise `UnexpectedArgumentError` for a wrong type."""
        object.__setattr__(self, "key", _bytes("key", self.key))
        if self.value is not None and not isinstance(self.value, UnsetType):
            object.__setattr__(self, "value", _bytes("value", self.value))
        if not isinstance(self.index, UnsetType):
            whole_number("index", self.index, -1, INDEX_MAX, kind=UnexpectedArgumentError)


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    """The result of a transaction.

    `succeeded`: all compares were true. `index`: of the entry that holds it. `previous`: for each
    operation that was applied, the value before it (None: no such key).
    """

    succeeded: bool
    index: int
    previous: list[bytes | None]


class KV:
    """Keys and values of a client's group.

    All calls are bounded and retried as the client's are, and raise `RequestError` as they do:
    the `outcome` of such an error says whether a change happened. `UnexpectedArgumentError`: a key,
    value or bound is not allowed, or the group does not run the key-value machine. Keys and values
    are copied before a call returns, so buffers may be used again at once.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_probed = False

    # -- changes ----------------------------------------------------------------------------------

    def put(self, key: Data, value: Data) -> Coroutine[Any, Any, bytes | None]:
        """Set the value of a key; return its previous value, or None if there was no such key."""
        return self._set(Put(key, value))

    def delete(self, key: Data) -> Coroutine[Any, Any, bytes | None]:
        """Remove a key; return its value, or None if there was no such key."""
        return self._set(Delete(key))

    async def _set(self, operation: Put | Delete) -> bytes | None:
        return (await self.transaction(then=[operation])).previous[0]

    def compare_and_set(
        self, key: Data, expected: Data | None, value: Data | None
    ) -> Coroutine[Any, Any, bool]:
        """Set a key (None: delete it) if it has a value (None: if there is no such key).

        Returns whether it had.
        """
        return self._set_if(Compare(key, value=expected), _setting(key, value))

    def compare_index_and_set(
        self, key: Data, index: int, value: Data | None
    ) -> Coroutine[Any, Any, bool]:
        """Set a key (None: delete it) if it was last changed at an index (-1: if there is none).

        Returns whether it was. Unlike a comparison of values, this notices every change.
        """
        return self._set_if(Compare(key, index=index), _setting(key, value))

    async def _set_if(self, compare: Compare, operation: Put | Delete) -> bool:
        return (await self.transaction([compare], [operation])).succeeded

    @takes(compares=several, then=several, otherwise=several)
    def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Put | Delete] = (),
        otherwise: Sequence[Put | Delete] = (),
    ) -> Coroutine[Any, Any, TransactionOutcome]:
        """Carry out `then` if all compares are true, else `otherwise`; in order, all or nothing."""
        command = kv_commands.encode_command(
            kv_commands.Transaction(
                tuple(map(_compare, compares)),
                tuple(map(_operation, then)),
                tuple(map(_operation, otherwise)),
            )
        )
        return self._transaction(command)

    async def _transaction(self, command: bytes) -> TransactionOutcome:
        await self._probe()
        executed = await self._client.execute(command)
        try:
            found = kv_commands.decode_outcome(executed.result)
        except UnexpectedArgumentError as error:
            raise RemoteProtocolError(
                f"entry {executed.index} was executed, but: {error}"
            ) from None
        if found.error:
            raise UnexpectedArgumentError(found.error)
        return TransactionOutcome(found.succeeded, found.index, found.previous)

    async def _probe(self) -> None:
        """Check before the first change that this is the group's machine: another might fail."""
        if self._is_probed:
            return
        try:
            await self._ask(kv_commands.Get(PROBED_KEY), kv_commands.Value)
        except RequestError as error:
            error.outcome = Outcome.DID_NOT_HAPPEN
            raise
        self._is_probed = True

    # -- questions --------------------------------------------------------------------------------

    @takes(linearizable=flag)
    def get(self, key: Data, *, linearizable: bool = True) -> Coroutine[Any, Any, bytes | None]:
        """Return a key's value, None if there is no such key.

        A linearizable answer sees every change acknowledged before the call. Otherwise any replica
        answers, which may not know the newest changes. The same holds for `get_with_index` and
        `scan`.
        """
        return self._get(kv_commands.Get(_bytes("key", key)), linearizable=linearizable)

    async def _get(self, query: kv_commands.Get, *, linearizable: bool) -> bytes | None:
        value, _ = await self._get_with_index(query, linearizable=linearizable)
        return value

    @takes(linearizable=flag)
    def get_with_index(
        self, key: Data, *, linearizable: bool = True
    ) -> Coroutine[Any, Any, tuple[bytes | None, int]]:
        """Return a key's value and the index that last changed it; None and -1: no such key."""
        query = kv_commands.Get(_bytes("key", key))
        return self._get_with_index(query, linearizable=linearizable)

    async def _get_with_index(
        self, query: kv_commands.Get, *, linearizable: bool
    ) -> tuple[bytes | None, int]:
        found, _ = await self._ask(query, kv_commands.Value, linearizable=linearizable)
        return found.value, found.index

    @takes(limit=optional(COUNT), reverse=flag, linearizable=flag)
    def scan(
        self,
        begin: Data = b"",
        end: Data | None = None,
        *,
        prefix: Data | None = None,
        limit: int | None = None,
        reverse: bool = False,
        linearizable: bool = True,
    ) -> AsyncGenerator[KeyItem, None]:
        """Yield the items from `begin` to before `end` (None: to the last) in order of their keys.

        With `prefix`, only keys that start with it; with `limit`, at most this many. They come in
        pages. Each page shows one state of the machine, so a later page may include changes that
        were made after an earlier one was read.
        """
        first, last = _range(begin, end, prefix)
        return self._scan(first, last, limit, reverse=reverse, linearizable=linearizable)

    async def _scan(
        self,
        first: bytes,
        last: bytes | None,
        limit: int | None,
        *,
        reverse: bool,
        linearizable: bool,
    ) -> AsyncGenerator[KeyItem, None]:
        left = limit
        while True:
            asked = kv_commands.SCAN_ITEMS_MAX if left is None else left
            query = kv_commands.Scan(first, last, asked, reverse)
            page, _ = await self._ask(query, kv_commands.Page, linearizable=linearizable)
            for item in page.items:
                yield KeyItem(*item)
            left = None if left is None else left - len(page.items)
            if left == 0 or not page.more:
                return
            key = page.items[-1][0]
            first, last = (first, key) if reverse else (key + b"\x00", last)

    async def applied_index(self) -> int:
        """Return the applied index of the machine, which covers all changes acknowledged before.

        A caller that takes it, scans, and then watches from the next index on misses nothing. It
        may see events of changes that the scan has shown: compare the indexes of its items.
        """
        query = kv_commands.Get(PROBED_KEY)
        _, queried = await self._ask(query, kv_commands.Value)
        return queried.applied_index

    @takes(first_index=optional(INDEX))
    def watch(
        self, prefix: Data = b"", first_index: int | None = None
    ) -> AsyncGenerator[KeyEvent, None]:
        """Yield the changes of keys with a prefix, in order, from an index on, and wait for more.

        `first_index` None: from when the iteration starts. The changes of one transaction have the
        same index; to go on later, start after the last index of which all were handled. Any
        replica answers. The watch goes on through changes of leader, restarts, and outages of up to
        the client's `timeout_ms`; a longer one raises `RequestError` (up to 5 s later, while
        nothing happens). Raises `EventsForgottenError` (an `IndexRemovedError`) if the changes are
        not kept any more; the newest 100,000 are.
        """
        return self._watch(_bytes("prefix", prefix), first_index)

    async def _watch(self, raw: bytes, first_index: int | None) -> AsyncGenerator[KeyEvent, None]:
        index = await self.applied_index() + 1 if first_index is None else first_index
        while True:
            query = kv_commands.Events(raw, index, kv_commands.SCAN_ITEMS_MAX)
            found, queried = await self._await(query, index)
            if found.first_kept_index > index:
                raise EventsForgottenError(
                    f"changes from index {index} on were asked for, but those before "
                    f"{found.first_kept_index} are forgotten; scan, and watch from there",
                    found.first_kept_index,
                )
            for event in found.events:
                yield KeyEvent(*event)
            index = found.next_index
            if not found.events:
                # entries that are no commands count too, or the next answer would come at once
                index = max(index, queried.applied_index + 1)

    async def _await(
        self, query: kv_commands.Events, index: int
    ) -> tuple[kv_commands.Happened, Queried]:
        """Wait until `index` is applied and return what happened; nothing after `WATCH_WAIT_MS`.

        A replica whose machine has failed refuses; after a pause another one is chosen by chance.
        """
        loop = asyncio.get_running_loop()
        deadline: float | None = None  # of the first refusal: what is waited for may take long
        while True:
            try:
                return await self._ask(
                    query, kv_commands.Happened, linearizable=False, after_index=index
                )
            except InternalError:
                if deadline is None:
                    deadline = loop.time() + self._client.timeout_ms / 1000
                if loop.time() + PAUSE_S > deadline:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _ask(
        self,
        query: kv_commands.Query,
        kind: type[_Answer],
        *,
        linearizable: bool = True,
        after_index: int = -1,
    ) -> tuple[_Answer, Queried]:
        question = kv_commands.encode_query(query)
        queried = await self._client.machine.query(
            question,
            linearizable=linearizable,
            after_index=after_index,
            wait_ms=0 if after_index < 0 else WATCH_WAIT_MS,
        )
        try:
            answer = kv_commands.decode_answer(queried.answer)
        except UnexpectedArgumentError as error:
            raise UnexpectedArgumentError(
                f"group {self._client.group} does not answer as the key-value machine does: {error}"
            ) from None
        if not isinstance(answer, kind):
            raise RemoteProtocolError(f"{answer} is no answer to {query}")
        return answer, queried


def _bytes(what: str, data: object) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise UnexpectedArgumentError(
                f"the {what} cannot be written as UTF-8: {error}"
            ) from None
    return as_bytes(what, data, also=" or str")


def _setting(key: Data, value: Data | None) -> Put | Delete:
    return Delete(key) if value is None else Put(key, value)


def _operation(operation: Put | Delete) -> kv_commands.Operation:
    if not isinstance(operation, Put | Delete):
        raise UnexpectedArgumentError(
            f"an operation is a Put or a Delete, not {type(operation).__name__}"
        )
    key = _bytes("key", operation.key)
    if isinstance(operation, Put):
        return kv_commands.Put(key, _bytes("value", operation.value))
    return kv_commands.Delete(key)


def _compare(compare: Compare) -> kv_commands.Compare:
    if not isinstance(compare, Compare):
        raise UnexpectedArgumentError(f"a condition is a Compare, not {type(compare).__name__}")
    value = compare.value
    raw = value if value is None or isinstance(value, UnsetType) else _bytes("value", value)
    return kv_commands.Compare(_bytes("key", compare.key), raw, compare.index)


def _range(begin: Data, end: Data | None, prefix: Data | None) -> tuple[bytes, bytes | None]:
    """Return the bounds of the keys that lie within the range and have the prefix."""
    first = _bytes("key", begin)
    last = None if end is None else _bytes("key", end)
    if prefix is None:
        return first, last
    raw = _bytes("prefix", prefix)
    after = kv_commands.end_of_prefix(raw)
    ends = [bound for bound in (last, after) if bound is not None]
    return max(first, raw), min(ends, default=None)
