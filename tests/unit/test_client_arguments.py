"""Wrong arguments are refused by the call itself, in words, with nothing sent."""

import pytest

from quorumlog.client import (
    KV,
    Client,
    Producer,
    ProducerEpoch,
    SyncClient,
    SyncKV,
    SyncProducer,
    Transactions,
)
from quorumlog.client.buffers import as_bytes
from quorumlog.model.errors import ConfigError, Outcome, UnexpectedArgumentError

HUGE = 10**5000
NUMBERS = [-2, 1 << 63, 1 << 64, -(1 << 70), HUGE, "0", 1.5, None, True, b"0"]
FLAGS = [None, 1, "yes"]
ISOLATIONS = ["x", None, "", 1, ["read_committed"]]
NAMES = [None, 5, "", "x" * 129, "\ud800", b"n0"]
LISTS = [None, 5, "text", b"text"]


def cases(calls):
    """Return (argument, wrong value, call) of a table (argument, wrong values, call)."""
    return [
        pytest.param(name, value, call, id=f"{name}-{type(value).__name__}")
        for name, values, call in calls
        for value in values
    ]


READS = [
    ("start", ["x", "", None, 1.5, -1, 1 << 64, True], lambda c, x: c.read(x, follow=False)),
    ("end", ["x", -2, 1 << 64, 1.5, True], lambda c, x: c.read(0, end=x)),
    ("follow", FLAGS, lambda c, x: c.read(0, follow=x)),
    ("include_all", FLAGS, lambda c, x: c.read(0, include_all=x)),
    ("leader_only", FLAGS, lambda c, x: c.read(0, leader_only=x)),
    ("isolation", ISOLATIONS, lambda c, x: c.read(0, isolation=x)),
    ("index", [*NUMBERS, -1], lambda c, x: c.get(x)),
    ("leader_only", FLAGS, lambda c, x: c.get(0, leader_only=x)),
    ("isolation", ISOLATIONS, lambda c, x: c.bounds(isolation=x)),
    ("leader_only", FLAGS, lambda c, x: c.bounds(leader_only=x)),
    ("begin_index", NUMBERS, lambda c, x: c.fetch(x)),
    ("end_index", NUMBERS, lambda c, x: c.fetch(0, x)),
    ("bytes_max", [*NUMBERS, 0], lambda c, x: c.fetch(0, bytes_max=x)),
    ("wait_ms", NUMBERS, lambda c, x: c.fetch(0, wait_ms=x)),
    ("leader_only", FLAGS, lambda c, x: c.fetch(0, leader_only=x)),
    ("linearizable", FLAGS, lambda c, x: c.fetch(0, linearizable=x)),
    ("index_records", FLAGS, lambda c, x: c.fetch(0, index_records=x)),
    ("headers_only", FLAGS, lambda c, x: c.fetch(0, headers_only=x)),
    ("isolation", ISOLATIONS, lambda c, x: c.fetch(0, isolation=x)),
    ("machine", [None, 5, "x" * 1025], lambda c, x: c.fetch(0, machine=x)),
    ("linearizable", FLAGS, lambda c, x: c.query(b"?", linearizable=x)),
]
ADMIN = [
    ("node_id", NAMES[1:], lambda a, x: a.transfer(x)),
    ("term", NUMBERS, lambda a, x: a.transfer("n1", term=x)),
    ("node_id", NAMES, lambda a, x: a.add_member(x, "127.0.0.1:1")),
    ("address", [None, "", "nowhere", 5], lambda a, x: a.add_member("n1", x)),
    ("learner", FLAGS, lambda a, x: a.add_member("n1", "127.0.0.1:1", learner=x)),
    ("node_id", NAMES, lambda a, x: a.promote_member(x)),
    ("node_id", NAMES, lambda a, x: a.remove_member(x)),
    ("node_id", NAMES, lambda a, x: a.wait_until_voter(x, timeout_s=1)),
    ("timeout_s", [None, "1", -1, True, HUGE], lambda a, x: a.wait_until_voter("n", timeout_s=x)),
]
KEYS = [
    ("limit", ["x", 0, -1, 1 << 70, 1.5, True], lambda kv, x: kv.scan(limit=x)),
    ("reverse", FLAGS, lambda kv, x: kv.scan(reverse=x)),
    ("linearizable", FLAGS, lambda kv, x: kv.scan(linearizable=x)),
    ("linearizable", FLAGS, lambda kv, x: kv.get("k", linearizable=x)),
    ("linearizable", FLAGS, lambda kv, x: kv.get_with_index("k", linearizable=x)),
    ("first_index", ["x", -1, 1 << 70, 1.5, True], lambda kv, x: kv.watch("", x)),
    ("compares", LISTS, lambda kv, x: kv.transaction(x)),
    ("then", LISTS, lambda kv, x: kv.transaction([], x)),
    ("otherwise", LISTS, lambda kv, x: kv.transaction(otherwise=x)),
]
TRANSACTIONS = [
    ("producer_epoch", [None, 5], lambda t, x: t.producer(x, 0, 0)),
    ("producer_epoch", [None, 5], lambda t, x: t.part(x, 0, 0)),
    ("accepted", [*LISTS, [None], ["a"]], lambda t, x: t.commit(1, 0, x)),
]


