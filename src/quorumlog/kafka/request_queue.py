"""The requests of one connection, which are handled and answered in the order in which they came.

A request waits until all before it are answered; a Produce only until all before it are under way
and are Produce requests, too: the next batch may be proposed before the earlier one is answered.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from quorumlog.kafka.administration import acts_of, administers
from quorumlog.kafka.client_login import BEFORE_LOGIN, ClientLogin
from quorumlog.kafka.codec import decode_request, encode_response, error_response, refuse_version
from quorumlog.kafka.context import EVERYTHING, Answer, RequestContext, Services
from quorumlog.kafka.errors import ERROR_NAMES, ErrorCode, error_of
from quorumlog.kafka.frames import ReceivedFrame
from quorumlog.kafka.handlers.fetch import start_fetch
from quorumlog.kafka.handlers.offset_commit import start_offset_commit
from quorumlog.kafka.handlers.produce import start_produce
from quorumlog.kafka.handlers.registry import HANDLERS, Handler
from quorumlog.kafka.led_partitions import Refusal
from quorumlog.kafka.memory import KafkaMemory
from quorumlog.kafka.needs import refusal_of, refusal_of_key
from quorumlog.kafka.pending_request import PendingRequest
from quorumlog.kafka.requests import ApiKey, read_header
from quorumlog.kafka.rights import Rights
from quorumlog.kafka.throttling import Throttling
from quorumlog.log_events import describe_error
from quorumlog.model.audit_events import ADMINISTRATION_REFUSED, AuditedEvent
from quorumlog.model.block import Buffer
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RemoteProtocolError, RequestError, error_for

REQUESTS_MAX: Final = 256
"""Requests of a connection that wait for their answers; it is not read above."""
BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of these requests; a connection is not read above."""
HELD_S: Final = 60.0
"""How long requests wait until the broker knows all topics, in seconds. Then their connection ends,
so that the client may turn to another broker."""
_HELD_IN_VAIN: Final = "this node did not learn within {:g} s which topics there are"
_STARTED: Final = {
    int(ApiKey.PRODUCE): start_produce,
    int(ApiKey.FETCH): start_fetch,
    int(ApiKey.OFFSET_COMMIT): start_offset_commit,
}
"""Requests whose handlers read and answer them without a task for each."""
_ALWAYS_STARTED: Final = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE)
"""Requests whose answers do not depend on what the broker knows."""
_KEY_NAMES: Final = {int(key): key.name for key in ApiKey}
_UNKNOWN_KEY: Final = "{} is not spoken here; ApiVersions says what is"


class Connection(Protocol):
    """What a queue needs of its connection."""

    @property
    def remote_address(self) -> str:
        """Host and port of the client."""
        ...

    @property
    def principal(self) -> str:
        """Who the client has proved to be."""
        ...

    @property
    def login_mechanism(self) -> str:
        """By which mechanism of SASL it has logged in; empty: it has not."""
        ...

    @property
    def mechanism(self) -> str:
        """How that was proved."""
        ...

    @property
    def is_read_by_client(self) -> bool:
        """Whether the client reads its answers, so that another one may be made."""
        ...

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send an answer."""
        ...

    def queue_changed(self) -> None:
        """There are more requests, or fewer, or they wait for something else."""
        ...

    def memory_changed(self) -> None:
        """See `memory.Holder`."""
        ...

    def malformed(self, error: RemoteProtocolError) -> None:
        """Close the connection: the client has sent what is no request."""
        ...

    def tell(self, reason: str) -> None:
        """Write into the logs that the client is refused."""
        ...

    def ended_by_quota_of_user(self) -> bool:
        """Count the connection as its user's; close it, and return True, if that has too many."""
        ...

    def refused(self, reason: str) -> None:
        """Close the connection, with a line in the log: the client is not served here."""
        ...

    def close(self, reason: str) -> None:
        """End the connection."""
        ...


async def _recorded(context: RequestContext, message: Any, handle: Handler) -> Answer:
    """Have a request handled that administers, and tell the audit log what became of it.

    Raises what the handler raises, and `RequestError` if it could not be recorded.
    """
    if not context.services.audit.has_room:
        raise error_for(ResponseCode.LEADER_PENDING_FULL, ADMINISTRATION_REFUSED)
    answer, failure = None, "it ended before it was answered: it may be done, or not"
    try:
        answer = await handle(context, message)
        failure = ""
        return answer
    except Exception as error:
        failure = describe_error(error)
        raise
    finally:
        known = answer if isinstance(answer, Mapping) else None
        for act in acts_of(context.header.api_key, message, known, failure):
            context.record(
                AuditedEvent.ADMINISTRATION,
                act.operation,
                act.resource,
                detail=act.detail,
                reason=act.reason,
                failed=act.failed,
            )


