"""Commands on their way to the leader of `__cluster`, wherever that is, until they are answered.

A command goes to the node that leads as far as is known here. If that does not lead any more, or
does not answer, the command is sent again until its time is over: it is applied once, as it has
an id.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from quorumlog.machine.cluster.answers import COMMANDS_MAX, SESSION_BYTES, command_id
from quorumlog.machine.cluster.commands import (
    COMMAND_BYTES_MAX,
    AnyCommand,
    AnyResult,
    CreatePartitions,
    CreateTopics,
    Envelope,
    Forgotten,
    Refused,
    decode_result,
    encode,
)
from quorumlog.model.block import HEADER_SIZE, Buffer
from quorumlog.model.bounds import TEXT_LENGTH_MAX
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.messages.cluster import ClusterAnswer, ClusterCommand, ClusterMessage
from quorumlog.model.wording import counted

CALLS_MAX: Final = COMMANDS_MAX
"""Commands of one node that wait for an answer, and those that were given after the first of
them."""
CALL_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of the commands of one session that wait for an answer."""
SERVED_MAX: Final = 8_192
"""Commands of other nodes that this one has under way as the leader."""
RETRY_MS: Final = 50
"""Pause before a command that was refused, or had nowhere to go, is sent again."""
ANSWER_MS: Final = 3_000
"""A command that is not answered for so long is sent again."""

REPLY_MS: Final = 500
"""The leader gives a command up by so much earlier than its node does, and says why."""

_LAST_NUMBER_BYTES: Final = 6
_FORGOTTEN: Final = "it was applied before; its result was too large to be kept"

Answer: TypeAlias = Callable[[ResponseCode, str, bytes, int], None]
"""Called once: with SUCCESS, the encoded result and the index of the command's entry, or with a
code and the reason."""
Done: TypeAlias = Callable[[ResponseCode, str, AnyResult | None], None]
"""Called once with the result, or None and why there is none."""

AGAIN: Final = frozenset(
    {
        ResponseCode.NOT_LEADER,
        ResponseCode.LEADER_NOT_READY,
        ResponseCode.LEADER_TRANSFERRING,
        ResponseCode.LEADER_PENDING_FULL,
        ResponseCode.TERM_CHANGED,
        ResponseCode.WAIT_QUORUM_ACK_TIMEOUT,
        ResponseCode.UNKNOWN_GROUP,
        ResponseCode.NODE_STOPPING,
    }
)
"""Codes after which a command is sent again: another leader, or the same one later, takes it."""


class CommandNetwork(Protocol):
    """What commands need around them; `now_ms` reads a monotonic clock."""

    def now_ms(self) -> int:
        """Return the time."""
        ...

    def wall_ms(self) -> int:
        """Return the Unix time in milliseconds."""
        ...

    def leader(self) -> str | None:
        """Return the node that leads `__cluster`, as far as is known here."""
        ...

    def applied_index(self) -> int:
        """Return the index up to which this node's view of `__cluster` has come."""
        ...

    def send(
        self, peer_id: str, message: ClusterMessage, attachments: Sequence[Buffer] = ()
    ) -> bool:
        """Send to another node, or return False when that is impossible now."""
        ...

    def serve(self, data: bytes, timeout_ms: int, answer: Answer) -> None:
        """Carry out a command here, as the leader; `answer` may be called at once."""
        ...


@dataclass(slots=True)
class _Call:
    data: bytes
    deadline_ms: int
    done: Done
    sent_to: str | None = None
    """Where it is under way; None: nowhere."""
    due_ms: int = 0
    """When it is sent again."""
    why: str = "no leader of __cluster is known"
    attempt: int = 0


