"""What callers give: other types are refused with nothing changed, buffers may be used again."""

import array
import asyncio
import ctypes
import dataclasses
import mmap

import numpy as np
import pytest

from quorumlog.client import (
    KV,
    Client,
    Compare,
    Delete,
    Producer,
    Put,
    SyncClient,
    SyncKV,
    SyncProducer,
    Transactions,
)
from quorumlog.client.buffers import as_bodies, as_bytes
from quorumlog.machine import kv_commands
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import (
    ConfigError,
    Outcome,
    RequestError,
    UnexpectedArgumentError,
)
from quorumlog.model.limits import Limits
from quorumlog.sessions.entries import AcceptedAttempt, TransactionPart

PLAIN = {"idempotent": False, "linger_ms": 1}
released = memoryview(b"gone")
released.release()
WRONG = ["text", 7, None, 1.5, ["a"], {"a": 1}, object(), np.int64(7), np.array([None]), released]


class Named(bytes):
    """Bytes of a class of the user's."""


# -- what is taken ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"abc", b"abc"),
        (Named(b"abc"), b"abc"),
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abcdef")[::2], b"ace"),
        (memoryview(b"abcd").cast("H"), b"abcd"),
        (array.array("H", [1, 2]), array.array("H", [1, 2]).tobytes()),
        (np.arange(6, dtype=np.uint8).reshape(2, 3)[:, 1:], bytes([1, 2, 4, 5])),
        (np.array([1.5]), np.array([1.5]).tobytes()),
        (np.array([(1, 2)], dtype=[("count", "u1"), ("w", "u1")]), b"\x01\x02"),
        ((ctypes.c_ubyte * 2)(3, 4), b"\x03\x04"),
        (b"", b""),
    ],
)
def test_every_buffer_of_plain_data_is_taken_as_its_bytes(given, expected):
    assert as_bytes("body", given) == expected


def test_a_file_in_memory_is_taken():
    with mmap.mmap(-1, 4096) as file:
        file[:3] = b"abc"
        assert as_bytes("body", file)[:4] == b"abc\0"


@pytest.mark.parametrize("given", [*WRONG, np.array(["ab"]), array.array("u", "ab")])
def test_everything_else_is_refused_and_named(given):
    with pytest.raises(UnexpectedArgumentError, match="a body is bytes, not") as caught:
        as_bytes("body", given)
    assert type(given).__name__ in str(caught.value)
    assert caught.value.outcome is Outcome.DID_NOT_HAPPEN


@pytest.mark.parametrize("given", [b"abc", "abc", bytearray(b"abc"), 7, None])
def test_one_body_is_no_list_of_bodies(given):
    with pytest.raises(UnexpectedArgumentError, match="a list of bodies is needed"):
        as_bodies("body", given, "append")


def test_a_released_buffer_is_said_to_be_released():
    with pytest.raises(UnexpectedArgumentError, match="not memoryview; it was released"):
        as_bytes("body", released)


async def test_one_body_names_the_call_that_takes_one():
    async with Client("127.0.0.1:1", "g") as client:
        for call, text in (
            (client.append_batch, "append takes one body"),
            (client.machine.execute_batch, "execute takes one command"),
        ):
            with pytest.raises(UnexpectedArgumentError, match=text):
                await call("abc")
        producer = Producer(client)
        with pytest.raises(UnexpectedArgumentError, match="send takes one body"):
            await producer.send_batch("abc")
        await producer.close(flush=False)


async def test_an_attempt_is_not_returned_before_all_of_it_is_flushed():
    part = TransactionPart(bytes(16), 1, 0, 0)
    async with Client("127.0.0.1:1", "g") as client:
        producer = Producer(client, part=part)
        assert producer.attempt() is None
        await producer.send(b"E1")
        with pytest.raises(UnexpectedArgumentError, match=r"call flush\(\) before attempt\(\)"):
            producer.attempt()
        await producer.close(flush=False)


def test_an_attempt_of_a_sync_producer_is_not_returned_before_all_of_it_is_flushed():
    producer = SyncProducer("127.0.0.1:1", "g", part=TransactionPart(bytes(16), 1, 0, 0))
    assert producer.attempt() is None
    producer.send(b"E1")
    with pytest.raises(UnexpectedArgumentError, match=r"call flush\(\) before attempt\(\)"):
        producer.attempt()
    producer.close(flush=False)


