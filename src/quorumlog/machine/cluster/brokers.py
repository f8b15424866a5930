"""Brokers and partition groups: registering, making, giving up, opening what is on them."""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from quorumlog.machine.cluster.commands import (
    AddGroups,
    Changed,
    GroupsLed,
    NewGroup,
    PartitionsLost,
    PartitionsOpened,
    RegisterBroker,
    Registered,
    ReplaceGroup,
)
from quorumlog.machine.cluster.state import (
    BROKERS_MAX,
    GROUPS_MAX,
    BrokerRecord,
    ClusterState,
    PartitionGroup,
    TopicPartition,
    group_name,
)
from quorumlog.model.codes import ResponseCode

_NUMBER_AT_END = re.compile(r"[0-9]{1,4}\Z")


def register_broker(state: ClusterState, command: RegisterBroker, at_ms: int) -> Registered:
    """Give a node its number, or take over its new address: it keeps the number."""
    state.cluster_id = state.cluster_id or command.cluster_id
    known = next((one for one in state.brokers.values() if one.node_id == command.node_id), None)
    if known is None and len(state.brokers) >= BROKERS_MAX:
        text = (
            f"{command.node_id} cannot be a broker: {BROKERS_MAX} are registered already "
            "(start it with the selfId of one that has left)"
        )
        return Registered(-1, state.cluster_id, ResponseCode.CLUSTER_FULL, text)
    broker_id = _free_id(state, command.node_id) if known is None else known.broker_id
    state.brokers[broker_id] = BrokerRecord(
        broker_id, command.node_id, command.address, command.host, command.port, command.rack
    )
    return Registered(broker_id, state.cluster_id)


def _free_id(state: ClusterState, node_id: str) -> int:
    """Return the number at the end of a node's id, if it is free; else the next one that is."""
    found = _NUMBER_AT_END.search(node_id)
    wanted = int(found.group()) if found else len(state.brokers)
    if wanted not in state.brokers:
        return wanted
    return max(state.brokers) + 1


def add_groups(state: ClusterState, command: AddGroups, at_ms: int) -> Changed:
    """Add partition groups to be made, unless others were added since the leader looked."""
    if state.groups_made != command.made:
        return Changed(0)
    room = GROUPS_MAX - len(state.groups)
    added = command.groups[:room]
    for new in added:
        _add_group(state, new, at_ms)
    return Changed(len(added))


def _add_group(state: ClusterState, new: NewGroup, at_ms: int) -> PartitionGroup:
    name = group_name(state.groups_made)
    state.groups_made += 1
    group = PartitionGroup(
        name,
        tuple(new.members),
        new.peers,
        new.settings,
        "making",
        at_ms,
        retention_class=new.retention_class,
    )
    state.put_group(group)
    return group


def groups_led(state: ClusterState, command: GroupsLed, at_ms: int) -> Changed:
    """Partition groups have leaders: they are made."""
    count = 0
    for name in command.groups:
        group = state.groups.get(name)
        if group is not None and group.phase == "making":
            state.put_group(replace(group, phase="led", since_ms=at_ms))
            count += 1
    return Changed(count)


def replace_group(state: ClusterState, command: ReplaceGroup, at_ms: int) -> Changed:
    """Give up a group that had no leader yet, and so no partition that was open."""
    given_up = state.groups.get(command.group)
    if given_up is None or given_up.phase != "making":  # see `partitions_opened`
        return Changed(0)
    group = _add_group(state, command.replacement, at_ms)
    given = state.assignments[given_up.name]
    moved = [given[channel].topic_id for channel in sorted(given)]  # alike on all replicas
    for topic_id in dict.fromkeys(moved):
        topic = state.topics_by_id[topic_id]
        partitions = list(topic.partitions)
        for place, one in enumerate(partitions):
            if one.group == given_up.name:
                group, partitions[place] = with_partition(group, one.number)
        state.put_topic(replace(topic, partitions=tuple(partitions)))
    state.put_group(group)
    del state.groups[given_up.name], state.assignments[given_up.name]
    return Changed(1)


def with_partition(group: PartitionGroup, number: int) -> tuple[PartitionGroup, TopicPartition]:
    """Return a group with one more channel in use, and the partition that is on it."""
    partition = TopicPartition(number, group.name, group.next_channel)
    return replace(group, next_channel=group.next_channel + 1), partition


def partitions_opened(state: ClusterState, command: PartitionsOpened, at_ms: int) -> Changed:
    """Partitions can be produced to, as their group's log knows them: so the group is led."""
    groups_led(state, GroupsLed([command.group]), at_ms)
    numbers = _numbers_by_topic(state, command.group, command.channels)
    for topic_id, found in numbers.items():
        topic = state.topics_by_id[topic_id]
        partitions = list(topic.partitions)
        for number in found:
            partitions[number] = replace(partitions[number], is_open=True)
        state.put_topic(replace(topic, partitions=tuple(partitions)))
    return Changed(sum(map(len, numbers.values())))


def partitions_lost(state: ClusterState, command: PartitionsLost, at_ms: int) -> Changed:
    """Partitions begin again, on channels that their group's log has never had."""
    group = state.groups.get(command.group)
    if group is None:
        return Changed(0)
    if group.next_channel <= command.highest:
        group = replace(group, next_channel=command.highest + 1)
    numbers = _numbers_by_topic(state, command.group, command.channels)
    for topic_id, found in numbers.items():
        topic = state.topics_by_id[topic_id]
        partitions = list(topic.partitions)
        for number in found:
            group, partitions[number] = with_partition(group, number)
        state.put_topic(replace(topic, partitions=tuple(partitions)))
    state.put_group(group)
    return Changed(sum(map(len, numbers.values())))


def _numbers_by_topic(
    state: ClusterState, group: str, channels: Sequence[int]
) -> dict[bytes, list[int]]:
    """Return the numbers of the partitions on some channels, by the ids of their topics."""
    known = state.assignments.get(group, {})
    found: dict[bytes, list[int]] = {}
    for channel in dict.fromkeys(channels):
        if channel in known:
            found.setdefault(known[channel].topic_id, []).append(known[channel].number)
    return found
