"""Asks the coordinator of sinks, as tasks and the driver do: our own requests on the Kafka port.

It is found as Kafka's clients find the coordinator of transactions. Every request may be sent
again: none has an effect twice.
"""

import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self

from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

from quorumlog.client.kafka_security import end, in_words_of_tls, is_final, secured
from quorumlog.client.security import Security
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.schemas import (
    EndSinkBatchRequest,
    EndSinkBatchResponse,
    JoinSinkRequest,
    JoinSinkResponse,
)
from quorumlog.machine.cluster.sinks import attempt_id
from quorumlog.model.config import host_port, parse_address
from quorumlog.model.errors import (
    ConfigError,
    DeadlineExceededError,
    InternalError,
    NetworkError,
    NotAuthorizedError,
    ProducerFencedError,
    RequestError,
    TransactionAbortedError,
    UnexpectedArgumentError,
    UnsupportedError,
)
from quorumlog.spark.access import AnyAccess, open_brokers, said_where

RETRY_S: Final = 0.05
"""Pause before a request that was not answered, or not by the coordinator, is sent again."""
ANSWER_S: Final = 15.0
"""A request that is not answered for so long is sent again."""
CONNECT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 1024 * 1024
END_VERSION: Final = 1
"""Of EndSinkBatch: the first one that says how many rows a batch has."""
_OF_TRANSACTIONS: Final = 1
"""The kind of coordinator that is asked for, in FindCoordinator."""
_AGAIN: Final = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.REQUEST_TIMED_OUT,
}
_RAISED: Final[dict[int, type[RequestError]]] = {
    ErrorCode.PRODUCER_FENCED: ProducerFencedError,
    ErrorCode.INVALID_TXN_STATE: TransactionAbortedError,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: TransactionAbortedError,
    ErrorCode.INVALID_REQUEST: UnexpectedArgumentError,
    ErrorCode.POLICY_VIOLATION: UnsupportedError,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: NotAuthorizedError,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: NotAuthorizedError,
}


class SinkBatch(NamedTuple):
    """A batch: of which sink, in which run of it."""

    sink: str
    run_id: str
    batch_id: int


class Attempt(NamedTuple):
    """What a task has written in a transaction that is ongoing: its name, and its producer."""

    name: str
    producer_id: int
    epoch: int


class Joined(NamedTuple):
    """The last batch that was committed, and who has a transactional id; -1: nobody."""

    last_batch: int
    producer_id: int
    epoch: int
    is_ongoing: bool


class Ended(NamedTuple):
    """The last batch that is committed, and how many rows it has; -1: that was not told."""

    last_batch: int
    last_rows: int


class _Connection:
    """A connection to one broker, which is known to speak our requests."""

    def __init__(
        self, address: tuple[str, int], timeout_s: float, security: Security | None
    ) -> None:
        self.address = address
        self._security = security
        self._number = 0
        plain = socket.create_connection(address, min(timeout_s, CONNECT_S))
        with said_where():
            self._socket = secured(plain, address[0], security)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found = self.ask(
                ApiVersionsRequest(version=0), ApiVersionsResponse, min(timeout_s, CONNECT_S)
            )
        except BaseException:
            self.close()
            raise
        newest = {one.api_key: one.max_version for one in found.api_keys}
        if (
            JoinSinkRequest.API_KEY not in newest
            or newest.get(EndSinkBatchRequest.API_KEY, -1) < END_VERSION
        ):
            self.close()
            raise UnsupportedError(
                f"{host_port(*address)} does not know quorumlog's requests for sinks: it is no "
                "broker of quorumlog, or of an older version. Upgrade the brokers first, or set "
                "deliveryGuarantee=at-least-once"
            )

    def ask(self, request: Any, response: Any, timeout_s: float) -> Any:
        """Send a request and return its answer. Raises `OSError`, or `ValueError` for nonsense."""
        try:
            return self._answer_to(request, response, timeout_s)
        except OSError as error:
            raise in_words_of_tls(error, self._security) from None

    def _answer_to(self, request: Any, response: Any, timeout_s: float) -> Any:
        self._number += 1
        self._socket.settimeout(max(0.001, timeout_s))
        request.with_header(correlation_id=self._number, client_id="quorumlog-spark")
        self._socket.sendall(request.encode(header=True, framed=True))
        size = int.from_bytes(self._receive(4), "big")
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of {size} bytes")
        answer = self._receive(size)
        try:
            found = response.decode(answer, version=request.API_VERSION, header=True)
        except (struct.error, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"an answer that cannot be read: {error}") from None
        if found.header.correlation_id != self._number:
            raise ValueError("an answer to another request")
        return found

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            some = self._socket.recv(size - len(received))
            if not some:
                raise ConnectionResetError("the broker has closed the connection")
            received += some
        return bytes(received)

    def close(self) -> None:
        end(self._socket)


