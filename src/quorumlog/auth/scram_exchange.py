"""A login by SCRAM (RFC 5802, RFC 7677), by the library scramp."""

import re
from typing import Final

from scramp import ScramException, ScramMechanism
from scramp.core import ScramServer
from scramp.utils import ServerError

from quorumlog.auth.sasl import Continue, Done, Failed, Reason, Step
from quorumlog.auth.scram import Decoys, Verifier, Verifiers
from quorumlog.model.bounds import NAME_LENGTH_MAX

SCRAM_BYTES_MAX: Final = 2 * 1024
"""Bytes of a client's message."""
_ESCAPED_MAX: Final = 3 * NAME_LENGTH_MAX
"""Characters of a name as it is sent, each of which may be written with three (RFC 5802)."""
_NAME: Final = re.compile(r"(?:^|,)n=([^,]*)")
_REASONS: Final = {
    ServerError.INVALID_PROOF: Reason.PASSWORD,
    ServerError.CHANNEL_BINDINGS_DONT_MATCH: Reason.CHANNEL_BINDING,
    ServerError.CHANNEL_BINDING_NOT_SUPPORTED: Reason.CHANNEL_BINDING,
    ServerError.UNSUPPORTED_CHANNEL_BINDING_TYPE: Reason.CHANNEL_BINDING,
}

_TEXTS: Final = {
    Reason.MALFORMED: "a message that is none of SCRAM (RFC 5802)",
    Reason.CHANNEL_BINDING: "the client demands a binding to TLS, which is not offered",
}


class ScramExchange:
    """A login by SCRAM: two messages of the client. `nonce`: the server's, never used before.

    The server does not compute PBKDF2: that is the client's work. A user who does not exist has the
    salt of a decoy, and fails at the same message, with the same error, as one with a wrong
    password. Channel bindings are not offered, and refused where a client demands one.
    """

    def __init__(self, mechanism: str, verifiers: Verifiers, decoys: Decoys, nonce: str) -> None:
        self._mechanism = mechanism
        self._verifiers = verifiers
        self._decoys = decoys
        self._server: ScramServer = ScramMechanism(mechanism).make_server(self._find, s_nonce=nonce)
        self._is_known = self._has_begun = False
        self.user = ""

    def _find(self, user: str) -> Verifier:
        self.user = user
        found = self._verifiers.verifier(user, self._mechanism)
        decoy = self._decoys.verifier(user, self._mechanism)
        self._is_known = found is not None
        return decoy if found is None else found

    def step(self, data: bytes) -> Step:
        """See `sasl.Exchange`."""
        if len(data) > SCRAM_BYTES_MAX:
            return Failed(Reason.MALFORMED, f"a message of {len(data)} bytes")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return Failed(Reason.MALFORMED, "a message that is no text in UTF-8")
        try:
            return self._second(text) if self._has_begun else self._first(text)
        except ScramException as error:
            reason = self._reason_of(error)  # the library's words would be those of its code
            return Failed(reason, _TEXTS.get(reason, ""))

    def _first(self, text: str) -> Step:
        self._has_begun = True
        for name in _NAME.findall(text):  # the library would prepare it for milliseconds
            if len(name) > _ESCAPED_MAX or len(_unescaped(name)) > NAME_LENGTH_MAX:
                return Failed(Reason.MALFORMED, f"a name of more than {NAME_LENGTH_MAX} characters")
        self._server.set_client_first(text)
        return Continue(self._server.get_server_first().encode())

    def _second(self, text: str) -> Step:
        self._server.set_client_final(text)  # compares the nonce, too (CVE-2024-56128)
        if not self._is_known:
            return Failed(Reason.UNKNOWN_USER)
        return Done(self.user, self._server.get_server_final().encode())

    def _reason_of(self, error: ScramException) -> Reason:
        found = _REASONS.get(error.server_error, Reason.MALFORMED)
        return Reason.UNKNOWN_USER if found is Reason.PASSWORD and not self._is_known else found


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
