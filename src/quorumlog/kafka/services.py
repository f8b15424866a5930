"""What all connections of a node share, put together: coordinators, gate, counters."""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from quorumlog.auth.permits import Authorizer
from quorumlog.auth.throttles import Throttles
from quorumlog.kafka.broker_view import BrokerView
from quorumlog.kafka.context import RequestExecutor, Services
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.encoded_topics import EncodedTopics
from quorumlog.kafka.groups.coordinator import GroupCoordinator
from quorumlog.kafka.groups.offset_commits import OffsetCommits
from quorumlog.kafka.producer_ids import Allocate, ProducerIds
from quorumlog.kafka.rooms import Rooms
from quorumlog.kafka.topic_policies import TopicPolicies
from quorumlog.kafka.transactions.coordinator import TransactionCoordinator
from quorumlog.kafka.transactions.gate import TransactionGate
from quorumlog.kafka.transactions.sinks import SinkCoordinator
from quorumlog.model.audit_events import NO_AUDIT, Audit
from quorumlog.model.config import NodeConfig
from quorumlog.transport.client_lines import ClientLines


class ServiceEnvironment(NamedTuple):
    """What services need from outside. `audit` takes what is recorded of administration.

    `executor` runs work on threads. `defer` calls a function at the end of the present turn of the
    loop. `now` reads a clock that never goes back, in seconds, `wall_ms` Unix time in milliseconds.
    `unique` returns a text that it has not returned before, nor on any other node. `authorizer`: by
    whom it is judged what clients may do; None: everything. `throttles`: what clients have used of
    their quotas; None: they have none.
    """

    executor: RequestExecutor
    defer: Callable[[Callable[[], object]], object]
    now: Callable[[], float]
    wall_ms: Callable[[], int]
    unique: Callable[[], str]
    audit: Audit = NO_AUDIT
    authorizer: Authorizer | None = None
    throttles: Throttles | None = None


def make_services(
    broker: BrokerView,
    config: NodeConfig,
    allocate: Allocate,
    counters: KafkaCounters,
    environment: ServiceEnvironment,
    logger: logging.Logger,
    answer_bytes_max: Callable[[], int],
) -> Services:
    """Return the services of a node. `allocate`: see `producer_ids.Allocate`."""
    now, wall_ms = environment.now, environment.wall_ms
    producer_ids = ProducerIds(allocate)

    def now_ms() -> int:
        return int(now() * 1000)

    def later(seconds: float, call: Callable[[], None]) -> object:
        return asyncio.get_running_loop().call_later(seconds, call)

    coordinator = GroupCoordinator(
        broker,
        now_ms,
        wall_ms,
        environment.unique,
        later,
        counters,
        environment.authorizer,
    )
    return Services(
        broker=broker,
        config=config,
        executor=environment.executor,
        counters=counters,
        lines=ClientLines(logger, now),
        producer_ids=producer_ids,
        encoded_topics=EncodedTopics(broker),
        audit=environment.audit,
        now=now,
        defer=environment.defer,
        rooms=Rooms(environment.defer),
        policies=TopicPolicies(),
        coordinator=coordinator,
        commits=OffsetCommits(broker, now_ms),
        transactions=TransactionCoordinator(broker, producer_ids, now_ms, wall_ms, later, counters),
        sinks=SinkCoordinator(broker, counters),
        gate=TransactionGate(broker),
        answer_bytes_max=answer_bytes_max,
        authorizer=environment.authorizer,
        throttles=environment.throttles or Throttles(),
    )


def broker_changed(services: Services) -> None:
    """Let coordinators take over, or give up, what they coordinate.

    They do when this node begins to lead `__cluster`, not only when they are asked: members that
    nobody hears of are to be removed. Then requests go on that came before the broker knew all
    topics.
    """
    if services.coordinator.is_current():
        services.refused_fetches.coordinates()
    services.transactions.is_current()
    if services.broker.is_complete:
        for queue in list(services.held):
            services.held.discard(queue)
            queue.changed()
