"""Who leads: the servers known, the connections to them, and where to ask next."""

import asyncio
import random

from quorumlog.client.connection import Answer, ServerConnection
from quorumlog.model.errors import (
    NetworkError,
    NoLeaderError,
    RequestError,
    UnknownGroupError,
    error_for,
)
from quorumlog.model.limits import Limits
from quorumlog.model.message import GroupMetadata, MetadataRequest, MetadataResponse

CONNECT_TIMEOUT_S = 1.5
METADATA_TIMEOUT_S = 1.5
MEMBERS_MAX = 1_024


class ClusterView:
    """Knows addresses and the leader of one group; shared by everything a client does."""

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
        self._connections: dict[str, ServerConnection] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._leader_address: str | None = None

    async def connection(self, address: str) -> ServerConnection:
        """Return an open connection to a server. Raises `NetworkError`."""
        lock = self._opening.setdefault(address, asyncio.Lock())
        async with lock:
            known = self._connections.get(address)
            if known is not None and known.is_open:
                return known
            fresh = ServerConnection(address, self._cluster, self._limits, group=self.group)
            await fresh.open(CONNECT_TIMEOUT_S)
            self._connections[address] = fresh
            return fresh

    async def leader(self) -> ServerConnection:
        """Return a connection to the leader, asking around if it is not known.

        Raises `NoLeaderError` saying whom was asked and what each said, or `UnknownGroupError`.
        """
        if self._leader_address is None:
            self._leader_address = await self._ask_for_leader()
        address = self._leader_address
        try:
            return await self.connection(address)
        except NetworkError:
            self.forget_leader(address)
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
        if address is not None and address != away_from:
            self._leader_address = address

    async def _ask_for_leader(self) -> str:
        said: list[str] = []
        candidates = self.addresses()
        self._generator.shuffle(candidates)
        unknown_group: RequestError | None = None
        for address in candidates:
            try:
                found = await self._metadata_from(address)
            except RequestError as error:
                said.append(f"{address}: {error}")
                if isinstance(error, UnknownGroupError):
                    unknown_group = error
                continue
            leader = self.members.get(found.leader_id or "")
            if leader is not None:
                return leader
            said.append(f"{address}: knows no leader in term {found.term}")
        if unknown_group is not None and len(said) == len(candidates):
            raise unknown_group
        raise NoLeaderError(f"no leader of {self.group} found; " + "; ".join(said))

    async def _metadata_from(self, address: str) -> GroupMetadata:
        for found in (await self.metadata(address, self.group)).groups:
            if found.group == self.group:
                if len(found.peers) <= MEMBERS_MAX:
                    self.members = dict(found.peers)
                return found
        raise NetworkError(f"{address} did not describe {self.group}")

    async def metadata(self, address: str, group: str = "") -> MetadataResponse:
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
                return await future
        except TimeoutError:
            raise NetworkError(f"{connection.address} did not answer in time") from None

    def addresses(self) -> list[str]:
        """All addresses known, those given first, each once."""
        return list(dict.fromkeys([*self.servers, *self.members.values()]))

    def close(self) -> None:
        """End all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
