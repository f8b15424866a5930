"""Who leads: the servers known, the connections to them, and where to ask next."""

import asyncio
import random
import weakref
from collections import deque
from collections.abc import Awaitable, Callable

from quorumlog.client.connection import Answer, ServerConnection
from quorumlog.client.process import MakingProcess
from quorumlog.model.errors import (
    NetworkError,
    NoLeaderError,
    Outcome,
    RequestError,
    UnknownGroupError,
    WrongClusterError,
    error_for,
)
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.client import (
    GroupIdentity,
    GroupMetadata,
    MetadataRequest,
    MetadataResponse,
)
from quorumlog.transport.resolver import Resolver

CONNECT_TIMEOUT_S = 1.5
METADATA_TIMEOUT_S = 1.5
MEMBERS_MAX = 1_024
ASKED_MAX = 16
"""So many servers are asked for the leader at the same time."""
ASK_NEXT_S = 0.05
"""One that has not answered after so long has the next one asked as well."""
ASK_AGAIN_S = 0.1
"""Pause before a server that named no leader is asked again, while others have yet to answer."""
CHECK_S = 0.5
"""How long the others are asked whether a silent leader still leads; the next look asks anew."""
SUSPECTS_MAX = 16
REFUSED_S = 1.0
"""How long a server of another cluster is not connected to again, but refused as it was before."""
REFUSED_MAX = 64


class _LeaderDiscovery:
    """One search for the leader, which ends when somebody names it or everybody has answered.

    Those that named none are asked again as long as others have not answered: a server that says
    nothing holds up nobody. `accept` judges an answer: "" if that is the leader, else why not.
    """

    def __init__(
        self,
        ask: Callable[[str], Awaitable[GroupMetadata]],
        accept: Callable[[GroupMetadata], str],
        candidates: list[str],
    ) -> None:
        self._ask = ask
        self._accept = accept
        self._candidates = deque(candidates)
        self._unheard = set(candidates)
        self._refusal: UnknownGroupError | WrongClusterError | None = None
        self._is_known = False
        self.said: dict[str, str] = {}

    @property
    def refusal(self) -> UnknownGroupError | WrongClusterError | None:
        """What to raise if none of those that answered hosts the group, or this one."""
        return None if self._is_known else self._refusal

    async def run(self, *, next_s: float) -> GroupMetadata | None:
        """Return the answer that was accepted, or None; see `said` for the others.

        The first server is asked at once, one more every `next_s`, or when one has answered.
        """
        count = min(ASKED_MAX, len(self._candidates))
        workers = [asyncio.create_task(self._work(number * next_s)) for number in range(count)]
        try:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return next(filter(None, [worker.result() for worker in done]), None)

    async def _work(self, delay_s: float) -> GroupMetadata | None:
        await asyncio.sleep(delay_s)
        while self._unheard:
            address = self._candidates.popleft()
            if address not in self._unheard:
                await asyncio.sleep(ASK_AGAIN_S)
            found = await self._hear(address)
            if found is not None:
                return found
            self._unheard.discard(address)
            self._candidates.append(address)
        return None

    async def _hear(self, address: str) -> GroupMetadata | None:
        try:
            found = await self._ask(address)
        except RequestError as error:
            self.said[address] = str(error)
            if isinstance(error, UnknownGroupError | WrongClusterError):
                self._refusal = error
            return None
        self._is_known = True
        self.said[address] = self._accept(found)
        return None if self.said[address] else found


