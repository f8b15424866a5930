"""What brokers say of consumer groups of both protocols, in the form of the classic one.

kafka-python knows only the classic one; groups by the consumer protocol (KIP-848) are asked for by
messages of our own.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from quorumlog.cli.errors import CommandError
from quorumlog.machine.cluster.consumer_groups import LOG_PREFIX

DEAD: Final = "Dead"
"""The state of a group that does not exist."""
CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
"""Types of groups, by Kafka's names."""


def described_groups(client: Any, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the members of groups, by name. Raises `CommandError`, and errors of kafka-python."""
    found = {name: _as_classic(one) for name, one in _of_consumer_protocol(client, names).items()}
    others = [name for name in names if name not in found]
    if others:
        found.update(_of_classic_protocol(client, others))
    return {name: found[name] for name in names}


def _of_classic_protocol(client: Any, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Ask for groups by the classic protocol; kafka-python says beside them why there are none."""
    from kafka.errors import NotCoordinatorError  # noqa: PLC0415  (see kafka_admin)

    found = client.describe_groups(names)
    for name, one in found.items():
        one["group_type"] = CLASSIC
        error = one["error"]
        if error and "Coordinator" in error:
            raise NotCoordinatorError(error)
        if error and one["group_state"] != DEAD:
            raise CommandError(f"consumer group {name!r}: {error}")
    return dict(found)


def _of_consumer_protocol(client: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return those groups that are of the consumer protocol."""
    from kafka import errors  # noqa: PLC0415  (see kafka_admin)

    from quorumlog.kafka.schemas import ConsumerGroupDescribeRequest  # noqa: PLC0415

    async def ask() -> list[Any]:
        places: dict[int, list[str]] = {}
        for name, node_id in (await client._find_coordinator_ids(names)).items():
            places.setdefault(node_id, []).append(name)
        answers = []
        for node_id, some in places.items():
            request = ConsumerGroupDescribeRequest(
                group_ids=some, include_authorized_operations=False
            )
            answers.append(await client._manager.send(request, node_id=node_id))
        return answers

    try:
        answers = client._manager.run(ask)
    except errors.IncompatibleBrokerVersion:
        return {}  # an earlier build, which has none
    found = {}
    for group in (one for answer in answers for one in answer.groups):
        if not group.error_code:
            found[group.group_id] = group.to_dict()
        elif group.error_code != errors.GroupIdNotFoundError.errno:
            raise errors.for_code(group.error_code)(group.error_message)
    return found


def _as_classic(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **group,
        "group_type": CONSUMER,
        "protocol_data": group["assignor_name"],
        "members": [
            {
                **one,
                "group_instance_id": one["instance_id"],
                "member_assignment": {"assigned_partitions": _places(one["assignment"])},
            }
            for one in group["members"]
        ],
    }


def _places(assignment: Mapping[str, Any]) -> list[dict[str, Any]]:
    topics: Iterable[Mapping[str, Any]] = assignment["topic_partitions"]
    return [{"topic": one["topic_name"], "partitions": one["partitions"]} for one in topics]


def is_log(topic: str) -> bool:
    """Whether what stands among the topics of a consumer group is a log that it reads."""
    return topic.startswith(LOG_PREFIX)


def log_bounds(client: Any, topics: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return the first index of each log, and that after its last entry, as brokers know them.

    `topics`: names of logs among topics. Those of which no broker has a replica are left out.
    """
    from kafka.admin import OffsetSpec  # noqa: PLC0415  (see kafka_admin)
    from kafka.protocol.consumer import ListOffsetsRequest  # noqa: PLC0415

    topic_of = ListOffsetsRequest.ListOffsetsTopic
    partition_of = topic_of.ListOffsetsPartition

    def request(spec: Any) -> Any:
        # all partitions of a log begin and end with it
        asked = [partition_of(partition_index=0, timestamp=spec.value)]
        named = [topic_of(name=name, partitions=asked) for name in sorted(topics)]
        return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=named)

    async def ask(node_id: int, spec: Any) -> dict[str, int]:
        answer = await client._manager.send(request(spec), node_id=node_id)
        return {one.name: one.partitions[0].offset for one in answer.topics}

    async def ask_all() -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for node_id in broker_ids:
            starts = await ask(node_id, OffsetSpec.EARLIEST)
            ends = await ask(node_id, OffsetSpec.LATEST)
            for name, end in ends.items():
                if end >= 0 and end >= found.get(name, (0, -1))[1]:
                    found[name] = starts[name], end
        return found

    if not topics:
        return {}
    broker_ids = [one["broker_id"] for one in client.describe_cluster()["brokers"]]
    return dict(client._manager.run(ask_all))
