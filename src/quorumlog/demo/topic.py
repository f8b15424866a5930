"""A topic in the same cluster: librdkafka produces, the leader of a partition dies meanwhile."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console

from quorumlog.client.kafka_security import librdkafka_settings
from quorumlog.demo.partition_reads import PartitionRead, partition_read, value_digest
from quorumlog.local import LocalCluster
from quorumlog.model.config import host_port
from quorumlog.model.wording import counted

TOPIC: Final = "flights"
PARTITIONS: Final = 6
RECORDS_MAX: Final = 100_000
"""As many flights as are produced at most."""
SECONDS: Final = 60.0
"""Each step of the cluster or of the producer takes at most this long, or fails."""
ASK_SECONDS: Final = 5.0
"""How long one request for metadata waits."""
POLL_SECONDS: Final = 0.02
_QUIET: Final = {"log_level": 0}
"""librdkafka says on standard error what is expected here: that a broker is gone."""


class TopicFailed(Exception):  # noqa: N818  (says what, in a person's words)
    """The topic is not as the demonstration needs it."""


@dataclass(slots=True)
class Produced:
    """What was sent and acknowledged, and how the partition's leader changed.

    The topic is new and its producer idempotent, so that the records of a partition get the offsets
    0, 1, 2 … in the order in which they were sent.
    """

    sent: list[list[bytes]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    """The digests of the values that were sent to each partition, in their order."""
    records: int = 0
    """How many records were acknowledged."""
    without_offset: int = 0
    """Those of which librdkafka knows by the acknowledgement of later ones only."""
    refused: list[str] = field(default_factory=list)
    seconds: float = 0.0
    killed: str = ""
    new_leader: str = ""
    seconds_to_new_leader: float = 0.0
    """From the kill on."""

    def partitions(self) -> dict[int, PartitionRead]:
        """Return what a reader has to find in every partition."""
        return {number: partition_read(enumerate(sent)) for number, sent in enumerate(self.sent)}

    def report(self, expected: int, error: KafkaError | None, message: Message) -> None:
        """Take the delivery report of a record that has to be at an offset."""
        offset = message.offset()
        if error is not None:
            self.refused.append(str(error))
        elif offset is not None and offset != expected:
            where = f"{TOPIC}-{message.partition()}"
            self.refused.append(f"record {expected} of {where} is acknowledged at {offset}")
        else:
            self.records += 1
            self.without_offset += offset is None


def _librdkafka(cluster: LocalCluster, servers: str = "") -> dict[str, Any]:
    """Return the settings by which librdkafka reaches brokers: these, or all of a cluster."""
    security = cluster.context.open().security
    found = {"bootstrap.servers": servers or cluster.bootstrap_servers, **_QUIET}
    return found | librdkafka_settings(security)


def create_topic(cluster: LocalCluster) -> None:
    """Wait until all nodes are brokers that the cluster knows, then create the topic.

    Raises `TimeoutError`, and `KafkaException` if the topic is refused.
    """
    admin = AdminClient(_librdkafka(cluster))
    _until(lambda: len(admin.list_topics(timeout=ASK_SECONDS).brokers) == len(cluster.node_ids))
    (made,) = admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values()
    made.result(SECONDS)


def produce(
    cluster: LocalCluster, bodies: Iterable[bytes], total: int, console: Console
) -> Produced:
    """Produce all bodies idempotently; after the first half kill the leader of partition 0.

    The other half is produced while another node takes over and the killed one starts again. Raises
    `TopicFailed` if a record is refused, and `TimeoutError`.
    """
    settings: dict[str, Any] = {
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 5,
        **_librdkafka(cluster),
    }
    producer = Producer(settings)
    produced = Produced()
    started = time.monotonic()
    fail_over: Future[None] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="topic-fail-over") as pool:
        for sent, body in enumerate(bodies):
            if fail_over is None and sent >= total // 2:
                if sent:
                    _until(lambda: producer.poll(POLL_SECONDS) >= 0 and produced.records > 0)
                killed_at = _kill_leader(cluster, producer, produced, console)
                fail_over = pool.submit(_fail_over, cluster, produced, killed_at, console)
            _send(producer, sent % PARTITIONS, body, produced)
        left = producer.flush(SECONDS)
        produced.seconds = time.monotonic() - started
        if fail_over is None:
            raise TopicFailed("no leader was killed: too few records for a half-way point")
        fail_over.result()
    if left or produced.refused or produced.records != total:
        raise TopicFailed(
            f"only {produced.records:,} of {counted(total, 'record')} acknowledged"
            + (f"; the first refusal: {produced.refused[0]}" if produced.refused else "")
        )
    return produced


def _send(producer: Producer, number: int, body: bytes, produced: Produced) -> None:
    """Give the producer a record, once its queue has room."""
    sent = produced.sent[number]
    report = partial(produced.report, len(sent))
    sent.append(value_digest(body))
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            producer.produce(TOPIC, body, partition=number, on_delivery=report)
        except BufferError:
            if time.monotonic() > deadline:
                raise
            producer.poll(POLL_SECONDS)
        else:
            producer.poll(0)
            return


def _kill_leader(
    cluster: LocalCluster, producer: Producer, produced: Produced, console: Console
) -> float:
    """Kill the node that leads partition 0; return when, on the monotonic clock."""
    produced.killed = _leader(cluster, producer.list_topics(TOPIC, ASK_SECONDS))
    if not produced.killed:
        raise TopicFailed(f"{TOPIC}-0 has no leader")
    killed_at = time.monotonic()
    cluster.kill(produced.killed)
    console.print(
        f"  [red]killed[/red] {produced.killed}, the leader of partition 0, with SIGKILL, after "
        f"{produced.records:,} acknowledgements"
    )
    return killed_at


def _fail_over(
    cluster: LocalCluster, produced: Produced, killed_at: float, console: Console
) -> None:
    """Wait until another node leads partition 0, and start the killed one again."""
    rest = ",".join(
        cluster.kafka_address(node_id) for node_id in cluster.node_ids if node_id != produced.killed
    )
    admin = AdminClient(_librdkafka(cluster, rest))

    def other_leads() -> bool:
        produced.new_leader = _leader(cluster, admin.list_topics(TOPIC, ASK_SECONDS))
        return produced.new_leader not in ("", produced.killed)

    _until(other_leads)
    produced.seconds_to_new_leader = time.monotonic() - killed_at
    cluster.start(produced.killed)
    console.print(
        f"  {produced.new_leader} leads partition 0, {produced.seconds_to_new_leader:.2f} s after "
        f"the kill; {produced.killed} is started again"
    )


def _leader(cluster: LocalCluster, metadata: Any) -> str:
    """Return the node that leads partition 0; empty: none is known."""
    partition = metadata.topics[TOPIC].partitions.get(0)
    broker = metadata.brokers.get(partition.leader) if partition is not None else None
    if broker is None:
        return ""
    address = host_port(broker.host, broker.port)
    nodes = {cluster.kafka_address(node_id): node_id for node_id in cluster.node_ids}
    return nodes.get(address, "")


def _until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so; no answer is "not yet". Raises `TimeoutError`."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            if is_so():
                return
        except KafkaException:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cluster did not get there within {SECONDS:g} s")
        time.sleep(POLL_SECONDS)
