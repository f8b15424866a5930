"""Names of hosts that a name server answers slowly, or never: nobody else waits for it."""

import asyncio
import socket
import threading

import pytest

from quorumlog.client import Client
from quorumlog.client.connection import ServerConnection
from quorumlog.model.errors import NetworkError
from quorumlog.model.limits import Limits
from quorumlog.transport import resolver as transport_resolver
from quorumlog.transport.resolver import NAMES_MAX, Resolver, connect_to, literal
from scripted_cluster import SOON_S, World, passed, soon

NO_THREAD = RuntimeError("can't start new thread")
LOOPBACK = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))


class Names:
    """`socket.getaddrinfo`: names that are known, and those that hang until `answer` is set."""

    def __init__(self):
        self.known = {"here": [LOOPBACK]}
        self.asked = []
        self.answer = threading.Event()

    def __call__(self, host, port, **_):
        self.asked.append(host)
        if host not in self.known and not self.answer.wait(SOON_S):
            raise AssertionError(f"{host} was never answered")
        if host not in self.known:
            raise socket.gaierror(f"{host} is unknown")
        return self.known[host]


@pytest.fixture
def names(monkeypatch):
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    yield made
    made.answer.set()


@pytest.fixture
async def world():
    made = World("n0", "n1", "n2")
    made.stored = [b"0"]
    await made.start()
    yield made
    await made.stop()


async def test_addresses_are_not_looked_up(names):
    assert await Resolver().resolve("127.0.0.1", 7) == [(socket.AF_INET, ("127.0.0.1", 7))]
    assert literal("::1", 7) == [(socket.AF_INET6, ("::1", 7))]
    assert names.asked == []


async def test_a_name_is_looked_up_once_at_a_time_and_its_last_addresses_are_kept(names):
    resolver = Resolver()
    with pytest.raises(TimeoutError):
        await resolver.resolve("slow", 7, 0.01)
    again = asyncio.ensure_future(resolver.resolve("slow", 7))
    names.known["slow"] = [LOOPBACK]
    names.answer.set()
    assert await soon(again) == [(socket.AF_INET, ("127.0.0.1", 7))]
    assert names.asked == ["slow"]
    names.answer.clear()
    del names.known["slow"]
    assert await soon(resolver.resolve("slow", 8, 0.01)) == [(socket.AF_INET, ("127.0.0.1", 8))]


async def test_what_comes_after_everybody_has_left_is_remembered(names):
    resolver = Resolver()
    with pytest.raises(TimeoutError):
        await resolver.resolve("slow", 7, 0.01)
    names.known["slow"] = [LOOPBACK]
    names.answer.set()
    await passed(lambda: "slow" in resolver._known)
    assert not resolver._looking


async def test_no_more_than_so_many_names_are_looked_up(names):
    resolver = Resolver()
    looking = [
        asyncio.ensure_future(resolver.resolve(f"slow{number}", 7)) for number in range(NAMES_MAX)
    ]
    await passed(lambda: len(names.asked) == NAMES_MAX)
    with pytest.raises(OSError, match="64 other names"):
        await resolver.resolve("one more", 7)
    names.answer.set()
    failed = await asyncio.gather(*looking, return_exceptions=True)
    assert all(isinstance(error, socket.gaierror) for error in failed)


async def test_a_name_that_no_thread_was_there_for_is_looked_up_when_there_is_one(
    names, monkeypatch
):
    resolver = Resolver()
    with monkeypatch.context() as limited:
        limited.setattr(transport_resolver, "_threads", transport_resolver._Threads())
        limited.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(NO_THREAD))
        with pytest.raises(OSError, match="here: no thread to look it up: can't start new thread"):
            await resolver.resolve("here", 7, SOON_S)
    assert await soon(resolver.resolve("here", 7)) == [(socket.AF_INET, ("127.0.0.1", 7))]


async def test_a_thread_that_has_ended_a_lookup_does_the_next(names, monkeypatch):
    """The loop would wait for each new thread, and longer on a busy machine."""
    threads = transport_resolver._Threads()
    monkeypatch.setattr(transport_resolver, "_threads", threads)
    on = []
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: on.append(threading.get_ident()) or [LOOPBACK]
    )
    for number in range(10):
        await soon(Resolver().resolve(f"host{number}", 7))
        await passed(lambda: threads._idle == 1)
    assert len(on) == 10
    assert len(set(on)) == 1


async def test_so_many_threads_wait_for_lookups_and_no_more(names, monkeypatch):
    threads = transport_resolver._Threads()
    monkeypatch.setattr(transport_resolver, "_threads", threads)
    asked = [asyncio.ensure_future(Resolver().resolve(f"slow{n}", 7)) for n in range(20)]
    await passed(lambda: len(names.asked) == 20)
    names.answer.set()
    await asyncio.gather(*asked, return_exceptions=True)
    await passed(lambda: threads._idle == transport_resolver.IDLE_THREADS_MAX)


async def test_a_forked_child_looks_names_up_on_threads_of_its_own(names, monkeypatch):
    await soon(Resolver().resolve("here", 7))
    before = transport_resolver._threads
    monkeypatch.setattr(before, "pid", before.pid - 1)  # as in a child
    await soon(Resolver().resolve("here", 7))
    assert transport_resolver._threads is not before


async def test_of_the_names_that_are_remembered_the_oldest_is_forgotten(names, monkeypatch):
    monkeypatch.setattr("quorumlog.transport.resolver.KNOWN_MAX", 2)
    resolver = Resolver()
    for name in ("here", "there", "here", "elsewhere"):
        names.known[name] = [LOOPBACK]
        await soon(resolver.resolve(name, 7))
    assert list(resolver._known) == ["here", "elsewhere"]


async def test_the_next_address_is_tried(world):
    host, port = world.servers["n0"].address.split(":")
    nobody = socket.socket()  # bound, but nobody listens
    nobody.bind(("127.0.0.1", 0))
    found = [(socket.AF_INET, nobody.getsockname()), (socket.AF_INET, (host, int(port)))]
    transport, _ = await soon(connect_to(found, asyncio.Protocol))
    assert transport.get_extra_info("peername")[1] == int(port)
    transport.close()
    with pytest.raises(ConnectionRefusedError):
        await soon(connect_to(found[:1], asyncio.Protocol))
    nobody.close()


# -- of a client ----------------------------------------------------------------------------------


async def test_servers_whose_names_hang_hold_up_neither_the_others_nor_the_end(world, names):
    """As many as the loop, or its executor, has threads for names, and more."""
    hanging = [f"slow{number}:7101" for number in range(40)]
    async with Client([*hanging, *world.addresses.split(",")], "g", timeout_ms=60_000) as client:
        assert (await soon(client.get(0))).body == b"0"
    # an executor's threads are waited for when the loop ends, and when the process does
    holding = [thread for thread in threading.enumerate() if thread.name.startswith("asyncio_")]
    assert holding == []
    await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), SOON_S)


async def test_a_server_by_name_is_found_again_while_names_are_not_answered(world, names):
    port = world.servers["n0"].address.split(":")[1]
    resolver = Resolver()
    for _ in range(2):  # the second time nobody answers for the name
        connection = ServerConnection(f"here:{port}", "", Limits(), group="g")
        await soon(connection.open(1.0, resolver))
        connection.close()
        names.known.clear()
    connection = ServerConnection(f"slow:{port}", "", Limits(), group="g")
    with pytest.raises(NetworkError, match=r"cannot connect to slow:.*no answer in time"):
        await soon(connection.open(0.1, resolver))
