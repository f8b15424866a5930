"""A client's knowledge of a group: its servers, its members, and who leads."""

import asyncio
import random

from quorumlog.client.connection import Answer, ServerConnection
from quorumlog.client.connection_pool import ConnectionPool
from quorumlog.client.leader_discovery import LeaderDiscovery
from quorumlog.client.security import Security
from quorumlog.model.errors import (
    HandshakeError,
    LoginError,
    NetworkError,
    NoLeaderError,
    RequestError,
    UnknownGroupError,
    error_for,
)
from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import GroupMetadata, MetadataRequest, MetadataResponse

METADATA_TIMEOUT_S = 1.5
MEMBERS_MAX = 1_024
ASK_NEXT_S = 0.05
"""A server that has not answered after this long has the next one asked as well."""
CHECK_S = 0.5
"""How long the others are asked whether a silent leader still leads; the next check asks again."""


class Metadata:
    """The addresses and the leader of one group; shared by everything that a client does.

    When the leader falls silent the other servers are asked. Once one of them names another leader,
    the silent connections are ended, so that nobody waits for them. When the client is closed,
    whoever wants a connection gets a `RequestError` that is not retriable.
    """

    def __init__(
        self,
        servers: list[str],
        group: str,
        cluster: str,
        limits: Limits,
        generator: random.Random,
        security: Security | None = None,
    ) -> None:
        self.group = group
        self.servers = list(servers)
        self.members: dict[str, str] = {}
        self.connections = ConnectionPool(group, cluster, limits, self, security)
        self._generator = generator
        self._leader_address: str | None = None
        self._latest: str | None = None
        self._former: str | None = None
        self._term = -1
        self._finding_leader = asyncio.Lock()
        self._silent: set[ServerConnection] = set()
        self._check: asyncio.Task[None] | None = None

    async def connection(self, address: str) -> ServerConnection:
        """Return the shared connection to a server (see `ConnectionPool.shared`)."""
        return await self.connections.shared(address)

    async def open(self, address: str) -> ServerConnection:
        """Return a new connection for the caller alone (see `ConnectionPool.open`)."""
        return await self.connections.open(address)

    # -- who leads --------------------------------------------------------------------------

    async def leader(self) -> ServerConnection:
        """Return a connection to the leader; servers are asked for it if it is not known.

        Raises `NoLeaderError` saying whom was asked and what each said, `UnknownGroupError` or
        `NotAuthorizedError`; see `check_open`.
        """
        self.check_process()
        address = self._leader_address or await self._find_leader()
        try:
            return await self.connection(address)
        except NetworkError:
            raise NoLeaderError(
                f"the leader of {self.group}, {address}, cannot be reached"
            ) from None
        except LoginError as error:
            if not (error.is_everywhere and self.members):
                raise
            # it may be behind and not know the user yet; if all refuse, the next search says so
            self.forget_leader(address)
            raise NoLeaderError(
                f"the leader of {self.group} refuses this client: {error}"
            ) from None

    def forget_leader(self, address: str | None = None) -> None:
        """Have the next call find the leader, unless the known one is no longer `address`."""
        if address is None or self._leader_address == address:
            self._leader_address = None

    def redirect(self, leader_id: str | None, *, away_from: str) -> None:
        """Use the leader that a server named, if it named one."""
        self.forget_leader(away_from)
        address = self.members.get(leader_id or "")
        unresponsive = self.connections.unresponsive
        if address is not None and address != away_from and address not in unresponsive:
            self._set_leader(address)

    def _set_leader(self, address: str) -> None:
        if address != self._latest:
            self._former, self._latest = self._latest, address
        self._leader_address = address
        self.connections.unresponsive.discard(address)

    async def _find_leader(self) -> str:
        async with self._finding_leader:  # callers that wait here use what the first one finds
            return self._leader_address or await self._ask_for_leader()

    async def _ask_for_leader(self) -> str:
        discovery = LeaderDiscovery(self._metadata_from, self._objection_to, self.candidates())
        found = await discovery.run(next_s=ASK_NEXT_S)
        self.check_open()
        if found is not None:
            return self._set_leader_from(found)
        refusal = discovery.refusal
        if refusal is not None and not self._is_outage(refusal, discovery):
            raise refusal
        reasons = "; ".join(
            text if text.startswith(f"{address}: ") else f"{address}: {text}"
            for address, text in discovery.objections.items()
        )
        raise NoLeaderError(f"no leader of {self.group} found; {reasons}")

    def _is_outage(self, refusal: RequestError, discovery: LeaderDiscovery) -> bool:
        """Whether servers may tell of the group again that do not answer now: it was found before.

        One alone may have an old certificate, or be behind and not know a user yet.
        """
        if not self.members or discovery.is_refused_by_all:
            return bool(self.members) and isinstance(refusal, UnknownGroupError)
        is_behind = isinstance(refusal, LoginError) and refusal.is_everywhere
        return is_behind or isinstance(refusal, HandshakeError | UnknownGroupError)

    def _set_leader_from(self, found: GroupMetadata) -> str:
        address = _leader_of(found)
        self._term = found.term
        self._set_leader(address)
        return address

    def _objection_to(self, found: GroupMetadata) -> str:
        """Return why the leader that a server names is not believed to lead, or ""."""
        address = _leader_of(found)
        if not address:
            return f"knows no leader in term {found.term}"
        if found.term <= self.connections.unresponsive.term_of(address, found.term - 1):
            return f"names {address} in term {found.term}, which does not answer"
        return ""

    # -- a silent leader --------------------------------------------------------------------

    def unreachable(self, address: str) -> None:
        """Ask others, as a server does not answer, and doubt that it leads in this term."""
        self.connections.unresponsive.add(address, self._term)
        self.forget_leader(address)

    def fell_silent(self, connection: ServerConnection) -> None:
        """Check a server that has fallen silent; called at every check while it is silent."""
        address, leader = connection.address, self._leader_address
        if address == self._former and leader is not None and leader != address:
            connection.abort(f"says nothing, and {leader} leads now")
        elif address == self._latest:
            self._silent.add(connection)
            if self._check is None:
                self._check = asyncio.create_task(self._check_leader(address))

    async def _check_leader(self, silent: str) -> None:
        """End the connections to a silent leader if another server names a new leader."""
        try:
            found = await self._ask_others(silent)
            if found is None:
                return
            leader = self._set_leader_from(found)
            self.connections.unresponsive.add(silent, self._term)
            for connection in self._silent:
                if connection.is_silent:
                    connection.abort(f"says nothing, and {leader} leads now")
        finally:
            self._silent.clear()
            self._check = None

    async def _ask_others(self, silent: str) -> GroupMetadata | None:
        def objection_to(found: GroupMetadata) -> str:
            if found.term < self._term or _leader_of(found) == silent:
                return f"knows no other leader in term {found.term}"
            return self._objection_to(found)

        others = [address for address in self.candidates() if address != silent]
        if not others:
            return None
        try:
            async with asyncio.timeout(CHECK_S):
                return await LeaderDiscovery(self._metadata_from, objection_to, others).run(
                    next_s=0.0
                )
        except (TimeoutError, LoginError):
            return None

    # -- servers ----------------------------------------------------------------------------

    async def _metadata_from(self, address: str) -> GroupMetadata:
        for found in (await self.ask(address, self.group)).groups:
            if found.group == self.group:
                self.connections.check_identity(address, found.identity)
                self.learn_members(found)
                return found
        raise NetworkError(f"{address} did not describe {self.group}")

    def learn_members(self, found: GroupMetadata) -> None:
        """Take over the addresses of the members, as a server has described them."""
        if len(found.peers) <= MEMBERS_MAX:
            self.members = dict(found.peers)

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
        self.connections.unresponsive.discard(connection.address)
        return answer

    def candidates(self) -> list[str]:
        """Return all addresses in the order to try them: by chance, unresponsive servers last."""
        addresses = self.addresses()
        self._generator.shuffle(addresses)
        return sorted(addresses, key=self.connections.unresponsive.__contains__)

    def addresses(self) -> list[str]:
        """Return all addresses known, each once: those given first, then those of members."""
        return list(dict.fromkeys([*self.servers, *self.members.values()]))

    def check_process(self) -> None:
        """See `ConnectionPool.check_process`."""
        self.connections.check_process()

    def check_open(self) -> None:
        """See `ConnectionPool.check_open`."""
        self.connections.check_open()

    async def close(self) -> None:
        """End all connections, those that are being opened too; none is made any more.

        In a forked child nothing happens: the connections are its parent's.
        """
        if not self.connections.close():
            return
        if self._check is not None:
            self._check.cancel()
            await asyncio.gather(self._check, return_exceptions=True)
            self._check = None


def _leader_of(found: GroupMetadata) -> str:
    """Return the address of the leader that a server names, or ""."""
    return found.peers.get(found.leader_id or "", "")
