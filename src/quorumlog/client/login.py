"""The client's side of a login: it proves that it knows a password without sending it (SCRAM, RFC
5802), or sends a password or a token inside TLS.

SCRAM is written out here, with the functions that make verifiers: scramp, which nodes use, takes
0.1 s to import, as long as a whole command.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from quorumlog.auth.verifiers import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, prepared_password
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import LoginError, NetworkError, RemoteProtocolError
from quorumlog.model.messages.login import Authenticate, Authenticated
from quorumlog.model.security_config import OAUTHBEARER, PLAIN, SECRET_MECHANISMS

NONCE_BYTES: Final = 24
SALTED_MAX: Final = 8
"""Salted passwords that a client keeps; a user whose password is not changed has one."""
_FIRST: Final = re.compile(r"r=([!-+\--~]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,8})")
_GS2: Final = "n,,"
"""No channel binding, and nobody to act for."""


class Text(Protocol):
    """A password or a token."""

    def reveal(self) -> str:
        """Return it."""
        ...


class Credentials(Protocol):
    """What a client logs in with. `mechanism`: that of SASL; empty: it does not log in."""

    @property
    def mechanism(self) -> str:
        """The mechanism of SASL; empty: it does not log in."""
        ...

    @property
    def user(self) -> str:
        """The name of the user."""
        ...

    @property
    def password(self) -> Text | None:
        """The user's password."""
        ...

    @property
    def token(self) -> Text | None:
        """The user's token."""
        ...


Ask = Callable[[Authenticate], Awaitable[Authenticated]]
"""Sends a message of a login; returns its answer."""


def new_nonce() -> str:
    """Return a text that nobody can guess."""
    return secrets.token_urlsafe(NONCE_BYTES)


class LoginOfClient:
    """Logs the connections of one client in.

    PBKDF2, which takes milliseconds, is computed on a thread, and once only for a salt. `nonce`
    returns text that it has not returned before.
    """

    def __init__(self, credentials: Credentials, nonce: Callable[[], str] = new_nonce) -> None:
        self._credentials = credentials
        self._nonce = nonce
        self._salted: dict[tuple[bytes, int], bytes] = {}

    async def run(self, ask: Ask, *, address: str, is_encrypted: bool) -> None:
        """Log in at `address`.

        Raises `LoginError` if the node refuses, or may not be told a secret; `NetworkError` if it
        has no time for it now; `RemoteProtocolError` for an answer that is none, or that shows that
        the node does not know the password either.
        """
        mechanism = self._credentials.mechanism
        if not mechanism:
            return
        try:
            if mechanism in MECHANISMS:
                await self._prove(ask, mechanism)
                return
            if mechanism in SECRET_MECHANISMS and not is_encrypted:
                raise LoginError(f"{mechanism} sends a secret, and needs TLS")
            done = await self._ask(ask, self._secret(mechanism))
            if done.more:
                raise RemoteProtocolError(f"the login by {mechanism} does not end")
        except LoginError as error:
            user = f" of {self._credentials.user}" if self._credentials.user else ""
            raise LoginError(f"login{user} at {address}: {error}", code=error.code) from None
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"login at {address}: {error}") from None

    def _secret(self, mechanism: str) -> bytes:
        found = self._credentials
        if mechanism == PLAIN and found.password is not None:
            return f"\0{found.user}\0{found.password.reveal()}".encode()
        if mechanism == OAUTHBEARER and found.token is not None:
            return f"n,,\x01auth=Bearer {found.token.reveal()}\x01\x01".encode()
        raise LoginError(f"there is nothing to log in with by {mechanism}")

    async def _ask(self, ask: Ask, data: bytes) -> Authenticated:
        answer = await ask(Authenticate(mechanism=self._credentials.mechanism, data=data))
        if answer.code == ResponseCode.LOGIN_BUSY:
            raise NetworkError(f"the login was put off: {answer.text}")
        if answer.code != ResponseCode.SUCCESS:
            raise LoginError(answer.text)
        return answer

    async def _prove(self, ask: Ask, mechanism: str) -> None:
        name, nonce = MECHANISMS[mechanism], self._nonce()
        user = self._credentials.user.replace("=", "=3D").replace(",", "=2C")
        first = f"n={user},r={nonce}"
        answer = await self._ask(ask, f"{_GS2}{first}".encode())
        server_first = answer.data.decode("ascii", "replace")
        server_nonce, salt, iterations = _parameters(server_first, nonce)
        if not answer.more:
            raise RemoteProtocolError("the node ends the login before a proof")
        salted = await self._salted_password(name, salt, iterations)
        final = f"c={base64.b64encode(_GS2.encode()).decode()},r={server_nonce}"
        signed = f"{first},{server_first},{final}".encode()
        client_key = hmac.digest(salted, b"Client Key", name)
        stored_key = hashlib.new(name, client_key).digest()
        signature = hmac.digest(stored_key, signed, name)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        message = f"{final},p={base64.b64encode(proof).decode()}"
        done = await self._ask(ask, message.encode())
        server_key = hmac.digest(salted, b"Server Key", name)
        own = b"v=" + base64.b64encode(hmac.digest(server_key, signed, name))
        if done.more or not hmac.compare_digest(done.data, own):
            raise RemoteProtocolError("the node has not shown that it knows the user")

    async def _salted_password(self, name: str, salt: bytes, iterations: int) -> bytes:
        known = self._salted.get((salt, iterations))
        if known is not None:
            return known
        password = self._credentials.password
        if password is None:
            raise LoginError("there is no password")
        secret = prepared_password(password.reveal()).encode()
        compute = partial(hashlib.pbkdf2_hmac, name, secret, salt, iterations)
        salted = await asyncio.get_running_loop().run_in_executor(None, compute)
        self._salted[salt, iterations] = salted
        if len(self._salted) > SALTED_MAX:
            del self._salted[next(iter(self._salted))]
        return salted


def _parameters(server_first: str, nonce: str) -> tuple[str, bytes, int]:
    """Return nonce, salt and iterations of a node's first message."""
    found = _FIRST.fullmatch(server_first)
    try:
        salt = b"" if found is None else base64.b64decode(found[2], validate=True)
    except binascii.Error:
        salt = b""
    if found is None or not salt:
        raise RemoteProtocolError("the node's first message is not RFC 5802's")
    if not found[1].startswith(nonce) or found[1] == nonce:
        raise RemoteProtocolError("the node answers another login")
    iterations = int(found[3])
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise RemoteProtocolError(
            f"the node asks for {iterations} iterations, not {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )
    return found[1], salt, iterations
