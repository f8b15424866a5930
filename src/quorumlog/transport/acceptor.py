"""Accepting connections on one port, however many come and whatever is short.

Connections are accepted here and not by the event loop's server. When no file descriptor is free,
that one gives up, or tries again without a pause; and it cannot bound the number of connections.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from quorumlog.auth.hosts import host_of
from quorumlog.log_events import log_event, reason_of
from quorumlog.model.config import host_port
from quorumlog.model.errors import ConfigError
from quorumlog.transport.resolver import Resolver
from quorumlog.transport.strangers import WAITING_SHARE, Strangers
from quorumlog.transport.stream import TransportCounters

logger = logging.getLogger(__name__)

BACKLOG = 1_024
ACCEPTS_PER_TURN = 2
"""Connections accepted in one turn of the loop."""
ACCEPT_PAUSE_MIN_S = 0.05
ACCEPT_PAUSE_MAX_S = 1.0
"""Pauses while a connection cannot be accepted, as no descriptor or no memory is there."""


class Acceptor:
    """Listens at an address; `make` makes the protocol of each connection that is accepted.

    `has_room` says whether there is room for one more, besides those that are being `set_up`; if
    there is none, it is closed. `counters` count both. `strangers`: how many of a host may not have
    said who they are; more wait. `places`: how many connections there may be on this port, of which
    those that wait take a part.
    """

    def __init__(
        self,
        host: str,
        port: int,
        has_room: Callable[[], bool],
        make: Callable[[], asyncio.BaseProtocol],
        counters: TransportCounters,
        strangers: Callable[[], Strangers],
        places: Callable[[], int],
    ) -> None:
        self._host = host
        self.port = port
        self._has_room = has_room
        self._make = make
        self._counters = counters
        self._strangers = strangers
        self._places = places
        self._sockets: list[socket.socket] = []
        self._is_stopped = False
        self._setting_up: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, dict[asyncio.Future[None], str]] = {}
        """By host, the oldest first: those that wait for their turn, and their addresses."""
        self._pause_s = ACCEPT_PAUSE_MIN_S

    @property
    def is_listening(self) -> bool:
        """Whether connections are accepted."""
        return bool(self._sockets)

    @property
    def set_up(self) -> int:
        """How many connections were accepted whose protocol does not know of them yet."""
        return len(self._setting_up)

    def end_waiting(self) -> bool:
        """End one that waits for its turn, the last one of the host that has most; if there is any.

        Nothing was read of it: it makes room before those that could say something.
        """
        while self._waiting:
            host = max(self._waiting, key=lambda one: len(self._waiting[one]))
            turn = next(reversed(self._waiting[host]))
            address = self._waiting[host][turn]
            self._waits_no_more(address, turn)
            if self._strangers().turn_away(address, turn):
                return True
        return False

    def _waits_no_more(self, address: str, turn: "asyncio.Future[None]") -> None:
        host = host_of(address)
        of_host = self._waiting.get(host, {})
        of_host.pop(turn, None)
        if not of_host:
            self._waiting.pop(host, None)

    async def start(self) -> None:
        """Start to listen; `port` is then the port. Raises `ConfigError` if that cannot be.

        It listens nowhere if it was stopped meanwhile, as looking up the host takes a while.
        """
        try:
            found = await Resolver().resolve(self._host, self.port)
            if self._is_stopped:
                return
            for family, address in found:
                self._sockets.append(_listening(family, address))
                if not self.port:
                    break  # another family would have another port
        except OSError as error:
            self.close()
            raise ConfigError(
                f"cannot listen on {host_port(self._host, self.port)}: {reason_of(error)}"
            ) from error
        self.port = self._sockets[0].getsockname()[1]
        self._listen()

    def close(self) -> None:
        """Listen no more."""
        loop = asyncio.get_running_loop()
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            loop.remove_reader(one)
            one.close()

    def stop(self) -> None:
        """Listen no more, and give up connections that are being set up."""
        self._is_stopped = True
        self.close()
        for task in self._setting_up:
            task.cancel()

    def _listen(self) -> None:
        for one in self._sockets:
            asyncio.get_running_loop().add_reader(one, self._accept, one)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._accept_later(error)
                return
            self._pause_s = ACCEPT_PAUSE_MIN_S
            self._counters.accepted += 1
            if not self._has_room():
                self._counters.refused_places += 1
                accepted.close()
                continue
            place = self._strangers().place(address[0])
            if place is False:
                accepted.close()
            elif place is True:
                self._set_up(accepted, address[0], None)
            else:
                self._wait(address[0], place)
                self._set_up(accepted, address[0], place)

    def _accept_later(self, error: OSError) -> None:
        """Stop accepting for a while, as descriptors or memory are short; the backlog waits."""
        if self._pause_s == ACCEPT_PAUSE_MIN_S:
            log_event(
                logger, logging.WARNING, "cannot accept connections now", reason=reason_of(error)
            )
        self._counters.accept_failures += 1
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            loop.remove_reader(one)
        loop.call_later(self._pause_s, self._listen)
        self._pause_s = min(ACCEPT_PAUSE_MAX_S, 2 * self._pause_s)

    def _wait(self, address: str, turn: "asyncio.Future[None]") -> None:
        """Note that somebody waits; if need be, another one is ended."""
        if sum(map(len, self._waiting.values())) >= max(1, self._places() // WAITING_SHARE):
            self.end_waiting()
        self._waiting.setdefault(host_of(address), {})[turn] = address

    def _set_up(
        self, accepted: socket.socket, address: str, turn: asyncio.Future[None] | None
    ) -> None:
        accepted.setblocking(False)
        with suppress(OSError):  # closed already: connection_lost follows
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.get_running_loop().create_task(self._connect(accepted, address, turn))
        self._setting_up.add(task)
        task.add_done_callback(self._setting_up.discard)

    async def _connect(
        self, accepted: socket.socket, address: str, turn: asyncio.Future[None] | None
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            if turn is not None:
                try:
                    await turn
                finally:
                    self._waits_no_more(address, turn)
            try:
                await loop.connect_accepted_socket(self._make, accepted)
            finally:
                self._strangers().done(address)
        except BaseException as error:
            accepted.close()
            if not isinstance(error, OSError):
                raise


def _listening(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(address)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made
