"""One connection to a broker: requests go out, answers come back, one after the other.

Fetch is written and read here, as records are not to be copied; all else by schemas.
"""

import itertools
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final

from quorumlog.client.kafka_security import end, in_words_of_tls, is_final, secured
from quorumlog.client.security import Security
from quorumlog.kafka.requests import ApiKey
from quorumlog.log_events import reason_of
from quorumlog.model.config import parse_address
from quorumlog.model.errors import LoginError, RemoteProtocolError
from quorumlog.spark.topics.errors import PassingError
from quorumlog.spark.topics.messages import (
    ANSWER_BYTES_MAX,
    Message,
    decode_answer,
    encode_request,
)

_FETCH_VERSION: Final = 11
_REQUEST: Final = struct.Struct(">hhi")
_FETCH: Final = struct.Struct(">iiiibii")
_PARTITION: Final = struct.Struct(">iiiqqi")
_ANSWER: Final = struct.Struct(">iihi")
_ANSWERED: Final = struct.Struct(">iihqqqi")
_ABORTED: Final = struct.Struct(">qq")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_NONE: Final = -1
_NO_SESSION: Final = 0


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """What a broker has of one partition from an offset on.

    `records` are record batches, the last of which may be cut off. `aborted`: producer id and first
    offset of aborted transactions in them.
    """

    error_code: int
    high_watermark: int
    log_start: int
    aborted: tuple[tuple[int, int], ...]
    records: memoryview


class BrokerConnection:
    """A connection to `address`, opened at once; an answer that takes `timeout_s` fails.

    `security`: how it is encrypted, and who logs in; None: neither.

    A short request goes first, as brokers take large ones only of those who have sent one.
    All methods raise `PassingError` if the broker cannot be reached or does not answer,
    `RemoteProtocolError` if what it says is not Kafka's protocol, or one of both sides does not
    accept the other's certificate; the connection is of no use then. Making one raises `LoginError`
    if the user is not let in, and `ConfigError` for files of no use, too.
    """

    def __init__(
        self, address: str, timeout_s: float, client_id: str, security: Security | None = None
    ) -> None:
        self.address = address
        self._client_id = client_id
        self._security = security
        self._numbers = itertools.count(1)
        try:
            host, port = parse_address(address)
            plain = socket.create_connection((host, port), timeout_s)
            self._socket = secured(plain, host, security)
        except OSError as error:
            raise self._failed("cannot be reached", error) from None
        except LoginError as error:
            raise LoginError(f"{address}: {error}") from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.ask(ApiKey.API_VERSIONS, {})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        end(self._socket)

    def ask(self, key: ApiKey, values: dict[str, Any]) -> Message:
        """Return the answer to a request with these fields."""
        number = next(self._numbers)
        self._send(encode_request(key, values, number, self._client_id))
        return decode_answer(key, self._receive(number))

    def send_fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        bytes_max: int,
        wait_ms: int,
        reads_committed: bool,
    ) -> int:
        """Ask for records from an offset on; return the number by which to receive them."""
        number = next(self._numbers)
        client_id, name = self._client_id.encode(), topic.encode()
        body = b"".join(
            (
                _REQUEST.pack(ApiKey.FETCH, _FETCH_VERSION, number),
                _I16.pack(len(client_id)) + client_id,
                _FETCH.pack(_NONE, wait_ms, 1, bytes_max, reads_committed, _NO_SESSION, _NONE),
                _I32.pack(1) + _I16.pack(len(name)) + name,
                _PARTITION.pack(1, partition, _NONE, offset, _NONE, bytes_max),
                _I32.pack(0) + _I16.pack(0),  # nothing to forget, no rack
            )
        )
        self._send(_I32.pack(len(body)) + body)
        return number

    def receive_fetch(self, number: int) -> FetchAnswer:
        """Return the answer to `send_fetch`."""
        answer = memoryview(self._receive(number))
        try:
            return _read_fetch(answer)
        except struct.error:
            raise RemoteProtocolError(f"{self.address}: an answer to Fetch ends early") from None

    def _send(self, frame: bytes) -> None:
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise self._failed("the connection broke", error) from None

    def _receive(self, number: int) -> bytearray:
        """Return an answer without its size."""
        (size,) = _I32.unpack(self._exactly(4))
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise RemoteProtocolError(
                f"{self.address} does not speak Kafka's protocol: an answer of {size} bytes; is it "
                "the address for Kafka's clients (kafkaListen of a node)?"
            )
        answer = self._exactly(size)
        (found,) = _I32.unpack_from(answer)
        if found != number:
            raise RemoteProtocolError(f"{self.address}: answer {found} in the place of {number}")
        return answer

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, received = memoryview(data), 0
        while received < size:
            try:
                count = self._socket.recv_into(view[received:])
            except OSError as error:
                raise self._failed("did not answer", error) from None
            if not count:
                raise PassingError(f"{self.address} closed the connection")
            received += count
        return data

    def _failed(self, what: str, error: OSError) -> PassingError | RemoteProtocolError:
        """Return what has gone wrong: what certificates are the reason for does not pass."""
        said = in_words_of_tls(error, self._security)
        kind = RemoteProtocolError if is_final(said) else PassingError
        return kind(f"{self.address} {what}: {reason_of(said)}")


def _read_fetch(answer: memoryview) -> FetchAnswer:
    """Read an answer that has one partition, or an error of the whole request."""
    _, _, error_code, _ = _ANSWER.unpack_from(answer)
    place = _ANSWER.size
    (topics,) = _I32.unpack_from(answer, place)
    place += 4
    if not topics:
        return FetchAnswer(error_code, _NONE, _NONE, (), answer[:0])
    (name_size,) = _I16.unpack_from(answer, place)
    place += 2 + name_size
    _, _, error_code, high_watermark, _, log_start, aborted = _ANSWERED.unpack_from(answer, place)
    place += _ANSWERED.size
    size = max(aborted, 0) * _ABORTED.size
    if place + size > len(answer):
        raise struct.error
    ranges = tuple(_ABORTED.iter_unpack(answer[place : place + size]))
    place += size + 4  # a preferred replica, which is never named to clients without a rack
    (size,) = _I32.unpack_from(answer, place)
    place += 4
    if place + max(size, 0) > len(answer):
        raise struct.error
    records = answer[place : place + max(size, 0)]
    return FetchAnswer(error_code, high_watermark, log_start, ranges, records)
