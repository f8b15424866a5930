"""Who a Kafka client is: its login by SASL, in requests or in frames that are none."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from quorumlog.auth.login import REVOKED_TEXT, Answer, ConnectionLogin, LoggedIn, Refused
from quorumlog.auth.sasl import Continue
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.block import Buffer

BEFORE_LOGIN: Final = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
"""Requests of a client that has not logged in, as Kafka has them (KIP-43, KIP-152)."""
_NEEDED: Final = "a request of a client that has not logged in; set security.protocol to SASL_SSL"
_EXPIRED: Final = "a request after the client's token has expired; it has to log in again (KIP-368)"


class ClientLogin:
    """The login of one connection. `admitted` is called with the principal of a client, and
    with the mechanism by which it has shown it.

    After a SaslHandshake of version 0 the messages of the mechanism come as frames of their own,
    without a header of a request; `is_raw` says so.
    """

    def __init__(self, login: ConnectionLogin, admitted: Callable[[str, str], None]) -> None:
        self._login = login
        self._admitted = admitted
        self.is_raw = False

    @property
    def is_needed(self) -> bool:
        """Whether the client has to log in."""
        return self._login.is_needed

    @property
    def is_possible(self) -> bool:
        """Whether the client has not said who it is, and may log in."""
        return self._login.is_possible

    @property
    def offered(self) -> list[str]:
        """The mechanisms that the client may use."""
        return self._login.offered

    def why_not(self, api_key: int) -> str:
        """Return why a request is not answered; empty: it may be."""
        if api_key in BEFORE_LOGIN:
            return ""
        if self._login.is_needed:
            return _NEEDED
        if self._login.is_expired:
            return _EXPIRED
        if api_key == ApiKey.ALTER_USER_SCRAM_CREDENTIALS:
            self._login.changes_users()
        return REVOKED_TEXT if self._login.is_revoked else ""

    def begin(self, mechanism: str, version: int) -> bool:
        """Take a SaslHandshake of a version; return whether the mechanism is offered."""
        is_begun = self._login.begin(mechanism)
        self.is_raw = is_begun and version == 0
        return is_begun

    async def step(self, data: bytes) -> Answer:
        """Return the answer to a message of the mechanism, which may take a while."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def done(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        self._login.step(data, done)
        answer = await answered
        self._note(answer)
        return answer

    def step_raw(
        self,
        data: bytes,
        send: Callable[[Sequence[Buffer]], None],
        close: Callable[[str], None],
    ) -> None:
        """Take a message that is a frame of its own; a refusal closes the connection."""

        def done(answer: Answer) -> None:
            if isinstance(answer, Refused):
                close(answer.text)
                return
            self.is_raw = isinstance(answer, Continue)
            self._note(answer)
            send([len(answer.data).to_bytes(4, "big") + answer.data])

        self._login.step(data, done)

    def _note(self, answer: Answer) -> None:
        if isinstance(answer, LoggedIn):
            self._admitted(answer.principal, answer.mechanism)

    def end(self) -> None:
        """The connection has ended."""
        self._login.end()
