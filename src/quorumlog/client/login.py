"""The client's side of a login on a node's own port."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

from quorumlog.auth.verifiers import MECHANISMS
from quorumlog.client.login_steps import Credentials, ScramSteps, new_nonce, secret_message
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import ConfigError, LoginError, NetworkError, RemoteProtocolError
from quorumlog.model.messages.login import REFUSED_TEXT, Authenticate, Authenticated
from quorumlog.model.security_config import SECRET_MECHANISMS

SALTED_MAX: Final = 8
"""Salted passwords that a client keeps; a user whose password is not changed has one."""
Ask = Callable[[Authenticate], Awaitable[Authenticated]]
"""Sends a message of a login; returns its answer."""


class LoginOfClient:
    """Logs the connections of one client in.

    PBKDF2, which takes milliseconds, is computed on a thread, and once only for a salt. `nonce`
    returns text that it has not returned before.
    """

    def __init__(self, credentials: Credentials, nonce: Callable[[], str] = new_nonce) -> None:
        self._credentials = credentials
        self._nonce = nonce
        self._salted: dict[tuple[bytes, int], bytes] = {}
        self._under_way: dict[str, float] = {}
        """Until when nodes have not answered, by address; without an end: they still may."""

    def unanswered(self, at: float) -> str:
        """Return which nodes had not answered a login at a time, or "".

        `at`: seconds of the event loop. A login was under way then, or was given up just then.
        """
        found = sorted(address for address, until in self._under_way.items() if until >= at)
        if not found:
            return ""
        has = "has" if len(found) == 1 else "have"
        return f"{', '.join(found)} {has} not answered the login{self._of_user}"

    @property
    def _of_user(self) -> str:
        return f" of {self._credentials.user}" if self._credentials.user else ""

    async def run(self, ask: Ask, *, address: str, is_encrypted: bool) -> None:
        """Log in at `address`; see `unanswered`.

        Raises what `_run` raises.
        """
        self._under_way[address] = math.inf
        try:
            await self._run(ask, address=address, is_encrypted=is_encrypted)
        except asyncio.CancelledError:
            self._under_way[address] = asyncio.get_running_loop().time()
            raise
        except BaseException:
            self._under_way.pop(address, None)
            raise
        self._under_way.pop(address, None)

    async def _run(self, ask: Ask, *, address: str, is_encrypted: bool) -> None:
        """Log in at `address`.

        Raises `LoginError` if the node refuses, or may not be told a secret; `NetworkError` if it
        has no time for it now, or the file of a token cannot be read now; `RemoteProtocolError` for
        an answer that is none, or that shows that the node does not know the password either.
        """
        mechanism = self._credentials.mechanism
        if not mechanism:
            return
        try:
            if mechanism in MECHANISMS:
                await self._prove(ask)
                return
            if mechanism in SECRET_MECHANISMS and not is_encrypted:
                raise LoginError(f"{mechanism} sends a secret, and needs TLS")
            done = await self._ask(ask, secret_message(self._credentials))
            if done.more:
                raise RemoteProtocolError(f"the login by {mechanism} does not end")
        except LoginError as error:
            raise error.again(f"login{self._of_user} at {address}: {error}") from None
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"login at {address}: {error}") from None
        except ConfigError as error:  # a file was there when the client was made
            raise NetworkError(f"login at {address}: {error}") from None

    async def _ask(self, ask: Ask, data: bytes) -> Authenticated:
        answer = await ask(Authenticate(mechanism=self._credentials.mechanism, data=data))
        if answer.code == ResponseCode.LOGIN_BUSY:
            raise NetworkError(f"the login was put off: {answer.text}")
        if answer.code != ResponseCode.SUCCESS:
            refused = LoginError(answer.text)
            refused.is_everywhere = answer.text == REFUSED_TEXT
            raise refused
        return answer

    async def _prove(self, ask: Ask) -> None:
        steps = ScramSteps(self._credentials, self._nonce())
        answer = await self._ask(ask, steps.first())
        steps.take_first(answer.data)
        if not answer.more:
            raise RemoteProtocolError("the node ends the login before a proof")
        done = await self._ask(ask, steps.final(await self._salted_password(steps)))
        if done.more:
            raise RemoteProtocolError("the node does not end the login")
        steps.check(done.data)

    async def _salted_password(self, steps: ScramSteps) -> bytes:
        key = steps.salt, steps.iterations
        known = self._salted.get(key)
        if known is not None:
            return known
        salted = await asyncio.get_running_loop().run_in_executor(None, steps.salted_password)
        self._salted[key] = salted
        if len(self._salted) > SALTED_MAX:
            del self._salted[next(iter(self._salted))]
        return salted
