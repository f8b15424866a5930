"""What a client says in a login: the messages of each mechanism, without a connection.

They prove that the client knows a password without sending it (SCRAM, RFC 5802), or are a password
or a token, for inside TLS. SCRAM is written out here, with the functions that make verifiers:
scramp, which nodes use, takes 0.1 s to import, as long as a whole command.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import Final, Protocol

from quorumlog.auth.verifiers import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, prepared_password
from quorumlog.model.errors import LoginError, RemoteProtocolError
from quorumlog.model.security_config import OAUTHBEARER, PLAIN

NONCE_BYTES: Final = 24
LOGIN_TIMEOUT_S: Final = 12.0
"""Time for a login, in seconds: a node holds the answer to one that it refuses back for up to 8."""
_FIRST: Final = re.compile(r"r=([!-+\--~]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,8})")
_GS2: Final = "n,,"
"""No channel binding, and nobody to act for."""


class Text(Protocol):
    """A password or a token."""

    def reveal(self) -> str:
        """Return it. Raises `ConfigError` if it is in a file that cannot be read any more."""
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


def new_nonce() -> str:
    """Return a text that nobody can guess."""
    return secrets.token_urlsafe(NONCE_BYTES)


def secret_message(credentials: Credentials) -> bytes:
    """Return the only message of a mechanism that sends a secret. Raises `LoginError`."""
    mechanism = credentials.mechanism
    if mechanism == PLAIN and credentials.password is not None:
        return f"\0{credentials.user}\0{credentials.password.reveal()}".encode()
    if mechanism == OAUTHBEARER and credentials.token is not None:
        return f"n,,\x01auth=Bearer {credentials.token.reveal()}\x01\x01".encode()
    raise LoginError(f"there is nothing to log in with by {mechanism}")


class ScramSteps:
    """One login by SCRAM: `first`, `take_first`, `final` with a salted password, `check`.

    `nonce` is a text that no other login has.
    """

    def __init__(self, credentials: Credentials, nonce: str) -> None:
        self._credentials = credentials
        self._hash = MECHANISMS[credentials.mechanism]
        self._nonce = nonce
        user = credentials.user.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={user},r={nonce}"
        self._server_first = self._server_nonce = ""
        self._server_signature = b""
        self.salt = b""
        self.iterations = 0

    def first(self) -> bytes:
        """Return the first message."""
        return f"{_GS2}{self._first}".encode()

    def take_first(self, data: bytes) -> None:
        """Take the node's answer to it: `salt` and `iterations` are known then.

        Raises `RemoteProtocolError`.
        """
        self._server_first = data.decode("ascii", "replace")
        found = _FIRST.fullmatch(self._server_first)
        try:
            salt = b"" if found is None else base64.b64decode(found[2], validate=True)
        except binascii.Error:
            salt = b""
        if found is None or not salt:
            raise RemoteProtocolError("the node's first message is not RFC 5802's")
        if not found[1].startswith(self._nonce) or found[1] == self._nonce:
            raise RemoteProtocolError("the node answers another login")
        iterations = int(found[3])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise RemoteProtocolError(
                f"the node asks for {iterations} iterations, not {ITERATIONS_MIN} to "
                f"{ITERATIONS_MAX}"
            )
        self._server_nonce, self.salt, self.iterations = found[1], salt, iterations

    def salted_password(self) -> bytes:
        """Return what `final` needs, which takes milliseconds to compute. Raises `LoginError`."""
        password = self._credentials.password
        if password is None:
            raise LoginError("there is no password")
        secret = prepared_password(password.reveal()).encode()
        return hashlib.pbkdf2_hmac(self._hash, secret, self.salt, self.iterations)

    def final(self, salted: bytes) -> bytes:
        """Return the second message, which has the proof."""
        final = f"c={base64.b64encode(_GS2.encode()).decode()},r={self._server_nonce}"
        signed = f"{self._first},{self._server_first},{final}".encode()
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        signature = hmac.digest(stored_key, signed, self._hash)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._hash)
        self._server_signature = hmac.digest(server_key, signed, self._hash)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def check(self, data: bytes) -> None:
        """Raise `RemoteProtocolError` unless the node's last message shows that it knows us."""
        own = b"v=" + base64.b64encode(self._server_signature)
        if not hmac.compare_digest(data, own):
            raise RemoteProtocolError("the node has not shown that it knows the user")