class Metadata:
    """Knows addresses and the leader of one group; shared by everything a client does.

    When the leader falls silent the others are asked; once one of them names another leader, the
    silent connections are ended, so that nobody waits for them. Once it is closed, whoever wants a
    connection is told so in a `RequestError` that is not retriable.
    """

    def __init__(
        self,
        servers: list[str],
        group: str,
        cluster: str,
        limits: Limits,
        generator: random.Random,
    ) -> None:
        self.group = group
        self.servers = list(servers)
        self.members: dict[str, str] = {}
        self._cluster = cluster
        self._limits = limits
        self._generator = generator
        self._resolver = Resolver()
        self._connections: dict[str, ServerConnection] = {}
        # all that may be open or being opened, also those that callers have of their own
        self._made: weakref.WeakSet[ServerConnection] = weakref.WeakSet()
        self._is_closed = False
        self._process = MakingProcess("client")
        self._opening: dict[str, asyncio.Lock] = {}
        self._leader_address: str | None = None
        self._latest: str | None = None
        self._former: str | None = None
        self._term = -1
        self._identity = b""
        self._finding = asyncio.Lock()
        self._suspects: dict[str, int] = {}
        self._refused: dict[str, tuple[float, str]] = {}
        self._silent: set[ServerConnection] = set()
        self._check: asyncio.Task[None] | None = None

    async def connection(self, address: str) -> ServerConnection:
        """Return an open connection to a server. Raises `NetworkError`; see `check_open`."""
        self._process.check()  # before the lock: one taken at the fork is never released here
        lock = self._opening.setdefault(address, asyncio.Lock())
        waits = lock.locked()
        async with lock:
            self.check_open()
            known = self._connections.get(address)
            if known is not None and known.is_open:
                return known
            if waits and address in self._suspects:  # do not all try in vain, one after the other
                raise NetworkError(f"cannot connect to {address}: it did not answer just now")
            fresh = self._connections[address] = await self.open(address)
            return fresh

    async def open(self, address: str) -> ServerConnection:
        """Open a connection of the caller's own to a server; `close` ends it too.

        Raises `NetworkError` or `WrongClusterError`; see `check_open`.
        """
        self.check_open()
        now = asyncio.get_running_loop().time()
        until, said = self._refused.get(address, (now, ""))
        if now < until:
            raise WrongClusterError(said)
        fresh = ServerConnection(
            address,
            self._cluster,
            self._limits,
            group=self.group,
            identity=self._identity,
            on_silent=self._fell_silent,
            on_told=self._was_told,
        )
        self._made.add(fresh)
        try:
            await fresh.open(CONNECT_TIMEOUT_S, self._resolver)
        except NetworkError:
            self.check_open()
            self._suspect(address)
            self.forget_leader(address)
            raise
        except WrongClusterError as error:
            self.forget_leader(address)
            self._refused.pop(address, None)
            if len(self._refused) >= REFUSED_MAX:
                del self._refused[next(iter(self._refused))]
            self._refused[address] = now + REFUSED_S, str(error)
            raise
        if self._is_closed:  # just when it was open
            fresh.close()
        self.check_open()
        self._suspects.pop(address, None)
        return fresh

    # -- who leads --------------------------------------------------------------------------

    async def leader(self) -> ServerConnection:
        """Return a connection to the leader, asking around if it is not known.

        Raises `NoLeaderError` saying whom was asked and what each said, or `UnknownGroupError`;
        see `check_open`.
        """
        self._process.check()
        address = self._leader_address or await self._find_leader()
        try:
            return await self.connection(address)
        except NetworkError:
            raise NoLeaderError(
                f"the leader of {self.group}, {address}, cannot be reached"
            ) from None

    def forget_leader(self, address: str | None = None) -> None:
        """Ask again next time (unless somebody else than `address` was found meanwhile)."""
        if address is None or self._leader_address == address:
            self._leader_address = None

    def redirect(self, leader_id: str | None, *, away_from: str) -> None:
        """A server named a leader (or none): go there next."""
        self.forget_leader(away_from)
        address = self.members.get(leader_id or "")
        if address is not None and address != away_from and address not in self._suspects:
            self._believe(address)

    def _believe(self, address: str) -> None:
        if address != self._latest:
            self._former, self._latest = self._latest, address
        self._leader_address = address
        self._suspects.pop(address, None)

    def _suspect(self, address: str) -> None:
        """It says nothing: that it leads in a term known by now is not believed of others."""
        self._suspects.pop(address, None)
        if len(self._suspects) >= SUSPECTS_MAX:
            del self._suspects[next(iter(self._suspects))]
        self._suspects[address] = self._term

    async def _find_leader(self) -> str:
        async with self._finding:  # who comes meanwhile takes what the one before has found
            return self._leader_address or await self._ask_for_leader()

    async def _ask_for_leader(self) -> str:
        inquiry = _LeaderDiscovery(self._metadata_from, self._doubt, self.candidates())
        found = await inquiry.run(next_s=ASK_NEXT_S)
        self.check_open()
        if found is not None:
            return self._learned(found)
        # a group that was found before has not gone: those that host it do not answer now
        is_outage = self.members and isinstance(inquiry.refusal, UnknownGroupError)
        if inquiry.refusal is not None and not is_outage:
            raise inquiry.refusal
        said = "; ".join(f"{address}: {text}" for address, text in inquiry.said.items())
        raise NoLeaderError(f"no leader of {self.group} found; {said}")

    def _learned(self, found: GroupMetadata) -> str:
        address = _leader_of(found)
        self._term = found.term
        self._believe(address)
        return address

    def _doubt(self, found: GroupMetadata) -> str:
        """Return why the leader that a server names is not believed to lead, or ""."""
        address = _leader_of(found)
        if not address:
            return f"knows no leader in term {found.term}"
        if found.term <= self._suspects.get(address, found.term - 1):
            return f"names {address} in term {found.term}, which does not answer"
        return ""

    # -- a leader that says nothing ---------------------------------------------------------

    def _was_told(self, connection: ServerConnection, message: GroupIdentity | Response) -> None:
        """A server said something by itself: if that it is about to stop, the others are asked."""
        if isinstance(message, GroupIdentity):
            self._met(connection, message.identity)
            return
        self.forget_leader(connection.address)
        self._suspect(connection.address)

    def _fell_silent(self, connection: ServerConnection) -> None:
        """A server says nothing although it should; told again as long as that lasts."""
        address, leader = connection.address, self._leader_address
        if address == self._former and leader is not None and leader != address:
            connection.abort(f"says nothing, and {leader} leads now")
        elif address == self._latest:
            self._silent.add(connection)
            if self._check is None:
                self._check = asyncio.create_task(self._check_leader(address))

    async def _check_leader(self, silent: str) -> None:
        """Have the connections to a silent leader ended if somebody says that another one leads."""
        try:
            found = await self._ask_others(silent)
            if found is None:
                return
            leader = self._learned(found)
            self._suspect(silent)
            for connection in self._silent:
                if connection.is_silent:
                    connection.abort(f"says nothing, and {leader} leads now")
        finally:
            self._silent.clear()
            self._check = None

    async def _ask_others(self, silent: str) -> GroupMetadata | None:
        def doubt(found: GroupMetadata) -> str:
            if found.term < self._term or _leader_of(found) == silent:
                return f"knows no other leader in term {found.term}"
            return self._doubt(found)

        others = [address for address in self.candidates() if address != silent]
        if not others:
            return None
        try:
            async with asyncio.timeout(CHECK_S):
                return await _LeaderDiscovery(self._metadata_from, doubt, others).run(next_s=0.0)
        except TimeoutError:
            return None

    # -- servers ----------------------------------------------------------------------------

    async def _metadata_from(self, address: str) -> GroupMetadata:
        for found in (await self.ask(address, self.group)).groups:
            if found.group == self.group:
                self._check_identity(address, found.identity)
                if len(found.peers) <= MEMBERS_MAX:
                    self.members = dict(found.peers)
                return found
        raise NetworkError(f"{address} did not describe {self.group}")

    def _met(self, connection: ServerConnection, identity: bytes) -> None:
        """A server says of which founding its group is, before it answers anything.

        One that was told ours refuses requests in words of its own.
        """
        try:
            if not connection.identity:
                self._check_identity(connection.address, identity)
        except WrongClusterError as error:
            connection.abort(str(error))

    def _check_identity(self, address: str, identity: bytes) -> None:
        """Note the identity of the group; raise `WrongClusterError` if it was another before."""
        if not self._identity:
            self._identity = identity
        elif identity and identity != self._identity:
            raise WrongClusterError(
                f"{address} serves a group {self.group} of identity {identity.hex()}, but this "
                f"client began with that of {self._identity.hex()}: it was founded anew, or is "
                "another cluster's. Make a new client to use it"
            )

    async def ask(self, address: str, group: str = "") -> MetadataResponse:
        """Ask one server for its groups. Raises `RequestError`."""
        connection = await self.connection(address)
        answer = await self.wait(connection, connection.request(MetadataRequest(group=group)))
        if not isinstance(answer.response, MetadataResponse):
            raise error_for(answer.response.code, answer.response.text)
        return answer.response

    async def wait(self, connection: ServerConnection, future: "asyncio.Future[Answer]") -> Answer:
        """Wait for a quick answer. Raises `NetworkError`."""
        try:
            async with asyncio.timeout(METADATA_TIMEOUT_S):
                answer = await future
        except TimeoutError:
            raise NetworkError(f"{connection.address} did not answer in time") from None
        self._suspects.pop(connection.address, None)
        return answer

    def candidates(self) -> list[str]:
        """All addresses known in the order to try them: by chance, those that were silent last."""
        addresses = self.addresses()
        self._generator.shuffle(addresses)
        return sorted(addresses, key=self._suspects.__contains__)

    def addresses(self) -> list[str]:
        """All addresses known, those given first, each once."""
        return list(dict.fromkeys([*self.servers, *self.members.values()]))

    def check_process(self) -> None:
        """Raise `RequestError`, which says that nothing was done, in a forked child."""
        self._process.check()

    def check_open(self) -> None:
        """Raise as `check_process`, and the same error once the client is closed."""
        self._process.check()
        if self._is_closed:
            error = RequestError("this client is closed; make a new one")
            error.outcome = Outcome.DID_NOT_HAPPEN
            raise error

    async def close(self) -> None:
        """End all connections, those that are being opened too; none is made any more.

        In a forked child nothing happens: the connections are its parent's.
        """
        if not self._process.is_this:
            return
        self._is_closed = True
        for connection in list(self._made):
            if connection.is_open:
                connection.close()
            else:
                connection.abort("the client is closed")
        self._connections.clear()
        if self._check is not None:
            self._check.cancel()
            await asyncio.gather(self._check, return_exceptions=True)
            self._check = None


def _leader_of(found: GroupMetadata) -> str:
    """Return the address of the leader that a server names, or ""."""
    return found.peers.get(found.leader_id or "", "")