@pytest.mark.parametrize("name", ["partition", "producer_id", "first_index", "count", "crc"])
async def test_an_attempt_with_a_number_out_of_range_is_refused(name):
    attempt = AcceptedAttempt(0, 1, 2, 3, 2, 5)
    async with Client("127.0.0.1:1", "g") as client:
        wrong, writer = dataclasses.replace(attempt, **{name: -1}), Transactions(client, "id")
        with pytest.raises(UnexpectedArgumentError, match="has a number that no attempt can have"):
            await writer.commit(1, 0, [wrong])


# -- wrong types at every place where bytes come in -----------------------------------------------

CLIENT_CALLS = [
    lambda client, wrong: client.append(wrong),
    lambda client, wrong: client.append_batch([b"right", wrong]),
    lambda client, wrong: client.execute(wrong),
    lambda client, wrong: client.machine.execute_batch([b"right", wrong]),
    lambda client, wrong: client.query(wrong),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize("call", CLIENT_CALLS)
async def test_a_client_refuses_at_once_what_is_no_bytes(call, wrong):
    async with Client("127.0.0.1:1", "g") as client:
        with pytest.raises(UnexpectedArgumentError, match=f"not {type(wrong).__name__}"):
            call(client, wrong)  # not awaited: the call itself says so


@pytest.mark.parametrize("wrong", WRONG[1:], ids=lambda wrong: type(wrong).__name__)
async def test_keys_and_values_of_wrong_types_are_refused_at_once(wrong):
    async with Client("127.0.0.1:1", "g") as client:
        kv = KV(client)
        calls = [
            lambda: kv.put(wrong, "v"),
            lambda: kv.delete(wrong),
            lambda: kv.compare_and_set(wrong, "v", "w"),
            lambda: kv.compare_index_and_set(wrong, 1, "w"),
            lambda: kv.get(wrong),
            lambda: kv.get_with_index(wrong),
            lambda: kv.watch(wrong),
            lambda: kv.scan(wrong),
            lambda: Put("k", wrong),
            lambda: Delete(wrong),
            lambda: Compare(wrong, "v"),
            lambda: kv.transaction([wrong]),
            lambda: kv.transaction(then=[wrong]),
        ]
        for call in calls:
            with pytest.raises(UnexpectedArgumentError, match=f"not {type(wrong).__name__}"):
                call()
        with pytest.raises(UnexpectedArgumentError, match="index is a whole number"):
            Compare("k", index="3")
        if wrong is not None:
            with pytest.raises(UnexpectedArgumentError, match="id is bytes or str, not"):
                Transactions(client, "id", run_id=wrong)
        with pytest.raises(UnexpectedArgumentError, match="id is bytes or str, not"):
            Transactions(client, wrong)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
async def test_a_refused_send_changes_nothing(world, wrong):
    async with Producer(world.addresses, "g", **PLAIN) as producer:
        with pytest.raises(UnexpectedArgumentError, match=f"not {type(wrong).__name__}"):
            await producer.send(wrong)  # also as the first of all
        await producer.send(b"one")
        with pytest.raises(UnexpectedArgumentError):
            await producer.send(wrong)
        with pytest.raises(UnexpectedArgumentError):
            producer.send_nowait(wrong)
        with pytest.raises(UnexpectedArgumentError):
            await producer.send_batch([b"not", b"taken", wrong])
        with pytest.raises(UnexpectedArgumentError):
            await producer.send_batch(body for body in [b"two", wrong, b"never"])
        await producer.send(b"three")
    assert world.stored == [b"one", b"two", b"three"]


@pytest.mark.parametrize("channel", [-1, SYSTEM_CHANNEL, 1 << 32, "1", None, 1.5])
async def test_a_refused_channel_changes_nothing(world, channel):
    async with Producer(world.addresses, "g", **PLAIN) as producer:
        with pytest.raises(UnexpectedArgumentError, match="channel"):
            await producer.send_batch([b"x"], [channel])
        await producer.send(b"one")
        with pytest.raises(UnexpectedArgumentError, match="channel"):
            await producer.send_batch([b"x", b"y"], [1, channel])
        with pytest.raises(UnexpectedArgumentError, match="channel"):
            await producer.send_batch(iter([b"two", b"y"]), iter([1, channel]))
        with pytest.raises(UnexpectedArgumentError, match="1 channel for 2 bodies"):
            await producer.send_batch([b"x", b"y"], [1])
        await producer.send(b"three")
    assert world.stored == [b"one", b"two", b"three"]


# -- buffers that are used again -------------------------------------------------------------------


def contents(count=5):
    return [b"content %d" % number for number in range(count)]


def used_again(count=5):
    """Yield one buffer with another content each time."""
    buffer = bytearray(len(contents()[0]))
    for content in contents(count):
        buffer[:] = content
        yield buffer
    buffer[:] = b"overwritten"[: len(buffer)]


async def test_appends_of_one_buffer_append_its_content_at_each_call(world):
    async with Client(world.addresses, "g") as client:
        await asyncio.gather(*[client.append(buffer) for buffer in used_again()])
        assert world.stored == contents()


async def test_batches_of_one_buffer_append_its_content_at_each_call(world):
    async with Client(world.addresses, "g") as client:
        calls = [client.append_batch([buffer]) for buffer in used_again()]
        for call in calls:
            await call
        assert world.stored == contents()
        await client.append_batch(used_again())
        assert world.stored == contents() * 2


@pytest.mark.parametrize("start", ["execute", "execute_batch"])
async def test_commands_of_one_buffer_are_sent_as_they_were(world, monkeypatch, start):
    async with Client(world.addresses, "g", timeout_ms=200) as client:
        sent = []

        async def executed(session, commands, timeout_ms):
            sent.extend(commands)
            return [None] * len(commands)

        monkeypatch.setattr(client.machine, "_execute_in", executed)
        if start == "execute":
            await asyncio.gather(*[client.execute(buffer) for buffer in used_again()])
        else:
            calls = [client.machine.execute_batch([buffer]) for buffer in used_again()]
            await asyncio.gather(*calls)
        assert sorted(sent) == contents()


async def test_sends_of_one_buffer_append_its_content_at_each_call(world):
    async with Producer(world.addresses, "g", **PLAIN) as producer:
        for call in [producer.send(buffer) for buffer in used_again()]:
            await call
        for buffer in used_again():
            producer.send_nowait(buffer)
        await producer.send_batch(used_again())
        calls = [producer.send_batch([buffer]) for buffer in used_again()]
        for call in calls:
            await call
    assert world.stored == contents() * 4


async def test_sends_of_one_buffer_from_a_script_append_its_content_at_each_call(world):
    def script():
        with SyncProducer(world.addresses, "g", **PLAIN) as producer:
            for buffer in used_again():
                producer.send(buffer)
            for buffer in used_again():
                producer.send(memoryview(buffer))
            for buffer in used_again():
                producer.send_batch([np.frombuffer(buffer, dtype=np.uint8)])
        with SyncClient(world.addresses, "g") as client:
            for buffer in used_again():
                client.append(buffer)

    await asyncio.to_thread(script)
    assert world.stored == contents() * 4


def commands_of(monkeypatch, kv):
    """Return the list of transactions that a KV will send."""
    sent = []

    async def transaction(command):
        sent.append(kv_commands.decode_command(command))

    monkeypatch.setattr(kv, "_transaction", transaction)
    return sent


async def test_operations_of_one_buffer_keep_its_content(monkeypatch):
    async with Client("127.0.0.1:1", "g") as client:
        kv = KV(client)
        sent = commands_of(monkeypatch, kv)
        puts = [Put("key", buffer) for buffer in used_again()]
        compares = [Compare(buffer, memoryview(buffer)) for buffer in used_again()]
        deletes = [Delete(buffer) for buffer in used_again()]
        await kv.transaction(compares, puts, deletes)
        (command,) = sent
        assert [put.value for put in command.then] == contents()
        assert [compare.key for compare in command.compares] == contents()
        assert [compare.value for compare in command.compares] == contents()
        assert [delete.key for delete in command.otherwise] == contents()


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option",
    [
        {"timeout_ms": "5"},
        {"timeout_ms": None},
        {"timeout_ms": -1},
        {"timeout_ms": 0},
        {"timeout_ms": True},
        {"timeout_ms": float("nan")},
        {"timeout_ms": float("inf")},
        {"timeout_ms": 10**13},
        {"cluster": 5},
        {"retry_unknown": 1},
        {"retry_unknown": "no"},
        {"limits": {}},
        {"group": None},
        {"group": 5},
        {"group": b"g"},
        {"group": "a/b"},
        {"servers": 5},
        {"servers": None},
        {"servers": b"127.0.0.1:1"},
        {"servers": ["127.0.0.1:1", 5]},
        {"servers": {}},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [Client, SyncClient, SyncKV])
def test_a_wrong_option_of_a_client_is_refused_and_named(kind, option):
    (name,) = option
    with pytest.raises(ConfigError, match=name):
        kind(
            **{"client" if kind is SyncKV and name == "servers" else name: option[name]},
            **({} if name == "servers" else {"client" if kind is SyncKV else "servers": "h:1"}),
        )


@pytest.mark.parametrize(
    "option",
    [
        {"batch_bytes": "5"},
        {"batch_bytes": True},
        {"batch_bytes": -1},
        {"buffer_bytes": None},
        {"buffer_bytes": 1.5},
        {"linger_ms": "5"},
        {"linger_ms": -1},
        {"linger_ms": float("nan")},
        {"in_flight_blocks": 0},
        {"in_flight_blocks": -1},
        {"in_flight_blocks": "8"},
        {"request_timeout_ms": 0},
        {"request_timeout_ms": "5"},
        {"delivery_timeout_ms": -5},
        {"delivery_timeout_ms": "5"},
        {"delivery_timeout_ms": float("inf")},
        {"retry_unknown": None},
        {"channel": -1},
        {"channel": SYSTEM_CHANNEL},
        {"channel": "1"},
        {"idempotent": "yes"},
        {"producer_id": "1"},
        {"producer_id": -1},
        {"epoch": 1 << 32},
        {"epoch": None},
        {"part": "a"},
        {"part": TransactionPart(b"short", 0, 0, 0)},
        {"part": TransactionPart(bytes(16), 0, -1, 0)},
        {"group": None},
        {"group": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [Producer, SyncProducer])
def test_a_wrong_option_of_a_producer_is_refused_and_named(kind, option):
    (name,) = option
    said = "transactional id|batch_id|part" if name == "part" else name
    with pytest.raises(ConfigError, match=said):
        kind("h:1", **option)


@pytest.mark.parametrize("kind", [Client, SyncClient, SyncKV, Producer, SyncProducer])
def test_an_unknown_option_is_refused_and_named(kind):
    with pytest.raises(TypeError, match="deadline_ms"):
        kind("h:1", deadline_ms=5)


async def test_a_producer_of_a_client_is_of_its_group():
    async with Client("h:1", "g") as client:
        Producer(client, "g")
        for other in ("other", None):
            with pytest.raises(ConfigError, match="group"):
                Producer(client, other)
        for timeout_ms in (-1, 0, "5", 1 << 32, True, None):
            with pytest.raises(ConfigError, match="timeout_ms"):
                Transactions(client, "id", timeout_ms=timeout_ms)
    with pytest.raises(ConfigError, match="client"):
        Transactions("h:1", "id")


@pytest.mark.parametrize("timeout_ms", ["5", -1, float("nan"), True, [5]])
async def test_a_wrong_timeout_of_a_call_is_refused_with_nothing_sent(world, timeout_ms):
    async with Client(world.addresses, "g") as client:
        for call in (
            client.append(b"x", timeout_ms=timeout_ms),
            client.append_batch([b"x"], timeout_ms=timeout_ms),
            client.execute(b"x", timeout_ms=timeout_ms),
            client.query(b"x", timeout_ms=timeout_ms),
            client.get(0, timeout_ms=timeout_ms),
        ):
            with pytest.raises(UnexpectedArgumentError, match="timeout_ms"):
                await call
    assert world.requests == 0


def test_keys_and_values_for_scripts_end_with_their_block():
    with SyncKV("127.0.0.1:1", "g", timeout_ms=5) as kv:
        pass
    with pytest.raises(Exception, match="closed"):
        kv.get("k")
    with SyncClient("127.0.0.1:1", "g", timeout_ms=5) as client:
        with SyncKV(client):
            pass
        assert client.asynchronous.limits == Limits()
        with pytest.raises(RequestError) as caught:
            client.metadata()
        assert "closed" not in str(caught.value)  # it is the caller's
        with pytest.raises(ConfigError, match="group 'g'"):
            SyncKV(client, "other")
        with pytest.raises(ConfigError, match="options"):
            SyncKV(client, timeout_ms=5)