class Commands:
    """The commands of one node. All methods run on the event loop's thread.

    `session`: bytes that no other run of a node has (`answers.SESSION_BYTES`). `last_number`: the
    numbers of its commands come after this one; if runs begin at random ones, what another run was
    answered is not taken for an answer to this one. `bytes_max`: of a command, encoded.
    """

    def __init__(
        self,
        self_id: str,
        session: bytes,
        network: CommandNetwork,
        last_number: int = 0,
        bytes_max: int = COMMAND_BYTES_MAX,
    ) -> None:
        self._self_id = self_id
        self._bytes_max = bytes_max
        self._session = session
        self._network = network
        self._calls: dict[int, _Call] = {}
        self._bytes = 0
        self._numbers = last_number
        self._served: set[tuple[str, int]] = set()
        """Node and number of each command of another node that is under way here."""
        self._carried_out: list[tuple[int, _Call, AnyResult]] = []
        """Those whose entries this node has not applied yet; they count as calls that wait."""

    def __len__(self) -> int:
        return len(self._calls) + len(self._carried_out)

    def execute(self, command: AnyCommand, timeout_ms: int, done: Done) -> None:
        """Have a command applied; `done` may be called at once."""
        number = self._numbers + 1
        lowest = next(iter(self._calls), number)
        if len(self) >= CALLS_MAX or number - lowest >= CALLS_MAX:
            text = f"{counted(len(self), 'command')} wait already; try again later"
            done(ResponseCode.LEADER_PENDING_FULL, text, None)
            return
        identity = command_id(self._session, number)
        data = encode(Envelope(identity, self._network.wall_ms(), command, lowest))
        if len(data) > self._bytes_max:
            text = f"a command of {len(data)} bytes is above {self._bytes_max}; split it"
            done(ResponseCode.UNEXPECTED_ARGUMENT, text, None)
            return
        if self._bytes + len(data) > CALL_BYTES_MAX:
            text = f"commands of {self._bytes} bytes wait already; try again later"
            done(ResponseCode.LEADER_PENDING_FULL, text, None)
            return
        self._numbers = number
        self._bytes += len(data)
        call = _Call(data, self._network.now_ms() + timeout_ms, done)
        self._calls[number] = call
        self._send(number, call)

    def _send(self, number: int, call: _Call) -> None:
        now_ms, leader = self._network.now_ms(), self._network.leader()
        call.sent_to, call.due_ms = None, now_ms + RETRY_MS
        if leader is None:
            return
        left_ms = max(1, call.deadline_ms - now_ms - REPLY_MS)
        call.why = f"{leader}, which leads __cluster, has not answered"
        if leader == self._self_id:
            call.sent_to, call.due_ms = leader, now_ms + max(ANSWER_MS, left_ms)
            call.attempt += 1
            attempt = call.attempt

            def answer(code: ResponseCode, text: str, result: bytes, index: int) -> None:
                if call.attempt == attempt:
                    self._answered(number, code, text, result, index)

            self._network.serve(call.data, left_ms, answer)
            return
        message = ClusterCommand(
            local_id=self._self_id, remote_id=leader, number=number, timeout_ms=left_ms
        )
        if self._network.send(leader, message, (call.data,)):
            call.sent_to, call.due_ms = leader, now_ms + ANSWER_MS
        else:
            call.why = f"{leader}, which leads __cluster, cannot be reached"

    def _answered(
        self, number: int, code: ResponseCode, text: str, result: bytes, index: int
    ) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        if code in AGAIN:
            call.sent_to, call.why = None, text or code.name
            call.due_ms = self._network.now_ms() + RETRY_MS
            return
        self._forget(number)
        if code is not ResponseCode.SUCCESS:
            call.done(code, text, None)
            return
        try:
            found = decode_result(result)
        except UnexpectedArgumentError as error:
            call.done(ResponseCode.UNSUPPORTED, str(error), None)
            return
        if isinstance(found, Refused):
            call.done(ResponseCode.UNSUPPORTED, found.text, None)
            return
        if isinstance(found, Forgotten):
            call.done(ResponseCode.RESULTS_FORGOTTEN, _FORGOTTEN, None)
            return
        if index <= self._network.applied_index():
            call.done(code, "", found)
        else:
            self._carried_out.append((index, call, found))

    def _forget(self, number: int) -> None:
        self._bytes -= len(self._calls.pop(number).data)

    # -- other nodes --------------------------------------------------------------------------

    def received(self, message: ClusterMessage, attachment: Buffer) -> None:
        """Take a command of another node, or the answer to one of this node's."""
        if isinstance(message, ClusterCommand):
            self._serve(message, bytes(attachment))
        elif isinstance(message, ClusterAnswer):
            call = self._calls.get(message.number)
            if call is not None and call.sent_to == message.local_id:
                result = bytes(attachment)
                self._answered(message.number, message.code, message.text, result, message.index)

    def _serve(self, message: ClusterCommand, data: bytes) -> None:
        asker, number = place = message.local_id, message.number
        if place in self._served:
            return  # it was sent again before its answer; that will come

        def send(code: ResponseCode, text: str, result: bytes, index: int) -> None:
            reply = ClusterAnswer(
                local_id=self._self_id,
                remote_id=asker,
                number=number,
                code=code,
                text=text[:TEXT_LENGTH_MAX],
                index=index,
            )
            self._network.send(asker, reply, (result,) if result else ())

        def answer(code: ResponseCode, text: str, result: bytes, index: int) -> None:
            self._served.discard(place)
            send(code, text, result, index)

        if len(self._served) >= SERVED_MAX:
            waiting = counted(len(self._served), "command")
            text = f"{waiting} of other nodes wait already; try again later"
            send(ResponseCode.LEADER_PENDING_FULL, text, b"", -1)
            return
        self._served.add(place)
        self._network.serve(data, message.timeout_ms, answer)

    def applied(self) -> None:
        """This node's view has come further: answer what shows in it now."""
        waiting, self._carried_out = self._carried_out, []
        now_ms, applied = self._network.now_ms(), self._network.applied_index()
        for index, call, found in waiting:
            if index <= applied or now_ms >= call.deadline_ms:
                call.done(ResponseCode.SUCCESS, "", found)
            else:
                self._carried_out.append((index, call, found))

    # -- time ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Send what is due again, and give up what has no time left."""
        if self._carried_out:
            self.applied()
        if not self._calls:
            return
        now_ms, leader = self._network.now_ms(), self._network.leader()
        for number, call in list(self._calls.items()):
            if now_ms >= call.deadline_ms:
                self._forget(number)
                text = f"__cluster did not apply it in time: {call.why}"
                call.done(ResponseCode.TIMEOUT, text, None)
            elif now_ms >= call.due_ms or (call.sent_to is not None and call.sent_to != leader):
                self._send(number, call)

    def end(self, text: str) -> None:
        """Answer everything: the node stops."""
        calls, self._calls, self._bytes = list(self._calls.values()), {}, 0
        for _, call, found in self._carried_out:
            call.done(ResponseCode.SUCCESS, "", found)
        self._carried_out = []
        for call in calls:
            call.done(ResponseCode.NODE_STOPPING, text, None)


