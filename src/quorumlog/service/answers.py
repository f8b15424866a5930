"""Answers to the requests of one client; those of one turn of the loop leave in one frame."""

from collections.abc import Callable
from functools import partial

import msgspec

from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.messages.base import JOINED_MAX, Response, Responses
from quorumlog.model.messages.client import AppendResponse
from quorumlog.model.wording import sendable
from quorumlog.transport.connection import Connection
from quorumlog.wire.joined import PART_ATTACHED_MAX, Outgoing, runs_of


class Answers:
    """Sends the answers of one connection, in the order in which they are given.

    One is put off to the end of the turn, which `at_end` calls, if others may come with it and the
    client takes joined frames. A client that does not read its answers is cut off.
    """

    def __init__(self, at_end: Callable[[Callable[[], None]], object]) -> None:
        self._at_end = at_end
        self._gathered: list[Outgoing[Response]] = []
        self._attached = 0

    def send(self, connection: Connection, answer: Outgoing[Response], *, is_last: bool) -> None:
        """Send an answer soon; `is_last`: none can come with it. Raises nothing.

        Its text may be another program's, such as an append hook's: it is sent as `sendable` has
        it.
        """
        if answer.message.text:
            text = sendable(answer.message.text)
            answer = answer._replace(message=msgspec.structs.replace(answer.message, text=text))
        hello = connection.hello
        if answer.size > PART_ATTACHED_MAX or hello is None or not hello.takes_joined:
            self._send_gathered(connection)
            _send_one(connection, answer)
            return
        if not self._gathered:
            if is_last:
                _send_one(connection, answer)
                return
            self._at_end(partial(self._send_gathered, connection))
        self._gathered.append(answer)
        self._attached += answer.size
        if len(self._gathered) >= JOINED_MAX or self._attached >= PART_ATTACHED_MAX:
            self._send_gathered(connection)

    def _send_gathered(self, connection: Connection) -> None:
        gathered, self._gathered, self._attached = self._gathered, [], 0
        if len(gathered) == 1:
            _send_one(connection, gathered[0])
            return
        try:
            runs = list(runs_of(gathered, PART_ATTACHED_MAX))
        except UnicodeEncodeError:  # one of them cannot be sent; the others must be
            for one in gathered:
                _send_one(connection, one)
            return
        place = 0
        for run in runs:
            joined = gathered[place : place + len(run.parts)]
            place += len(joined)
            if len(joined) == 1:
                _send_one(connection, run.first)
            elif connection.send(Responses(parts=run.parts), attachments=run.attachments):
                connection.answered += sum(
                    one.message.code == ResponseCode.SUCCESS for one in joined
                )
            else:
                _cut_off(connection)


def _send_one(connection: Connection, answer: Outgoing[Response]) -> None:
    number = answer.correlation_id
    try:
        sent = connection.send(
            answer.message, correlation_id=number, attachments=answer.attachments
        )
    except UnexpectedArgumentError as error:  # done, but no frame can have the answer
        kind = AppendResponse if isinstance(answer.message, AppendResponse) else Response
        text = sendable(f"the answer cannot be sent: {error}")
        refused = kind(code=ResponseCode.INTERNAL_ERROR, text=text)
        sent = connection.send(refused, correlation_id=number)
    if not sent:
        _cut_off(connection)


def _cut_off(connection: Connection) -> None:
    connection.close("answers are not being read")