def refused(name, call):
    with pytest.raises(UnexpectedArgumentError, match=f"^{name} is ") as caught:
        call()  # neither awaited nor iterated
    assert caught.value.outcome is Outcome.DID_NOT_HAPPEN
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("name", "value", "call"), cases(READS))
async def test_what_no_read_can_be_asked_for_is_refused(world, name, value, call):
    async with Client(world.addresses, "g") as client:
        refused(name, lambda: call(client, value))
    assert world.requests == 0


@pytest.mark.parametrize(("name", "value", "call"), cases(READS))
def test_scripts_are_refused_alike(name, value, call):
    with SyncClient("127.0.0.1:1", "g") as client:
        refused(name, lambda: call(client, value))


@pytest.mark.parametrize(("name", "value", "call"), cases(ADMIN))
async def test_what_no_operator_can_ask_for_is_refused(name, value, call):
    async with Client("127.0.0.1:1", "g") as client:
        refused(name, lambda: call(client.admin, value))


@pytest.mark.parametrize(("name", "value", "call"), cases(KEYS))
async def test_what_no_keys_can_be_asked_for_is_refused(name, value, call):
    async with Client("127.0.0.1:1", "g") as client:
        refused(name, lambda: call(KV(client), value))


@pytest.mark.parametrize(("name", "value", "call"), cases(KEYS))
def test_scripts_that_ask_for_keys_are_refused_alike(name, value, call):
    with SyncKV("127.0.0.1:1", "g") as kv:
        refused(name, lambda: call(kv, value))


@pytest.mark.parametrize(("name", "value", "call"), cases(TRANSACTIONS))
async def test_what_no_transaction_has_is_refused(name, value, call):
    async with Client("127.0.0.1:1", "g") as client:
        refused(name, lambda: call(Transactions(client, "id"), value))


async def test_what_is_right_is_taken():
    async with Client("127.0.0.1:1", "g", timeout_ms=50) as client:
        client.read("latest", end=-1, follow=False, isolation="read_uncommitted")
        client.read((1 << 63) - 2)
        KV(client).scan(limit=1)
        KV(client).watch("", 0)
        Transactions(client, "id").part(ProducerEpoch(1, -1), 0, 0)
        client.admin.wait_until_voter("n0", timeout_s=0.5).close()


@pytest.mark.parametrize("timeout_ms", [HUGE, float("nan"), -HUGE], ids=["long", "nan", "below"])
def test_a_time_beyond_all_numbers_is_refused(timeout_ms):
    with pytest.raises(ConfigError, match="timeout_ms"):
        Client("127.0.0.1:1", "g", timeout_ms=timeout_ms)


# -- producers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [{"producer_id": 5}, {"epoch": 1}], ids=str)
@pytest.mark.parametrize("kind", [Producer, SyncProducer])
def test_an_id_that_nothing_would_bear_is_refused(kind, option):
    with pytest.raises(ConfigError, match="idempotent=False"):
        kind("h:1", idempotent=False, **option)


async def test_truth_values_are_no_channels(world):
    async with Producer(world.addresses, "g", idempotent=False) as producer:
        with pytest.raises(UnexpectedArgumentError, match="channels are whole numbers: not True"):
            await producer.send_batch([b"a", b"b"], [True, 2])
        with pytest.raises(UnexpectedArgumentError, match="channel"):
            await producer.send_batch(iter([b"a"]), iter([True]))
    assert world.stored == []


class Liar(bytes):
    """Bytes that say another length than they have."""

    def __len__(self):
        return 2


async def test_bytes_of_a_class_of_the_users_are_copied_as_they_are(world):
    assert type(as_bytes("body", Liar(b"right"))) is bytes
    async with Client(world.addresses, "g") as client:
        await client.append(Liar(b"right"))
    assert world.stored == [b"right"]
