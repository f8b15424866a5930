"""What a handler of requests knows: who asks, what the node has, and how to answer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from quorumlog.auth.certificates import ANONYMOUS
from quorumlog.auth.permits import Authorizer
from quorumlog.auth.throttles import Throttles
from quorumlog.kafka.broker_view import BrokerView
from quorumlog.kafka.client_login import ClientLogin
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.encoded_topics import EncodedTopics
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.coordinator import GroupCoordinator
from quorumlog.kafka.groups.offset_commits import OffsetCommits
from quorumlog.kafka.groups.refused_fetches import RefusedFetches
from quorumlog.kafka.producer_ids import ProducerIds
from quorumlog.kafka.refused_batches import RefusedBatches
from quorumlog.kafka.requests import ApiKey, RequestHeader
from quorumlog.kafka.rights import Rights
from quorumlog.kafka.rooms import Rooms
from quorumlog.kafka.topic_policies import TopicPolicies
from quorumlog.kafka.transactions.coordinator import TransactionCoordinator
from quorumlog.kafka.transactions.gate import TransactionGate
from quorumlog.kafka.transactions.sinks import SinkCoordinator
from quorumlog.model.audit_events import Audit, AuditedEvent, AuditEvent
from quorumlog.model.block import Buffer
from quorumlog.model.config import NodeConfig
from quorumlog.node.environment import Executor
from quorumlog.transport.client_lines import ClientLines

TIMEOUT_MS_MAX: Final = 300_000
"""The longest that a request waits for anything, whatever the client says."""
ELEMENTS_PER_TURN: Final = 500
"""Topics, partitions or names of a request that are handled before others have their turn on the
loop; each takes some microseconds."""
Answer: TypeAlias = Mapping[str, Any] | bytes | Sequence[Buffer]
"""The fields of an answer, by the names of `codec.encode_response`; or a whole frame, in one piece
or several."""
EVERYTHING: Final = Rights(None)
"""What a client may do where nothing is judged."""
Value = TypeVar("Value")


class RequestExecutor(Executor, Protocol):
    """Runs what takes long, for connections of clients in turns."""

    def forget(self, client: object) -> None:
        """A client has left: what it has not begun is not done."""
        ...


class HeldRequests(Protocol):
    """Requests of a connection that wait."""

    def changed(self) -> None:
        """Start what may be started now."""
        ...

    def end_if_in_vain(self) -> None:
        """End the connection if its requests wait for too long, or for what will not come."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """What all connections of a node share. `now`: seconds of a clock that never goes back."""

    broker: BrokerView
    config: NodeConfig
    executor: RequestExecutor
    counters: KafkaCounters
    lines: ClientLines
    producer_ids: ProducerIds
    encoded_topics: EncodedTopics
    audit: Audit
    now: Callable[[], float]
    defer: Callable[[Callable[[], object]], object]
    """Calls a function at the end of the present turn of the loop."""
    rooms: Rooms
    policies: TopicPolicies
    coordinator: GroupCoordinator
    commits: OffsetCommits
    transactions: TransactionCoordinator
    sinks: SinkCoordinator
    gate: TransactionGate
    answer_bytes_max: Callable[[], int]
    """Returns how many bytes an answer may have now, as others are not read yet."""
    authorizer: Authorizer | None = None
    """By whom it is judged what clients may do; None: everything."""
    throttles: Throttles = field(default_factory=Throttles)
    refused_batches: RefusedBatches = field(default_factory=RefusedBatches)
    refused_fetches: RefusedFetches = field(default_factory=RefusedFetches)
    held: set[HeldRequests] = field(default_factory=set)
    """Those whose requests wait until the broker knows all topics."""


class RequestContext:
    """One request on its way to its answer.

    `address`: host and port of the client. `owner`: the connection, which takes turns with others
    on threads. `principal`: who the client has proved to be, and `mechanism`: how. `login`: that of
    its connection; None: nobody logs in here. `last_answer`: why the connection is closed with the
    answer; empty: it is not. `rights`: what the client may do.
    """

    __slots__ = (
        "_handled",
        "address",
        "error",
        "header",
        "last_answer",
        "login",
        "mechanism",
        "owner",
        "principal",
        "rights",
        "services",
    )

    def __init__(  # noqa: PLR0913
        self,
        services: Services,
        header: RequestHeader,
        address: str,
        owner: object,
        principal: str = ANONYMOUS,
        *,
        mechanism: str = "",
        login: ClientLogin | None = None,
        rights: Rights = EVERYTHING,
    ) -> None:
        self.services = services
        self.header = header
        self.address = address
        self.owner = owner
        self.login = login
        self.last_answer = ""
        self.principal = principal
        self.mechanism = mechanism
        self.rights = rights
        self.error = ErrorCode.NONE
        self._handled = 0

    @property
    def broker(self) -> BrokerView:
        """The broker of this node."""
        return self.services.broker

    @property
    def config(self) -> NodeConfig:
        """The configuration of this node."""
        return self.services.config

    @property
    def client_id(self) -> str:
        """What the client calls itself."""
        return self.header.client_id or ""

    @staticmethod
    def within_ms(timeout_ms: int) -> int:
        """Return how long to wait for a client that would wait `timeout_ms`, in milliseconds."""
        return max(0, min(timeout_ms, TIMEOUT_MS_MAX))

    def note_error(self, error: ErrorCode, text: str, **where: str | int) -> None:
        """Count an error that the answer has, and have a line about it in the node's log.

        A client has one line a minute. `where`: such as the topic.
        """
        if self.error is ErrorCode.NONE:
            self.error = error
        self.services.lines.warn(
            "request of a Kafka client failed",
            self.client_id,
            self.address,
            request=ApiKey(self.header.api_key).name,
            error=error.name,
            reason=text,
            **where,
        )

    def record(
        self,
        event: AuditedEvent,
        operation: str,
        resource: str,
        *,
        detail: str = "",
        reason: str = "",
        failed: bool = False,
    ) -> None:
        """Have the audit log tell of what the client does to a resource.

        `detail`: what it asks for, besides the kind of the request. `reason`: why all or a part of
        it was not done; `failed`: nothing was, as far as is known.
        """
        name = ApiKey(self.header.api_key).name
        self.services.audit.record(
            AuditEvent(
                event=event,
                principal=self.principal,
                mechanism=self.mechanism,
                address=self.address,
                client=self.client_id,
                operation=operation,
                resource=resource,
                reason=reason,
                request=f"{name} {detail}".rstrip(),
                failed=failed,
            )
        )

    def accessed(self, topics: Iterable[str], operation: str) -> None:
        """Have the audit log tell that the client reads or writes topics, where that is wanted."""
        audit = self.services.audit
        for topic in topics:
            if audit.is_accessed("topic", topic):
                self.record(AuditedEvent.DATA_ACCESS, operation, f"topic:{topic}")

    @property
    def is_long(self) -> bool:
        """Whether the answer is about many elements: it is written on a thread."""
        return self._handled > ELEMENTS_PER_TURN

    async def in_turns(self, elements: Iterable[Value]) -> AsyncIterator[Value]:
        """Yield what is to be handled; others have their turn on the loop again and again."""
        for element in elements:
            self._handled += 1
            if not self._handled % ELEMENTS_PER_TURN:
                await asyncio.sleep(0)
            yield element

    async def on_thread(self, work: Callable[[], Value]) -> Value:
        """Return what `work` returns, or raise what it raises; it runs on a thread.

        For what takes more than some milliseconds, such as the answer about thousands of
        partitions.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Value] = loop.create_future()

        def done(value: Value) -> None:
            if not result.done():
                result.set_result(value)

        def failed(error: Exception) -> None:
            if not result.done():
                result.set_exception(error)

        self.services.executor.run(work, done, failed, self.owner)
        return await result
