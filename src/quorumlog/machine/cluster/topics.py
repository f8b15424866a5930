"""Making and deleting topics, giving them partitions, and altering configs."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec.structs import replace

from quorumlog.machine.cluster.brokers import with_partition
from quorumlog.machine.cluster.commands import (
    DEFAULT,
    NO_TOPIC,
    AlterConfigs,
    AlterResource,
    ConfigChange,
    ConfigsAltered,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicOutcome,
    TopicsChanged,
    TopicToDelete,
)
from quorumlog.machine.cluster.state import (
    PARTITIONS_MAX,
    TOPIC_PARTITIONS_MAX,
    ClusterState,
    ClusterView,
    Topic,
    folded,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import CLUSTER_GROUP
from quorumlog.model.retention_classes import nearest, retention_class
from quorumlog.model.topic_configs import (
    CLUSTER_CONFIGS,
    PARTITIONS_DEFAULT,
    TOPIC_CONFIGS,
    cluster_default,
    problem_of,
    problem_of_defaults,
    problem_of_topic,
)
from quorumlog.model.wording import counted, topic_id_text
from quorumlog.topics.entries import TOPIC_NAME_MAX

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_RESERVED: Final = frozenset({CLUSTER_GROUP})


@dataclass(frozen=True, slots=True)
class _TopicError(Exception):
    """Why a topic is not as a command wants it."""

    code: ResponseCode
    text: str


Tables: TypeAlias = ClusterState | ClusterView
"""What a new topic is judged by."""


def problem_of_name(name: str) -> str:
    """Return why a topic cannot have a name; empty: it can (Kafka's rules)."""
    if not name:
        return "a topic's name is not empty"
    if name in (".", ".."):
        return f"a topic cannot be named {name!r}"
    if len(name) > TOPIC_NAME_MAX:
        return f"a topic's name has at most {TOPIC_NAME_MAX} characters, not {len(name)}"
    if not _NAME.fullmatch(name):
        return f"topic {name!r}: a name has letters and digits of ASCII, '.', '_' and '-'"
    return f"the name {name} is reserved" if name in _RESERVED else ""


# -- making ---------------------------------------------------------------------------------------


def create_topics(state: ClusterState, command: CreateTopics, at_ms: int) -> TopicsChanged:
    """Make topics, each whole or not at all."""
    outcomes = []
    for new in command.topics:
        try:
            outcomes.append(_create(state, new, at_ms, only_checks=command.validate_only))
        except _TopicError as error:
            outcomes.append(TopicOutcome(new.name, NO_TOPIC, error.code, error.text))
    return TopicsChanged(outcomes)


def _create(state: ClusterState, new: NewTopic, at_ms: int, *, only_checks: bool) -> TopicOutcome:
    count = _judged(state, new)
    topic = Topic(new.name, new.topic_id, (), dict(new.configs), at_ms)
    if not only_checks:
        topic = _with_partitions(state, topic, count)
        state.put_topic(topic)
    return _outcome(state, topic, count)


def _judged(state: Tables, new: NewTopic) -> int:
    """Return how many partitions a new topic gets. Raises `_TopicError`: it cannot be made."""
    if text := problem_of_name(new.name):
        raise _TopicError(ResponseCode.INVALID_TOPIC, text)
    if new.name in state.topics:
        raise _TopicError(ResponseCode.TOPIC_EXISTS, f"topic {new.name!r} exists already")
    if (alike := state.folded.get(folded(new.name))) is not None:
        text = f"topic {new.name!r} would be named like {alike!r} in metrics, where '.' is '_'"
        raise _TopicError(ResponseCode.INVALID_TOPIC, text)
    if new.topic_id == NO_TOPIC or new.topic_id in state.topics_by_id:
        raise _TopicError(ResponseCode.UNEXPECTED_ARGUMENT, "another topic has this id")
    count = new.partitions
    if count == DEFAULT:
        count = int(cluster_default(PARTITIONS_DEFAULT, state.defaults))
    if not 1 <= count <= TOPIC_PARTITIONS_MAX:
        text = f"a topic has 1 to {TOPIC_PARTITIONS_MAX} partitions, not {count}"
        raise _TopicError(ResponseCode.INVALID_PARTITIONS, text)
    factor = new.replication_factor
    if factor != DEFAULT and not 1 <= factor <= len(state.brokers):
        has = counted(len(state.brokers), "broker")
        text = f"replication factor {factor}: the cluster has {has}; give 1 to {len(state.brokers)}"
        raise _TopicError(ResponseCode.INVALID_REPLICATION_FACTOR, text)
    if text := problem_of_topic(new.configs):
        raise _TopicError(ResponseCode.INVALID_CONFIG, text)
    _check_room(state, count)
    return count


def _check_room(state: Tables, count: int) -> None:
    if state.partition_count + count > PARTITIONS_MAX:
        text = (
            f"a cluster has at most {PARTITIONS_MAX} partitions; {state.partition_count} are in "
            f"use, and {count} more are asked for"
        )
        raise _TopicError(ResponseCode.CLUSTER_FULL, text)


def _with_partitions(state: ClusterState, topic: Topic, count: int) -> Topic:
    """Return a topic with `count` partitions, the new ones on the groups that have the fewest.

    These are groups of its retention class, or of the nearest one that has groups. They take turns
    over groups, and so over leaders: a topic's load is spread from its first partitions on.
    """
    if not state.groups:
        text = "no partition group is there yet; try again"
        raise _TopicError(ResponseCode.CHANGE_IN_PROGRESS, text)
    used = {name: len(found) for name, found in state.assignments.items()}
    wanted = retention_class(topic.configs, state.defaults)
    chosen = nearest(wanted, {group.retention_class for group in state.groups.values()})
    suited = [name for name, group in state.groups.items() if group.retention_class == chosen]
    order = sorted(suited, key=lambda name: (used[name], len(name), name))
    partitions = list(topic.partitions)
    for turn, number in enumerate(range(len(partitions), count)):
        name = order[turn % len(order)]
        group, partition = with_partition(state.groups[name], number)
        state.groups[name] = group
        partitions.append(partition)
    return replace(topic, partitions=tuple(partitions))


def _outcome(state: ClusterState, topic: Topic, count: int) -> TopicOutcome:
    groups = {one.group for one in topic.partitions} or state.groups.keys()
    factor = min((len(state.groups[name].members) for name in groups), default=-1)
    return TopicOutcome(topic.name, topic.topic_id, partitions=count, replication_factor=factor)


def create_partitions(state: ClusterState, command: CreatePartitions, at_ms: int) -> TopicsChanged:
    """Give topics more partitions."""
    outcomes = []
    for more in command.topics:
        try:
            outcomes.append(_grow(state, more, only_checks=command.validate_only))
        except _TopicError as error:
            outcomes.append(TopicOutcome(more.name, NO_TOPIC, error.code, error.text))
    return TopicsChanged(outcomes)


def _grow(state: ClusterState, more: MorePartitions, *, only_checks: bool) -> TopicOutcome:
    topic = _judged_growth(state, more)
    if not only_checks:
        topic = _with_partitions(state, topic, more.count)
        state.put_topic(topic)
    return _outcome(state, topic, more.count)


def _judged_growth(state: Tables, more: MorePartitions) -> Topic:
    """Return the topic that gets more partitions. Raises `_TopicError`: it cannot."""
    topic = state.topics.get(more.name)
    if topic is None:
        raise _TopicError(ResponseCode.UNKNOWN_TOPIC, f"there is no topic {more.name!r}")
    now = len(topic.partitions)
    if more.count <= now:
        text = f"topic {more.name!r} has {counted(now, 'partition')}, and cannot have {more.count}"
        raise _TopicError(ResponseCode.INVALID_PARTITIONS, f"{text}: the number only rises")
    if more.count > TOPIC_PARTITIONS_MAX:
        text = f"a topic has at most {TOPIC_PARTITIONS_MAX} partitions, not {more.count}"
        raise _TopicError(ResponseCode.INVALID_PARTITIONS, text)
    _check_room(state, more.count - now)
    return topic


# -- what partitions need -------------------------------------------------------------------------


def classes_of(state: Tables, command: CreateTopics | CreatePartitions) -> frozenset[int]:
    """Return the retention classes of the partitions that a command makes: none if it only checks.

    Each topic is judged by itself, as if it were the only one.
    """
    if command.validate_only:
        return frozenset()
    return frozenset(retention_class(one, state.defaults) for one in _configs_of(state, command))


def _configs_of(
    state: Tables, command: CreateTopics | CreatePartitions
) -> Iterator[Mapping[str, str]]:
    """Yield the configs of the topics that get partitions."""
    for one in command.topics:
        try:
            if isinstance(one, NewTopic):
                _judged(state, one)
                yield one.configs
            else:
                yield _judged_growth(state, one).configs
        except _TopicError:
            continue


def delete_topics(state: ClusterState, command: DeleteTopics, at_ms: int) -> TopicsChanged:
    """Delete topics; their names are free at once."""
    return TopicsChanged([_delete(state, one) for one in command.topics])


def _delete(state: ClusterState, asked: TopicToDelete) -> TopicOutcome:
    if asked.topic_id != NO_TOPIC:
        topic = state.topics_by_id.get(asked.topic_id)
    else:
        topic = state.topics.get(asked.name)
    if topic is None:
        of_id = f"of id {topic_id_text(asked.topic_id)}"
        text = f"there is no topic {repr(asked.name) if asked.topic_id == NO_TOPIC else of_id}"
        return TopicOutcome(asked.name, asked.topic_id, ResponseCode.UNKNOWN_TOPIC, text)
    state.remove_topic(topic)
    return TopicOutcome(topic.name, topic.topic_id, partitions=len(topic.partitions))


# -- configs --------------------------------------------------------------------------------------


def alter_configs(state: ClusterState, command: AlterConfigs, at_ms: int) -> ConfigsAltered:
    """Change the configs of topics and of the cluster, all those of each or none."""
    outcomes: list[tuple[ResponseCode, str]] = []
    for resource in command.resources:
        try:
            _alter(state, resource, only_checks=command.validate_only)
            outcomes.append((ResponseCode.SUCCESS, ""))
        except _TopicError as error:
            outcomes.append((error.code, error.text))
    return ConfigsAltered(outcomes)


def _alter(state: ClusterState, resource: AlterResource, *, only_checks: bool) -> None:
    if resource.topic is None:
        defaults = _altered(state.defaults, resource, is_topic=False)
        text = problem_of_defaults(defaults)
        if text and not problem_of_defaults(state.defaults):  # what an earlier version took stays
            raise _TopicError(ResponseCode.INVALID_CONFIG, text)
        if not only_checks:
            state.defaults = defaults
        return
    topic = state.topics.get(resource.topic)
    if topic is None:
        raise _TopicError(ResponseCode.UNKNOWN_TOPIC, f"there is no topic {resource.topic!r}")
    configs = _altered(topic.configs, resource, is_topic=True)
    if not only_checks:
        state.put_topic(replace(topic, configs=configs))


def _altered(before: dict[str, str], resource: AlterResource, *, is_topic: bool) -> dict[str, str]:
    definitions = TOPIC_CONFIGS if is_topic else CLUSTER_CONFIGS
    whose = "topics" if is_topic else "clusters"
    after = {} if resource.replaces else dict(before)
    for change in resource.changes:
        definition = definitions.get(change.name)
        if definition is None:
            text = f"{whose} have no config {change.name!r}"
            raise _TopicError(ResponseCode.INVALID_CONFIG, text)
        if change.operation == "delete":
            after.pop(change.name, None)
            continue
        value = change.value
        if change.operation != "set":
            if definition.type != "list":
                text = f"{change.name} is no list: nothing is appended to it or subtracted from it"
                raise _TopicError(ResponseCode.INVALID_CONFIG, text)
            value = _list_changed(after.get(change.name, definition.default), change)
        if text := problem_of(definitions, change.name, value, of=whose):
            raise _TopicError(ResponseCode.INVALID_CONFIG, text)
        after[change.name] = value
    return after


def _list_changed(value: str, change: ConfigChange) -> str:
    items = [item.strip() for item in value.split(",") if item.strip()]
    given = [item.strip() for item in change.value.split(",") if item.strip()]
    if change.operation == "append":
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)