class CommandSessions:
    """The commands of one node, in two sessions. All methods run on the event loop's thread.

    A session has so many commands after the first one without an answer. So those that may wait
    long, until there are partition groups, have one of their own: the others make these groups.
    A command is an entry, of at most `entry_bytes_max`. Sessions are told apart by `random_bytes`,
    which no other run of a node gets.
    """

    def __init__(
        self,
        self_id: str,
        network: CommandNetwork,
        entry_bytes_max: int,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._plain, self._held = (
            Commands(
                self_id,
                random_bytes(SESSION_BYTES),
                network,
                int.from_bytes(random_bytes(_LAST_NUMBER_BYTES)),
                min(COMMAND_BYTES_MAX, entry_bytes_max - HEADER_SIZE),
            )
            for _ in range(2)
        )

    def __len__(self) -> int:
        return len(self._plain) + len(self._held)

    def execute(self, command: AnyCommand, timeout_ms: int, done: Done) -> None:
        """See `Commands`."""
        is_held = isinstance(command, CreateTopics | CreatePartitions)
        (self._held if is_held else self._plain).execute(command, timeout_ms, done)

    def received(self, message: ClusterMessage, attachment: Buffer) -> None:
        """See `Commands`."""
        self._plain.received(message, attachment)
        if isinstance(message, ClusterAnswer):
            self._held.received(message, attachment)

    def applied(self) -> None:
        """See `Commands`."""
        self._plain.applied()
        self._held.applied()

    def tick(self) -> None:
        """See `Commands`."""
        self._plain.tick()
        self._held.tick()

    def end(self, text: str) -> None:
        """See `Commands`."""
        self._plain.end(text)
        self._held.end(text)
