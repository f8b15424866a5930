"""Asks the servers of a group which of them leads, several at a time."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from quorumlog.model.errors import (
    HandshakeError,
    LoginError,
    NotAuthorizedError,
    RequestError,
    UnknownGroupError,
    UnsupportedVersionError,
    WrongClusterError,
)
from quorumlog.model.messages.client import GroupMetadata

_FINAL = (
    HandshakeError,
    LoginError,
    NotAuthorizedError,
    UnknownGroupError,
    UnsupportedVersionError,
    WrongClusterError,
)
"""What a server that does not tell of the group, or cannot be spoken to, says again and again."""
ASKED_MAX = 16
"""At most this many servers are asked for the leader at the same time."""
OTHERS_S = 2.0
"""How long others are asked after one has refused a login: it may be behind, and not know a new
user or password yet. Who takes a login says so at once, and who cannot be reached is given up
before; who refuses it, too, may hold its answer back for several seconds."""
ASK_AGAIN_S = 0.1
"""Pause before a server that named no leader is asked again, while others have yet to answer."""


class LeaderDiscovery:
    """One search for the leader; it ends when a server names it or all servers have answered.

    Servers that named no leader are asked again as long as others have not answered, so a silent
    server delays nobody. `objection_to` returns "" for an answer that names the leader, else why
    it is not accepted.
    """

    def __init__(
        self,
        ask: Callable[[str], Awaitable[GroupMetadata]],
        objection_to: Callable[[GroupMetadata], str],
        candidates: list[str],
    ) -> None:
        self._ask = ask
        self._objection_to = objection_to
        self._candidates = deque(candidates)
        self._count = len(candidates)
        self._unanswered = set(candidates)
        self._refusal: RequestError | None = None
        self._refused: set[str] = set()
        self._login_refusal: LoginError | None = None
        self._login_refused_at = ""
        self._hosts_group = False
        self.objections: dict[str, str] = {}

    @property
    def refusal(self) -> RequestError | None:
        """The error to raise if no server that answered tells of this group, else None."""
        return None if self._hosts_group else self._refusal

    @property
    def is_refused_by_all(self) -> bool:
        """Whether each server refuses, and none is merely away."""
        return len(self._refused) == self._count

    async def run(self, *, next_s: float) -> GroupMetadata | None:
        """Return the answer that was accepted; None: `objections` says why none was, by address.

        Raises `LoginError` if one refuses a login that all would refuse, unless it is behind: as
        soon as a second one does so, or if the others do not answer in time.

        The first server is asked at once, another one every `next_s` or as soon as one answered.
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
        while self._unanswered:
            address = self._candidates.popleft()
            if address not in self._unanswered:
                await asyncio.sleep(ASK_AGAIN_S)
            found = await self._ask_one(address)
            if found is not None:
                return found
            self._unanswered.discard(address)
            if address == self._login_refused_at:
                await self._wait_for_others()
            else:
                self._candidates.append(address)
        return None

    async def _wait_for_others(self) -> None:
        """Let others take a login that one has refused; it is not tried there again."""
        if self._unanswered:
            await asyncio.sleep(OTHERS_S)
            if self._login_refusal is not None and not self._hosts_group:
                raise self._login_refusal
            await asyncio.get_running_loop().create_future()  # the others end the search

    async def _ask_one(self, address: str) -> GroupMetadata | None:
        try:
            found = await self._ask(address)
        except RequestError as error:
            if isinstance(error, LoginError) and error.is_everywhere:
                if self._login_refusal is not None:
                    raise  # nobody waits for what others would answer late
                self._login_refusal, self._login_refused_at = error, address
            self.objections[address] = str(error)
            if isinstance(error, _FINAL):
                self._refusal = error
                self._refused.add(address)
            return None
        self._hosts_group = True
        self.objections[address] = self._objection_to(found)
        return None if self.objections[address] else found