class RequestQueue:
    """Requests of one connection."""

    def __init__(self, services: Services, memory: KafkaMemory, connection: Connection) -> None:
        self._services = services
        self._memory = memory
        self._connection = connection
        authorizer = services.authorizer
        self._rights = EVERYTHING if authorizer is None else Rights(authorizer.permit(connection))
        self._waiting: deque[PendingRequest] = deque()
        self._under_way: deque[PendingRequest] = deque()
        self._throttling = Throttling(services.throttles, services.now, self.changed)
        self._bytes = 0
        self._is_starting = self._has_many = False
        self.is_closed = self._is_counted = False
        self.client_id = ""
        self.login: ClientLogin | None = None
        """Who the client is; None: nobody logs in here."""

    # -- bounds -----------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether the client waits for nothing."""
        return not (self._waiting or self._under_way)

    @property
    def is_muted(self) -> bool:
        """Whether the client has to wait, as it has used up a quota."""
        return self._throttling.is_muted

    @property
    def is_full(self) -> bool:
        """Whether no more requests are to be read now; once so, until half of them are answered."""
        if self._has_many or self._throttling.is_muted:
            return True
        under_way = self._under_way
        if self.login is not None and self.login.is_needed:
            return not self.is_empty  # a stranger must not fill the memory of all
        return bool(under_way) and under_way[-1].is_alone and under_way[-1].is_produce

    def _count_changed(self) -> None:
        count, share = len(self._waiting) + len(self._under_way), 2 if self._has_many else 1
        self._has_many = count * share >= REQUESTS_MAX or self._bytes * share > BYTES_MAX

    # -- in ---------------------------------------------------------------------------------

    def add(self, frame: ReceivedFrame) -> None:
        """Take a request. Raises `RemoteProtocolError` if the frame is none."""
        header = read_header(frame)
        self.client_id = header.client_id or self.client_id
        connection = self._connection
        context = RequestContext(
            self._services,
            header,
            connection.remote_address,
            connection,
            login=self.login,
            rights=self._rights,
        )
        request = PendingRequest(self, frame, context)
        self._waiting.append(request)
        self._bytes += request.size
        self._count_changed()
        self._memory.hold(connection, request.size)
        self._start_next()
        connection.queue_changed()

    def changed(self) -> None:
        """Start what may be started now."""
        self._start_next()
        self._connection.queue_changed()

    def _start_next(self) -> None:
        if self._is_starting or self.is_closed:
            return
        self._is_starting = True
        try:
            while self._waiting and self._may_start(self._waiting[0]):
                request = self._waiting.popleft()
                self._under_way.append(request)
                self._start_one(request)
        finally:
            self._is_starting = False

    def _may_start(self, request: PendingRequest) -> bool:
        under_way = self._under_way
        if under_way and (request.is_alone or under_way[-1].is_alone):
            return False
        if self._throttling.is_muted or not self._connection.is_read_by_client:
            return False
        if request.header.api_key in _ALWAYS_STARTED or self._services.broker.is_complete:
            return True
        self._services.held.add(self)
        return False

    def _is_before_login(self, api_key: int) -> bool:
        """Whether the client has yet to log in, or may: what it asks for is not somebody's."""
        login = self.login
        return login is not None and api_key in BEFORE_LOGIN and login.is_possible

    def end_if_in_vain(self) -> None:
        """See `context.HeldRequests`."""
        reason = self._services.broker.refusal
        if not reason and self._services.now() - self._waiting[0].received_s >= HELD_S:
            reason = _HELD_IN_VAIN.format(HELD_S)
        if reason:
            self._services.held.discard(self)
            self._connection.refused(reason)

    def _start_one(self, request: PendingRequest) -> None:
        header, context = request.header, request.context
        # not before: it may have waited for a login
        context.principal = self._connection.principal
        context.mechanism = self._connection.mechanism
        if self.login is not None and not self._may_ask(request, self.login):
            return
        if self._throttling.throttles.is_active and not self._is_before_login(header.api_key):
            self._throttling.begins(request)
        try:
            if not header.is_spoken:
                self._refuse_version(request)
            elif (refused := refusal_of_key(self._rights, header.api_key)) is not None:
                self._refuse(request, refused)
            elif (start := _STARTED.get(header.api_key)) is not None:
                start(request)
            else:
                request.read(decode_request, partial(self._handle, request))
        except Exception as error:
            self.failed(request, error)

    def _may_ask(self, request: PendingRequest, login: ClientLogin) -> bool:
        """Whether the client is who it has to be; else the connection ends."""
        api_key = request.header.api_key
        if reason := login.why_not(api_key):
            self._turn_away(request, reason)
            return False
        if self._is_counted or api_key in BEFORE_LOGIN:
            return True
        self._is_counted = True
        if self._connection.ended_by_quota_of_user():
            self.close()
            return False
        return True

    def _turn_away(self, request: PendingRequest, reason: str) -> None:
        """End the connection: the client has to log in first, and is told so if that is possible.

        Who wants no answer to a Produce would take one for that of another request.
        """
        if not request.header.is_spoken or not request.is_awaited:
            self._connection.refused(reason)
            return
        self._connection.tell(reason)
        request.context.note_error(ErrorCode.ILLEGAL_SASL_STATE, reason)
        request.context.last_answer = reason
        request.answered([error_response(request.header, ErrorCode.ILLEGAL_SASL_STATE)])

    def _refuse_version(self, request: PendingRequest) -> None:
        header = request.header
        refused = refuse_version(header)
        if refused is None:
            raise RemoteProtocolError(_UNKNOWN_KEY.format(header.name))
        if header.api_key == ApiKey.API_VERSIONS:  # clients try their newest one first
            request.context.error = ErrorCode.UNSUPPORTED_VERSION
        else:
            text = f"{header.name} is not spoken"
            request.context.note_error(ErrorCode.UNSUPPORTED_VERSION, text)
        request.answered([refused])

    @staticmethod
    def _refuse(request: PendingRequest, refused: Refusal) -> None:
        """Answer a request that the client may not have."""
        request.context.note_error(refused.error, refused.text)
        request.answered([error_response(request.header, refused.error)])

    def _handle(self, request: PendingRequest, message: Any) -> None:
        refused = refusal_of(self._rights, request.header.api_key, message)
        if refused is not None:
            self._refuse(request, refused)
            return
        task = asyncio.get_running_loop().create_task(self._answer(request, message))
        request.cancel = task.cancel

    async def _answer(self, request: PendingRequest, message: Any) -> None:
        """Answer a request, whatever its handler raises."""
        header = request.header
        try:
            handle = HANDLERS[header.api_key]
            if administers(header.api_key, message):
                answer = await _recorded(request.context, message, handle)
            else:
                answer = await handle(request.context, message)
            if isinstance(answer, Mapping):
                write = partial(encode_response, header, answer)
                is_long = request.context.is_long
                answer = await request.context.on_thread(write) if is_long else write()
        except Exception as error:
            self.failed(request, error)
        else:
            request.answered([answer] if isinstance(answer, bytes) else answer)

    # -- out --------------------------------------------------------------------------------

    def answered(self, request: PendingRequest) -> None:
        """Send what is answered, in order, and start what waited for it."""
        if self.is_closed:
            self._release(request)
            return
        under_way = self._under_way
        while under_way and (answer := under_way[0].answer) is not None:
            done = under_way.popleft()
            self._release(done)
            self._count(done)
            if self._throttling.throttles.is_active:
                answer = self._throttling.told(done, answer)
            if answer:
                self._connection.send(answer)
            if done.context.last_answer:
                self._connection.close(done.context.last_answer)
                self.close()
                return
        if self._waiting:  # a replica may answer in the middle of what it does
            self._services.defer(self.changed)
        self._connection.queue_changed()

    def _count(self, request: PendingRequest) -> None:
        counters, key = self._services.counters, request.header.api_key
        counters.count_request(_KEY_NAMES[key], ERROR_NAMES[request.context.error])
        if request.is_produce:
            counters.produce_seconds.observe(self._services.now() - request.received_s)
        elif key == ApiKey.FETCH:
            counters.fetch_seconds.observe(self._services.now() - request.received_s)

    def _release(self, request: PendingRequest) -> None:
        if request.is_released:
            return
        request.is_released = True
        self._bytes -= request.size
        self._count_changed()
        self._memory.release(self._connection, request.size)

    def failed(self, request: PendingRequest, error: Exception) -> None:
        """See `pending_request.Owner`: answer with an error; a client that errs is cut off.

        So is one that may want no answer: it would take the error for that of another request.
        """
        if self.is_closed:
            self._release(request)
            return
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        if isinstance(error, RemoteProtocolError):
            self._connection.malformed(error)
            return
        if isinstance(error, RequestError):
            code = error_of(error.code)
            request.context.note_error(code, str(error))
        else:
            request.context.error = code
            self._services.lines.fault(
                "handling a request of a Kafka client failed",
                self.client_id,
                self._connection.remote_address,
                error,
                request=request.header.name,
            )
        if request.is_awaited:
            request.answered([error_response(request.header, code)])
        else:
            self._connection.close(f"a Produce failed: {code.name}")
            request.answered(())

    def bytes_left(self) -> float | None:
        """See `pending_request.Owner`."""
        return self._throttling.bytes_left()

    def close_connection(self, reason: str) -> None:
        """End the connection."""
        self._connection.close(reason)

    def close(self) -> None:
        """The connection has ended: nothing is answered any more.

        What was proposed holds its memory until it is answered.
        """
        self.is_closed = True
        self._throttling.end()
        self._services.held.discard(self)
        requests = (*self._waiting, *self._under_way)
        self._waiting.clear()
        self._under_way.clear()
        for request in requests:
            if request.cancel is not None:
                request.cancel()
            if not request.is_in_log or request.answer is not None:
                self._release(request)
