"""Looks up names of hosts on threads of its own, each name on one thread at a time.

A lookup may hang for as long as a name server does not answer. On the loop's own threads a few such
lookups would keep all others waiting, and each new attempt would occupy one more thread. A thread
that has ended its lookup is kept for the next: the loop stands still until a new one has started.
"""

import asyncio
import ipaddress
import logging
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Final, TypeAlias, TypeVar, cast

from quorumlog.log_events import log_event, reason_of
from quorumlog.transport.tls import OutgoingTls, SecuredProtocol
from quorumlog.transport.tls_layer import TlsLayer

logger = logging.getLogger(__name__)

P = TypeVar("P", bound=asyncio.BaseProtocol)
Found: TypeAlias = list[tuple[socket.AddressFamily, tuple[str, int]]]

NAMES_MAX = 64
"""Names that are looked up at a time; more fail at once."""
KNOWN_MAX = 1_024
"""Names whose addresses are remembered; the one that was looked up longest ago is forgotten."""

IDLE_THREADS_MAX: Final = 8
"""Threads without a lookup that are kept, for all loops of the process."""


class _Threads:
    """Threads that run one call after the other, as many at a time as there are calls.

    They are daemons: a call that hangs holds up no end of the process. `pid` is the process that
    has them: a forked child has none of them.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    def run(self, call: Callable[[], None]) -> None:
        """Run a call that raises nothing. Raises `RuntimeError` if there is no thread for it."""
        with self._lock:
            is_one_idle = self._idle > 0
            self._idle -= is_one_idle
        if is_one_idle:
            self._calls.put(call)
        else:
            threading.Thread(
                target=self._work, args=(call,), name="quorumlog-name", daemon=True
            ).start()

    def _work(self, call: Callable[[], None]) -> None:
        while True:
            call()
            del call  # and what it refers to
            with self._lock:
                if self._idle >= IDLE_THREADS_MAX:
                    return
                self._idle += 1
            call = self._calls.get()


_threads = _Threads()


def _run_on_a_thread(call: Callable[[], None]) -> None:
    global _threads  # noqa: PLW0603  (a forked child has threads of its own)
    if _threads.pid != os.getpid():
        _threads = _Threads()
    _threads.run(call)


def literal(host: str, port: int) -> Found | None:
    """Return the address that a host is, if it is one and no name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    return [(family, (host, port))]


class Resolver:
    """Looks names up, and remembers what was found last. For one loop."""

    def __init__(self) -> None:
        self._looking: dict[str, asyncio.Future[Found]] = {}
        self._known: dict[str, Found] = {}

    async def resolve(self, host: str, port: int, timeout_s: float | None = None) -> Found:
        """Return the addresses of a host; those known from before if no answer comes in time.

        Raises `OSError` (`TimeoutError` is one) when there are none.
        """
        found = literal(host, port)
        if found is None:
            try:
                async with asyncio.timeout(timeout_s):
                    found = await asyncio.shield(self._look_up(host))
            except OSError:
                if host not in self._known:
                    raise
                found = self._known[host]
        return [(family, (address[0], port)) for family, address in found]

    def _look_up(self, host: str) -> "asyncio.Future[Found]":
        looking = self._looking.get(host)
        if looking is None:
            if len(self._looking) >= NAMES_MAX:
                raise OSError(f"{host}: {NAMES_MAX} other names are being looked up")
            loop = asyncio.get_running_loop()
            looking = loop.create_future()
            try:
                _run_on_a_thread(partial(_work, loop, looking, host))
            except RuntimeError as error:  # the system allows no further thread for now
                raise OSError(f"{host}: no thread to look it up: {error}") from error
            self._looking[host] = looking
            looking.add_done_callback(lambda done: self._looked_up(host, done))
        return looking

    def _looked_up(self, host: str, done: "asyncio.Future[Found]") -> None:
        del self._looking[host]
        if not done.cancelled() and done.exception() is None:  # nobody may be waiting any more
            self._known.pop(host, None)
            self._known[host] = done.result()
            if len(self._known) > KNOWN_MAX:
                del self._known[next(iter(self._known))]


async def connect_to(
    found: Found, make: Callable[[], P], tls: OutgoingTls | None = None
) -> tuple[asyncio.Transport, P]:
    """Connect to the first of some addresses that can be reached. Raises `OSError`.

    `tls`: the protocol that `make` makes is told when the connection is encrypted; otherwise at
    once. What is returned is the transport of the socket.
    """
    for _, (address, port) in found[:-1]:
        try:
            return await _connect(address, port, make, tls)
        except OSError as error:
            where = f"{address}:{port}"
            log_event(logger, logging.DEBUG, "cannot reach", address=where, reason=reason_of(error))
    address, port = found[-1][1]
    return await _connect(address, port, make, tls)


async def _connect(
    address: str, port: int, make: Callable[[], P], tls: OutgoingTls | None
) -> tuple[asyncio.Transport, P]:
    loop = asyncio.get_running_loop()
    if tls is None:
        return await loop.create_connection(make, address, port)
    made: list[P] = []

    def make_layer() -> TlsLayer:
        made.append(make())
        return TlsLayer(cast(SecuredProtocol, made[0]), tls)

    transport, _ = await loop.create_connection(make_layer, address, port)
    return transport, made[0]


def _work(loop: asyncio.AbstractEventLoop, looking: "asyncio.Future[Found]", host: str) -> None:
    found: Found = []
    error: OSError | None = None
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            found.append((family, (str(address[0]), 0)))
        if not found:
            error = OSError(f"{host} has no address")
    except (OSError, UnicodeError) as failed:
        error = failed if isinstance(failed, OSError) else OSError(f"{host}: {failed}")

    def bring_back() -> None:
        if looking.done():
            return
        if error is not None:
            looking.set_exception(error)
        else:
            looking.set_result(list(dict.fromkeys(found)))

    try:
        loop.call_soon_threadsafe(bring_back)
    except RuntimeError:
        return  # the loop was closed meanwhile
