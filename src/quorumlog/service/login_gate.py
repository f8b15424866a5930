"""What stands before a client's requests: who has to log in does so before anything else."""

from typing import Final

from quorumlog.auth.login import REVOKED_TEXT, Answer, ConnectionLogin, LoggedIn, Logins, Refused
from quorumlog.auth.sasl import Continue
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.base import Hello, Response
from quorumlog.model.messages.login import Authenticate, Authenticated
from quorumlog.model.messages.security import AlterUsersRequest
from quorumlog.transport.connection import Connection, ConnectionHandler
from quorumlog.wire.frame import Frame

_EXPIRED: Final = (
    "the token that this client has logged in with has expired; log in with another one"
)


class LoginGate:
    """Handles a client's connection until it has logged in; then `requests` gets all other frames.

    Who may log in, and does not have to, is nobody yet until either that or another request comes.
    A client may log in again, for longer. Once its password was changed or its user removed, the
    connection ends, whatever it waits for; once its token has expired, with the next request.
    """

    def __init__(self, logins: Logins, requests: ConnectionHandler) -> None:
        self._logins = logins
        self._requests = requests
        self._login: ConnectionLogin | None = None
        self._hello: Hello | None = None
        self._is_open = False

    def opened(self, connection: Connection, hello: Hello) -> None:
        """See `ConnectionHandler`."""
        self._hello = hello
        login = ConnectionLogin(
            self._logins,
            connection.origin,
            connection.principal,
            lambda: connection.abort(REVOKED_TEXT),
        )
        self._login = login
        if login.is_needed:
            connection.await_login(lambda: login.is_decided)
        elif not login.is_possible:
            self._open(connection)

    def _open(self, connection: Connection) -> None:
        if not self._is_open and self._hello is not None:
            self._is_open = True
            self._requests.opened(connection, self._hello)

    def frame_received(self, connection: Connection, frame: Frame) -> None:
        """See `ConnectionHandler`."""
        login = self._login
        if login is None or isinstance(frame.message, Authenticate):
            self._authenticate(connection, frame, login)
        elif login.is_expired or login.is_revoked:
            text = _EXPIRED if login.is_expired else REVOKED_TEXT
            expired = Response(code=ResponseCode.LOGIN_EXPIRED, text=text)
            connection.send(expired, correlation_id=frame.correlation_id)
            connection.close(text)
        else:
            if isinstance(frame.message, AlterUsersRequest):
                login.changes_users()
            if not self._is_open:  # it does not log in
                self._open(connection)
                if not connection.is_open:
                    return
            self._requests.frame_received(connection, frame)

    def _authenticate(
        self, connection: Connection, frame: Frame, login: ConnectionLogin | None
    ) -> None:
        message = frame.message
        if login is None or login.is_over or not isinstance(message, Authenticate):
            return
        number = frame.correlation_id
        if not login.is_under_way and not login.begin(message.mechanism):
            offered = ", ".join(login.offered) or "none"
            text = f"mechanism {message.mechanism} is not offered here, but {offered}"
            self._answer(connection, number, Refused(text))
            return
        login.step(message.data, lambda answer: self._answer(connection, number, answer))

    def _answer(self, connection: Connection, number: int, answer: Answer) -> None:
        if isinstance(answer, Continue):
            connection.send(Authenticated(data=answer.data, more=True), correlation_id=number)
        elif isinstance(answer, LoggedIn):
            connection.admit(answer.principal, answer.mechanism)
            self._open(connection)
            told = Authenticated(
                data=answer.data, principal=answer.principal, lifetime_ms=answer.lifetime_ms
            )
            connection.send(told, correlation_id=number)
        else:
            code = ResponseCode.LOGIN_BUSY if answer.is_busy else ResponseCode.LOGIN_REFUSED
            connection.send(Authenticated(code=code, text=answer.text), correlation_id=number)
            connection.close(answer.text)

    def closed(self, connection: Connection, reason: str) -> None:
        """See `ConnectionHandler`."""
        if self._login is not None:
            self._login.end()
        if self._is_open:
            self._requests.closed(connection, reason)