class SinkCoordinator:
    """The coordinator, wherever it is. All methods raise `RequestError`.

    Each of them tries for at most `timeout_ms`. Use it in a `with` statement, or `close` it.
    """

    def __init__(self, servers: AnyAccess, timeout_ms: int) -> None:
        cluster = open_brokers(servers)
        self._servers = [parse_address(one) for one in cluster.kafka.split(",")]
        self._security = cluster.security
        self._timeout_s = timeout_ms / 1_000
        self._connection: _Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def join(self, batch: SinkBatch, transactional_id: str) -> Joined:
        """Return the last batch that was committed, and who has the transactional id now.

        The run of the batch becomes the present one of its sink, unless a later one has begun:
        that raises `ProducerFencedError`.
        """

        def request() -> Any:
            return JoinSinkRequest(*batch, transactional_id, version=0)

        found = self._ask(request, JoinSinkResponse, batch)
        return Joined(
            found.last_batch_id, found.producer_id, found.producer_epoch, found.is_ongoing
        )

    def end(
        self, batch: SinkBatch, attempts: list[Attempt], *, rows: int, commits: bool, is_last: bool
    ) -> Ended:
        """Commit what attempts have written, all of it or nothing, and abort all other attempts.

        Returns the last batch that is committed then. One that was committed before, or comes
        before one that was, is not committed again. `commits` False: all are aborted. `rows`: how
        many the batch has, which is remembered with it.
        Raises `TransactionAbortedError` if a transaction of the attempts is not ongoing any more:
        nothing is committed then.
        """

        def request() -> Any:
            of = EndSinkBatchRequest.SinkAttempt
            named = [of(*one, version=END_VERSION) for one in attempts]
            return EndSinkBatchRequest(*batch, commits, is_last, named, rows, version=END_VERSION)

        found = self._ask(request, EndSinkBatchResponse, batch)
        return Ended(found.last_batch_id, found.last_rows)

    # -- inside -------------------------------------------------------------------------------

    def _ask(self, request: Callable[[], Any], response: Any, batch: SinkBatch) -> Any:
        """Ask the coordinator until it answers. Raises `RequestError`."""
        what = f"batch {batch.batch_id} of {batch.sink}"
        deadline_s = time.monotonic() + self._timeout_s
        why = "no broker has answered"
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                connection = self._connected(batch.sink, left_s)
                found = connection.ask(request(), response, min(left_s, ANSWER_S))
            except ConfigError as error:  # a file that was there before
                raise UnexpectedArgumentError(str(error)) from None
            except (OSError, ValueError) as error:
                why = str(error) or type(error).__name__
                self.close()
            else:
                if not found.error_code:
                    return found
                text = found.error_message or _name(found.error_code)
                if found.error_code not in _AGAIN:
                    raise _error(found.error_code, f"{what}: {text}", batch.sink)
                why = text
                if found.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                    self.close()
            time.sleep(min(RETRY_S, max(0, deadline_s - time.monotonic())))
        text = f"{what}: the coordinator of {self._names()} did not answer in time: {why}"
        raise DeadlineExceededError(text)

    def _names(self) -> str:
        return ",".join(host_port(host, port) for host, port in self._servers)

    def _connected(self, sink: str, left_s: float) -> _Connection:
        """Return a connection to the coordinator.

        Raises `OSError` if none is found, `NetworkError` if certificates are why no broker is of
        use; `NotAuthorizedError`, `LoginError` and `ConfigError`.
        """
        if self._connection is not None:
            return self._connection
        faults, are_final = [], True
        refused: NotAuthorizedError | None = None
        for server in self._servers:
            try:
                first = _Connection(server, left_s, self._security)
                try:
                    address = _coordinator_by(first, sink, left_s)
                except BaseException:
                    first.close()
                    raise
                if address == server:
                    self._connection = first
                else:
                    first.close()
                    self._connection = _Connection(address, left_s, self._security)
            except NotAuthorizedError as error:  # others may know of a newer ACL
                refused = error
            except (OSError, ValueError) as error:
                faults.append(f"{server[0]}:{server[1]}: {error}")
                are_final = are_final and is_final(error)
            else:
                return self._connection
        if refused is not None:
            raise refused
        text = "; ".join(faults)
        raise NetworkError(text) if are_final else ConnectionError(text)


def _coordinator_by(connection: _Connection, sink: str, left_s: float) -> tuple[str, int]:
    """Return the coordinator of transactions that a broker knows.

    Raises `OSError` if it knows none, `NotAuthorizedError`.
    """
    asked = FindCoordinatorRequest(attempt_id(sink, ""), _OF_TRANSACTIONS, version=2)
    found = connection.ask(asked, FindCoordinatorResponse, min(left_s, CONNECT_S))
    if found.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        raise _error(found.error_code, found.error_message or _name(found.error_code), sink)
    if found.error_code:
        raise ConnectionError(found.error_message or _name(found.error_code))
    return found.host, found.port


def _error(error_code: int, text: str, sink: str) -> RequestError:
    if error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        text += (
            "; whoever writes by this sink needs: quorumlog acl add --user USER --role writer "
            f"--transactional-id '{attempt_id(sink, '*')}'"
        )
    return _RAISED.get(error_code, InternalError)(text)


def _name(error_code: int) -> str:
    return next((one.name for one in ErrorCode if one == error_code), f"error {error_code}")
